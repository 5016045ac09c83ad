"""What is looked at between session runs: deadline, cancellation, memory, and how many rows lately were too many."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from samevec.errors import DeadlineExceededError
from samevec.machine import available_memory_bytes
from samevec.runtime.cancel import CancelToken

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["AdaptiveLimit", "MemoryGuard", "Watch"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Watch:
    """When to stop between two session runs.

    Attributes
    ----------
    clock : callable
        Seconds, monotonic.
    end_s : float or None
        The deadline, in the clock's time.
    cancel : CancelToken
        Given to every run, whether or not anyone can cancel: the gate runs what requests run.
    """

    clock: Callable[[], float]
    end_s: float | None = None
    cancel: CancelToken = field(default_factory=CancelToken)

    def require_time(self) -> None:
        """Go on, or stop here.

        Raises
        ------
        WorkCancelledError
            The work is no longer wanted.
        DeadlineExceededError
            The deadline has passed.
        """
        self.cancel.require_wanted()
        if self.end_s is not None and self.clock() >= self.end_s:
            raise DeadlineExceededError


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryGuard:
    """Keeps a run within the memory that is there.

    Attributes
    ----------
    bytes_per_token : int
        Bytes a padded token, see :class:`samevec.runtime.batching.cost.CostModel`; 0 switches the guard off.
    usable_share : float
        Of the available memory, how much a run may take; the rest is for what else the process does meanwhile.
    available_bytes : callable
        Reads the available memory; an argument so that tests can replace it.
    """

    bytes_per_token: int = 0
    usable_share: float = 0.8
    available_bytes: Callable[[], int] = available_memory_bytes

    def fitting_rows(self, n_rows: int, n_tokens: int) -> int:
        """Return how many of some rows may run together now, at least 1.

        Parameters
        ----------
        n_rows : int
            Rows that would run together.
        n_tokens : int
            Their padded length.
        """
        row_bytes = self.bytes_per_token * n_tokens
        if n_rows == 1 or not row_bytes:
            return n_rows  # nothing to decide, so the memory is not even looked at
        return max(1, min(n_rows, int(self.available_bytes() * self.usable_share) // row_bytes))


class AdaptiveLimit:
    """Rows of one microbatch, halved under memory pressure and recovered slowly; shared by threads.

    Parameters
    ----------
    recover_after : int
        Good microbatches in a row before the limit grows by a step: an eighth of the rows at which trouble began. So
        from one row back to 32 it takes about 130 microbatches, a minute or more of work. At those rows it is lifted.
    """

    def __init__(self, *, recover_after: int = 16) -> None:
        self._recover_after = recover_after
        self._lock = threading.Lock()
        self._rows: int | None = None
        self._trouble_rows = 0
        self._n_good = 0

    @property
    def rows(self) -> int | None:
        """The limit; None when there is none."""
        return self._rows

    def cap(self, max_rows: int) -> int:
        """Return the smaller of `max_rows` and the limit."""
        rows = self._rows
        return max_rows if rows is None else min(max_rows, rows)

    def shrink(self, n_rows: int, *, fitting: int = 1) -> None:
        """Note that `n_rows` rows were too many: the limit is now half of them at most, or what is known to fit."""
        with self._lock:
            self._trouble_rows = max(self._trouble_rows, n_rows)
            self._rows = max(fitting, min(n_rows, self._rows or n_rows) // 2)
            self._n_good = 0

    def note_success(self) -> None:
        """Note that a microbatch ran well."""
        with self._lock:
            if self._rows is None:
                return
            self._n_good += 1
            if self._n_good < self._recover_after:
                return
            self._n_good = 0
            self._rows += max(1, self._trouble_rows // 8)
            if self._rows >= self._trouble_rows:
                self._rows, self._trouble_rows = None, 0
