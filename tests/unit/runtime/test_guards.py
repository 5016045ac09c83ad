"""What is looked at between session runs, with a fake session, clock and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from makers import Clock, fake_engine, rows

from samevec.errors import DeadlineExceededError, ItemsFailedError, SessionRunError, WorkCancelledError
from samevec.runtime.cancel import CancelToken
from samevec.runtime.limits import AdaptiveLimit, MemoryGuard, Watch
from samevec.runtime.sessions.fake import FakeSession

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from samevec.runtime.collate import Features


class Memory:
    """Available bytes, and how often they were asked for."""

    def __init__(self, available_bytes: int) -> None:
        self.available_bytes = available_bytes
        self.n_read = 0

    def __call__(self) -> int:
        self.n_read += 1
        return self.available_bytes


def no_memory_above(n_rows: int, *, poison: int | None = None) -> Callable[[Features], None]:
    """Fail for want of memory with more rows than so many, and whenever a row starts with `poison`."""

    def before_run(features: Features) -> None:
        if features.shape[0] > n_rows or poison in features.input_ids[:, 0].tolist():
            raise SessionRunError("failed to allocate", out_of_memory=True)

    return before_run


# The watch


def test_without_deadline_or_token_nothing_stops_the_work() -> None:
    Watch(clock=Clock()).require_time()


def test_the_deadline_stops_the_work_when_it_is_reached() -> None:
    clock = Clock()
    watch = Watch(clock=clock, end_s=102.0)
    watch.require_time()
    clock.now_s = 102.0
    with pytest.raises(DeadlineExceededError):
        watch.require_time()


def test_given_up_work_stops_and_says_that_first() -> None:
    token = CancelToken()
    token.cancel()
    with pytest.raises(WorkCancelledError):
        Watch(clock=Clock(), end_s=0.0, cancel=token).require_time()


def test_the_deadline_is_looked_at_between_the_pieces_of_a_microbatch() -> None:
    clock = Clock()
    session = FakeSession(before_run=clock.passes(1.0))
    guard = MemoryGuard(bytes_per_token=1, usable_share=1.0, available_bytes=Memory(4))
    engine = fake_engine(session, clock=clock, memory=guard)
    with pytest.raises(DeadlineExceededError):
        engine.run_rows(rows([4, 4, 4, 4]), batch_size=4, deadline_s=1.5)
    assert session.runs == [(1, 4), (1, 4)]


# The memory guard


@pytest.mark.parametrize(
    ("available", "fitting"), [(0, 1), (1000, 1), (2500, 2), (5000, 4), (10_000, 8), (10_000_000, 8)]
)
def test_a_run_is_kept_within_a_share_of_the_memory(available: int, fitting: int) -> None:
    guard = MemoryGuard(bytes_per_token=10, usable_share=0.8, available_bytes=Memory(available))
    assert guard.fitting_rows(8, 100) == fitting


def test_the_memory_is_read_only_where_it_decides() -> None:
    memory = Memory(0)
    assert MemoryGuard(bytes_per_token=10, available_bytes=memory).fitting_rows(1, 100_000) == 1
    assert MemoryGuard(available_bytes=memory).fitting_rows(8, 100_000) == 8
    assert memory.n_read == 0


def test_an_engine_short_of_memory_runs_fewer_rows_and_gives_the_same() -> None:
    session, given = FakeSession(), rows([8] * 8)
    memory = Memory(8 * 3)  # three rows of 8 tokens
    guard = MemoryGuard(bytes_per_token=1, usable_share=1.0, available_bytes=memory)
    engine = fake_engine(session, memory=guard)
    raw = engine.run_rows(given, batch_size=8)
    assert max(n for n, _ in session.runs) == 3
    assert sum(n for n, _ in session.runs) == 8
    assert engine.limit.rows is not None
    assert raw.tobytes() == fake_engine().run_rows(given).tobytes()


def test_the_guard_counts_padded_tokens() -> None:
    session = FakeSession()
    guard = MemoryGuard(bytes_per_token=1, usable_share=1.0, available_bytes=Memory(2 * 5))
    fake_engine(session, memory=guard).run_rows(rows([5, 5]), batch_size=2)
    assert session.runs == [(1, 8), (1, 8)]  # two rows of 5 would fit, two of 8 do not


# The adaptive limit


def test_the_limit_is_halved_and_recovers_slowly() -> None:
    limit = AdaptiveLimit(recover_after=2)
    assert (limit.rows, limit.cap(32)) == (None, 32)
    limit.note_success()
    limit.shrink(32)
    assert (limit.rows, limit.cap(32), limit.cap(8)) == (16, 16, 8)
    limit.shrink(16)
    assert limit.rows == 8
    heard = []
    for _ in range(12):
        limit.note_success()
        heard.append(limit.rows)
    assert heard == [8, 12, 12, 16, 16, 20, 20, 24, 24, 28, 28, None]


def test_trouble_starts_the_recovery_anew() -> None:
    limit = AdaptiveLimit(recover_after=2)
    limit.shrink(16)
    limit.note_success()
    limit.shrink(8)
    limit.note_success()
    assert limit.rows == 4
    limit.note_success()
    assert limit.rows == 6  # by an eighth of 16


def test_the_limit_is_never_below_one_row() -> None:
    limit = AdaptiveLimit(recover_after=1)
    for n_rows in (2, 1, 1):
        limit.shrink(n_rows)
        assert limit.rows == 1
    limit.note_success()
    assert limit.rows is None


def test_an_engine_plans_within_the_limit_until_it_is_lifted() -> None:
    session = FakeSession()
    engine = fake_engine(session, limit=AdaptiveLimit(recover_after=1))
    engine.limit.shrink(4)
    given = rows([4] * 4)
    assert [len(batch.indices) for batch in engine.plan_rows(given, batch_size=4).microbatches] == [2, 2]
    engine.run_rows(given, batch_size=4)
    assert [n for n, _ in session.runs] == [2, 2]
    assert engine.limit.rows is None  # 2, then 3, then 4: lifted
    engine.run_rows(given, batch_size=4)
    assert [n for n, _ in session.runs] == [2, 2, 4]


# Allocation failure


@pytest.mark.parametrize("n_fitting", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("batch_size", [None, 8, 32])
def test_halving_changes_neither_order_nor_bits(n_fitting: int, batch_size: int | None) -> None:
    lengths = np.random.default_rng(5).integers(1, 60, 30).tolist()
    given = [*rows(lengths), *rows(lengths)[:4]]  # some twice
    session = FakeSession(before_run=no_memory_above(n_fitting))
    raw = fake_engine(session).run_rows(given, batch_size=batch_size)
    assert max(n for n, _ in session.runs) <= n_fitting
    assert raw.tobytes() == np.stack([session.row(list(row.ids)) for row in given]).tobytes()


def test_after_a_failure_later_microbatches_start_smaller() -> None:
    tried: list[int] = []

    def before_run(features: Features) -> None:
        tried.append(features.shape[0])
        no_memory_above(2)(features)

    fake_engine(FakeSession(before_run=before_run)).run_rows(rows([4] * 16), batch_size=8)
    assert tried == [8, 4, *[2] * 8]


def test_an_item_that_fails_alone_is_named_and_all_others_are_tried() -> None:
    given = rows([4] * 8)
    poison = given[3].ids[0]
    session = FakeSession(before_run=no_memory_above(99, poison=poison))
    with pytest.raises(ItemsFailedError) as caught:
        fake_engine(session).run_rows([*given, given[3]])
    assert caught.value.indices == (3, 8)
    assert caught.value.out_of_memory
    assert str(caught.value) == "2 item(s) could not be computed even alone: 3, 8; failed to allocate"
    assert sum(n for n, _ in session.runs) == 7


def test_a_guarded_microbatch_gives_what_could_be_had() -> None:
    given = rows([4] * 4)
    session = FakeSession(before_run=no_memory_above(2, poison=given[1].ids[0]))
    outcome = fake_engine(session).run_guarded(given)
    assert list(outcome.errors) == [1]
    assert np.isnan(outcome.raw[1]).all()
    for i in (0, 2, 3):
        assert outcome.raw[i].tobytes() == session.row(list(given[i].ids)).tobytes()
    with pytest.raises(ItemsFailedError):
        outcome.require_complete()


def test_no_rows_are_no_runs() -> None:
    session = FakeSession()
    assert fake_engine(session).run_guarded([]).raw.shape == (0, 8)
    assert session.runs == []


def test_any_other_failure_is_raised_at_once() -> None:
    def fails(features: Features) -> None:
        tried.append(features.shape[0])
        raise SessionRunError("a node broke")

    tried: list[int] = []
    engine = fake_engine(FakeSession(before_run=fails))
    with pytest.raises(SessionRunError, match=r"^a node broke$") as caught:
        engine.run_rows(rows([4] * 4), batch_size=2)
    assert type(caught.value) is SessionRunError
    assert tried == [2]
    assert engine.limit.rows is None


def test_the_recorder_hears_every_piece_by_the_callers_positions() -> None:
    heard: list[list[int]] = []

    def recorder(indices: Sequence[int], features: Features) -> None:
        heard.append(list(indices))

    session = FakeSession(before_run=no_memory_above(1))
    fake_engine(session).run_rows(rows([2, 6, 4]), batch_size=2, recorder=recorder)
    assert heard == [[1, 2], [1], [2], [0]]
