"""Fixed shapes for a provider that compiles one program a shape: which there are, and how rows are put into them. Pure.

Tokens double from bucket to bucket and rows come alone or in eights, so a run is never padded to more than twice its
tokens (from 32 on), never to more than twice its rows, and there are few programs to compile and keep.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from samevec.errors import InputError
from samevec.runtime.collate import Features

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["LEAST_TOKENS", "MANY_ROWS", "Bucket", "Piece", "bucket_shapes", "cover", "fill_bucket", "stale_entries"]

#: Tokens of the smallest bucket.
LEAST_TOKENS = 32
#: Rows of a bucket that holds more than one.
MANY_ROWS = 8


@dataclass(frozen=True, order=True, slots=True)
class Bucket:
    """A shape that is compiled.

    Attributes
    ----------
    n_rows, n_tokens : int
    """

    n_rows: int
    n_tokens: int

    @property
    def padded_tokens(self) -> int:
        """Tokens that a run of this shape computes."""
        return self.n_rows * self.n_tokens


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows that share one run.

    Attributes
    ----------
    start, stop : int
        The rows' range.
    bucket : Bucket
        The shape they are padded to.
    """

    start: int
    stop: int
    bucket: Bucket


def bucket_shapes(max_tokens: int, *, token_budget: int) -> tuple[Bucket, ...]:
    """Return every shape that may be compiled, ascending.

    Parameters
    ----------
    max_tokens : int
        Of the longest row a model takes; the longest bucket has exactly so many.
    token_budget : int
        Shapes of several rows stay within it.

    Returns
    -------
    tuple of Bucket
        At most ``2 * (1 + ceil(log2(max_tokens / 32)))``: 14 at 8,192 tokens and a budget of 4,096.
    """
    tokens = [min(LEAST_TOKENS, max_tokens)]
    while tokens[-1] < max_tokens:
        tokens.append(min(tokens[-1] * 2, max_tokens))
    alone = [Bucket(1, n) for n in tokens]
    return tuple(sorted(alone + [Bucket(MANY_ROWS, n) for n in tokens if n * MANY_ROWS <= token_budget]))


def cover(n_rows: int, n_tokens: int, shapes: Sequence[Bucket]) -> list[Piece]:
    """Cut a run into pieces that each fill a bucket.

    Parameters
    ----------
    n_rows, n_tokens : int
        Of the run, at least 1 each.
    shapes : sequence of Bucket
        As :func:`bucket_shapes` gives them.

    Returns
    -------
    list of Piece
        Every row once, in order. What is left over after the eights fills another one if it makes half of it, and runs
        row by row otherwise.

    Raises
    ------
    InputError
        No bucket has so many tokens.
    """
    width = min((shape.n_tokens for shape in shapes if shape.n_tokens >= n_tokens), default=None)
    if width is None:
        longest = max(shape.n_tokens for shape in shapes)
        raise InputError(f"{n_tokens} tokens, the longest compiled shape has {longest}", field="input")
    many = max(shape.n_rows for shape in shapes if shape.n_tokens == width)
    pieces, start = [], 0
    while start < n_rows:
        taken = min(many, n_rows - start)
        size = many if taken * 2 >= many else 1
        stop = min(start + size, n_rows)
        pieces.append(Piece(start, stop, Bucket(size, width)))
        start = stop
    return pieces


def fill_bucket(features: Features, piece: Piece) -> Features:
    """Return a piece's rows padded to its bucket; rows that are added see one token, so that nothing divides by zero.

    Parameters
    ----------
    features : Features
    piece : Piece

    Returns
    -------
    Features
    """
    shape = (piece.bucket.n_rows, piece.bucket.n_tokens)

    def padded(array: NDArray[np.int64]) -> NDArray[np.int64]:
        full = np.zeros(shape, dtype=np.int64)
        part = array[piece.start : piece.stop, : piece.bucket.n_tokens]
        full[: part.shape[0], : part.shape[1]] = part
        return full

    mask = padded(features.attention_mask)
    mask[piece.stop - piece.start :, 0] = 1
    type_ids = features.token_type_ids
    return Features(padded(features.input_ids), mask, None if type_ids is None else padded(type_ids))


def stale_entries(entries: Sequence[tuple[str, int, float]], *, most_bytes: int, keep: str | None = None) -> list[str]:
    """Return which entries of a cache must go, so that the rest stays within a bound.

    Parameters
    ----------
    entries : sequence of (name, bytes, time of last use)
    most_bytes : int
    keep : str, optional
        An entry in use: it stays even if it alone is over the bound.

    Returns
    -------
    list of str
        Those that were used longest ago, in that order.
    """
    total, gone = sum(size for _, size, _ in entries), []
    for name, size, _ in sorted(entries, key=lambda entry: (entry[2], entry[0])):
        if total <= most_bytes:
            break
        if name != keep:
            gone.append(name)
            total -= size
    return gone
