"""The bounds of the queue, and how long those refused are told to wait."""

from __future__ import annotations

import pytest

from samevec.errors import OverloadedError
from samevec.server.queue.admission import Admission
from samevec.server.queue.workers import Rate


def test_admission_refuses_what_exceeds_the_bounds() -> None:
    admission = Admission(max_items=4, max_tokens=100, max_bytes=400, retry_after_s=lambda tokens: tokens / 10)
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


def test_bytes_are_bounded_but_small_bodies_are_let_in() -> None:
    admission = Admission(max_items=4, max_tokens=100, max_bytes=400, retry_after_s=lambda _: 2.0)
    with admission.receive() as huge, admission.receive() as other, admission.receive() as small:
        huge.add(300)
        huge.add(300)  # beyond the bound, and alone
        small.add(60)
        small.add(40)  # together an item's share
        assert admission.bytes == 700
        other.add(90)
        with pytest.raises(OverloadedError, match=r"requests of 790 bytes are held\); try again in 2 s") as caught:
            other.add(11)
        assert caught.value.retry_after_s == 2
        assert admission.bytes == 700  # what is refused is not held any longer
    assert admission.bytes == 0


@pytest.mark.parametrize(("expected_s", "told_s"), [(0.01, 1), (7.0, 7), (1e6, 60)])
def test_retry_after_stays_within_what_is_believed(expected_s: float, told_s: float) -> None:
    admission = Admission(max_items=1, max_tokens=1, max_bytes=1, retry_after_s=lambda _: expected_s)
    with admission.admit(1), pytest.raises(OverloadedError) as caught:
        admission.admit(1)
    assert caught.value.retry_after_s == told_s


def test_rest_is_told_once_after_the_start_and_after_work() -> None:
    admission = Admission(max_items=4, max_tokens=100, max_bytes=400, retry_after_s=lambda _: 1.0)
    assert [admission.comes_to_rest() for _ in range(4)] == [False, True, False, False]
    with admission.admit(1):
        assert not admission.comes_to_rest()
        assert not admission.comes_to_rest()  # it waits still
    assert [admission.comes_to_rest() for _ in range(4)] == [False, True, False, False]  # the answer may be on its way
    with admission.admit(1):
        pass
    assert not admission.comes_to_rest()  # come and gone since the last look: more may follow
    assert [admission.comes_to_rest() for _ in range(2)] == [True, False]


def test_the_rate_before_anything_has_run_is_zero() -> None:
    rate = Rate()
    rate.start(5.0)
    assert rate.tokens_per_s == 0


def test_runs_that_overlap_add_up() -> None:
    rate = Rate()
    now = 100.0
    rate.start(now)  # each takes 2 s and 1,000 tokens, begun a second after the other
    rate.start(now + 1)
    for second in range(2, 30):
        rate.finish(1000, now + second)
        rate.start(now + second)
    assert rate.tokens_per_s == pytest.approx(1000, rel=0.01)


def test_runs_that_end_together_count_as_much() -> None:
    rate = Rate()
    for second in range(0, 60, 2):
        rate.start(second)
        rate.start(second)
        rate.finish(1000, second + 2)
        rate.finish(1000, second + 2)
    assert rate.tokens_per_s == pytest.approx(1000, rel=0.15)


def test_idle_time_and_abandoned_runs_do_not_count() -> None:
    rate = Rate()
    for begin in (0.0, 1000.0, 5000.0):
        rate.start(begin)
        rate.finish(600, begin + 2)
        rate.start(begin + 3)
        rate.finish(0, begin + 50)
    assert rate.tokens_per_s == pytest.approx(300)


def test_the_rate_follows_the_machine() -> None:
    rate = Rate()
    for i in range(20):
        rate.start(i)
        rate.finish(1000, i + 1)
    for i in range(20, 60, 2):
        rate.start(i)
        rate.finish(1000, i + 2)
    assert rate.tokens_per_s == pytest.approx(500, rel=0.03)
