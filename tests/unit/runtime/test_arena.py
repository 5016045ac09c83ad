"""Work memory: left from one microbatch of a job to the next, given back by the last ones."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from makers import fake_engine, rows

from samevec.runtime.batching.parallel import BulkSession
from samevec.runtime.cancel import CancelToken
from samevec.runtime.sessions.arena import Arena, ArenaSession
from samevec.runtime.sessions.fake import FakeSession
from samevec.runtime.sessions.reloadable import Reloadable

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import numpy as np
    from numpy.typing import NDArray

    from samevec.runtime.collate import Features


class KeepingSession(FakeSession):
    """Notes of every run, by its tokens, whether it left its work memory to the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[int, bool] = {}
        self._arena = Arena()

    def keeping_arena(self) -> AbstractContextManager[None]:
        return self._arena.keeping()

    @property
    def holds_arena(self) -> bool:
        return self._arena.holds

    def run(self, features: Features) -> NDArray[np.float32]:
        self.kept[features.shape[1]] = self._arena.keeps
        with self._arena.run():
            return super().run(features)


class LateSession(KeepingSession):
    """The run of this shape ends when all others of a job have ended."""

    def __init__(self, late_tokens: int, n_others: int) -> None:
        super().__init__()
        self._late_tokens, self._n_others = late_tokens, n_others
        self._ended = threading.Semaphore(0)

    def run(self, features: Features) -> NDArray[np.float32]:
        if features.shape[1] == self._late_tokens:
            assert all(self._ended.acquire(timeout=20) for _ in range(self._n_others))
            return super().run(features)
        raw = super().run(features)
        self._ended.release()
        return raw


def kept_in_order(session: KeepingSession) -> list[bool]:
    return [session.kept[n_tokens] for n_tokens in sorted(session.kept)]


def test_only_the_last_of_several_microbatches_gives_memory_back() -> None:
    session, trimmed = KeepingSession(), []
    engine = fake_engine(session=session, give_back=lambda: trimmed.append(dict(session.kept)))
    engine.run_rows(rows([4, 8, 12, 16]), batch_size=1)
    assert sorted(kept_in_order(session)) == [False, True, True, True]
    assert trimmed == [session.kept]  # once, after all of them


def test_a_single_microbatch_gives_memory_back_and_leaves_the_heap_alone() -> None:
    session = KeepingSession()
    engine = fake_engine(session=session, give_back=lambda: pytest.fail("10 ms for every query"))
    engine.run_rows(rows([8, 8]))
    assert session.kept == {8: False}


@pytest.mark.parametrize("n_workers", [2, 3])
def test_side_by_side_as_many_as_run_at_once_give_memory_back(n_workers: int) -> None:
    session, trimmed = KeepingSession(), []
    bulk = BulkSession(n_workers, lambda: session)
    engine = fake_engine(bulk=bulk, give_back=lambda: trimmed.append((len(session.kept) >= 12, session.holds_arena)))
    steps = engine.plan_rows(rows([4 * n for n in range(200, 212)]), batch_size=1)
    engine.run_plan(rows([4 * n for n in range(200, 212)]), steps)
    in_order = [session.kept[batch.n_tokens] for batch in steps.microbatches]
    assert in_order == [True] * (12 - n_workers) + [False] * n_workers
    assert trimmed == [(True, False)]  # with a run of one token more where one of the first ended last


def test_a_run_of_its_own_says_whether_more_follows() -> None:
    session = KeepingSession()
    engine = fake_engine(session=session)
    engine.run_guarded(rows([4]), more_follows=True)
    engine.run_guarded(rows([8]))
    engine.run_guarded(rows([12]), more_follows=True, cancel=CancelToken())
    assert session.kept == {4: True, 8: False, 12: True}


def test_a_session_without_an_arena_runs_all_the_same() -> None:
    session = FakeSession()
    assert not isinstance(session, ArenaSession)
    fake_engine(session=session).run_guarded(rows([4]), more_follows=True)
    assert session.runs == [(1, 4)]


def test_a_model_that_can_be_unloaded_hands_it_on() -> None:
    session = KeepingSession()
    current = Reloadable(fake_engine(session=session), lambda: fake_engine(session=session)).engine
    current.run_guarded(rows([4]), more_follows=True)
    current.run_guarded(rows([8]))
    assert session.kept == {4: True, 8: False}


def test_what_a_run_left_that_ended_last_is_given_back() -> None:
    lengths = [4 * n for n in range(200, 206)]
    session = LateSession(late_tokens=max(lengths), n_others=5)
    bulk = BulkSession(2, lambda: session)
    seen: list[tuple[tuple[int, int], bool]] = []
    engine = fake_engine(bulk=bulk, give_back=lambda: seen.append((session.runs[-1], session.holds_arena)))
    steps = engine.plan_rows(rows(lengths), batch_size=1)
    assert steps.microbatches[0].n_tokens == max(lengths)  # begun first, so that others were to follow it
    engine.run_plan(rows(lengths), steps)
    assert session.kept[max(lengths)]
    assert seen == [((1, 4), False)]  # by a run of one token, before the heap is trimmed


def test_arenas_are_emptied_only_where_something_was_left() -> None:
    own, share = KeepingSession(), KeepingSession()
    bulk = BulkSession(2, lambda: share)
    engine = fake_engine(session=own, bulk=bulk)
    engine.empty_arenas()
    assert (own.runs, bulk.opened) == ([], None)  # nor is a session opened for it
    engine.run_guarded(rows([8]), more_follows=True)
    engine.empty_arenas()
    assert own.runs == [(1, 8), (1, 4)]
    engine.run_guarded(rows([12]), bulk=True, more_follows=True)
    engine.empty_arenas()
    engine.empty_arenas()
    assert (own.runs, share.runs) == ([(1, 8), (1, 4)], [(1, 12), (1, 4)])


def test_arenas_of_a_model_that_can_be_unloaded_are_emptied_while_it_is_loaded() -> None:
    own, share = KeepingSession(), KeepingSession()
    reloadable = Reloadable(
        fake_engine(session=own, bulk=BulkSession(2, lambda: share)), lambda: pytest.fail("opened for nothing")
    )
    engine = reloadable.engine
    engine.run_guarded(rows([8]), more_follows=True)
    engine.run_guarded(rows([12]), bulk=True, more_follows=True)
    engine.empty_arenas()
    assert (own.runs[-1], share.runs[-1]) == ((1, 4), (1, 4))
    engine.run_guarded(rows([16]), more_follows=True)
    reloadable.unload()
    engine.empty_arenas()
    assert own.runs[-1] == (1, 16)
