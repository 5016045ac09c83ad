"""One model's queue: two lanes under one lock, from which threads take microbatches.

Small requests have a lane of their own. Where runs may overlap it has a thread of its own, and what it holds runs at
once, beside bulk work.

Where one thread serves both lanes, a bulk microbatch never runs while a row of the small lane waits which has already
sat through one, and after a microbatch of that lane bulk work gets its turn, so neither starves the other.

Of a plan, the microbatch with the longest-waiting row runs first: sorting by length alone could make short rows wait
for ever.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from samevec.errors import DeadlineExceededError, NotReadyError
from samevec.runtime.batching.plan import plan
from samevec.server.queue.jobs import QueuedRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from samevec.runtime.batching.cost import CostModel
    from samevec.server.queue.jobs import Job


__all__ = ["Batch", "Lane", "QueueLimits", "Turn", "WorkQueue"]


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueLimits:
    """Limits of one model's queue.

    Attributes
    ----------
    token_budget, max_rows : int
        Of one microbatch.
    interactive_rows, interactive_tokens : int
        Requests within both use the interactive lane.
    cost : CostModel, optional
        By which plans are compared where no request names a size; every microbatch is filled without one.
    pad_to_multiple : int
        How runs are padded, for the cost.
    """

    token_budget: int
    max_rows: int
    cost: CostModel | None = None
    pad_to_multiple: int = 1
    interactive_rows: int = 8
    interactive_tokens: int = 1024

    def is_interactive(self, job: Job) -> bool:
        """Whether a job is small enough for the interactive lane."""
        n_tokens = sum(row.n_tokens for row in job.rows)
        return len(job.rows) <= self.interactive_rows and n_tokens <= self.interactive_tokens


class Lane:
    """Rows that wait, and the plan over all of them; made anew when rows have come or gone, or the limit has changed.

    Parameters
    ----------
    limits : QueueLimits
    cap : callable
        The adaptive limit: given most rows, returns how many may run together now.
    """

    def __init__(self, limits: QueueLimits, *, cap: Callable[[int], int]) -> None:
        self._limits = limits
        self._cap = cap
        self._planned: deque[list[QueuedRow]] = deque()
        self._arrived: list[QueuedRow] = []
        self._n_waiting: dict[Job, int] = {}
        self._planned_max_rows = limits.max_rows

    def add(self, rows: Sequence[QueuedRow]) -> None:
        """Queue rows; they are in the next plan."""
        self._arrived.extend(rows)
        self._count(rows, 1)

    def rows(self) -> Iterator[QueuedRow]:
        """Give every row that waits."""
        return itertools.chain(itertools.chain.from_iterable(self._planned), self._arrived)

    def __bool__(self) -> bool:
        return bool(self._planned or self._arrived)

    def drop_dead(self, now_s: float) -> None:
        """Forget rows whose job was cancelled, failed or expired; tell the expired."""
        for job in self._n_waiting:  # jobs, not rows: this is done whenever anything changes, beside thousands of rows
            if job.deadline_s is not None and now_s >= job.deadline_s and not job.is_dead:
                job.fail(DeadlineExceededError())
        dead = {job for job in self._n_waiting if job.is_dead}
        if dead:
            self._arrived = [row for row in self.rows() if row.job not in dead]
            self._planned.clear()
            for job in dead:
                del self._n_waiting[job]

    def pop(self) -> list[QueuedRow]:
        """Take the microbatch that holds the longest-waiting row."""
        self._plan_anew()
        rows = self._planned.popleft()
        self._count(rows, -1)
        return rows

    def _count(self, rows: Sequence[QueuedRow], step: int) -> None:
        for row in rows:
            left = self._n_waiting.get(row.job, 0) + step
            if left:
                self._n_waiting[row.job] = left
            else:
                del self._n_waiting[row.job]

    def _plan_anew(self) -> None:
        max_rows = self._cap(self._limits.max_rows)
        if self._arrived or max_rows != self._planned_max_rows:
            self._planned = deque(self._plan(list(self.rows()), max_rows))
            self._planned_max_rows = max_rows
            self._arrived = []

    def _plan(self, rows: list[QueuedRow], max_rows: int) -> list[list[QueuedRow]]:
        # Rows under different caps are planned apart: a cap then holds for every microbatch with a row of its request.
        groups: dict[int | None, list[QueuedRow]] = {}
        for row in rows:
            groups.setdefault(row.job.batch_size, []).append(row)
        limits = self._limits
        microbatches = []
        for batch_size, group in groups.items():
            steps = plan(
                [row.n_tokens for row in group],
                token_budget=limits.token_budget,
                max_rows=max_rows if batch_size is None else min(batch_size, max_rows),
                cost=limits.cost if batch_size is None else None,  # a named size is filled, as in a library call
                pad_to_multiple=limits.pad_to_multiple,
            )
            microbatches += [[group[i] for i in batch.indices] for batch in steps.microbatches]
        return sorted(microbatches, key=lambda batch: min(row.job.sequence for row in batch))


#: Which lanes a thread serves.
Turn = Literal["interactive", "bulk", "either"]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """A microbatch that a thread has taken.

    Attributes
    ----------
    rows : list of QueuedRow
    is_bulk : bool
        Of the bulk lane.
    more_follows : bool
        Another bulk microbatch begins when this one ends, if nothing happens meanwhile.
    """

    rows: list[QueuedRow]
    is_bulk: bool
    more_follows: bool = False


class WorkQueue:
    """The queue of one model's threads, from their start until the first of them dies.

    Parameters
    ----------
    limits : QueueLimits
    cap : callable
        See :class:`samevec.server.queue.work_queue.Lane`.
    clock : callable
        Seconds, monotonic; deadlines are in its time.
    """

    def __init__(
        self,
        limits: QueueLimits,
        *,
        cap: Callable[[int], int],
        clock: Callable[[], float],
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._changed = threading.Condition()
        self._interactive = Lane(limits, cap=cap)
        self._bulk = Lane(limits, cap=cap)
        self._running: set[Batch] = set()
        self._last_was_bulk = True
        self._n_bulk_finished = 0
        self._refusal: str | None = None

    @property
    def refusal(self) -> str | None:
        """Why nothing is taken any more; None while all is well."""
        return self._refusal

    def add(self, job: Job) -> None:
        """Queue a job.

        Raises
        ------
        NotReadyError
            The queue is closed.
        """
        queued = [QueuedRow(job, slot, row.n_tokens) for slot, row in enumerate(job.rows)]
        lane = self._interactive if self._limits.is_interactive(job) else self._bulk
        with self._changed:
            if self._refusal is not None:
                raise NotReadyError(self._refusal)
            for row in queued:
                row.bulk_before = self._n_bulk_finished
            lane.add(queued)
            self._changed.notify_all()

    def take(self, turn: Turn) -> Batch | None:
        """Wait for work and return the next microbatch, or None when the queue is closed."""
        with self._changed:
            while True:
                if self._refusal is not None:
                    return None
                for lane in (self._interactive, self._bulk):
                    lane.drop_dead(self._clock())
                is_bulk = self._next_is_bulk(turn)
                if is_bulk is not None:
                    batch = self._pop(is_bulk=is_bulk)
                    self._running.add(batch)
                    for row in batch.rows:
                        row.job.note_start(self._clock())
                    return batch
                self._changed.wait()

    def _next_is_bulk(self, turn: Turn) -> bool | None:
        """Say which lane is next, or None when there is nothing to do."""
        has_bulk = bool(self._bulk) and turn != "interactive"
        has_interactive = bool(self._interactive) and turn != "bulk"
        if not has_bulk or not has_interactive:
            return has_bulk if has_bulk or has_interactive else None
        waited = any(row.bulk_before < self._n_bulk_finished for row in self._interactive.rows())
        return not self._last_was_bulk and not waited

    def _pop(self, *, is_bulk: bool) -> Batch:
        self._last_was_bulk = is_bulk
        if not is_bulk:
            return Batch(self._interactive.pop(), is_bulk=False)
        rows = self._bulk.pop()
        return Batch(rows, is_bulk=True, more_follows=bool(self._bulk))

    def finish(self, batch: Batch) -> None:
        """Note that a microbatch has run."""
        with self._changed:
            self._running.discard(batch)
            self._n_bulk_finished += batch.is_bulk

    def refuse(self, reason: str) -> None:
        """Take and give nothing more; what runs now goes on. The first reason stands."""
        with self._changed:
            self._refusal = self._refusal or reason
            self._changed.notify_all()

    def close(self, reason: str) -> None:
        """Refuse, and fail whoever still waits: runs in progress are then wanted by nobody, and end early."""
        self.refuse(reason)
        with self._changed:
            running = [row for batch in self._running for row in batch.rows]
            jobs = {row.job for row in itertools.chain(running, self._interactive.rows(), self._bulk.rows())}
            first_reason = self._refusal or reason
        for job in jobs:
            job.fail(NotReadyError(first_reason))

    def wait_closed(self, timeout_s: float) -> bool:
        """Wait until nothing is taken any more; False when the time is over."""
        with self._changed:
            return self._changed.wait_for(lambda: self._refusal is not None, timeout_s)
