"""The cost model, the cuts it chooses, and the grouping that others would choose."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from makers import fake_engine, rows

from samevec.errors import InputError
from samevec.runtime.batching.cost import COSTS, NATIVE_COSTS, CostModel
from samevec.runtime.batching.cuts import Limits, cut_cheapest, cut_greedily
from samevec.runtime.batching.plan import Plan, plan, plan_native, require_policy
from samevec.runtime.sessions.fake import FakeSession

LINEAR = CostModel(per_run_s=0.0, stream_s=0.0, per_token_s=1.0, per_token_squared_s=0.0)
RUNS_ONLY = CostModel(per_run_s=1.0, stream_s=0.0, per_token_s=0.0, per_token_squared_s=0.0)


def row_counts(steps: Plan) -> list[int]:
    return [len(batch.indices) for batch in steps.microbatches]


def total_s(steps: Plan, cost: CostModel) -> float:
    return sum(float(cost.run_s(len(batch.indices), batch.n_tokens)) for batch in steps.microbatches)


def test_a_run_costs_what_the_formula_says() -> None:
    cost = CostModel(per_run_s=1.0, stream_s=50.0, per_token_s=2.0, per_token_squared_s=0.5)
    assert cost.run_s(1, 10) == 1 + 50 + 0.5 * 100  # the weights are read once, however few the tokens
    assert cost.run_s(3, 10) == 1 + 60 + 0.5 * 300
    assert cost.run_s(np.array([1, 3]), 10).tolist() == [101.0, 211.0]


@pytest.mark.parametrize("task", ["embed", "rerank"])
def test_the_measured_costs_are_positive(task: str) -> None:
    cost = COSTS[task]
    values = (cost.per_run_s, cost.stream_s, cost.per_token_s, cost.per_token_squared_s, cost.bytes_per_token)
    assert min(values) > 0


def test_where_only_padding_costs_nothing_is_padded() -> None:
    steps = plan([9, 5, 9, 5, 3], token_budget=100, max_rows=32, cost=LINEAR)
    assert steps.padded_tokens == steps.useful_tokens


def test_where_only_runs_cost_there_are_as_few_as_the_limits_allow() -> None:
    steps = plan([9, 5, 9, 5, 3], token_budget=100, max_rows=2, cost=RUNS_ONLY)
    assert len(steps.microbatches) == 3


def test_a_long_row_does_not_drag_short_ones_along() -> None:
    steps = plan([1000, *[50] * 12], token_budget=4096, max_rows=32, cost=COSTS["embed"])
    assert row_counts(steps) == [1, 12]
    assert row_counts(plan([1000, *[50] * 12], token_budget=4096, max_rows=32)) == [4, 9]


def test_short_rows_share_a_run_since_the_weights_are_read_once() -> None:
    assert row_counts(plan([4, 5, 6, 7], token_budget=4096, max_rows=32, cost=COSTS["embed"])) == [4]


@pytest.mark.parametrize("task", ["embed", "rerank"])
def test_where_padding_costs_nothing_runs_are_filled(task: str) -> None:
    cost = NATIVE_COSTS[task]
    assert row_counts(plan([4, 5, 6, 7], token_budget=4096, max_rows=32, cost=cost)) == [4]
    assert row_counts(plan([64] * 50, token_budget=4096, max_rows=32, cost=cost)) == [12, 12, 12, 12, 2]
    assert row_counts(plan([64] * 50, token_budget=512, max_rows=32, cost=cost))[:2] == [8, 8]
    assert row_counts(plan([1000, *[50] * 12], token_budget=4096, max_rows=32, cost=cost)) == [1, 12]


def test_padding_to_a_multiple_is_in_the_cost() -> None:
    lengths = [64, 61]
    assert row_counts(plan(lengths, token_budget=4096, max_rows=8, cost=LINEAR, pad_to_multiple=1)) == [1, 1]
    one_s = COSTS["embed"].run_s(2, 64)
    limits = Limits(token_budget=4096, max_rows=8, pad_to_multiple=64)
    assert cut_cheapest(np.array(lengths), limits, COSTS["embed"]) == [2]
    assert one_s < 2 * COSTS["embed"].run_s(1, 64)


def partitions(n: int) -> list[list[int]]:
    """Every way of cutting n rows, in order, into runs."""
    found = []
    for cuts in itertools.product([False, True], repeat=n - 1):
        sizes = [1]
        for cut in cuts:
            if cut:
                sizes.append(1)
            else:
                sizes[-1] += 1
        found.append(sizes)
    return found


def best_s(descending: list[int], limits: Limits, cost: CostModel) -> float:
    """The least cost there is, by trying everything."""
    totals = []
    for sizes in partitions(len(descending)):
        starts = [0, *itertools.accumulate(sizes)][:-1]
        runs = [(size, descending[start]) for size, start in zip(sizes, starts, strict=True)]
        allowed = all(size <= limits.max_rows and (size == 1 or size * n <= limits.token_budget) for size, n in runs)
        if allowed:
            widths = [-(-n // limits.pad_to_multiple) * limits.pad_to_multiple for _, n in runs]
            totals.append(sum(float(cost.run_s(size, w)) for (size, _), w in zip(runs, widths, strict=True)))
    return min(totals)


@pytest.mark.parametrize("task", ["embed", "rerank"])
@pytest.mark.parametrize("pad_to_multiple", [1, 4])
@pytest.mark.parametrize("seed", range(8))
def test_no_partition_is_cheaper(seed: int, pad_to_multiple: int, task: str) -> None:
    random = np.random.default_rng(seed)
    lengths = np.sort(random.integers(1, 300, 10))[::-1].astype(np.int64)
    limits = Limits(
        token_budget=int(random.integers(200, 1200)),
        max_rows=int(random.integers(1, 8)),
        pad_to_multiple=pad_to_multiple,
    )
    starts_s = []
    for cut in (cut_cheapest(lengths, limits, COSTS[task]), cut_greedily(lengths, limits)):
        starts = np.cumsum(cut) - cut
        starts_s.append(float(np.sum(COSTS[task].run_s(np.array(cut), limits.width(lengths[starts])))))
    cheapest_s, greedy_s = starts_s
    assert cheapest_s == pytest.approx(best_s(lengths.tolist(), limits, COSTS[task]), rel=1e-12, abs=0)
    assert cheapest_s <= greedy_s


def mixed_lengths() -> list[int]:
    """64 texts of about 4,000 tokens in all, the middle one of about 41: the shape of the workload `mixed64`."""
    spread = [NormalDist().inv_cdf((i + 0.5) / 64) for i in range(64)]
    return [round(41 * math.exp(0.95 * z)) for z in spread]


def test_a_mix_of_texts_is_padded_by_at_most_6_percent() -> None:
    lengths = mixed_lengths()
    assert 3600 < sum(lengths) < 4400
    assert np.median(lengths) == 41
    steps = plan(lengths, token_budget=4096, max_rows=32, cost=COSTS["embed"], pad_to_multiple=4)
    padded = sum(len(batch.indices) * (-(-batch.n_tokens // 4) * 4) for batch in steps.microbatches)
    greedy = plan(lengths, token_budget=4096, max_rows=32)
    assert padded / sum(lengths) <= 1.06
    assert total_s(steps, COSTS["embed"]) < total_s(greedy, COSTS["embed"])


def test_a_hundred_thousand_lengths_are_planned() -> None:
    lengths = np.random.default_rng(1).integers(1, 600, 100_000)
    steps = plan(lengths.tolist(), token_budget=4096, max_rows=32, cost=COSTS["rerank"], pad_to_multiple=4)
    assert sum(row_counts(steps)) == 100_000
    assert steps.useful_tokens == lengths.sum()


def test_a_hundred_thousand_equal_lengths_are_full_runs() -> None:
    steps = plan([64] * 100_000, token_budget=4096, max_rows=32, cost=COSTS["embed"])
    assert set(row_counts(steps)[:-4]) == {12}  # 768 tokens: beyond 800 a run only gets slower
    without = replace(COSTS["embed"], full_tokens=None)
    steps = plan([64] * 100_000, token_budget=4096, max_rows=32, cost=without)
    assert row_counts(steps) == [32] * (100_000 // 32)


def test_beyond_full_tokens_a_run_costs_more_a_token() -> None:
    cost = CostModel(
        per_run_s=1.0, stream_s=0.0, per_token_s=2.0, per_token_squared_s=0.0, full_tokens=100, beyond_full_s=0.5
    )
    assert cost.run_s(np.array([1, 2, 3]), 50).tolist() == [101.0, 201.0, 326.0]


def test_long_rows_run_in_small_numbers_where_larger_runs_are_slower() -> None:
    steps = plan([704] * 40, token_budget=4096, max_rows=64, cost=COSTS["rerank"], pad_to_multiple=4)
    assert max(row_counts(steps)) == 1
    assert max(row_counts(plan([704] * 40, token_budget=4096, max_rows=64))) == 5


def test_an_engine_plans_by_cost_unless_the_caller_names_a_size() -> None:
    engine = fake_engine(FakeSession(), max_rows=32, pad_to_multiple=4)
    given = rows([1000, *[50] * 12])
    assert row_counts(engine.plan_rows(given)) == [1, 12]
    assert row_counts(engine.plan_rows(given, batch_size=32)) == [4, 9]
    assert row_counts(engine.plan_rows(given, token_budget=4096)) == [4, 9]


def test_explicit_sizes_fill_to_the_cap() -> None:
    engine = fake_engine(FakeSession(), max_rows=32)
    lengths = np.random.default_rng(3).integers(1, 400, 50).tolist()
    steps = engine.plan_rows(rows(lengths), batch_size=8)
    assert row_counts(steps)[:-1] == [min(8, max(1, 4096 // batch.n_tokens)) for batch in steps.microbatches[:-1]]


def st_groups(char_lengths: list[int], batch_size: int) -> list[tuple[int, ...]]:
    """As sentence-transformers 5.7.0 has it, with a stable sort."""
    length_sorted_idx = np.argsort([-n for n in char_lengths], kind="stable").tolist()
    return [tuple(length_sorted_idx[start : start + batch_size]) for start in range(0, len(char_lengths), batch_size)]


@pytest.mark.parametrize(("n", "batch_size"), [(1, 32), (31, 32), (32, 32), (70, 32), (7, 3), (5, 1)])
def test_native_grouping_is_that_of_sentence_transformers(n: int, batch_size: int) -> None:
    random = np.random.default_rng(n)
    char_lengths, lengths = random.integers(1, 40, n).tolist(), random.integers(1, 900, n).tolist()
    steps = plan_native(char_lengths, lengths, max_rows=batch_size)
    assert [batch.indices for batch in steps.microbatches] == st_groups(char_lengths, batch_size)
    assert [b.n_tokens for b in steps.microbatches] == [max(lengths[i] for i in b.indices) for b in steps.microbatches]
    assert steps.useful_tokens == sum(lengths)


def test_native_grouping_looks_at_characters_and_not_at_tokens() -> None:
    steps = plan_native([10, 30, 20], [9, 1, 5], max_rows=2)
    assert [(batch.indices, batch.n_tokens) for batch in steps.microbatches] == [((1, 2), 5), ((0,), 9)]


def test_native_rows_give_the_same_bits_and_are_not_computed_once() -> None:
    session = FakeSession()
    a, b = rows([3, 7])
    raw = fake_engine(session, max_rows=32).run_native([a, b, a], [5, 9, 5], batch_size=2)
    assert session.runs == [(2, 8), (1, 4)]
    assert raw.tobytes() == fake_engine().run_rows([a, b, a]).tobytes()


def test_nothing_is_grouped_into_nothing() -> None:
    assert plan_native([], [], max_rows=4) == Plan((), 0)
    assert plan([], token_budget=8, max_rows=2, cost=COSTS["embed"]) == Plan((), 0)


def test_an_unknown_policy_is_refused() -> None:
    require_policy("samevec")
    require_policy("native")
    with pytest.raises(InputError) as caught:
        require_policy("best")
    assert str(caught.value) == "policy: 'best' given, one of samevec, native is needed"
