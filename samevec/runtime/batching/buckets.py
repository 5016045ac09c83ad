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

__all__ = [
    "LEAST_TOKENS",
    "MANY_ROWS",
    "Bucket",
    "Piece",
    "bucket_shapes",
    "cover",
    "fill_bucket",
    "most_open_shapes",
    "stale_entries",
]

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
        Of the longest row a model takes; the longest bucket has exactly that length.
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


def cover(lengths: Sequence[int], shapes: Sequence[Bucket]) -> list[Piece]:
    """Cut a run into pieces that each fill a bucket, so that the least is computed.

    Parameters
    ----------
    lengths : sequence of int
        Tokens of each row of the run, at least 1 each.
    shapes : sequence of Bucket
        As :func:`bucket_shapes` gives them.

    Returns
    -------
    list of Piece
        Every row once, in order.

    Raises
    ------
    InputError
        No bucket is that long.

    Notes
    -----
    The least by padded tokens, where a run counts as twice the tokens of the smallest bucket in addition. So eights are
    at least half full, and a short row is padded to the length of a long one only where that is cheaper than a run of
    its own.
    """
    widths = [_width(n_tokens, shapes) for n_tokens in lengths]
    run_tokens = 2 * min(shape.n_tokens for shape in shapes)
    costs, pieces = [0] * (len(widths) + 1), {}
    for start in reversed(range(len(widths))):
        found = _pieces_at(start, widths, shapes)
        totals = [piece.bucket.padded_tokens + run_tokens + costs[piece.stop] for piece in found]
        costs[start] = min(totals)
        pieces[start] = found[totals.index(costs[start])]
    chosen, start = [], 0
    while start < len(widths):
        chosen.append(pieces[start])
        start = pieces[start].stop
    return chosen


def _width(n_tokens: int, shapes: Sequence[Bucket]) -> int:
    width = min((shape.n_tokens for shape in shapes if shape.n_tokens >= n_tokens), default=None)
    if width is None:
        longest = max(shape.n_tokens for shape in shapes)
        raise InputError(f"{n_tokens} tokens, the longest compiled shape has {longest}", field="input")
    return width


def _pieces_at(start: int, widths: Sequence[int], shapes: Sequence[Bucket]) -> list[Piece]:
    """Return the pieces that may begin at a row, those of most rows first."""
    found = [Piece(start, start + 1, Bucket(1, widths[start]))]
    for stop in range(start + 1, min(start + MANY_ROWS, len(widths)) + 1):
        bucket = Bucket(MANY_ROWS, max(widths[start:stop]))
        if bucket in shapes:
            found.insert(0, Piece(start, stop, bucket))
    return found


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


def most_open_shapes(n_shapes: int, *, weights_bytes: int, available_bytes: int) -> int:
    """Return how many shapes may be loaded at the same time, each of which may hold a copy of the weights.

    Parameters
    ----------
    n_shapes : int
        That there are.
    weights_bytes : int
    available_bytes : int
        Memory the process could still take.

    Returns
    -------
    int
        As many as fit into half of it, and never fewer than 2: with a single one, every run of another shape would load
        it anew.
    """
    fitting = available_bytes // 2 // max(1, weights_bytes)
    return min(n_shapes, max(2, fitting))


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
