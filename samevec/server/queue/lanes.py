"""Queued rows and the plan over them. Knows no thread: whoever uses a lane holds the lock of its queue."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from samevec.errors import DeadlineExceededError
from samevec.runtime.batching.plan import plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from samevec.runtime.batching.cost import CostModel
    from samevec.server.queue.jobs import Job, QueuedRow

__all__ = ["Lane", "QueueLimits"]


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
