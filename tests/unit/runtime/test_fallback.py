"""A full device gives way to a proved profile, once; fake sessions."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from typing import TYPE_CHECKING

import numpy as np
import pytest
from makers import fake_engine, rows

from samevec.errors import ReceiptMissingError, SessionRunError
from samevec.runtime.cancel import CancelToken
from samevec.runtime.collate import collate
from samevec.runtime.engine import Engine
from samevec.runtime.sessions.fake import FakeSession
from samevec.runtime.sessions.fallback import FallbackSession

if TYPE_CHECKING:
    from samevec.runtime.collate import Features


class Full:
    """Has memory for so many rows."""

    def __init__(self, most_rows: int) -> None:
        self.most_rows = most_rows
        self.out_of_memory = True

    def __call__(self, features: Features) -> None:
        if features.shape[0] > self.most_rows:
            raise SessionRunError("no memory", out_of_memory=self.out_of_memory)


def pair(most_rows: int, *, budget_tokens: int = 4096) -> tuple[FallbackSession, FakeSession, FakeSession, list[int]]:
    first, second, opened = FakeSession(before_run=Full(most_rows)), FakeSession(), [0]

    def open_second() -> FakeSession:
        opened[0] += 1
        return second

    return FallbackSession(first, open_second, profile="cpu", budget_tokens=budget_tokens), first, second, opened


def engine_on(session: FallbackSession) -> Engine:
    return Engine(session=session, width=8, max_rows=8)


def test_rows_that_do_not_fit_are_halved_first() -> None:
    session, first, _, opened = pair(2)
    raw = engine_on(session).run_rows(rows((3, 3, 3, 3)))
    assert raw.tobytes() == fake_engine().run_rows(rows((3, 3, 3, 3))).tobytes()
    assert (opened, session.notice) == ([0], None)
    assert first.runs == [(2, 4), (2, 4)]


def test_a_single_row_that_does_not_fit_changes_the_session_for_good(caplog: pytest.LogCaptureFixture) -> None:
    session, first, second, opened = pair(0)
    engine = engine_on(session)
    with caplog.at_level(logging.ERROR):
        raw = engine.run_rows(rows((3, 3)))
    assert raw.tobytes() == fake_engine().run_rows(rows((3, 3))).tobytes()
    engine.run_rows(rows((5,)))
    assert opened == [1]
    assert first.runs == []
    assert second.runs[-1] == (1, 8)
    assert session.notice == (
        "FakeExecutionProvider had no memory for a single row; profile cpu, which has passed its own gate here, "
        "computes until restart"
    )
    assert [record.message for record in caplog.records] == [f"no memory; {session.notice}"]


def test_a_profile_that_is_not_proved_takes_nothing_over(caplog: pytest.LogCaptureFixture) -> None:
    def refused() -> FakeSession:
        raise ReceiptMissingError("m: parity was never run here", fix="samevec parity")

    session = FallbackSession(FakeSession(before_run=Full(0)), refused, profile="cpu", budget_tokens=4096)
    with pytest.raises(SessionRunError) as caught:
        session.run(collate(rows((3,)), pad_token_id=0, pad_to_multiple=4))
    words = "no fall-back to profile cpu: m: parity was never run here; run: samevec parity"
    assert str(caught.value) == f"no memory; {words}"
    assert caught.value.out_of_memory
    assert session.notice == words
    assert len(caplog.records) == 1


def test_the_first_session_is_let_go_with_its_memory() -> None:
    first = FakeSession(before_run=Full(0))
    kept = weakref.ref(first)
    session = FallbackSession(first, FakeSession, profile="cpu", budget_tokens=4096)
    del first
    features = collate(rows((3,)), pad_token_id=0, pad_to_multiple=4)
    assert session.may_reopen
    session.run(features)
    gc.collect()
    assert (kept(), session.may_reopen) == (None, False)
    assert session.run(features).tobytes() == FakeSession().run(features).tobytes()


def test_threads_that_meet_the_full_device_together_open_one_session() -> None:
    both, opened = threading.Barrier(2, timeout=20), [0]

    def full(features: Features) -> None:
        both.wait()  # neither has switched when the other is refused
        raise SessionRunError("no memory", out_of_memory=True)

    def open_second() -> FakeSession:
        opened[0] += 1
        return FakeSession()

    session = FallbackSession(FakeSession(before_run=full), open_second, profile="cpu", budget_tokens=4096)
    features, found = collate(rows((3,)), pad_token_id=0, pad_to_multiple=4), []
    threads = [threading.Thread(target=lambda: found.append(session.run(features).tobytes())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [FakeSession().run(features).tobytes()] * 2
    assert opened == [1]


def test_another_fault_changes_nothing() -> None:
    full = Full(0)
    full.out_of_memory = False
    session, *_, opened = pair(0)
    session = FallbackSession(FakeSession(before_run=full), FakeSession, profile="cpu", budget_tokens=4096)
    with pytest.raises(SessionRunError):
        session.run(collate(rows((3,)), pad_token_id=0, pad_to_multiple=4))
    assert (opened, session.notice) == ([0], None)


def test_what_takes_over_keeps_to_its_own_budget() -> None:
    session, _, second, _ = pair(0, budget_tokens=16)
    session.run(collate(rows((3,)), pad_token_id=0, pad_to_multiple=4))
    features = collate(rows((3, 4, 2, 4, 1)), pad_token_id=0, pad_to_multiple=8)
    found = session.run(features, cancel=CancelToken())
    assert second.runs[1:] == [(2, 8), (2, 8), (1, 8)]
    assert np.array_equal(found, FakeSession().run(features))
