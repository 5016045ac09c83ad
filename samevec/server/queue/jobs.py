"""One request's rows, from the queue to its future. Several threads may deliver to one job."""

from __future__ import annotations

import contextlib
import itertools
import threading
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from samevec.runtime.cancel import CancelToken

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from samevec.runtime.rows import TokenRow

__all__ = ["Job", "QueuedRow"]

_sequence = itertools.count()


@dataclass(slots=True, eq=False)
class Job:
    """One request's distinct rows. Its future is done when all are computed, or at the first that cannot be.

    Attributes
    ----------
    rows : list of TokenRow
        Distinct ones.
    members : ndarray of int64
        For every row of the caller, which of `rows` it equals.
    batch_size, deadline_s, item_field, on_start
        See :meth:`samevec.server.queue.workers.ModelWorker.submit`.
    sequence : int
        Ascending in the order of arrival.
    future : Future of ndarray of float32, shape (n members, width)
        Cancelling it gives the work up.
    cancel : CancelToken
        Cancelled as soon as `future` is done, whatever became of it.
    """

    rows: list[TokenRow]
    members: NDArray[np.int64]
    batch_size: int | None
    deadline_s: float | None
    item_field: str
    sequence: int = field(default_factory=lambda: next(_sequence))
    future: Future[NDArray[np.float32]] = field(default_factory=Future)
    cancel: CancelToken = field(default_factory=CancelToken)
    on_start: Callable[[float], None] | None = None
    _outputs: NDArray[np.float32] | None = None
    _n_missing: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        """Tie the token to the future."""
        self._n_missing = len(self.rows)
        token = self.cancel  # the callback must not hold the job, which holds the future
        self.future.add_done_callback(lambda _: token.cancel())

    @classmethod
    def of(cls, rows: Sequence[TokenRow], *, batch_size: int | None, deadline_s: float | None, item_field: str) -> Job:
        """Make a job of a caller's rows; identical ones become one."""
        slots: dict[object, int] = {}
        members = np.array([slots.setdefault(row.key, len(slots)) for row in rows], dtype=np.int64)
        distinct: dict[int, TokenRow] = {}
        for row, slot in zip(rows, members.tolist(), strict=True):
            distinct.setdefault(slot, row)
        return cls(list(distinct.values()), members, batch_size, deadline_s, item_field)

    def note_start(self, now_s: float) -> None:
        """Tell whoever asked that a row of it is taken, the first time."""
        on_start, self.on_start = self.on_start, None
        if on_start is not None:
            on_start(now_s)

    @property
    def is_dead(self) -> bool:
        """Whether nobody waits for more of it: cancelled, failed, or complete."""
        return self.future.done()

    @property
    def is_lost(self) -> bool:
        """Whether it ended without a result."""
        return self.future.done() and (self.future.cancelled() or self.future.exception() is not None)

    def position(self, slot: int) -> int:
        """Return where the caller has the first of the rows that share a slot."""
        return int(np.flatnonzero(self.members == slot)[0])

    def fail(self, error: BaseException) -> None:
        """End the job with an error, unless it has ended."""
        with contextlib.suppress(InvalidStateError):
            self.future.set_exception(error)

    def deliver(self, slot: int, raw: NDArray[np.float32]) -> None:
        """Take the output of one row, shape (width,); the last one completes the job."""
        with self._lock:
            if self._outputs is None:
                self._outputs = np.empty((len(self.rows), raw.shape[0]), dtype=np.float32)
            self._outputs[slot] = raw
            self._n_missing -= 1
            if self._n_missing:
                return
        with contextlib.suppress(InvalidStateError):
            self.future.set_result(self._outputs[self.members])


@dataclass(slots=True, eq=False)
class QueuedRow:
    """One queued row: a slot of a job.

    Attributes
    ----------
    bulk_before : int
        Bulk microbatches that had finished when it arrived.
    """

    job: Job
    slot: int
    n_tokens: int
    bulk_before: int = 0

    @property
    def token_row(self) -> TokenRow:
        """The row itself."""
        return self.job.rows[self.slot]
