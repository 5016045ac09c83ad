"""Rows of many requests share session runs: one queue and one worker thread a model, bounds for the whole process.

Each time a worker is free it plans over everything that is queued for its model, so that rows of equal length meet
whichever request they came with, and runs one microbatch. What arrives meanwhile is in the next plan. Of a plan, the
microbatch with the longest-waiting row runs first: sorting by length alone could make short rows wait for ever.

Small requests have a lane of their own. A bulk microbatch never runs while a row of that lane waits which has already
sat through one, and after a microbatch of that lane bulk work gets its turn, so neither starves the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
import time
from collections import deque
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from samevec.errors import (
    DeadlineExceededError,
    NonFiniteOutputError,
    NotReadyError,
    OverloadedError,
    SamevecError,
    SessionRunError,
)
from samevec.runtime.plan import plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from samevec.runtime.cost import CostModel
    from samevec.runtime.rows import TokenRow

__all__ = ["Admission", "MicrobatchRunner", "Ticket", "Worker", "WorkerLimits"]

_log = logging.getLogger(__name__)

# Bounds of what Retry-After may say: below a second clients hammer, above a minute nobody believes it.
_MIN_RETRY_S, _MAX_RETRY_S = 1.0, 60.0
# Weight of the newest run in the measured rate; about the last ten runs count.
_RATE_WEIGHT = 0.2


class MicrobatchRunner(Protocol):
    """What a worker needs of a model; Embedder and Reranker are such."""

    @property
    def name(self) -> str:
        """For messages and the thread's name."""
        ...

    def run_microbatch(self, rows: Sequence[TokenRow]) -> NDArray[np.float32]:
        """Compute rows in one session run, shape (n_rows, width)."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerLimits:
    """Limits of one worker.

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


class Admission:
    """Counts accepted and unfinished work of the process, and refuses what exceeds the bounds.

    Parameters
    ----------
    max_items, max_tokens : int
    retry_after_s : callable
        Given the tokens that wait, says in how many seconds there will be room.

    Notes
    -----
    A request is always let into an empty queue: otherwise one larger than a bound would be told to retry for ever.
    """

    def __init__(self, *, max_items: int, max_tokens: int, retry_after_s: Callable[[int], float]) -> None:
        self._max_items = max_items
        self._max_tokens = max_tokens
        self._retry_after_s = retry_after_s
        self._lock = threading.Lock()
        self.items = 0
        self.tokens = 0

    def admit(self, n_items: int) -> Ticket:
        """Accept a request by its items, before it is tokenised.

        Raises
        ------
        OverloadedError
            The queue is full.
        """
        with self._lock:
            if self.items and self.items + n_items > self._max_items:
                raise self._refusal(f"{self.items} items are queued")
            self.items += n_items
        return Ticket(self, n_items)

    def _refusal(self, what: str) -> OverloadedError:
        wait_s = min(_MAX_RETRY_S, max(_MIN_RETRY_S, self._retry_after_s(self.tokens)))
        return OverloadedError(f"the queue is full ({what}); try again in {wait_s:.0f} s", retry_after_s=wait_s)

    def _add_tokens(self, n_tokens: int) -> None:
        with self._lock:
            if self.tokens and self.tokens + n_tokens > self._max_tokens:
                raise self._refusal(f"{self.tokens} tokens are queued")
            self.tokens += n_tokens

    def _release(self, n_items: int, n_tokens: int) -> None:
        with self._lock:
            self.items -= n_items
            self.tokens -= n_tokens


class Ticket:
    """A request's place in the queue; a context manager that gives it back."""

    def __init__(self, admission: Admission, n_items: int) -> None:
        self._admission = admission
        self._n_items = n_items
        self._n_tokens = 0

    def add_tokens(self, n_tokens: int) -> None:
        """Account for the request's tokens once they are known.

        Raises
        ------
        OverloadedError
            Too many tokens are queued.
        """
        self._admission._add_tokens(n_tokens)
        self._n_tokens += n_tokens

    def __enter__(self) -> Ticket:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._admission._release(self._n_items, self._n_tokens)


@dataclass(slots=True, eq=False)
class _Job:
    """One request's rows. Its future is done when all are computed, or at the first that cannot be."""

    sequence: int
    rows: list[TokenRow]  # distinct ones
    members: NDArray[np.int64]  # for every row of the caller, which of `rows` it equals
    batch_size: int | None
    deadline_s: float | None
    item_field: str
    future: Future[NDArray[np.float32]] = field(default_factory=Future)
    outputs: NDArray[np.float32] | None = None
    n_missing: int = 0

    def position(self, slot: int) -> int:
        """Return where the caller has the first of the rows that share a slot."""
        return int(np.flatnonzero(self.members == slot)[0])

    def fail(self, error: BaseException) -> None:
        # Cancelled or failed meanwhile: nobody waits for this any more.
        with contextlib.suppress(InvalidStateError):
            self.future.set_exception(error)

    def deliver(self, slot: int, raw: NDArray[np.float32]) -> None:
        if self.outputs is None:
            self.outputs = np.empty((len(self.rows), raw.shape[0]), dtype=np.float32)
        self.outputs[slot] = raw
        self.n_missing -= 1
        if self.n_missing == 0:
            with contextlib.suppress(InvalidStateError):
                self.future.set_result(self.outputs[self.members])


@dataclass(slots=True, eq=False)
class _Row:
    """One queued row: a slot of a job."""

    job: _Job
    slot: int
    n_tokens: int
    bulk_before: int = 0  # bulk microbatches that had finished when it arrived

    @property
    def token_row(self) -> TokenRow:
        return self.job.rows[self.slot]


class _Lane:
    """Queued rows and the plan over them; the plan is made anew when rows have come or gone."""

    def __init__(self, limits: WorkerLimits) -> None:
        self._limits = limits
        self._planned: deque[list[_Row]] = deque()
        self._arrived: list[_Row] = []

    def add(self, rows: Sequence[_Row]) -> None:
        self._arrived.extend(rows)

    def rows(self) -> Iterator[_Row]:
        return itertools.chain(itertools.chain.from_iterable(self._planned), self._arrived)

    def __bool__(self) -> bool:
        return bool(self._planned or self._arrived)

    def drop_dead(self, now: float) -> None:
        """Forget rows whose job was cancelled, failed or expired; tell the expired."""
        dead = False
        for row in self.rows():
            job = row.job
            if job.deadline_s is not None and now >= job.deadline_s and not job.future.done():
                job.fail(DeadlineExceededError())
            dead = dead or job.future.done()
        if dead:
            alive = [row for row in self.rows() if not row.job.future.done()]
            self._planned.clear()
            self._arrived = alive

    def pop(self) -> list[_Row]:
        """Take the microbatch that holds the longest-waiting row."""
        if self._arrived:
            self._planned = deque(self._plan(list(self.rows())))
            self._arrived = []
        return self._planned.popleft()

    def _plan(self, rows: list[_Row]) -> list[list[_Row]]:
        # Rows under different caps are planned apart: a cap then holds for every microbatch with a row of its request.
        groups: dict[int | None, list[_Row]] = {}
        for row in rows:
            groups.setdefault(row.job.batch_size, []).append(row)
        limits = self._limits
        microbatches = []
        for batch_size, group in groups.items():
            steps = plan(
                [row.n_tokens for row in group],
                token_budget=limits.token_budget,
                max_rows=limits.max_rows if batch_size is None else min(batch_size, limits.max_rows),
                cost=limits.cost if batch_size is None else None,  # a named size is filled, as in a library call
                pad_to_multiple=limits.pad_to_multiple,
            )
            microbatches += [[group[i] for i in batch.indices] for batch in steps.microbatches]
        return sorted(microbatches, key=lambda batch: min(row.job.sequence for row in batch))


class Worker:
    """The thread that runs one model's microbatches, and its queue.

    Parameters
    ----------
    model : MicrobatchRunner
    limits : WorkerLimits
    canary : TokenRow
        A row the model must be able to compute; run at start, and whenever every row of a microbatch failed, to tell
        poisonous input from a dead session.
    clock : callable
        Seconds, monotonic; deadlines are in its time.

    Attributes
    ----------
    failure : str or None
        Why nothing is computed any more; None while all is well.
    tokens_per_s : float
        Measured rate, 0 before the first run.
    """

    def __init__(
        self,
        model: MicrobatchRunner,
        limits: WorkerLimits,
        *,
        canary: TokenRow,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model = model
        self._limits = limits
        self._canary = canary
        self._clock = clock
        self._wakeup = threading.Condition()
        self._interactive = _Lane(limits)
        self._bulk = _Lane(limits)
        self._running: list[_Row] = []
        self._last_was_bulk = True
        self._n_bulk_finished = 0
        self._sequence = itertools.count()
        self._stopping = False
        self._started = threading.Event()
        self.failure: str | None = None
        self.tokens_per_s = 0.0
        self._thread = threading.Thread(target=self._main, name=f"samevec-{model.name}", daemon=True)

    @property
    def is_running(self) -> bool:
        """Whether the thread exists, perhaps held up in a run."""
        return self._thread.is_alive()

    @property
    def is_alive(self) -> bool:
        """Whether rows handed in now will be computed."""
        return self.failure is None and self._started.is_set() and self._thread.is_alive() and not self._stopping

    def start(self) -> None:
        """Start the thread; it computes the canary first."""
        self._thread.start()

    async def wait_started(self) -> None:
        """Wait until the canary was computed.

        Raises
        ------
        NotReadyError
            It could not be.
        """
        while not self._started.is_set():
            await asyncio.sleep(0.005)
        if self.failure is not None:
            raise NotReadyError(self.failure)

    def stop(self, *, timeout_s: float = 5.0) -> None:
        """End the thread after the microbatch that runs now; whoever still waits gets NotReadyError."""
        with self._wakeup:
            self._stopping = True
            self._wakeup.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self._end(f"{self._model.name}: shutting down")  # also when the thread is held up in a run

    def submit(
        self, rows: Sequence[TokenRow], *, batch_size: int | None, deadline_s: float | None, field: str
    ) -> Future[NDArray[np.float32]]:
        """Queue the rows of one request.

        Parameters
        ----------
        rows : sequence of TokenRow
            At least one. Identical rows are computed once.
        batch_size : int or None
            Most rows of any microbatch that holds a row of this request.
        deadline_s : float or None
            In the time of `clock`.
        field : str
            What the caller calls its items, for messages.

        Returns
        -------
        concurrent.futures.Future of ndarray of float32, shape (n_rows, width)
            Row i belongs to row i. Cancelling it drops what has not run.

        Raises
        ------
        NotReadyError
            The worker is dead or stopping.
        """
        job = self._job(rows, batch_size, deadline_s, field)
        queued = [_Row(job, slot, row.n_tokens) for slot, row in enumerate(job.rows)]
        small = len(queued) <= self._limits.interactive_rows
        small = small and sum(row.n_tokens for row in queued) <= self._limits.interactive_tokens
        with self._wakeup:
            if self.failure is not None or self._stopping:
                raise NotReadyError(self.failure or f"{self._model.name}: shutting down")
            for row in queued:
                row.bulk_before = self._n_bulk_finished
            (self._interactive if small else self._bulk).add(queued)
            self._wakeup.notify_all()
        return job.future

    def _job(self, rows: Sequence[TokenRow], batch_size: int | None, deadline_s: float | None, field: str) -> _Job:
        slots: dict[object, int] = {}
        members = np.array([slots.setdefault(row.key, len(slots)) for row in rows], dtype=np.int64)
        distinct: dict[int, TokenRow] = {}
        for row, slot in zip(rows, members.tolist(), strict=True):
            distinct.setdefault(slot, row)
        job = _Job(next(self._sequence), list(distinct.values()), members, batch_size, deadline_s, field)
        job.n_missing = len(job.rows)
        return job

    # The rest runs in the worker's thread.

    def _main(self) -> None:
        try:
            self._compute_canary()
            self._started.set()
            while (batch := self._take()) is not None:
                self._run(batch)
                self._running = []
            self._end(f"{self._model.name}: shutting down")
        except BaseException as error:  # whatever it is: those who wait must hear of it
            _log.exception("%s: the worker died", self._model.name)
            self._end(f"{self._model.name}: its worker died ({_public(error)}); restart the server")
        finally:
            self._started.set()

    def _end(self, failure: str) -> None:
        with self._wakeup:
            self.failure = self.failure or failure
            for row in itertools.chain(self._running, self._interactive.rows(), self._bulk.rows()):
                row.job.fail(NotReadyError(failure))

    def _take(self) -> list[_Row] | None:
        """Wait for work and return the next microbatch, or None when the worker should end."""
        with self._wakeup:
            while True:
                if self._stopping:
                    return None
                for lane in (self._interactive, self._bulk):
                    lane.drop_dead(self._clock())
                if self._interactive or self._bulk:
                    break
                self._wakeup.wait()
            self._last_was_bulk = self._bulk_turn()
            self._running = (self._bulk if self._last_was_bulk else self._interactive).pop()
            return self._running

    def _bulk_turn(self) -> bool:
        if not self._bulk or not self._interactive:
            return bool(self._bulk)
        waited = any(row.bulk_before < self._n_bulk_finished for row in self._interactive.rows())
        return not self._last_was_bulk and not waited

    def _run(self, batch: list[_Row]) -> None:
        started = self._clock()
        suspects = self._run_together(batch)
        for row in suspects:
            self._run_alone(row)
        if suspects and all(_is_lost(row.job.future) for row in batch):
            self._compute_canary()  # raises when it is the session that is broken, and so ends the worker
        self._measure(sum(row.n_tokens for row in batch), self._clock() - started)
        if self._last_was_bulk:
            with self._wakeup:
                self._n_bulk_finished += 1

    def _compute_canary(self) -> None:
        if not _good_rows(self._compute([self._canary]))[0]:
            raise NonFiniteOutputError((0,), what="zero or not finite")

    def _compute(self, rows: list[TokenRow]) -> NDArray[np.float32]:
        raw = self._model.run_microbatch(rows)
        if raw.ndim != 2 or raw.shape[0] != len(rows):
            raise SessionRunError(f"{self._model.name}: {len(rows)} rows gave an output of shape {raw.shape}")
        return raw

    def _run_together(self, batch: list[_Row]) -> list[_Row]:
        """Run a microbatch, deliver its good rows and return the others, to be tried alone."""
        try:
            raw = self._compute([row.token_row for row in batch])
        except Exception as error:
            _log.warning("%s: a microbatch of %d rows failed: %s", self._model.name, len(batch), _brief(error))
            return batch
        good = _good_rows(raw)
        for row, output, ok in zip(batch, raw, good, strict=True):
            if ok:
                row.job.deliver(row.slot, output)
        return [row for row, ok in zip(batch, good, strict=True) if not ok]

    def _run_alone(self, row: _Row) -> None:
        """Run one row and deliver it, or fail its job with an error that names the item."""
        if row.job.future.done():
            return
        position = row.job.position(row.slot)
        try:
            raw = self._compute([row.token_row])
        except Exception as error:
            _log.exception("%s: a row of %d tokens failed", self._model.name, row.n_tokens)
            failure = SessionRunError(f"{row.job.item_field}[{position}]: could not be computed: {_public(error)}")
            failure.__cause__ = error
            row.job.fail(failure)
            return
        if _good_rows(raw)[0]:
            row.job.deliver(row.slot, raw[0])
        else:
            _log.error("%s: a row of %d tokens came out zero or not finite", self._model.name, row.n_tokens)
            row.job.fail(NonFiniteOutputError((position,), what="zero or not finite"))

    def _measure(self, n_tokens: int, elapsed_s: float) -> None:
        rate = n_tokens / max(elapsed_s, 1e-6)
        weight = _RATE_WEIGHT if self.tokens_per_s else 1.0
        self.tokens_per_s += weight * (rate - self.tokens_per_s)


def _is_lost(future: Future[NDArray[np.float32]]) -> bool:
    return future.done() and (future.cancelled() or future.exception() is not None)


def _good_rows(raw: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return which rows may leave: finite, and for vectors not all zero (a logit may be)."""
    finite: NDArray[np.bool_] = np.asarray(np.isfinite(raw).all(axis=1))
    return finite if raw.shape[1] == 1 else np.asarray(finite & raw.any(axis=1))


def _public(error: BaseException) -> str:
    """Return what clients may read of an error; messages of strangers may hold paths."""
    return _brief(error) if isinstance(error, SamevecError) else type(error).__name__


def _brief(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
