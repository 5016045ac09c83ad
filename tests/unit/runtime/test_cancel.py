"""Cancellation: tokens, many requests in one run, and sessions that end a run early."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from makers import fake_engine, rows
from test_session import CPU, expected, features, write_graph

from samevec.errors import SessionRunError, WorkCancelledError
from samevec.runtime.cancel import CancelToken, every_cancelled
from samevec.runtime.engine import Engine
from samevec.runtime.sessions.base import Session
from samevec.runtime.sessions.fake import FakeSession
from samevec.runtime.sessions.onnx import OnnxSession

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from samevec.runtime.collate import Features


def test_a_token_is_cancelled_once_and_stays_so() -> None:
    token, heard = CancelToken(), []
    token.require_wanted()
    with token.telling(lambda: heard.append("told")):
        assert not token.is_cancelled
        token.cancel()
        token.cancel()
    assert token.is_cancelled
    assert heard == ["told"]
    with pytest.raises(WorkCancelledError, match=r"^cancelled by the caller; nothing was returned$"):
        token.require_wanted()


def test_whoever_comes_late_is_told_at_once_and_whoever_left_is_not() -> None:
    token, heard = CancelToken(), []
    with token.telling(lambda: heard.append("left")):
        pass
    token.cancel()
    with token.telling(lambda: heard.append("late")):
        assert heard == ["late"]


def test_a_token_may_be_cancelled_from_another_thread() -> None:
    token, told = CancelToken(), threading.Event()
    with token.telling(told.set):
        thread = threading.Thread(target=token.cancel)
        thread.start()
        assert told.wait(10)
        thread.join(10)
    assert token.is_cancelled


def test_a_shared_run_ends_when_every_request_is_given_up() -> None:
    first, second = CancelToken(), CancelToken()
    with every_cancelled([first, second, first]) as joined:
        first.cancel()
        assert not joined.is_cancelled
        second.cancel()
        assert joined.is_cancelled
    with every_cancelled([first, second]) as joined:
        assert joined.is_cancelled
    with every_cancelled([first, CancelToken()]) as joined:
        assert not joined.is_cancelled


def test_a_run_for_nobody_who_can_cancel_goes_on() -> None:
    with every_cancelled([]) as joined:
        assert not joined.is_cancelled


def test_a_fake_session_can_be_cancelled_before_and_in_a_run() -> None:
    token = CancelToken()
    session = FakeSession(before_run=lambda features: token.cancel())
    with pytest.raises(WorkCancelledError):
        session.run(features(), cancel=token)
    assert session.runs == [(2, 8)]
    with pytest.raises(WorkCancelledError):
        session.run(features(), cancel=token)
    assert session.runs == [(2, 8)]


def test_an_engine_stops_at_the_run_that_is_cancelled() -> None:
    token = CancelToken()

    def cancel_third(features: Features) -> None:
        if len(session.runs) == 2:
            token.cancel()

    session = FakeSession(before_run=cancel_third)
    engine = fake_engine(session)
    given = rows([5, 4, 3, 2, 1])
    steps = engine.plan_rows(given, batch_size=1)
    with pytest.raises(WorkCancelledError):
        engine.run_plan(given, steps, cancel=token)
    assert len(session.runs) == 3


def test_a_session_that_cannot_be_cancelled_finishes_what_it_began() -> None:
    class Plain(Session):
        provider = "FakeExecutionProvider"

        def run(self, features: Features, **how: object) -> NDArray[np.float32]:
            token.cancel()
            return inner.run(features)

    token, inner = CancelToken(), FakeSession()
    plain = Plain()
    engine = Engine(session=plain, width=8)
    assert engine.run_microbatch(rows([3]), cancel=token).shape == (1, 8)
    with pytest.raises(WorkCancelledError):  # but nothing is begun
        engine.run_guarded(rows([3]), cancel=token)
    assert len(inner.runs) == 1


@pytest.fixture(scope="module")
def onnx_session(tmp_path_factory: pytest.TempPathFactory) -> OnnxSession:
    path: Path = write_graph(tmp_path_factory.mktemp("graph"))
    return OnnxSession(path, CPU, n_threads=1)


def test_onnxruntime_gives_the_same_with_a_token_that_holds(onnx_session: OnnxSession) -> None:
    assert onnx_session.run(features(), cancel=CancelToken()).tolist() == expected()


def test_onnxruntime_runs_nothing_that_was_cancelled_before(onnx_session: OnnxSession) -> None:
    token = CancelToken()
    token.cancel()
    with pytest.raises(WorkCancelledError):
        onnx_session.run(features(), cancel=token)
    assert onnx_session.run(features()).tolist() == expected()


class CancelOnFeed:
    """Features whose owner gives up after the run was prepared and before it starts."""

    def __init__(self, token: CancelToken) -> None:
        self._token = token
        self._features = features()
        self.shape = self._features.shape

    def as_feed(self, names: list[str]) -> dict[str, NDArray[np.int64]]:
        self._token.cancel()
        return self._features.as_feed(names)


def test_onnxruntime_ends_a_run_through_its_run_options_and_no_other_run(onnx_session: OnnxSession) -> None:
    token = CancelToken()
    with pytest.raises(WorkCancelledError) as caught:
        onnx_session.run(CancelOnFeed(token), cancel=token)  # type: ignore[arg-type]
    assert "terminate flag" in str(caught.value.__cause__)
    assert onnx_session.run(features()).tolist() == expected()
    assert onnx_session.run(features(), cancel=CancelToken()).tolist() == expected()


def test_an_error_of_a_run_that_nobody_cancelled_stays_one(onnx_session: OnnxSession) -> None:
    bad = features()
    bad.input_ids[0, 0] = 10_000
    with pytest.raises(SessionRunError):
        onnx_session.run(bad, cancel=CancelToken())
