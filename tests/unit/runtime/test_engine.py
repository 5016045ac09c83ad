"""The engine: dedupe, plan, run, scatter, check."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from makers import Clock, fake_engine, rows

from samevec.errors import DeadlineExceededError, InputError, NonFiniteOutputError, SessionRunError
from samevec.runtime.engine import Engine
from samevec.runtime.rows import TokenRow
from samevec.runtime.sessions.fake import FakeSession

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from samevec.runtime.collate import Features

SHUFFLED = np.random.default_rng(4).permutation(np.arange(1, 258)).tolist()


def test_row_i_of_the_output_belongs_to_row_i_of_the_input() -> None:
    session = FakeSession()
    given = rows(SHUFFLED)
    raw = fake_engine(session).run_rows(given)
    assert raw.dtype == np.float32
    np.testing.assert_array_equal(raw, [session.row(list(row.ids)) for row in given])
    assert len(session.runs) > 9  # several microbatches, or the order was never at risk


@pytest.mark.parametrize("batch_size", [None, 1, 2, 7, 1000])
@pytest.mark.parametrize("token_budget", [None, 64, 100_000])
def test_no_grouping_changes_a_bit(batch_size: int | None, token_budget: int | None) -> None:
    given = rows(SHUFFLED[:40])
    raw = fake_engine().run_rows(given, batch_size=batch_size, token_budget=token_budget)
    assert raw.tobytes() == fake_engine().run_rows(given).tobytes()


def test_identical_rows_are_computed_once() -> None:
    session = FakeSession()
    a, b = rows([3, 3])
    raw = fake_engine(session).run_rows([a, b, TokenRow(a.ids, cut_tokens=5), a, b])
    assert session.runs == [(2, 4)]
    assert raw.tobytes() == np.stack([session.row(list(row.ids)) for row in (a, b, a, a, b)]).tobytes()


def test_rows_that_differ_in_segment_ids_only_are_both_computed() -> None:
    session = FakeSession()
    fake_engine(session).run_rows([TokenRow((1, 2), (0, 0)), TokenRow((1, 2), (0, 1))])
    assert session.runs == [(2, 4)]


def test_with_batch_size_1_every_run_has_one_row() -> None:
    session = FakeSession()
    given = rows([5, 3, 8])
    fake_engine(session).run_rows([*given, given[0]], batch_size=1)
    assert session.runs == [(1, 8), (1, 8), (1, 4)]


def test_five_rows_at_batch_size_8_under_limit_2_run_as_2_2_1() -> None:
    session = FakeSession()
    given = rows([4, 4, 4, 4, 4])
    raw = fake_engine(session, max_rows=2).run_rows(given, batch_size=8)
    assert [n for n, _ in session.runs] == [2, 2, 1]
    assert raw.tobytes() == np.stack([session.row(list(row.ids)) for row in given]).tobytes()


def test_a_row_longer_than_the_budget_runs_alone() -> None:
    session = FakeSession()
    fake_engine(session, token_budget=16).run_rows(rows([20, 4, 4, 4, 4]))
    assert session.runs == [(1, 20), (4, 4)]


@pytest.mark.parametrize(
    ("batch_size", "message"),
    [
        (0, "batch_size: 0 given, at least 1 is needed"),
        (-1, "batch_size: -1 given, at least 1 is needed"),
        (2.0, "batch_size: 2.0 is not a whole number"),
    ],
)
def test_a_wrong_batch_size_is_refused_before_anything_runs(batch_size: int, message: str) -> None:
    session = FakeSession()
    with pytest.raises(InputError) as caught:
        fake_engine(session).run_rows(rows([1]), batch_size=batch_size)
    assert str(caught.value) == message
    assert session.runs == []


def test_the_recorder_hears_the_callers_positions_and_the_features() -> None:
    heard: list[tuple[list[int], tuple[int, int]]] = []

    def recorder(indices: Sequence[int], features: Features) -> None:
        heard.append((list(indices), features.shape))

    a, b, c = rows([2, 6, 2])
    fake_engine().run_rows([a, a, b, c], batch_size=2, recorder=recorder)
    assert heard == [([2, 0], (2, 8)), ([3], (1, 4))]


def test_the_deadline_is_looked_at_between_microbatches() -> None:
    clock = Clock()
    session = FakeSession(before_run=clock.passes(1.0))
    engine = fake_engine(session, clock=clock)
    with pytest.raises(DeadlineExceededError, match=r"^the deadline passed before the work was done"):
        engine.run_rows(rows([1, 2, 3, 4, 5]), batch_size=1, deadline_s=2.5)
    assert len(session.runs) == 3  # at 0, 1 and 2 seconds; at 3 it is over


def test_a_deadline_that_holds_changes_nothing() -> None:
    clock = Clock()
    engine = fake_engine(FakeSession(before_run=clock.passes(1.0)), clock=clock)
    given = rows([1, 2, 3])
    assert engine.run_rows(given, batch_size=1, deadline_s=3.5).tobytes() == fake_engine().run_rows(given).tobytes()


@pytest.mark.parametrize("deadline_s", [0, -1.0])
def test_an_expired_deadline_runs_nothing(deadline_s: float) -> None:
    session = FakeSession()
    with pytest.raises(DeadlineExceededError):
        fake_engine(session, clock=Clock()).run_rows(rows([1]), deadline_s=deadline_s)
    assert session.runs == []


class BadSession(FakeSession):
    """Spoils the rows whose first id is listed."""

    def __init__(self, spoiled: dict[int, float]) -> None:
        super().__init__()
        self.spoiled = spoiled

    def row(self, ids: list[int]) -> NDArray[np.float32]:
        raw = super().row(ids)
        raw[-1] = self.spoiled.get(ids[0], raw[-1])
        return raw


def test_rows_that_are_not_finite_are_named_by_the_callers_positions() -> None:
    given = rows([9, 1, 4, 4])  # first ids 10, 11, 12, 13
    session = BadSession({11: np.nan, 12: np.inf})
    with pytest.raises(NonFiniteOutputError) as caught:
        fake_engine(session).run_rows([given[2], *given])
    assert caught.value.indices == (0, 2, 3)
    assert str(caught.value) == (
        "the output for item 0, 2, 3 is not finite; it was withheld. Run `samevec parity` on this machine"
    )


class WrongSession(FakeSession):
    """Gives whatever it is told."""

    def __init__(self, raw: NDArray[np.generic]) -> None:
        super().__init__()
        self.raw = raw

    def run(self, features: Features, **how: object) -> NDArray[np.float32]:
        return self.raw  # type: ignore[return-value]  # that is the point


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        (np.ones((1, 8), dtype=np.float32), "float32 of shape (1, 8)"),  # would be broadcast over both rows
        (np.ones((2, 1), dtype=np.float32), "float32 of shape (2, 1)"),
        (np.ones((2, 4, 8), dtype=np.float32), "float32 of shape (2, 4, 8)"),
        (np.ones((2, 8), dtype=np.float16), "float16 of shape (2, 8)"),
    ],
)
def test_an_output_of_another_structure_is_refused(raw: NDArray[np.generic], found: str) -> None:
    engine = fake_engine(WrongSession(raw))
    message = f"a run gave {found}, float32 of shape (2, 8) is needed"
    with pytest.raises(SessionRunError) as caught:
        engine.run_rows(rows([3, 3]))
    assert str(caught.value) == message
    with pytest.raises(SessionRunError) as caught:
        engine.run_microbatch(rows([3, 3]))
    assert str(caught.value) == message


def test_a_failed_run_is_passed_on() -> None:
    def fails(features: Features) -> None:
        raise SessionRunError("no memory", out_of_memory=True)

    with pytest.raises(SessionRunError) as caught:
        fake_engine(FakeSession(before_run=fails)).run_rows(rows([3]))
    assert caught.value.out_of_memory


def test_a_microbatch_is_one_run_whatever_the_limits() -> None:
    session = FakeSession()
    engine = fake_engine(session, token_budget=4, max_rows=1)
    raw = engine.run_microbatch(rows([3, 9]))
    assert session.runs == [(2, 12)]
    assert raw.shape == (2, 8)


def test_rows_are_planned_without_being_run() -> None:
    session = FakeSession()
    steps = Engine(session=session, width=8, max_rows=2, token_budget=10).plan_rows(rows([5, 5, 4]), batch_size=9)
    assert [batch.indices for batch in steps.microbatches] == [(0, 1), (2,)]
    assert session.runs == []


def test_padding_follows_the_engine() -> None:
    session = FakeSession()
    fake_engine(session, pad_to_multiple=1).run_rows(rows([5]))
    fake_engine(session, pad_to_multiple=64).run_rows(rows([5]))
    assert session.runs == [(1, 5), (1, 64)]
