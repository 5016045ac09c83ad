"""Workers and servers over fake sessions whose runs wait for the test, and a clock that tests move."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from stand_ins import EMBEDDER, text_ids, tokenizer, wait_until

from samevec.lock import load_lock
from samevec.runtime.cancel import CancelToken
from samevec.runtime.embedder import Embedder
from samevec.runtime.engine import Engine
from samevec.runtime.rows import TokenRow
from samevec.runtime.sessions.fake import FakeSession
from samevec.server.queue.work_queue import QueueLimits
from samevec.server.queue.workers import ModelWorker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from samevec.runtime.collate import Features

    Ids = tuple[int, ...]

CANARY = TokenRow((1, 2))
LIMITS = QueueLimits(token_budget=64, max_rows=8, interactive_rows=2, interactive_tokens=16)
WIDTH = 8
PATIENCE_S = 20  # of a test that is about to fail


@dataclass(eq=False)
class Call:
    """One session run, as the session sees it."""

    rows: list[Ids]
    wake: threading.Event = field(default_factory=threading.Event)
    cancelled: bool = False


class Stage:
    """What happens in runs of a worker's sessions.

    Attributes
    ----------
    held : bool
        Every run waits until the test sets its `wake`, or until it is cancelled.
    on_run : callable
        Called in every run, the canary's too; may raise.
    calls : list of Call
        All but the canary's.
    """

    def __init__(self, canary: Ids = CANARY.ids) -> None:
        self.canary = canary
        self.held = False
        self.on_run: Callable[[Call], None] = lambda _call: None
        self.calls: list[Call] = []
        self._changed = threading.Condition()

    def enter(self, call: Call, cancel: CancelToken) -> None:
        self.on_run(call)
        if call.rows == [self.canary]:
            return
        with cancel.telling(call.wake.set):
            with self._changed:
                self.calls.append(call)
                self._changed.notify_all()
            if self.held:
                assert call.wake.wait(PATIENCE_S)
        call.cancelled = cancel.is_cancelled
        cancel.require_wanted()

    def call(self, number: int) -> Call:
        """Wait until so many runs have begun before it, and return it."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.calls) > number, PATIENCE_S)
        return self.calls[number]

    def release(self) -> None:
        """Let everything run, what waits and what comes."""
        self.held = False
        for call in list(self.calls):
            call.wake.set()

    def shapes(self) -> list[tuple[int, int]]:
        return [(len(call.rows), max(map(len, call.rows))) for call in self.calls]


class StagedSession(FakeSession):
    """A session whose runs are told to a stage."""

    def __init__(self, stage: Stage, *, width: int = WIDTH) -> None:
        super().__init__(width)
        self._stage = stage

    def run(
        self, features: Features, *, cancel: CancelToken | None = None, keep_memory: bool = False
    ) -> NDArray[np.float32]:
        cancel = cancel or CancelToken()
        cancel.require_wanted()
        pairs = zip(features.input_ids, features.attention_mask, strict=True)
        rows = [tuple(ids[mask == 1].tolist()) for ids, mask in pairs]
        self._stage.enter(Call(rows), cancel)
        return super().run(features)


class Bench:
    """A worker, its stage and its clock."""

    def __init__(self, *, overlapping: bool = False, limits: QueueLimits = LIMITS) -> None:
        self.now = 0.0
        self.stage = Stage()
        self.engine = Engine(
            session=StagedSession(self.stage),
            overlapping=overlapping,
            width=WIDTH,
            pad_to_multiple=1,
        )
        self.worker = ModelWorker("toy", self.engine, limits, canary=CANARY, clock=lambda: self.now)

    def submit(self, rows: Sequence[TokenRow], **options: Any) -> Future[NDArray[np.float32]]:
        return self.worker.submit(rows, **{"batch_size": None, "deadline_s": None, "field": "input", **options})

    def hold(self) -> Future[NDArray[np.float32]]:
        """Occupy the thread of bulk work with a microbatch."""
        self.stage.held = True
        future = self.submit(rows_of(40, start=9000))
        self.stage.call(0)
        return future


@contextmanager
def bench(**options: Any) -> Iterator[Bench]:
    """Give a started bench, and stop it at the end."""
    made = Bench(**options)
    made.worker.start()
    wait_until(lambda: made.worker.is_alive)
    try:
        yield made
    finally:
        made.stage.release()
        made.worker.stop()


def staged_embedder(stage: Stage, *, overlapping: bool = False, max_rows: int = 32) -> Embedder:
    """Give the toy embedder with its real tokenizer, and a session that a stage hears of."""
    entry = load_lock("toy").model(EMBEDDER)
    width = entry.dimensions or 0
    engine = Engine(
        session=StagedSession(stage, width=width),
        overlapping=overlapping,
        width=width,
        max_rows=max_rows,
    )
    return Embedder(entry=entry, tokenizer=tokenizer(EMBEDDER), engine=engine)


def served_stage() -> Stage:
    """Give a stage that knows the service's canary."""
    return Stage(text_ids("ready"))


def rows_of(*lengths: int, start: int = 100) -> list[TokenRow]:
    """Rows of given lengths, all different."""
    return [TokenRow((start + i, *range(10, 9 + n))) for i, n in enumerate(lengths)]


def expected(rows: Sequence[TokenRow]) -> NDArray[np.float32]:
    session = FakeSession(WIDTH)
    return np.stack([session.row(list(row.ids)) for row in rows])
