"""Bulk microbatches side by side: when it pays, what runs where, and that nothing shows in the results."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from makers import Clock, fake_engine, rows

from samevec.errors import DeadlineExceededError, SessionLoadError, SessionRunError
from samevec.runtime.batching.parallel import (
    MAX_WORKERS,
    BulkSession,
    choose_workers,
    run_side_by_side,
    side_by_side_pays,
)
from samevec.runtime.sessions.fake import FakeSession

if TYPE_CHECKING:
    from collections.abc import Sequence

    from samevec.runtime.collate import Features

LENGTHS = np.random.default_rng(9).permutation(np.arange(1, 200)).tolist()
# Generous: a wait that ends here has failed.
PATIENCE_S = 30


def bulk_of(session: FakeSession, n_workers: int = 2) -> BulkSession:
    return BulkSession(n_workers, lambda: session)


@pytest.mark.parametrize(
    ("requested", "n_threads", "workers"),
    [(0, 1, 1), (0, 2, 2), (0, 8, 8), (0, 64, MAX_WORKERS), (1, 16, 1), (4, 2, 4), (16, 2, 16)],
)
def test_zero_workers_means_choose(requested: int, n_threads: int, workers: int) -> None:
    assert choose_workers(requested, n_threads) == workers


@pytest.mark.parametrize(
    ("runs_s", "n_workers", "pays"),
    [
        ([], 2, False),
        ([1.0], 2, False),
        ([1.0, 1.0], 1, False),
        ([1.0, 1.0], 2, True),
        ([1.0] * 4, 4, True),
        ([10.0, 0.1], 2, False),  # the long one alone would take twice as long on half the threads
        ([1.0] * 3, 2, False),  # the third would run alone on half the threads
        ([1.0] * 15, 2, True),
    ],
)
def test_side_by_side_pays_where_all_workers_stay_busy(runs_s: list[float], n_workers: int, *, pays: bool) -> None:
    assert side_by_side_pays(runs_s, n_workers) is pays


@given(st.lists(st.floats(0.01, 10), max_size=30), st.integers(2, 8), st.floats(0.1, 10))
def test_whether_it_pays_does_not_depend_on_the_unit(runs_s: list[float], n_workers: int, scale: float) -> None:
    margin = abs(sum(runs_s)) * 1e-6
    if side_by_side_pays(runs_s, n_workers) != side_by_side_pays([x + margin for x in runs_s], n_workers):
        return  # on the edge
    assert side_by_side_pays(runs_s, n_workers) == side_by_side_pays([x * scale for x in runs_s], n_workers)


@pytest.mark.parametrize(
    ("n_workers", "batch_size"), [(2, None), (3, None), (8, None), (2, 1), (3, 1), (8, 1), (2, 8), (3, 8)]
)
def test_bits_and_order_are_those_of_one_run_at_a_time(n_workers: int, batch_size: int | None) -> None:
    bulk = FakeSession()
    found = fake_engine(bulk=bulk_of(bulk, n_workers)).run_rows(rows(LENGTHS), batch_size=batch_size)
    assert found.tobytes() == fake_engine().run_rows(rows(LENGTHS), batch_size=batch_size).tobytes()
    assert bulk.runs


def test_two_microbatches_really_run_at_the_same_time() -> None:
    meeting = threading.Barrier(2, timeout=PATIENCE_S)

    def meet(_: Features) -> None:
        meeting.wait()

    bulk = FakeSession(before_run=meet)
    found = fake_engine(bulk=bulk_of(bulk), max_rows=1).run_rows(rows([8, 8, 8, 8]))  # hangs, then raises, if not
    assert found.shape == (4, 8)


def test_large_microbatches_run_alone_and_the_others_side_by_side() -> None:
    session, bulk, told = FakeSession(), FakeSession(), list[tuple[int, ...]]()
    engine = fake_engine(session, bulk=bulk_of(bulk), max_rows=1)
    lengths = [2048, 2052, 2047, 2046, 2049, 2045]
    found = engine.run_rows(rows(lengths), recorder=lambda indices, _: told.append(tuple(indices)))
    assert session.runs == [(1, 2052), (1, 2052)]  # 2,049 are padded to a multiple of 4
    assert bulk.runs == [(1, 2048)] * 4
    assert told == [(1,), (4,), (0,), (2,), (3,), (5,)]  # longest first, whatever ran when
    assert found.tobytes() == fake_engine(max_rows=1).run_rows(rows(lengths)).tobytes()


def test_a_plan_of_filled_microbatches_takes_no_more_memory_than_one_worker() -> None:
    session = FakeSession()
    fake_engine(session, bulk=bulk_of(FakeSession())).run_rows(rows([170] * 48), batch_size=24)
    assert session.runs == [(24, 172), (24, 172)]  # one after the other


def test_one_microbatch_runs_on_all_threads_and_opens_no_second_session() -> None:
    def refuse() -> FakeSession:
        raise AssertionError("opened")

    session = FakeSession()
    fake_engine(session, bulk=BulkSession(2, refuse)).run_rows(rows([5, 5]))
    assert session.runs == [(2, 8)]


def test_the_second_session_is_opened_once() -> None:
    opened = []

    def open_session() -> FakeSession:
        opened.append(FakeSession())
        return opened[-1]

    engine = fake_engine(bulk=BulkSession(4, open_session), max_rows=1)
    for _ in range(3):
        engine.run_rows(rows([9] * 8))
    assert len(opened) == 1
    assert len(opened[0].runs) == 24


def test_a_second_session_that_cannot_be_opened_is_an_error_and_tried_again() -> None:
    tries = []

    def open_session() -> FakeSession:
        tries.append(1)
        if len(tries) == 1:
            raise SessionLoadError("gone")
        return FakeSession()

    engine = fake_engine(bulk=BulkSession(2, open_session), max_rows=1)
    with pytest.raises(SessionLoadError, match="gone"):
        engine.run_rows(rows([9] * 8))
    assert engine.run_rows(rows([9] * 8)).shape == (8, 8)


def test_the_recorder_hears_the_plan_in_its_order_whichever_run_ended_first() -> None:
    second_ran = threading.Event()

    def before(features: Features) -> None:
        if features.shape[1] == 40:  # the first microbatch, held until another has run
            assert second_ran.wait(PATIENCE_S)
        else:
            second_ran.set()

    told: list[tuple[list[int], tuple[int, int]]] = []

    def recorder(indices: Sequence[int], features: Features) -> None:
        told.append((list(indices), features.shape))

    engine = fake_engine(bulk=bulk_of(FakeSession(before_run=before)), max_rows=1)
    engine.run_rows(rows([36, 40, 32, 32, 30, 31]), recorder=recorder)
    assert told == [([1], (1, 40)), ([0], (1, 36)), ([2], (1, 32)), ([3], (1, 32)), ([5], (1, 32)), ([4], (1, 32))]


def test_a_failure_stops_what_has_not_begun_and_is_raised() -> None:
    ran: list[int] = []

    def before(features: Features) -> None:
        ran.append(features.shape[1])
        if features.shape[1] == 40:
            raise SessionRunError("broken")

    engine = fake_engine(bulk=bulk_of(FakeSession(before_run=before)), max_rows=1)
    with pytest.raises(SessionRunError, match="broken"):
        engine.run_rows(rows([40, *range(1, 37)]))
    assert len(ran) < 37


def test_the_deadline_holds_between_microbatches() -> None:
    clock = Clock()
    bulk = FakeSession(before_run=clock.passes(1.0))
    engine = fake_engine(bulk=bulk_of(bulk), max_rows=1, clock=clock)
    with pytest.raises(DeadlineExceededError):
        engine.run_rows(rows([9] * 3 + [8] * 17), deadline_s=4.0)
    assert len(bulk.runs) < 20


def test_guarded_runs_go_where_they_are_told() -> None:
    session, bulk = FakeSession(), FakeSession()
    engine = fake_engine(session, bulk=bulk_of(bulk))
    assert engine.workers == 2
    assert fake_engine().workers == 1
    a = engine.run_guarded(rows([7]))
    b = engine.run_guarded(rows([7]), bulk=True)
    assert (session.runs, bulk.runs) == ([(1, 8)], [(1, 8)])
    assert a.raw.tobytes() == b.raw.tobytes()
    without = FakeSession()
    fake_engine(without).run_guarded(rows([7]), bulk=True)
    assert without.runs == [(1, 8)]


def test_tasks_give_their_results_in_order_and_the_first_error_by_order() -> None:
    assert run_side_by_side([lambda i=i: i for i in range(20)], 3) == list(range(20))  # type: ignore[misc]
    later_failed = threading.Event()

    def first() -> int:
        assert later_failed.wait(PATIENCE_S)
        raise ValueError("first")

    def second() -> int:
        later_failed.set()
        raise KeyError("second")

    with pytest.raises(ValueError, match="first"):
        run_side_by_side([first, second, lambda: 3], 2)
