"""Properties of plans, for any lengths and limits."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from samevec.runtime.batching.plan import plan
from samevec.runtime.engine import Engine
from samevec.runtime.rows import TokenRow
from samevec.runtime.sessions.fake import FakeSession

LENGTHS = st.lists(st.integers(1, 5000), max_size=80)
BUDGETS = st.integers(1, 6000)
ROWS = st.integers(1, 70)


@given(LENGTHS, BUDGETS, ROWS)
def test_every_position_is_planned_exactly_once(lengths: list[int], token_budget: int, max_rows: int) -> None:
    steps = plan(lengths, token_budget=token_budget, max_rows=max_rows)
    assert sorted(i for batch in steps.microbatches for i in batch.indices) == list(range(len(lengths)))
    assert all(batch.indices for batch in steps.microbatches)


@given(LENGTHS, BUDGETS, ROWS)
@example([4096, 4097, 1, 1], 4096, 32)
def test_limits_hold_and_a_longer_row_runs_alone(lengths: list[int], token_budget: int, max_rows: int) -> None:
    for batch in plan(lengths, token_budget=token_budget, max_rows=max_rows).microbatches:
        assert len(batch.indices) <= max_rows
        longest = max(lengths[i] for i in batch.indices)
        assert batch.n_tokens == longest
        assert batch.padded_tokens == longest * len(batch.indices)
        assert batch.padded_tokens <= token_budget or len(batch.indices) == 1


@given(LENGTHS, BUDGETS, ROWS)
def test_the_sort_is_global_and_stable(lengths: list[int], token_budget: int, max_rows: int) -> None:
    steps = plan(lengths, token_budget=token_budget, max_rows=max_rows)
    order = [i for batch in steps.microbatches for i in batch.indices]
    assert order == sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))


@given(LENGTHS, BUDGETS, ROWS)
def test_no_microbatch_could_have_taken_the_next_row(lengths: list[int], token_budget: int, max_rows: int) -> None:
    batches = plan(lengths, token_budget=token_budget, max_rows=max_rows).microbatches
    for batch in batches[:-1]:
        n_rows = len(batch.indices) + 1
        assert n_rows > max_rows or n_rows * batch.n_tokens > token_budget


@given(LENGTHS, BUDGETS, ROWS)
def test_equal_arguments_give_equal_plans(lengths: list[int], token_budget: int, max_rows: int) -> None:
    steps = plan(lengths, token_budget=token_budget, max_rows=max_rows)
    assert steps == plan(tuple(lengths), token_budget=token_budget, max_rows=max_rows)
    assert steps == plan(np.array(lengths, dtype=np.int32), token_budget=token_budget, max_rows=max_rows)  # type: ignore[arg-type]
    assert steps.useful_tokens == sum(lengths) <= steps.padded_tokens


@given(LENGTHS, BUDGETS)
def test_batch_size_1_gives_single_rows(lengths: list[int], token_budget: int) -> None:
    steps = plan(lengths, token_budget=token_budget, max_rows=1)
    assert [len(batch.indices) for batch in steps.microbatches] == [1] * len(lengths)
    assert steps.padded_tokens == steps.useful_tokens


@given(st.lists(st.integers(1, 500), min_size=5, max_size=5))
def test_five_texts_at_batch_size_8_under_limit_2_run_as_2_2_1(lengths: list[int]) -> None:
    steps = Engine(session=FakeSession(), width=8, max_rows=2).plan_rows(
        [TokenRow((1,) * n) for n in lengths], batch_size=8
    )
    assert [len(batch.indices) for batch in steps.microbatches] == [2, 2, 1]


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=9).map(tuple), max_size=30), st.integers(1, 40), ROWS)
def test_rows_come_back_in_order_whatever_the_limits(
    ids: list[tuple[int, ...]], token_budget: int, batch_size: int
) -> None:
    session = FakeSession(3)
    raw = Engine(session=session, width=3).run_rows(
        [TokenRow(row) for row in ids], token_budget=token_budget, batch_size=batch_size
    )
    assert raw.shape == (len(ids), 3)
    assert raw.tobytes() == b"".join(session.row(list(row)).tobytes() for row in ids)
    assert sum(n_rows for n_rows, _ in session.runs) == len(set(ids))  # duplicates are computed once
