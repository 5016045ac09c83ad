"""The worker: sharing, order, lanes, caps, deadlines, cancellation, poison and death."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from stand_ins import NAN, POISON, Script, embedder, text_ids, wait_until

from samevec.errors import (
    DeadlineExceededError,
    NonFiniteOutputError,
    NotReadyError,
    OverloadedError,
    SessionRunError,
)
from samevec.runtime.cost import CostModel
from samevec.runtime.rows import TokenRow
from samevec.server.scheduler import Admission, Worker, WorkerLimits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray

LIMITS = WorkerLimits(token_budget=64, max_rows=8, interactive_rows=2, interactive_tokens=16)


class Bench:
    """A worker over a scripted model, and a clock that tests move."""

    def __init__(self, script: Script, limits: WorkerLimits) -> None:
        self.script = script
        self.now = 0.0
        self.model = embedder(script)
        self.worker = Worker(self.model, limits, canary=TokenRow((1, 2)), clock=lambda: self.now)

    def submit(self, rows: Sequence[TokenRow], **options: Any) -> Future[NDArray[np.float32]]:
        return self.worker.submit(rows, **{"batch_size": None, "deadline_s": None, "field": "input", **options})

    def expected(self, rows: Sequence[TokenRow]) -> NDArray[np.float32]:
        return np.stack([self.model.engine.session.row(list(row.ids)) for row in rows])  # type: ignore[attr-defined]


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def bench(script: Script) -> Iterator[Bench]:
    made = Bench(script, LIMITS)
    made.worker.start()
    wait_until(lambda: made.worker.is_alive)
    yield made
    if script.gate is not None:
        script.gate.set()
    made.worker.stop()


def rows_of(*lengths: int, start: int = 100) -> list[TokenRow]:
    """Rows of given lengths, all different."""
    return [TokenRow((start + i, *range(10, 9 + n))) for i, n in enumerate(lengths)]


def hold(bench: Bench, script: Script) -> Future[NDArray[np.float32]]:
    """Occupy the worker with one bulk microbatch until the gate opens."""
    script.gate = threading.Event()
    future = bench.submit(rows_of(20, start=9000))
    assert script.entered.wait(10)
    return future


def test_rows_come_back_in_request_order(bench: Bench) -> None:
    lengths = list(range(1, 258))
    random.Random(4).shuffle(lengths)
    rows = rows_of(*lengths)
    assert np.array_equal(bench.submit(rows).result(20), bench.expected(rows))
    assert max(n * longest for n, longest in bench.script.shapes() if n > 1) <= LIMITS.token_budget


def test_identical_rows_are_computed_once(bench: Bench) -> None:
    rows = [*rows_of(3, 4), *rows_of(3, 4)]
    assert np.array_equal(bench.submit(rows).result(10), bench.expected(rows))
    assert bench.script.shapes() == [(2, 4)]


def test_requests_share_microbatches(bench: Bench, script: Script) -> None:
    held = hold(bench, script)
    requests = [rows_of(5, 9, 5, start=100 + 10 * i) for i in range(2)]
    futures = [bench.submit(rows) for rows in requests]
    assert script.gate is not None
    script.gate.set()
    held.result(10)
    for rows, future in zip(requests, futures, strict=True):
        assert np.array_equal(future.result(10), bench.expected(rows))
    assert bench.script.shapes() == [(1, 20), (6, 9)]


def test_arrivals_join_the_next_plan(bench: Bench, script: Script) -> None:
    held = hold(bench, script)
    first = bench.submit(rows_of(30, 30, 8, 8, start=100))
    second = bench.submit(rows_of(8, 8, 8, 8, start=200))
    assert script.gate is not None
    script.gate.set()
    for future in (held, first, second):
        future.result(10)
    # Both requests' short rows ran together.
    assert (6, 8) in bench.script.shapes()
    assert len(bench.script.shapes()) == 3


def test_a_cap_holds_for_every_microbatch_with_its_rows(bench: Bench, script: Script) -> None:
    held = hold(bench, script)
    capped, free = rows_of(4, 4, 4, 4, 4, start=100), rows_of(4, 4, 4, start=200)
    futures = [bench.submit(capped, batch_size=2), bench.submit(free)]
    assert script.gate is not None
    script.gate.set()
    for future in (held, *futures):
        future.result(10)
    for run in bench.script.runs:
        if any(row[0] < 200 and row[0] >= 100 for row in run):
            assert len(run) <= 2
    assert sorted(n for n, _ in bench.script.shapes()[1:]) == [1, 2, 2, 3]


def test_interactive_rows_wait_for_one_bulk_microbatch_at_most(bench: Bench, script: Script) -> None:
    script.steps = threading.Semaphore(0)
    futures = [bench.submit(rows_of(*[60] * 5, start=1000))]

    def run_of(number: int) -> str:
        """Wait for a run to begin, and name its lane; it goes on when a step is released."""
        wait_until(lambda: len(script.runs) > number)
        return "bulk" if script.runs[number][0][0] >= 1000 else "small"

    assert run_of(1) == "bulk"
    futures.append(bench.submit(rows_of(5, start=100)))  # comes during a bulk microbatch
    script.steps.release()
    assert run_of(2) == "small"
    futures.append(bench.submit(rows_of(5, start=200)))  # comes during one of its own lane: bulk work has its turn
    script.steps.release()
    assert run_of(3) == "bulk"
    futures.append(bench.submit(rows_of(5, start=300)))
    script.steps.release()
    assert run_of(4) == "small"
    assert len(script.runs[4]) == 2
    script.steps.release(10)
    for future in futures:
        future.result(10)
    assert [run_of(number) for number in range(5, 8)] == ["bulk"] * 3


def test_bulk_work_goes_on_beside_a_stream_of_small_requests(bench: Bench, script: Script) -> None:
    script.delay_s = 0.002
    stop = threading.Event()

    def stream() -> None:
        i = 0
        while not stop.is_set():
            i += 1
            bench.submit(rows_of(5, start=100_000 + i)).result(10)

    threads = [threading.Thread(target=stream) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        bench.submit(rows_of(*[60] * 30, start=1000)).result(10)
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_short_rows_are_not_starved_by_longer_ones(bench: Bench, script: Script) -> None:
    script.delay_s = 0.002
    futures = [bench.submit(rows_of(*[60] * 4, start=1000 + 10 * i)) for i in range(5)]
    short = bench.submit(rows_of(17, start=500))
    futures += [bench.submit(rows_of(*[60] * 4, start=2000 + 10 * i)) for i in range(20)]
    short.result(10)
    assert not futures[-1].done()
    futures[-1].result(10)


def test_expired_work_never_runs(bench: Bench, script: Script) -> None:
    held = hold(bench, script)
    late = bench.submit(rows_of(7, 7, 7), deadline_s=5.0)
    bench.now = 6.0
    assert script.gate is not None
    script.gate.set()
    held.result(10)
    with pytest.raises(DeadlineExceededError):
        late.result(10)
    assert bench.script.shapes() == [(1, 20)]


def test_cancelled_work_never_runs(bench: Bench, script: Script) -> None:
    held = hold(bench, script)
    gone, kept = bench.submit(rows_of(7, 7, 7, start=100)), bench.submit(rows_of(6, 6, 6, start=200))
    assert gone.cancel()
    assert script.gate is not None
    script.gate.set()
    held.result(10)
    kept.result(10)
    assert bench.script.shapes() == [(1, 20), (3, 6)]


def test_one_poisonous_item_fails_alone(bench: Bench, script: Script) -> None:
    held = hold(bench, script)
    poison = TokenRow(text_ids(POISON))
    good = rows_of(7, 7, 7, start=200)
    bad = bench.submit([*rows_of(7, start=100), poison])
    neighbours = bench.submit(good)
    assert script.gate is not None
    script.gate.set()
    held.result(10)
    with pytest.raises(SessionRunError, match=r"^input\[1\]: could not be computed: RuntimeError$"):
        bad.result(10)
    assert np.array_equal(neighbours.result(10), bench.expected(good))
    assert bench.worker.is_alive


def test_one_bad_output_fails_alone(bench: Bench, script: Script) -> None:
    held = hold(bench, script)
    good = rows_of(13, 13, start=200)
    bad = bench.submit([TokenRow(text_ids(NAN)), *rows_of(9, start=100)])
    neighbours = bench.submit(good)
    assert script.gate is not None
    script.gate.set()
    held.result(10)
    with pytest.raises(NonFiniteOutputError) as caught:
        bad.result(10)
    assert caught.value.indices == (0,)
    assert np.array_equal(neighbours.result(10), bench.expected(good))


def test_a_broken_session_ends_the_worker(bench: Bench, script: Script) -> None:
    script.broken = True
    future = bench.submit(rows_of(5, 6))
    with pytest.raises((SessionRunError, NotReadyError)):
        future.result(10)
    wait_until(lambda: not bench.worker.is_alive)
    assert bench.worker.failure == ("toy-qwen3-embedder: its worker died (RuntimeError); restart the server")
    with pytest.raises(NotReadyError, match="its worker died"):
        bench.submit(rows_of(5))


def test_death_is_told_to_those_who_wait(bench: Bench, script: Script) -> None:
    held = hold(bench, script)
    waiting = bench.submit(rows_of(60, 60, 60))
    script.broken = True
    assert script.gate is not None
    script.gate.set()
    for future in (held, waiting):
        with pytest.raises((SessionRunError, NotReadyError)):
            future.result(10)


def test_a_model_that_cannot_start(script: Script) -> None:
    bench = Bench(script, LIMITS)
    script.poison.add((1, 2))
    bench.worker.start()
    wait_until(lambda: bench.worker.failure is not None)
    assert not bench.worker.is_alive


def test_stop_tells_those_who_wait(bench: Bench, script: Script) -> None:
    held = hold(bench, script)
    waiting = bench.submit(rows_of(5, 5, 5))
    bench.worker.stop(timeout_s=0)
    for future in (held, waiting):
        with pytest.raises(NotReadyError, match="shutting down"):
            future.result(10)


def test_admission_refuses_what_exceeds_the_bounds() -> None:
    admission = Admission(max_items=4, max_tokens=100, retry_after_s=lambda tokens: tokens / 10)
    with admission.admit(9) as ticket:  # into an empty queue
        ticket.add_tokens(500)
        with pytest.raises(OverloadedError) as caught:
            admission.admit(1)
        assert caught.value.retry_after_s == 50
        assert str(caught.value) == "the queue is full (9 items are queued); try again in 50 s"
    with admission.admit(2) as ticket, admission.admit(1) as other:
        ticket.add_tokens(90)
        with pytest.raises(OverloadedError, match="90 tokens are queued"):
            other.add_tokens(20)
    assert (admission.items, admission.tokens) == (0, 0)


@pytest.mark.parametrize(("batch_size", "shapes"), [(None, [(1, 20), (1, 9), (1, 2)]), (8, [(3, 20)])])
def test_requests_that_name_no_size_are_planned_by_cost_and_others_filled(
    script: Script, batch_size: int | None, shapes: list[tuple[int, int]]
) -> None:
    # A run costs next to nothing and a padded token much: lengths far apart are cheapest in runs of their own.
    cost = CostModel(per_run_s=0.001, stream_s=0.0, per_token_s=1.0, per_token_squared_s=0.0)
    bench = Bench(script, WorkerLimits(token_budget=64, max_rows=8, cost=cost))
    bench.worker.start()
    rows = [TokenRow(tuple(range(1, n + 1))) for n in (2, 9, 20)]
    found = bench.submit(rows, batch_size=batch_size).result(timeout=10)
    bench.worker.stop()
    assert sorted(script.shapes(), reverse=True) == shapes
    np.testing.assert_array_equal(found, bench.expected(rows))
