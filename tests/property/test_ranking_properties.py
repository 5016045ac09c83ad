"""Ranking figures against plain implementations, for any rankings, labels and costs."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from samevec.parity.rankings.figures import (
    compare_order,
    decided_share,
    ndcg_at,
    order_of,
    rate,
    recall_at,
    reciprocal_rank,
)

COSTS = st.lists(st.sampled_from([0.0, 0.1, 0.15, 0.2, 0.5, 1.0]) | st.floats(-2, 2), min_size=2, max_size=12)
ALLOWANCES = st.sampled_from([0.0, 0.01, 0.06, 0.3])


@st.composite
def ranked(draw: Any) -> tuple[list[int], dict[int, int], int]:
    n_items = draw(st.integers(1, 12))
    order = draw(st.permutations(range(n_items)))[: draw(st.integers(1, n_items))]
    grades = draw(st.dictionaries(st.integers(0, n_items - 1), st.integers(1, 3), min_size=1))
    return order, grades, draw(st.integers(1, 14))


@given(ranked())
def test_figures_are_the_plain_ones(case: tuple[list[int], dict[int, int], int]) -> None:
    order, grades, k = case
    hits = 0
    for i in grades:
        for j in order[:k]:
            hits += i == j
    assert recall_at(order, grades, k) == hits / len(grades)

    expected = 0.0
    for place, item in enumerate(order):
        if item in grades:
            expected = 1 / (place + 1)
            break
    assert reciprocal_rank(order, grades) == expected

    gain = sum((2 ** grades.get(order[i], 0) - 1) / math.log2(i + 2) for i in range(min(k, len(order))))
    # The ideal by trying all orders of the relevant items, few enough to do so.
    few = dict(list(grades.items())[:5])
    best = max(
        sum((2 ** few[item] - 1) / math.log2(i + 2) for i, item in enumerate(order_of_few[:k]))
        for order_of_few in itertools.permutations(few)
    )
    if few == grades:
        assert math.isclose(ndcg_at(order, grades, k), gain / best, rel_tol=1e-12)
    assert 0 <= ndcg_at(order, grades, k) <= 1 + 1e-12


@given(ranked())
def test_the_ideal_order_has_figures_of_one(case: tuple[list[int], dict[int, int], int]) -> None:
    _, grades, k = case
    ideal = sorted(grades, key=lambda item: -grades[item])
    assert ndcg_at(ideal, grades, k) == 1
    assert reciprocal_rank(ideal, grades) == 1
    assert recall_at(ideal, grades, len(grades)) == 1


@given(st.lists(ranked(), min_size=1, max_size=4))
def test_ratings_are_means_and_recall_that_cannot_be_missed_is_none(
    cases: list[tuple[list[int], dict[int, int], int]],
) -> None:
    orders, labels = [order for order, _, _ in cases], [grades for _, grades, _ in cases]
    found = rate(orders, labels, n_items=11)
    assert found.recall_100 is None
    assert found.recall_10 == sum(map(recall_at, orders, labels, [10] * 4)) / len(cases)
    assert found.mrr == sum(map(reciprocal_rank, orders, labels)) / len(cases)
    assert rate(orders, labels, n_items=10).recall_10 is None


@st.composite
def changed(draw: Any) -> tuple[list[float], list[float], list[int], int]:
    costs = draw(COSTS)
    allowances = draw(st.lists(ALLOWANCES, min_size=len(costs), max_size=len(costs)))
    candidate = draw(st.permutations(range(len(costs))))
    return costs, allowances, candidate, draw(st.integers(1, len(costs)))


@settings(deadline=None)
@given(changed())
def test_swaps_are_found_as_by_looking_at_every_pair(case: tuple[list[float], list[float], list[int], int]) -> None:
    costs, allowances, candidate, top = case
    candidate = candidate[:top]
    reference = sorted(range(len(costs)), key=lambda i: (costs[i], i))[:top]
    assert reference == order_of(np.asarray(costs), top=top)
    found = compare_order(reference, candidate, np.asarray(costs), np.asarray(allowances))

    def rank(item: int) -> int:
        return candidate.index(item) if item in candidate else top

    swapped = [
        (a, b)
        for a in range(len(costs))
        for b in range(len(costs))
        if costs[b] - costs[a] > allowances[a] + allowances[b] and rank(b) < rank(a)
    ]
    assert found.swapped == len(swapped)
    assert found.swapped_first == any(b == candidate[0] for _, b in swapped)
    assert found.swapped_members == any(a not in candidate for a, _ in swapped)
    assert (found.example in swapped) if swapped else found.example is None
    if found.example is not None:
        a, b = found.example
        assert costs[b] - costs[a] == max(costs[j] - costs[i] for i, j in swapped)
    assert found.shared == sum(item in candidate for item in reference)
    assert found.displacement == max(abs(place - rank(item)) for place, item in enumerate(reference))
    assert found.first == (None if reference[0] == candidate[0] else (reference[0], candidate[0]))


@settings(deadline=None)
@given(COSTS, st.data())
def test_costs_within_their_allowances_never_swap(costs: list[float], data: st.DataObject) -> None:
    """What the near-tie rule promises: no false alarm."""
    allowance = 0.1
    moves = data.draw(st.lists(st.floats(-0.0999, 0.0999), min_size=len(costs), max_size=len(costs)))
    top = data.draw(st.integers(1, len(costs)))
    exact = np.asarray(costs)
    candidate = order_of(exact + np.asarray(moves), top=top)
    found = compare_order(order_of(exact, top=top), candidate, exact, np.full_like(exact, allowance))
    assert found.swapped == 0
    assert not found.swapped_first
    assert not found.swapped_members


@settings(deadline=None)
@given(COSTS, ALLOWANCES)
def test_the_decided_share_is_that_of_pairs_apart(costs: list[float], allowance: float) -> None:
    order = order_of(np.asarray(costs))
    pairs = list(itertools.combinations(order, 2))
    apart = sum(abs(costs[a] - costs[b]) > allowance + allowance for a, b in pairs)
    found = decided_share(order, np.asarray(costs), np.full(len(costs), allowance))
    assert math.isclose(found, apart / len(pairs))
