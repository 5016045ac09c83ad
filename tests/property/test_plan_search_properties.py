"""The search behind plans: as cheap as any partition can be, and without any influence on bits."""

from __future__ import annotations

import math

from hypothesis import example, given, settings
from hypothesis import strategies as st

from samevec.runtime.batching.cost import COSTS, CostModel
from samevec.runtime.batching.plan import Plan, plan, plan_native
from samevec.runtime.engine import Engine
from samevec.runtime.rows import TokenRow
from samevec.runtime.sessions.fake import FakeSession

BUDGETS = st.integers(1, 2000)
ROWS = st.integers(1, 40)
MULTIPLES = st.sampled_from([1, 4, 64])
MODELS = st.sampled_from(list(COSTS.values())) | st.builds(
    CostModel,
    per_run_s=st.integers(0, 50).map(float),
    stream_s=st.integers(0, 200).map(float),
    per_token_s=st.integers(0, 8).map(lambda n: n / 4),
    per_token_squared_s=st.integers(0, 8).map(lambda n: n / 512),
)


def cost_s(steps: Plan, cost: CostModel, multiple: int) -> float:
    return math.fsum(
        float(cost.run_s(len(batch.indices), -(-batch.n_tokens // multiple) * multiple)) for batch in steps.microbatches
    )


def cheapest_s(lengths: list[int], token_budget: int, max_rows: int, cost: CostModel, multiple: int) -> float:
    """The least any partition of the sorted rows can cost, by trying every run that the limits allow."""
    ordered = sorted(lengths, reverse=True)
    best = [0.0] * (len(ordered) + 1)
    for i in reversed(range(len(ordered))):
        width = -(-ordered[i] // multiple) * multiple
        most = max(1, min(max_rows, token_budget // ordered[i], len(ordered) - i))
        best[i] = min(best[i + k] + float(cost.run_s(k, width)) for k in range(1, most + 1))
    return best[0]


@settings(deadline=None)
@given(st.lists(st.integers(1, 600), max_size=40, unique=True), BUDGETS, ROWS, MODELS, MULTIPLES)
def test_nothing_is_cheaper_where_lengths_differ(
    lengths: list[int], token_budget: int, max_rows: int, cost: CostModel, multiple: int
) -> None:
    steps = plan(lengths, token_budget=token_budget, max_rows=max_rows, cost=cost, pad_to_multiple=multiple)
    least = cheapest_s(lengths, token_budget, max_rows, cost, multiple)
    assert math.isclose(cost_s(steps, cost, multiple), least, rel_tol=1e-9, abs_tol=1e-12)


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), max_size=200), BUDGETS, st.integers(1, 64), st.sampled_from(sorted(COSTS)))
@example([16] * 97, 4096, 32, "embed")
@example([16] * 129 + [12] * 130 + [1] * 3, 4096, 32, "rerank")
def test_nothing_is_cheaper_by_five_in_a_hundred_where_many_are_equal(
    lengths: list[int], token_budget: int, max_rows: int, task: str
) -> None:
    cost = COSTS[task]
    steps = plan(lengths, token_budget=token_budget, max_rows=max_rows, cost=cost, pad_to_multiple=4)
    assert cost_s(steps, cost, 4) <= 1.05 * cheapest_s(lengths, token_budget, max_rows, cost, 4) + 1e-12


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 90)), max_size=80), st.integers(1, 50))
def test_native_plans_are_slices_of_the_order_by_characters(rows: list[tuple[int, int]], max_rows: int) -> None:
    steps = plan_native([n for n, _ in rows], [n for _, n in rows], max_rows=max_rows)
    order = [i for batch in steps.microbatches for i in batch.indices]
    assert order == sorted(range(len(rows)), key=lambda i: (-rows[i][0], i))
    assert all(len(batch.indices) == max_rows for batch in steps.microbatches[:-1])
    assert all(batch.n_tokens == max(rows[i][1] for i in batch.indices) for batch in steps.microbatches)


IDS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=9).map(tuple), max_size=30)


@settings(deadline=None)
@given(IDS, BUDGETS, ROWS, MODELS, MULTIPLES, st.none() | st.integers(1, 40), st.booleans())
def test_no_plan_changes_a_bit(
    ids: list[tuple[int, ...]],
    token_budget: int,
    max_rows: int,
    cost: CostModel,
    multiple: int,
    batch_size: int | None,
    native: bool,
) -> None:
    session = FakeSession(3)
    engine = Engine(
        session=session, width=3, cost=cost, token_budget=token_budget, max_rows=max_rows, pad_to_multiple=multiple
    )
    rows = [TokenRow(row) for row in ids]
    if native:
        raw = engine.run_native(rows, [len(row) for row in ids], batch_size=batch_size)
    else:
        raw = engine.run_rows(rows, batch_size=batch_size)
    assert raw.tobytes() == b"".join(session.row(list(row)).tobytes() for row in ids)
    assert all(n_rows <= min(max_rows, batch_size or max_rows) for n_rows, _ in session.runs)
