"""What happens to raw rows: prefix, normalisation, activation. Pure.

The native library computes unit norms and sigmoids, with the same bits on every processor; where it cannot be loaded
(a machine of the ``portable`` profile) numpy does.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, cast

import numpy as np

from samevec.errors import InputError, NativeLibraryError
from samevec.native.library import load_library
from samevec.runtime.checks import require_usable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from samevec.native.library import NativeLibrary

__all__ = ["activate", "l2_normalize", "shorten"]


@functools.cache
def _library() -> NativeLibrary | None:
    try:
        return load_library()
    except NativeLibraryError:
        return None


def l2_normalize(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale rows to unit length.

    Parameters
    ----------
    vectors : ndarray of float32, shape (n_rows, width)

    Returns
    -------
    ndarray of float32, shape (n_rows, width)
        Each row of norm 1. The norm is summed in float64 along each row, so a row's bits do not depend on the others,
        nor on how the array lies in memory.

    Raises
    ------
    NonFiniteOutputError
        A row is zero, or has a value that is not finite.
    """
    vectors = np.ascontiguousarray(vectors)  # numpy sums along the longest strides last: another layout, other bits
    require_usable(vectors, may_be_zero=False)
    library = _library()
    return _numpy_unit_norm(vectors) if library is None else library.unit_norm(vectors)


def _numpy_unit_norm(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    norms = np.sqrt(np.square(vectors, dtype=np.float64).sum(axis=1, keepdims=True))
    return cast("NDArray[np.float32]", (vectors / norms).astype(np.float32))


def shorten(
    raw: NDArray[np.float32], *, dimensions: int | None, normalize: bool, renormalize: bool = True
) -> NDArray[np.float32]:
    """Turn raw pooled vectors into what callers get.

    Parameters
    ----------
    raw : ndarray of float32, shape (n_rows, width)
    dimensions : int or None
        Length of the Matryoshka prefix; None keeps the width.
    normalize : bool
        Scale to unit length.
    renormalize : bool
        With a prefix: True normalises the prefix itself (OpenAI's rule for ``dimensions``), False normalises the whole
        vector first and then cuts (sentence-transformers' ``truncate_dim``), which leaves norms below 1.

    Returns
    -------
    ndarray of float32, shape (n_rows, dimensions or width)

    Raises
    ------
    NonFiniteOutputError
        A row is zero or not finite.
    """
    if not normalize:
        vectors = np.ascontiguousarray(raw[:, :dimensions])
        require_usable(vectors, may_be_zero=False)
        return vectors
    if dimensions is None or renormalize:
        return l2_normalize(raw[:, :dimensions])
    return np.ascontiguousarray(l2_normalize(raw)[:, :dimensions])


def activate(logits: NDArray[np.float32], activation: str | None) -> NDArray[np.float32]:
    """Apply the checkpoint's documented activation to logits.

    Parameters
    ----------
    logits : ndarray of float32, shape (n_rows, 1)
    activation : str or None
        ``"sigmoid"``, or ``"identity"``/None for raw logits.

    Returns
    -------
    ndarray of float32, shape (n_rows,)
    """
    flat = np.ascontiguousarray(logits[:, 0])
    if activation in (None, "identity"):
        return flat
    if activation != "sigmoid":
        raise InputError(f"activation {activation!r} is not known", field="activation")
    library = _library()
    if library is not None:
        return library.sigmoid(flat).astype(np.float32)
    # Two branches so that exp never overflows: float32 overflows above 88.
    positive = flat >= 0
    decay = np.exp(np.where(positive, -flat, flat))
    return np.where(positive, 1 / (1 + decay), decay / (1 + decay)).astype(np.float32)
