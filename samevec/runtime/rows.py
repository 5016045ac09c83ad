"""The unit of work: one text or pair as token ids."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TokenRow"]


@dataclass(frozen=True, slots=True)
class TokenRow:
    """Token ids of one text or pair, special tokens included, nothing padded.

    Attributes
    ----------
    ids : tuple of int
    type_ids : tuple of int or None
        Segment ids, only for architectures that read them.
    cut_tokens : int
        How many content tokens truncation removed.
    """

    ids: tuple[int, ...]
    type_ids: tuple[int, ...] | None = None
    cut_tokens: int = 0

    @property
    def n_tokens(self) -> int:
        """Length in tokens, the terminal token included."""
        return len(self.ids)

    @property
    def key(self) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
        """What the model sees; rows with equal keys are computed once."""
        return (self.ids, self.type_ids)
