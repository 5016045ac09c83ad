"""The worker's one thread for both lanes: sharing, order, lanes, caps, deadlines, cancellation, poison."""

from __future__ import annotations

import gc
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from stand_ins import wait_until
from worker_bench import LIMITS, PATIENCE_S, Bench, Call, bench, expected, rows_of

from samevec.errors import DeadlineExceededError, NonFiniteOutputError, NotReadyError, SessionRunError
from samevec.runtime.batching.cost import CostModel
from samevec.runtime.rows import TokenRow
from samevec.server.queue.jobs import Job
from samevec.server.queue.work_queue import QueueLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

POISON = rows_of(7, start=666)[0]


@pytest.fixture
def one() -> Iterator[Bench]:
    with bench() as made:
        yield made


def explode(*, when: Callable[[Call], bool], error: Callable[[], BaseException]) -> Callable[[Call], None]:
    def on_run(call: Call) -> None:
        if when(call):
            raise error()

    return on_run


def holds_poison(call: Call) -> bool:
    return POISON.ids in call.rows


def test_rows_come_back_in_request_order(one: Bench) -> None:
    lengths = list(range(1, 258))
    random.Random(4).shuffle(lengths)
    rows = rows_of(*lengths)
    assert np.array_equal(one.submit(rows).result(PATIENCE_S), expected(rows))
    assert max(n * longest for n, longest in one.stage.shapes() if n > 1) <= LIMITS.token_budget


def test_threads_that_wait_keep_nothing_of_their_last_microbatch(one: Bench) -> None:
    """With 2,000 texts of a full-shape model those were 25 MB, until the next request."""
    first_id = 7_000_000
    one.submit(rows_of(*[40] * 5, start=first_id)).result(PATIENCE_S)

    def kept() -> bool:
        gc.collect()
        jobs = [found for found in gc.get_objects() if type(found) is Job]
        return any(row.ids[0] >= first_id for job in jobs for row in job.rows)

    wait_until(lambda: not kept())


def test_identical_rows_are_computed_once(one: Bench) -> None:
    rows = [*rows_of(3, 4), *rows_of(3, 4)]
    assert np.array_equal(one.submit(rows).result(PATIENCE_S), expected(rows))
    assert one.stage.shapes() == [(2, 4)]


def test_requests_share_microbatches(one: Bench) -> None:
    held = one.hold()
    requests = [rows_of(5, 9, 5, start=100 + 10 * i) for i in range(2)]
    futures = [one.submit(rows) for rows in requests]
    one.stage.release()
    held.result(PATIENCE_S)
    for rows, future in zip(requests, futures, strict=True):
        assert np.array_equal(future.result(PATIENCE_S), expected(rows))
    assert one.stage.shapes() == [(1, 40), (6, 9)]


def test_arrivals_join_the_next_plan(one: Bench) -> None:
    held = one.hold()
    first = one.submit(rows_of(30, 30, 8, 8, start=100))
    second = one.submit(rows_of(8, 8, 8, 8, start=200))
    one.stage.release()
    for future in (held, first, second):
        future.result(PATIENCE_S)
    assert (6, 8) in one.stage.shapes()  # both requests' short rows ran together
    assert len(one.stage.shapes()) == 3


def test_a_cap_holds_for_every_microbatch_with_its_rows(one: Bench) -> None:
    held = one.hold()
    capped, free = rows_of(4, 4, 4, 4, 4, start=100), rows_of(4, 4, 4, start=200)
    futures = [one.submit(capped, batch_size=2), one.submit(free)]
    one.stage.release()
    for future in (held, *futures):
        future.result(PATIENCE_S)
    for call in one.stage.calls:
        if any(100 <= row[0] < 200 for row in call.rows):
            assert len(call.rows) <= 2
    assert sorted(n for n, _ in one.stage.shapes()[1:]) == [1, 2, 2, 3]


def test_interactive_rows_wait_for_one_bulk_microbatch_at_most(one: Bench) -> None:
    one.stage.held = True
    futures = [one.submit(rows_of(*[60] * 5, start=1000))]

    def lane_of(number: int) -> str:
        """Wait for a run to begin, and name its lane."""
        return "bulk" if one.stage.call(number).rows[0][0] >= 1000 else "small"

    assert lane_of(0) == "bulk"
    futures.append(one.submit(rows_of(5, start=100)))  # comes during a bulk microbatch
    one.stage.calls[0].wake.set()
    assert lane_of(1) == "small"
    futures.append(one.submit(rows_of(5, start=200)))  # comes during one of its own lane: bulk work has its turn
    one.stage.calls[1].wake.set()
    assert lane_of(2) == "bulk"
    futures.append(one.submit(rows_of(5, start=300)))
    one.stage.calls[2].wake.set()
    assert lane_of(3) == "small"
    assert len(one.stage.calls[3].rows) == 2
    one.stage.release()
    for future in futures:
        future.result(PATIENCE_S)
    assert [lane_of(number) for number in range(4, 7)] == ["bulk"] * 3


def test_bulk_work_goes_on_beside_a_stream_of_small_requests(one: Bench) -> None:
    # Every run of the small lane brings the next small request, so that one always waits.
    bulk = one.hold()
    n_small = [0]

    def refill(call: Call) -> None:
        if len(call.rows[0]) == 5 and not bulk.done() and n_small[0] < 1000:
            n_small[0] += 1
            one.submit(rows_of(5, start=100_000 + n_small[0]))

    one.stage.on_run = refill
    bulk = one.submit(rows_of(*[60] * 10, start=1000))
    one.submit(rows_of(5))
    one.stage.release()
    bulk.result(PATIENCE_S)
    assert n_small[0] <= 11  # one between any two of its microbatches


def test_short_rows_are_not_starved_by_longer_ones(one: Bench) -> None:
    held = one.hold()
    order: list[int] = []
    one.stage.on_run = lambda call: order.append(call.rows[0][0])
    futures = [one.submit(rows_of(*[60] * 4, start=1000 + 10 * i)) for i in range(5)]
    short = one.submit(rows_of(17, start=500))
    futures += [one.submit(rows_of(*[60] * 4, start=2000 + 10 * i)) for i in range(20)]
    one.stage.release()
    for future in (held, short, *futures):
        future.result(PATIENCE_S)
    assert order.index(500) == 20  # after what came before it, and before what came later


def test_expired_work_never_runs(one: Bench) -> None:
    held = one.hold()
    late = one.submit(rows_of(7, 7, 7), deadline_s=5.0)
    one.now = 6.0
    one.stage.release()
    held.result(PATIENCE_S)
    with pytest.raises(DeadlineExceededError):
        late.result(PATIENCE_S)
    assert one.stage.shapes() == [(1, 40)]


def test_cancelled_work_never_runs(one: Bench) -> None:
    held = one.hold()
    gone, kept = one.submit(rows_of(7, 7, 7, start=100)), one.submit(rows_of(6, 6, 6, start=200))
    assert gone.cancel()
    one.stage.release()
    held.result(PATIENCE_S)
    kept.result(PATIENCE_S)
    assert one.stage.shapes() == [(1, 40), (3, 6)]


def test_a_run_ends_when_the_last_who_wanted_it_is_gone(one: Bench) -> None:
    held = one.hold()
    first, second = one.submit(rows_of(7, 7, 7, start=100)), one.submit(rows_of(6, 6, 6, start=200))
    one.stage.calls[0].wake.set()
    held.result(PATIENCE_S)
    shared = one.stage.call(1)
    assert len(shared.rows) == 6
    assert first.cancel()
    assert not shared.wake.is_set()  # the other still wants it
    assert second.cancel()
    assert shared.wake.is_set()
    after = one.submit(rows_of(5))
    one.stage.call(2).wake.set()
    assert after.result(PATIENCE_S).shape == (1, 8)
    assert shared.cancelled
    assert one.worker.is_alive  # nothing failed, so the canary was not asked


def test_one_poisonous_item_fails_alone(one: Bench) -> None:
    one.stage.on_run = explode(when=holds_poison, error=lambda: RuntimeError("the device is gone, secret detail"))
    held = one.hold()
    good = rows_of(7, 7, 7, start=200)
    bad = one.submit([*rows_of(7, start=100), POISON])
    neighbours = one.submit(good)
    one.stage.release()
    held.result(PATIENCE_S)
    with pytest.raises(SessionRunError, match=r"^input\[1\]: could not be computed: RuntimeError$"):
        bad.result(PATIENCE_S)
    assert np.array_equal(neighbours.result(PATIENCE_S), expected(good))
    assert one.worker.is_alive


def test_a_row_that_finds_no_memory_even_alone_fails_alone(one: Bench) -> None:
    def no_memory() -> SessionRunError:
        return SessionRunError("cannot allocate", out_of_memory=True)

    one.stage.on_run = explode(when=holds_poison, error=no_memory)
    held = one.hold()
    good = rows_of(9, 9, 9, start=200)
    bad, neighbours = one.submit([*rows_of(9), POISON]), one.submit(good)
    one.stage.release()
    held.result(PATIENCE_S)
    with pytest.raises(SessionRunError, match=r"^input\[1\]: could not be computed: cannot allocate$") as caught:
        bad.result(PATIENCE_S)
    assert caught.value.out_of_memory
    assert np.array_equal(neighbours.result(PATIENCE_S), expected(good))
    assert one.engine.limit.rows == 1
    later = rows_of(9, 9, start=300)
    assert np.array_equal(one.submit(later).result(PATIENCE_S), expected(later))
    assert one.stage.shapes()[-2:] == [(1, 9), (1, 9)]  # the limit holds for the next plan


def test_one_bad_output_fails_alone(one: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    run_guarded = type(one.engine).run_guarded

    def with_nan(engine: object, rows: list[TokenRow], **options: object) -> object:
        outcome = run_guarded(engine, rows, **options)  # type: ignore[arg-type]
        outcome.raw[[row.ids == POISON.ids for row in rows], 0] = np.nan
        return outcome

    monkeypatch.setattr(type(one.engine), "run_guarded", with_nan)
    held = one.hold()
    good = rows_of(13, 13, start=200)
    bad, neighbours = one.submit([POISON, *rows_of(9, start=100)]), one.submit(good)
    one.stage.release()
    held.result(PATIENCE_S)
    with pytest.raises(NonFiniteOutputError) as caught:
        bad.result(PATIENCE_S)
    assert caught.value.indices == (0,)
    assert np.array_equal(neighbours.result(PATIENCE_S), expected(good))


def test_stop_tells_those_who_wait(one: Bench) -> None:
    held = one.hold()
    waiting = one.submit(rows_of(5, 5, 5))
    one.worker.stop(timeout_s=0)
    for future in (held, waiting):
        with pytest.raises(NotReadyError, match="shutting down"):
            future.result(PATIENCE_S)
    with pytest.raises(NotReadyError, match="shutting down"):
        one.submit(rows_of(5))


@pytest.mark.parametrize(("batch_size", "shapes"), [(None, [(1, 20), (1, 9), (1, 2)]), (8, [(3, 20)])])
def test_requests_that_name_no_size_are_planned_by_cost_and_others_filled(
    batch_size: int | None, shapes: list[tuple[int, int]]
) -> None:
    # A run costs next to nothing and a padded token much: lengths far apart are cheapest in runs of their own.
    cost = CostModel(per_run_s=0.001, stream_s=0.0, per_token_s=1.0, per_token_squared_s=0.0)
    with bench(limits=QueueLimits(token_budget=64, max_rows=8, cost=cost)) as made:
        rows = [TokenRow(tuple(range(3, n + 3))) for n in (2, 9, 20)]
        found = made.submit(rows, batch_size=batch_size).result(PATIENCE_S)
        assert sorted(made.stage.shapes(), reverse=True) == shapes
        assert np.array_equal(found, expected(rows))


@pytest.mark.parametrize("overlapping", [False, True])
@pytest.mark.parametrize(
    ("n", "batch_size", "max_rows", "sizes"),
    [
        (5, 8, 2, [1, 2, 2]),
        (5, 1, 8, [1] * 5),
        (5, 8, 8, [5]),
        (5, 3, 8, [2, 3]),
        (1, 8, 2, [1]),
        (9, None, 4, [1, 4, 4]),
    ],
)
def test_requested_sizes_and_the_servers_limit(
    overlapping: bool, n: int, batch_size: int | None, max_rows: int, sizes: list[int]
) -> None:
    limits = replace(LIMITS, token_budget=1000, max_rows=max_rows)
    with bench(overlapping=overlapping, limits=limits) as made:
        rows = rows_of(*range(10, 10 + n))
        found = made.submit(rows, batch_size=batch_size).result(PATIENCE_S)
        assert np.array_equal(found, expected(rows))
        assert sorted(len(call.rows) for call in made.stage.calls) == sizes
