"""Work memory: left from one microbatch of a job to the next, given back by the last ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from makers import fake_engine, rows

from samevec.runtime.cancel import CancelToken
from samevec.runtime.sessions.fake import FakeSession
from samevec.runtime.sessions.reloadable import Reloadable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from samevec.runtime.collate import Features


class KeepingSession(FakeSession):
    """Notes of every run, by its tokens, whether it left its work memory to the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[int, bool] = {}
        self.n_released = 0

    def run(self, features: Features, *, keep_memory: bool = False, **how: Any) -> NDArray[np.float32]:
        self.kept[features.shape[1]] = keep_memory
        return super().run(features, **how)

    def release_memory(self) -> None:
        self.n_released += 1


def test_only_the_last_of_several_microbatches_gives_memory_back() -> None:
    session, trimmed = KeepingSession(), []
    engine = fake_engine(session=session, give_back=lambda: trimmed.append(dict(session.kept)))
    engine.run_rows(rows([4, 8, 12, 16]), batch_size=1)
    assert list(session.kept.values()) == [True, True, True, False]
    assert trimmed == [session.kept]  # once, after all of them


def test_a_single_microbatch_gives_memory_back_and_leaves_the_heap_alone() -> None:
    session = KeepingSession()
    engine = fake_engine(session=session, give_back=lambda: pytest.fail("10 ms for every query"))
    engine.run_rows(rows([8, 8]))
    assert session.kept == {8: False}


def test_a_run_of_its_own_says_whether_more_follows() -> None:
    session = KeepingSession()
    engine = fake_engine(session=session)
    engine.run_guarded(rows([4]), more_follows=True)
    engine.run_guarded(rows([8]))
    engine.run_guarded(rows([12]), more_follows=True, cancel=CancelToken())
    assert session.kept == {4: True, 8: False, 12: True}


def test_a_session_without_an_arena_runs_all_the_same() -> None:
    session = FakeSession()
    fake_engine(session=session).run_guarded(rows([4]), more_follows=True)
    assert session.runs == [(1, 4)]


def test_a_model_that_can_be_unloaded_hands_it_on() -> None:
    session = KeepingSession()
    current = Reloadable(fake_engine(session=session), lambda: fake_engine(session=session)).engine
    current.run_guarded(rows([4]), more_follows=True)
    current.run_guarded(rows([8]))
    assert session.kept == {4: True, 8: False}


def test_memory_of_a_model_that_can_be_unloaded_is_released_while_it_is_loaded() -> None:
    session = KeepingSession()
    reloadable = Reloadable(fake_engine(session=session), lambda: pytest.fail("opened for nothing"))
    reloadable.engine.release_memory()
    assert session.n_released == 1
    reloadable.unload()
    reloadable.engine.release_memory()
    assert session.n_released == 1
