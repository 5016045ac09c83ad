"""A worker that dies: seen at once, told to those who wait, restarted once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from stand_ins import wait_until
from worker_bench import CANARY, PATIENCE_S, Bench, Call, bench, expected, rows_of

from samevec.errors import NotReadyError, SessionRunError
from samevec.server.queue import workers

if TYPE_CHECKING:
    from collections.abc import Iterator

DEADLY = rows_of(30, start=666)[0]
GIVEN_UP = "toy: its worker died (SystemExit); restart the server"


@pytest.fixture(params=[False, True], ids=["one thread", "two"])
def staff(request: pytest.FixtureRequest) -> Iterator[Bench]:
    with bench(overlapping=request.param) as made:
        yield made


def kill(call: Call) -> None:
    if DEADLY.ids in call.rows:
        raise SystemExit(1)


def test_death_is_told_to_those_who_wait(staff: Bench) -> None:
    staff.stage.on_run = kill
    held = staff.hold()
    deadly, waiting = staff.submit([DEADLY]), staff.submit(rows_of(60, 60, 60))
    staff.stage.release()
    assert held.result(PATIENCE_S).shape == (1, 8)
    for future in (deadly, waiting):
        with pytest.raises(NotReadyError, match="its worker died"):
            future.result(PATIENCE_S)


def test_one_restart_and_no_more(staff: Bench) -> None:
    staff.stage.on_run = kill
    with pytest.raises(NotReadyError, match=r"^toy: its worker died \(SystemExit\); it is being restarted$"):
        staff.submit([DEADLY]).result(PATIENCE_S)
    wait_until(lambda: staff.worker.is_alive)
    assert (staff.worker.n_restarts, staff.worker.failure) == (1, None)
    rows = rows_of(5, 60, 60)
    assert np.array_equal(staff.submit(rows).result(PATIENCE_S), expected(rows))
    with pytest.raises(NotReadyError, match="restart the server"):
        staff.submit([DEADLY]).result(PATIENCE_S)
    wait_until(lambda: not staff.worker.is_running)
    assert (staff.worker.is_alive, staff.worker.failure) == (False, GIVEN_UP)
    with pytest.raises(NotReadyError, match="its worker died"):
        staff.submit(rows_of(5))


def test_the_canary_comes_before_the_new_threads(staff: Bench) -> None:
    canaries: list[int] = []

    def on_run(call: Call) -> None:
        kill(call)
        if call.rows == [CANARY.ids]:
            canaries.append(len(staff.stage.calls))
            raise RuntimeError("still broken")

    staff.stage.on_run = on_run
    with pytest.raises(NotReadyError):
        staff.submit([DEADLY]).result(PATIENCE_S)
    wait_until(lambda: not staff.worker.is_running)
    assert len(canaries) == 1
    assert staff.worker.failure == "toy: its worker died (RuntimeError); restart the server"


def test_a_broken_session_ends_the_worker(staff: Bench) -> None:
    def broken(_: Call) -> None:
        raise RuntimeError("the device is gone, secret detail")

    staff.stage.on_run = broken
    with pytest.raises((SessionRunError, NotReadyError)):
        staff.submit(rows_of(5, 6)).result(PATIENCE_S)
    wait_until(lambda: not staff.worker.is_running)
    assert staff.worker.failure == "toy: its worker died (RuntimeError); restart the server"


def test_a_session_that_recovers_serves_again(staff: Bench) -> None:
    left = [4]  # the microbatch, its row alone, the canary; the canary of the restart is well

    def broken_for_a_while(_: Call) -> None:
        left[0] -= 1
        if left[0] > 0:
            raise RuntimeError("out of sorts")

    staff.stage.on_run = broken_for_a_while
    with pytest.raises((SessionRunError, NotReadyError)):
        staff.submit(rows_of(5)).result(PATIENCE_S)
    wait_until(lambda: staff.worker.n_restarts == 1 and staff.worker.is_alive)
    assert np.array_equal(staff.submit(rows_of(5)).result(PATIENCE_S), expected(rows_of(5)))


def test_a_model_that_cannot_start_is_not_restarted() -> None:
    made = Bench()
    tries: list[int] = []

    def broken(_: Call) -> None:
        tries.append(1)
        raise RuntimeError

    made.stage.on_run = broken
    made.worker.start()
    wait_until(lambda: not made.worker.is_running)
    assert not made.worker.is_alive
    assert made.worker.failure == "toy: its worker died (RuntimeError); restart the server"
    assert (len(tries), made.worker.n_restarts) == (1, 0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_cannot_say_why_it_died_is_missed(staff: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def speechless(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(workers._log, "exception", speechless)
    staff.stage.on_run = kill
    future = staff.submit([DEADLY])
    with pytest.raises(NotReadyError, match=r"its worker died \(a thread is gone\); it is being restarted"):
        future.result(PATIENCE_S)
    wait_until(lambda: staff.worker.is_alive)


def test_runs_beside_the_dead_end_early() -> None:
    small = rows_of(5, start=777)

    def kill_the_interactive_thread(call: Call) -> None:
        if small[0].ids in call.rows:
            raise SystemExit(1)

    with bench(overlapping=True) as two:
        two.stage.on_run = kill_the_interactive_thread
        held = two.hold()
        for future in (two.submit(small), held):
            with pytest.raises(NotReadyError, match="it is being restarted"):
                future.result(PATIENCE_S)
        wait_until(lambda: two.worker.n_restarts == 1 and two.worker.is_alive)
        assert [call.cancelled for call in two.stage.calls] == [True]
