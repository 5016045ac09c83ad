"""Several runners over one queue: what runs beside what, and on which cores."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
from stand_ins import wait_until
from worker_bench import Bench, Call, bench, expected, rows_of

from samevec.errors import NotReadyError, SessionRunError

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def two() -> Iterator[Bench]:
    with bench(workers=2, overlapping=True) as made:
        yield made


def test_two_bulk_microbatches_run_side_by_side(two: Bench) -> None:
    two.stage.held = True
    rows = rows_of(*[60] * 4)
    future = two.submit(rows)
    first, second = two.stage.call(0), two.stage.call(1)  # both wait now, each in a run of its own
    assert (first.bulk, second.bulk) == (True, True)
    second.wake.set()  # the later one ends first, and its runner goes on
    two.stage.call(2).wake.set()
    two.stage.call(3).wake.set()
    assert not future.done()
    first.wake.set()
    assert np.array_equal(future.result(20), expected(rows))


def test_no_more_bulk_runs_than_runners(two: Bench) -> None:
    two.stage.held = True
    future = two.submit(rows_of(*[60] * 6))
    active = [two.stage.call(0), two.stage.call(1)]
    for number in range(2, 6):
        assert len(two.stage.calls) == number
        active.pop(0).wake.set()
        active.append(two.stage.call(number))
    two.stage.release()
    future.result(20)


def test_a_small_request_runs_while_every_bulk_runner_is_held(two: Bench) -> None:
    two.stage.held = True
    bulk = two.submit(rows_of(*[60] * 4, start=1000))
    two.stage.call(1)
    small = rows_of(5)
    future = two.submit(small)
    call = two.stage.call(2)
    assert call.rows == [small[0].ids]
    assert not call.bulk  # on all cores
    call.wake.set()
    assert np.array_equal(future.result(20), expected(small))
    assert not bulk.done()


def test_work_memory_is_left_to_the_next_microbatch_but_not_by_the_last(two: Bench) -> None:
    two.submit(rows_of(*[60] * 6)).result(20)
    assert sorted(call.keeps_memory for call in two.stage.calls) == [False] * 2 + [True] * 4
    two.submit(rows_of(5)).result(20)
    assert not two.stage.calls[-1].keeps_memory


def test_small_requests_that_wait_share_a_microbatch(two: Bench) -> None:
    two.stage.held = True
    first = two.submit(rows_of(5))
    held = two.stage.call(0)
    later = [two.submit(rows_of(5, start=200 + i)) for i in range(3)]
    held.wake.set()
    two.stage.call(1).wake.set()
    for future in (first, *later):
        future.result(20)
    assert two.stage.shapes() == [(1, 5), (3, 5)]


def test_a_lone_bulk_microbatch_has_all_cores_and_no_company(two: Bench) -> None:
    two.stage.held = True
    first = two.submit(rows_of(60))
    assert not two.stage.call(0).bulk
    later = two.submit(rows_of(50, 50, start=200))
    small = two.submit(rows_of(5))
    assert len(two.stage.call(1).rows[0]) == 5  # what may run beside it does, so the runners were asked
    two.stage.calls[1].wake.set()
    small.result(20)
    assert len(two.stage.calls) == 2
    two.stage.calls[0].wake.set()
    assert (two.stage.call(2).bulk, two.stage.call(3).bulk) == (True, True)  # those two pay side by side
    two.stage.release()
    first.result(20)
    later.result(20)


def test_a_large_microbatch_runs_alone_between_those_that_share(two: Bench) -> None:
    two.stage.held = True
    before = two.submit(rows_of(60, 60))
    assert (two.stage.call(0).bulk, two.stage.call(1).bulk) == (True, True)
    large = two.submit(rows_of(2049, start=5000))
    after = two.submit(rows_of(50, 50, start=300))
    two.stage.calls[0].wake.set()  # a runner is free, but the large one must not have company
    small = two.submit(rows_of(5, start=900))
    assert len(two.stage.call(2).rows[0]) == 5
    two.stage.calls[2].wake.set()
    small.result(20)
    assert len(two.stage.calls) == 3
    two.stage.calls[1].wake.set()
    before.result(20)
    assert (len(two.stage.call(3).rows[0]), two.stage.calls[3].bulk) == (2049, False)
    two.stage.calls[3].wake.set()
    large.result(20)
    assert (two.stage.call(4).bulk, two.stage.call(5).bulk) == (True, True)
    two.stage.release()
    after.result(20)


def test_three_equal_microbatches_are_one_on_all_cores_and_two_side_by_side(two: Bench) -> None:
    # Side by side from the start, the third would have half of the cores and nothing beside it.
    two.stage.held = True
    future = two.submit(rows_of(60, 60, 60))
    two.stage.call(0).wake.set()
    two.stage.call(2)  # both others have begun
    assert [call.bulk for call in two.stage.calls] == [False, True, True]
    two.stage.release()
    future.result(20)


def test_an_uneven_pair_runs_one_after_the_other(two: Bench) -> None:
    two.submit(rows_of(64, 2)).result(20)
    assert [call.bulk for call in two.stage.calls] == [False, False]


def test_one_runner_has_all_cores_for_everything() -> None:
    with bench(workers=1, overlapping=True) as one:
        one.stage.held = True
        bulk = one.submit(rows_of(60, 60, start=1000))
        one.stage.call(0)
        small = one.submit(rows_of(5))
        assert len(one.stage.call(1).rows[0]) == 5  # beside the bulk run
        one.stage.release()
        bulk.result(20)
        small.result(20)
        assert [call.bulk for call in one.stage.calls] == [False] * 3


def test_rows_of_all_requests_are_planned_together(two: Bench) -> None:
    held = two.hold(2)
    requests = [rows_of(6, 9, 6, start=100 + 10 * i) for i in range(2)]
    futures = [two.submit(rows) for rows in requests]
    two.stage.release()
    for rows, future in zip(requests, futures, strict=True):
        assert np.array_equal(future.result(20), expected(rows))
    held.result(20)
    assert two.stage.shapes()[2:] == [(6, 9)]


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_many_requests_get_their_own_rows(workers: int) -> None:
    with bench(workers=workers, overlapping=True) as many:
        requests = [rows_of(*range(1 + i % 7, 60, 7), start=1000 * i) for i in range(1, 60)]
        futures = [many.submit(rows, batch_size=1 + i % 5) for i, rows in enumerate(requests)]
        for rows, future in zip(requests, futures, strict=True):
            assert np.array_equal(future.result(20), expected(rows))


def test_a_single_run_provider_never_runs_two() -> None:
    with bench(workers=4, overlapping=False) as single:
        single.stage.held = True
        futures = [single.submit(rows_of(60, 60, start=1000)), single.submit(rows_of(5))]
        for number in range(3):
            call = single.stage.call(number)
            assert len(single.stage.calls) == number + 1
            call.wake.set()
        for future in futures:
            future.result(20)


def test_a_shrunken_limit_holds_for_what_is_already_planned(two: Bench) -> None:
    held = two.hold(2)
    rows = rows_of(*[8] * 16)
    future = two.submit(rows, batch_size=8)
    two.stage.calls[0].wake.set()
    assert len(two.stage.call(2).rows) == 8  # planned, and the second half waits
    two.engine.limit.shrink(6)
    two.stage.release()
    assert np.array_equal(future.result(20), expected(rows))
    held.result(20)
    assert two.stage.shapes()[3:] == [(3, 8), (3, 8), (2, 8)]


def test_stop_ends_runs_that_nobody_waits_for(two: Bench) -> None:
    held = two.hold(2)
    two.worker.stop(timeout_s=0)
    with pytest.raises(NotReadyError, match="toy: shutting down"):
        held.result(20)
    assert all(call.wake.wait(20) for call in two.stage.calls)


def test_stop_lets_runs_end_that_end_in_time(two: Bench) -> None:
    held = two.hold(2)
    stopping = threading.Thread(target=two.worker.stop, kwargs={"timeout_s": 20})
    stopping.start()
    two.stage.release()
    stopping.join(20)
    assert held.result(0).shape == (2, 8)
    assert not two.worker.is_running


def test_a_poisoned_row_fails_its_own_request_only(two: Bench) -> None:
    poison = rows_of(30, start=666)[0]

    def explode(call: Call) -> None:
        if poison.ids in call.rows:
            raise RuntimeError("secret")

    two.stage.on_run = explode
    held = two.hold(2)
    bad, good = two.submit([*rows_of(30), poison]), rows_of(30, 20, start=200)
    neighbours = two.submit(good)
    two.stage.release()
    with pytest.raises(Exception, match=r"^input\[1\]: could not be computed: RuntimeError$"):
        bad.result(20)
    assert np.array_equal(neighbours.result(20), expected(good))
    held.result(20)
    assert two.worker.is_alive


def test_a_run_ends_when_its_request_has_failed_elsewhere(two: Bench) -> None:
    poison, other = rows_of(60, 60)

    def explode(call: Call) -> None:
        if poison.ids in call.rows:
            assert two.stage.call(0).rows == [other.ids]  # the other is under way
            raise RuntimeError

    two.stage.on_run = explode
    two.stage.held = True
    future = two.submit([poison, other])
    with pytest.raises(SessionRunError, match=r"input\[0\]"):
        future.result(20)
    assert two.stage.calls[0].wake.wait(20)  # set by the cancellation: the test never does
    wait_until(lambda: two.stage.calls[0].cancelled)
