"""The stages of a result that are compared: raw and normalised vectors, their prefix by either rule, logits, scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from samevec.runtime.pooling import shorten

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from samevec.parity.reference.file import Reference
    from samevec.runtime.embedder import Embedder
    from samevec.runtime.model import Model

__all__ = ["PREFIX_DIMENSIONS", "Level", "levels_of", "prefix_dimensions"]

#: The Matryoshka prefix that is compared: what TrueMemory's tiers serve.
PREFIX_DIMENSIONS = 256


@dataclass(frozen=True, slots=True)
class Level:
    """A stage of the result.

    Attributes
    ----------
    name : str
    expected : ndarray of float32, shape (n_cases, width) or (n_cases,)
        What the reference has there.
    finish : callable
        How the candidate gets there from its raw output.
    """

    name: str
    expected: NDArray[np.float32]
    finish: Callable[[NDArray[np.float32]], NDArray[np.float32]]


def levels_of(model: Model, reference: Reference) -> list[Level]:
    """Return the levels of a model's task, the raw one first.

    A prefix is compared as OpenAI's rule gives it (``prefix``: scaled to unit length again) and as the ``truncate_dim``
    of sentence-transformers does, and so TrueMemory (``truncated``: cut after normalising, left as it is).

    Parameters
    ----------
    model : Model
        Its own ``finish`` is what the candidate's values go through.
    reference : Reference
    """
    if model.task == "rerank":
        return [
            Level("logits", reference.raw, lambda raw: raw),
            Level("scores", reference.final, model.finish),
        ]
    normalised = reference.final if model.entry.normalize else shorten(reference.raw, dimensions=None, normalize=True)
    levels = [Level("raw", reference.raw, lambda raw: raw), Level("normalised", normalised, model.finish)]
    prefix = prefix_dimensions(model)
    if prefix is not None:
        expected = shorten(reference.raw, dimensions=prefix, normalize=True)
        levels.append(Level(f"prefix_{prefix}", expected, lambda raw: model.finish(raw, dimensions=prefix)))
        cut = shorten(reference.raw, dimensions=prefix, normalize=True, renormalize=False)
        levels.append(
            Level(f"truncated_{prefix}", cut, lambda raw: model.finish(raw, dimensions=prefix, renormalize=False))
        )
    return levels


def prefix_dimensions(model: Embedder) -> int | None:
    """Return the prefix to compare: 256, or half of a narrower model; None where the lock allows no prefix."""
    least = model.entry.matryoshka_min_dimensions
    prefix = PREFIX_DIMENSIONS if model.dimensions > PREFIX_DIMENSIONS else model.dimensions // 2
    return prefix if least is not None and least <= prefix else None
