"""The threads that empty one queue together, until the first of them dies."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from samevec.runtime.collate import padded_length
from samevec.server.queue.microbatch import public_words, run_batch
from samevec.server.telemetry.records import BatchRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from samevec.runtime.rows import TokenRow
    from samevec.server.queue.microbatch import GuardedEngine
    from samevec.server.queue.rate import Rate
    from samevec.server.queue.work_queue import Batch, Turn, WorkQueue
    from samevec.server.telemetry.records import Observer

__all__ = ["WorkerThreads"]

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
