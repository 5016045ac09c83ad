"""Properties of plans made by cost, for any lengths, limits and constants."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from samevec.runtime.batching.cost import COSTS, CostModel
from samevec.runtime.batching.plan import Plan, plan

LENGTHS = st.lists(st.integers(1, 5000), max_size=60) | st.lists(st.sampled_from([3, 4, 5, 64]), max_size=300)
BUDGETS = st.integers(1, 6000)
ROWS = st.integers(1, 70)
MULTIPLES = st.sampled_from([1, 4, 64])
SECONDS = st.floats(0, 1, allow_nan=False)
MODELS = st.sampled_from(list(COSTS.values())) | st.builds(
    CostModel, per_run_s=SECONDS, stream_s=SECONDS, per_token_s=SECONDS, per_token_squared_s=SECONDS
)


def total_s(steps: Plan, cost: CostModel, pad_to_multiple: int) -> float:
    widths = [-(-batch.n_tokens // pad_to_multiple) * pad_to_multiple for batch in steps.microbatches]
    n_rows = [len(batch.indices) for batch in steps.microbatches]
    return float(np.sum(cost.run_s(np.array(n_rows, dtype=np.int64), np.array(widths, dtype=np.int64))))


@given(LENGTHS, BUDGETS, ROWS, MODELS, MULTIPLES)
def test_it_is_a_sorted_partition_within_the_limits(
    lengths: list[int], token_budget: int, max_rows: int, cost: CostModel, pad_to_multiple: int
) -> None:
    steps = plan(lengths, token_budget=token_budget, max_rows=max_rows, cost=cost, pad_to_multiple=pad_to_multiple)
    order = [i for batch in steps.microbatches for i in batch.indices]
    assert order == sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    for batch in steps.microbatches:
        assert 1 <= len(batch.indices) <= max_rows
        assert batch.n_tokens == max(lengths[i] for i in batch.indices)
        assert batch.padded_tokens <= token_budget or len(batch.indices) == 1
    assert steps.useful_tokens == sum(lengths)


@given(LENGTHS, BUDGETS, ROWS, MODELS, MULTIPLES)
def test_it_is_never_dearer_than_filling_every_run(
    lengths: list[int], token_budget: int, max_rows: int, cost: CostModel, pad_to_multiple: int
) -> None:
    cheapest = plan(lengths, token_budget=token_budget, max_rows=max_rows, cost=cost, pad_to_multiple=pad_to_multiple)
    greedy = plan(lengths, token_budget=token_budget, max_rows=max_rows)
    assert total_s(cheapest, cost, pad_to_multiple) <= total_s(greedy, cost, pad_to_multiple) * (1 + 1e-12)


@given(LENGTHS, BUDGETS, ROWS, MODELS, st.randoms(use_true_random=False))
def test_equal_arguments_give_equal_plans_and_order_does_not_move_a_cut(
    lengths: list[int], token_budget: int, max_rows: int, cost: CostModel, random: object
) -> None:
    steps = plan(lengths, token_budget=token_budget, max_rows=max_rows, cost=cost)
    assert steps == plan(tuple(lengths), token_budget=token_budget, max_rows=max_rows, cost=cost)
    shuffled = list(lengths)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    other = plan(shuffled, token_budget=token_budget, max_rows=max_rows, cost=cost)
    assert [(len(b.indices), b.n_tokens) for b in other.microbatches] == [
        (len(b.indices), b.n_tokens) for b in steps.microbatches
    ]


@given(LENGTHS, BUDGETS, MODELS)
def test_batch_size_1_gives_single_rows(lengths: list[int], token_budget: int, cost: CostModel) -> None:
    steps = plan(lengths, token_budget=token_budget, max_rows=1, cost=cost)
    assert [len(batch.indices) for batch in steps.microbatches] == [1] * len(lengths)
