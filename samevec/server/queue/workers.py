"""One model's worker: takes requests' rows, and sees to it that threads are there to compute them.

The threads share one queue. Each time a thread is free it takes a microbatch of a plan over everything that is queued,
so that rows of equal length meet whichever request they came with; what arrives meanwhile is in the next plan. When a
thread dies all of them end: waiting requests fail, and fresh threads follow once the model has computed its canary. A
second death stays.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import TYPE_CHECKING

from samevec.errors import NotReadyError
from samevec.runtime.collate import padded_length
from samevec.server.queue.jobs import Job
from samevec.server.queue.microbatch import compute_canary, public_words, run_batch
from samevec.server.queue.work_queue import WorkQueue
from samevec.server.telemetry.records import BatchRecord, Observers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    import numpy as np
    from numpy.typing import NDArray

    from samevec.runtime.rows import TokenRow
    from samevec.server.queue.microbatch import GuardedEngine
    from samevec.server.queue.work_queue import Batch, QueueLimits, Turn
    from samevec.server.telemetry.records import Observer

__all__ = ["ModelWorker", "Rate", "WorkerThreads"]

# Weight of what was measured before, at each run that ends; about the last ten runs count.
_KEPT = 0.8


class Rate:
    """Tokens over the seconds in which at least one run was in progress; idle time does not count. Thread-safe.

    Notes
    -----
    Runs that overlap share their seconds: two that take two seconds each, one begun a second after the other, are one
    run a second.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_running = 0
        self._since_s = self._tokens = self._seconds = 0.0  # since when something runs

    @property
    def tokens_per_s(self) -> float:
        """The rate; 0 before the first run has ended."""
        with self._lock:
            return self._tokens / max(self._seconds, 1e-6) if self._tokens else 0.0

    def start(self, now_s: float) -> None:
        """Note that a run begins."""
        with self._lock:
            if self._n_running == 0:
                self._since_s = now_s
            self._n_running += 1

    def finish(self, n_tokens: int, now_s: float) -> None:
        """Note that a run has ended; with 0 tokens, one that gave nothing, and its seconds do not count."""
        with self._lock:
            self._n_running -= 1
            if n_tokens:
                self._tokens = _KEPT * self._tokens + n_tokens
                self._seconds = _KEPT * self._seconds + (now_s - self._since_s)
            self._since_s = now_s


_log = logging.getLogger(__name__)


class WorkerThreads:
    """Threads over one queue. When one dies the queue is closed, and the others end with it.

    Parameters
    ----------
    name : str
        The model's, for messages and the threads' names.
    engine : GuardedEngine
        With `overlapping`, each lane has a thread; without, one thread serves both.
    queue : WorkQueue
    canary : TokenRow
        See :func:`samevec.server.queue.microbatch.run_batch`.
    rate : Rate
    clock : callable
        Seconds, monotonic.
    advice : str
        What happens, or is to be done, after a death; the end of the message.
    observer : Observer
        Is told of every microbatch that ran to its end.
    pad_to_multiple : int
        How runs are padded, for what it is told.
    """

    def __init__(
        self,
        name: str,
        engine: GuardedEngine,
        queue: WorkQueue,
        *,
        canary: TokenRow,
        rate: Rate,
        clock: Callable[[], float],
        advice: str,
        observer: Observer,
        pad_to_multiple: int,
    ) -> None:
        self.queue = queue
        self.advice = advice
        self._name = name
        self._engine = engine
        self._canary = canary
        self._rate = rate
        self._clock = clock
        self._observer = observer
        self._pad_to_multiple = pad_to_multiple
        turns: list[Turn] = ["interactive", "bulk"] if engine.overlapping else ["either"]
        self._threads = [
            threading.Thread(target=self._main, args=(turn,), name=f"samevec-{name}-{turn}", daemon=True)
            for turn in turns
        ]

    @property
    def is_whole(self) -> bool:
        """Whether every thread is alive and takes work."""
        return self.queue.refusal is None and all(thread.is_alive() for thread in self._threads)

    @property
    def is_running(self) -> bool:
        """Whether some thread exists, perhaps held up in a run."""
        return any(thread.is_alive() for thread in self._threads)

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def watch(self, interval_s: float) -> None:
        """Return once the queue is closed; close it when a thread is gone that did not say why."""
        while not self.queue.wait_closed(interval_s):
            # In this order: threads also end because the queue was closed.
            if not all(thread.is_alive() for thread in self._threads) and self.queue.refusal is None:
                self.die("a thread is gone")

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the end of the threads, each of which ends after its microbatch once the queue is closed."""
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        for thread in self._threads:
            if thread.is_alive():
                thread.join(None if end_s is None else max(0.0, end_s - time.monotonic()))

    def die(self, why: str) -> None:
        """Close the queue: these threads compute nothing more."""
        self.queue.close(f"{self._name}: its worker died ({why}); {self.advice}")

    def _main(self, turn: Turn) -> None:
        try:
            while (batch := self.queue.take(turn)) is not None:
                self._run(batch)
                self.queue.finish(batch)
                del batch  # while it waits for the next one, a thread would keep these rows and their answers
        except BaseException as error:  # whatever it is: those who wait must hear of it
            _log.exception("%s: a thread of its worker died", self._name)
            self.die(public_words(error))

    def _run(self, batch: Batch) -> None:
        start_s = self._clock()
        self._rate.start(start_s)
        ran = False
        try:
            ran = run_batch(self._engine, batch, canary=self._canary, name=self._name)
        finally:
            end_s = self._clock()
            useful_tokens = sum(row.n_tokens for row in batch.rows)
            self._rate.finish(useful_tokens if ran else 0, end_s)
        if ran:
            longest = padded_length(max(row.n_tokens for row in batch.rows), self._pad_to_multiple)
            self._observer.batch_ended(
                BatchRecord(
                    model=self._name,
                    rows=len(batch.rows),
                    useful_tokens=useful_tokens,
                    padded_tokens=len(batch.rows) * longest,
                    seconds=end_s - start_s,
                )
            )


# A thread that dies says so itself; this is how often it is looked for one that could not.
_WATCH_S = 1.0
_RESTARTING, _GIVEN_UP = "it is being restarted", "restart the server"


class ModelWorker:
    """One model's queue and its threads.

    Parameters
    ----------
    name : str
        The model's.
    engine : GuardedEngine
    limits : QueueLimits
    canary : TokenRow
        A row the model must be able to compute; run before threads start, and whenever every row of a microbatch was
        lost, to tell poisonous input from a dead session.
    clock : callable
        Seconds, monotonic; deadlines are in its time.
    watch_s : float
        Longest time in which a lost thread goes unnoticed.
    observer : Observer
        Of microbatches; none when not given.

    Attributes
    ----------
    n_restarts : int
        0 or 1.
    """

    def __init__(
        self,
        name: str,
        engine: GuardedEngine,
        limits: QueueLimits,
        *,
        canary: TokenRow,
        clock: Callable[[], float] = time.monotonic,
        watch_s: float = _WATCH_S,
        observer: Observer | None = None,
    ) -> None:
        self._name = name
        self._engine = engine
        self._limits = limits
        self._canary = canary
        self._clock = clock
        self._watch_s = watch_s
        self._observer = observer or Observers()
        self._lock = threading.Lock()
        self._rate = Rate()
        self._stopping = False
        self._started = threading.Event()
        self._final_failure: str | None = None
        self.n_restarts = 0
        self._threads = self._new_threads(_RESTARTING)
        self._supervisor = threading.Thread(target=self._supervise, name=f"samevec-{name}-supervisor", daemon=True)

    @property
    def failure(self) -> str | None:
        """Why nothing is computed now; None while all is well."""
        return self._final_failure or self._threads.queue.refusal

    @property
    def tokens_per_s(self) -> float:
        """Measured over all threads, 0 before the first run."""
        return self._rate.tokens_per_s

    @property
    def is_running(self) -> bool:
        """Whether threads exist, perhaps held up in a run."""
        return self._supervisor.is_alive() or self._threads.is_running

    @property
    def is_alive(self) -> bool:
        """Whether rows handed in now will be computed."""
        return self._started.is_set() and self._final_failure is None and self._threads.is_whole

    def start(self) -> None:
        """Compute the canary in a thread, then start the others."""
        self._supervisor.start()

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
        """End the threads after the microbatches that run now; requests that still wait then get NotReadyError.

        Parameters
        ----------
        timeout_s : float
            How long those microbatches may take; then they are ended early, where the session can.
        """
        with self._lock:
            self._stopping = True
            threads = self._threads
        reason = f"{self._name}: shutting down"
        threads.queue.refuse(reason)
        threads.join(timeout_s)
        threads.queue.close(reason)
        if self._supervisor.is_alive():
            self._supervisor.join(timeout_s)

    def submit(
        self,
        rows: Sequence[TokenRow],
        *,
        batch_size: int | None,
        deadline_s: float | None,
        field: str,
        on_start: Callable[[float], None] | None = None,
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
        on_start : callable, optional
            Given the time when the first microbatch with a row of it is taken; quick, and called under a lock.

        Returns
        -------
        concurrent.futures.Future of ndarray of float32, shape (n_rows, width)
            Row i belongs to row i. Cancelling it drops what has not run, and ends a run that no other request wants.

        Raises
        ------
        NotReadyError
            The worker is dead, being restarted or stopping.
        """
        if self._final_failure is not None:
            raise NotReadyError(self._final_failure)
        job = Job.of(rows, batch_size=batch_size, deadline_s=deadline_s, item_field=field)
        job.on_start = on_start
        self._threads.queue.add(job)
        return job.future

    def _new_threads(self, advice: str) -> WorkerThreads:
        queue = WorkQueue(
            self._limits,
            cap=self._engine.limit.cap,
            clock=self._clock,
        )
        return WorkerThreads(
            self._name,
            self._engine,
            queue,
            canary=self._canary,
            rate=self._rate,
            clock=self._clock,
            advice=advice,
            observer=self._observer,
            pad_to_multiple=self._limits.pad_to_multiple,
        )

    # The rest runs in the supervisor's thread.

    def _supervise(self) -> None:
        try:
            if self._live(self._threads) and not self._stopping:
                _log.warning("%s", self._threads.queue.refusal)
                self._threads.join()  # a run that is still held up must not meet another in the same session
                self.n_restarts += 1
                self._live(self._new_threads(_GIVEN_UP))
        finally:
            self._started.set()

    def _live(self, threads: WorkerThreads) -> bool:
        """Compute the canary and let the threads work until one dies or all are stopped; False if none began."""
        try:
            compute_canary(self._engine, self._canary)
        except BaseException as error:
            _log.exception("%s: the canary could not be computed", self._name)
            self._final_failure = f"{self._name}: its worker died ({public_words(error)}); {_GIVEN_UP}"
            threads.queue.close(self._final_failure)
            return False
        with self._lock:
            if self._stopping:
                return False
            self._threads = threads
            threads.start()
        self._started.set()
        threads.watch(self._watch_s)
        return True
