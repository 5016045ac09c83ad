"""Token rows in, padded arrays out: the only place where padding is added."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from samevec.runtime.rows import TokenRow

__all__ = ["Features", "collate", "padded_length"]


@dataclass(frozen=True, slots=True)
class Features:
    """What one session run is fed.

    Attributes
    ----------
    input_ids, attention_mask : ndarray of int64, shape (n_rows, n_tokens)
        Right-padded; the mask is 1 on real tokens and 0 on padding. It is built from lengths, never from ids: the
        embedder's pad token and end token are the same id.
    token_type_ids : ndarray of int64, shape (n_rows, n_tokens), or None
    """

    input_ids: NDArray[np.int64]
    attention_mask: NDArray[np.int64]
    token_type_ids: NDArray[np.int64] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and padded tokens."""
        n_rows, n_tokens = self.input_ids.shape
        return (n_rows, n_tokens)

    def as_feed(self, names: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Return the arrays a graph declares, by name."""
        named = {
            "input_ids": self.input_ids,
            "attention_mask": self.attention_mask,
            "token_type_ids": np.zeros_like(self.input_ids) if self.token_type_ids is None else self.token_type_ids,
        }
        return {name: named[name] for name in names}

    @property
    def digest(self) -> str:
        """``sha256:...`` of shape, dtype and values, as parity reports record them."""
        digest = hashlib.sha256(f"{self.shape} {self.input_ids.dtype.str}".encode())
        for array in (self.input_ids, self.attention_mask, self.token_type_ids):
            digest.update(b"-" if array is None else np.ascontiguousarray(array).tobytes())
        return "sha256:" + digest.hexdigest()


def padded_length(n_tokens: int, pad_to_multiple: int) -> int:
    """Return the width of a run whose longest row has `n_tokens` tokens."""
    return -(-n_tokens // pad_to_multiple) * pad_to_multiple


def collate(rows: Sequence[TokenRow], *, pad_token_id: int, pad_to_multiple: int) -> Features:
    """Pad rows on the right to one length.

    Parameters
    ----------
    rows : sequence of TokenRow
        At least one, none empty.
    pad_token_id : int
        Id written into padding; masked, so it has no influence.
    pad_to_multiple : int
        The length is rounded up to a multiple of this.

    Returns
    -------
    Features
    """
    longest = max(row.n_tokens for row in rows)
    width = padded_length(longest, pad_to_multiple)
    input_ids = np.full((len(rows), width), pad_token_id, dtype=np.int64)
    attention_mask = np.zeros((len(rows), width), dtype=np.int64)
    type_ids = None if rows[0].type_ids is None else np.zeros((len(rows), width), dtype=np.int64)
    for i, row in enumerate(rows):
        input_ids[i, : row.n_tokens] = row.ids
        attention_mask[i, : row.n_tokens] = 1
        if type_ids is not None and row.type_ids is not None:
            type_ids[i, : row.n_tokens] = row.type_ids
    return Features(input_ids, attention_mask, type_ids)
