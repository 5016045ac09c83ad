"""Unloading and loading again: sessions let go for good, one load for all who wait, failures told and mended."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import TYPE_CHECKING

import numpy as np
import pytest

from samevec.errors import StaleReceiptError
from samevec.runtime.cancel import CancelToken
from samevec.runtime.engine import Engine
from samevec.runtime.rows import TokenRow
from samevec.runtime.sessions.fake import FakeSession
from samevec.runtime.sessions.reloadable import Reloadable
from samevec.server.idle import IdleModels

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROWS = [TokenRow((5, 6, 7)), TokenRow((8, 9))]


class Opener:
    """Opens engines over fake sessions, and remembers which sessions still exist."""

    def __init__(self) -> None:
        self.opened: list[weakref.ref[FakeSession]] = []
        self.error: Exception | None = None

    def __call__(self) -> Engine:
        if self.error is not None:
            raise self.error
        session = FakeSession(8)
        self.opened.append(weakref.ref(session))
        return Engine(session=session, width=session.width)

    def alive(self) -> int:
        gc.collect()
        return sum(one() is not None for one in self.opened)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def idle(opener: Opener) -> tuple[IdleModels, Reloadable, Clock]:
    clock, model = Clock(), Reloadable(opener(), opener)
    return IdleModels({"m": model}, after_s=60, clock=clock), model, clock


def test_a_session_is_gone_after_unloading_and_gives_the_same_rows_again() -> None:
    opener = Opener()
    model = Reloadable(opener(), opener)

    def run() -> list[NDArray[np.float32]]:
        return [model.engine.run_guarded(ROWS, cancel=cancel).raw for cancel in (None, CancelToken())]

    before = run()
    assert opener.alive() == 1
    model.unload()
    assert not model.is_loaded
    assert opener.alive() == 0
    assert model.engine.session.provider == "FakeExecutionProvider"
    after = run()  # opens it itself
    assert model.is_loaded
    assert opener.alive() == 1
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_run_in_progress_keeps_its_session() -> None:
    during: list[bool] = []

    def unload(_: object) -> None:
        model.unload()
        during.append(model.is_loaded)

    session = FakeSession(8, before_run=unload)
    model = Reloadable(Engine(session=session, width=8), Opener())
    assert np.array_equal(model.engine.run_guarded(ROWS).raw, [session.row([5, 6, 7]), session.row([8, 9])])
    assert during == [False]


def test_unloaded_after_the_idle_time_and_never_while_in_use() -> None:
    models, model, clock = idle(Opener())

    async def use() -> None:
        async with models.using("m"):
            clock.now_s += 1000
            assert models.unload_due() == []

    clock.now_s += 59
    assert models.unload_due() == []
    asyncio.run(use())
    clock.now_s += 59
    assert (models.unload_due(), models.state("m")) == ([], "loaded")
    clock.now_s += 1
    assert (models.unload_due(), models.state("m")) == (["m"], "unloaded")
    assert models.unload_due() == []
    asyncio.run(use())
    assert model.is_loaded
    assert models.state("another") == "loaded"


def test_one_load_for_all_who_wait_and_for_those_who_stay() -> None:
    opener = Opener()
    models, model, _ = idle(opener)
    model.unload()

    async def use() -> None:
        async with models.using("m"):
            assert model.is_loaded

    async def all_at_once() -> None:
        first = asyncio.ensure_future(use())
        others = [asyncio.ensure_future(use()) for _ in range(5)]
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(*others)
        with pytest.raises(asyncio.CancelledError):
            await first

    asyncio.run(all_at_once())
    assert len(opener.opened) == 2  # at start, and once again


def test_a_closed_gate_is_told_until_it_is_open_again() -> None:
    opener = Opener()
    models, model, _ = idle(opener)
    model.unload()
    opener.error = StaleReceiptError("m: stale", changes=["onnxruntime 1 -> 2"], fix="samevec parity")

    async def use() -> None:
        async with models.using("m"):
            pass

    with pytest.raises(StaleReceiptError):
        asyncio.run(use())
    assert models.failures == ["m: could not be loaded again: m: stale; run: samevec parity"]
    opener.error = None
    asyncio.run(use())
    assert models.failures == []
