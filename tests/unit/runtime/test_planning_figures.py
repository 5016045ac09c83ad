"""Figures plans are held to: the cost model against what was measured, padding on mixes, work of planning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from samevec.runtime.batching import cuts
from samevec.runtime.batching.cost import COSTS
from samevec.runtime.batching.plan import plan

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Rows, tokens, seconds, 2 cores with AVX-512. The embedder's with packed weights (8 x 64: 444 to 474 tokens/s; 2,048:
# 6.0 s; a query: 79 to 84 ms), the reranker's from its table of shapes.
MEASURED = [
    ("embed", 1, 16, 0.080),
    ("embed", 8, 64, 1.11),
    ("embed", 1, 2048, 6.0),
    ("rerank", 1, 16, 0.027),
    ("rerank", 8, 64, 0.36),
    ("rerank", 2, 512, 0.76),
    ("rerank", 1, 1024, 0.79),
    ("rerank", 1, 2048, 1.7),
    ("rerank", 1, 4096, 4.2),
]


@pytest.mark.parametrize(("task", "n_rows", "n_tokens", "measured_s"), MEASURED)
def test_the_cost_model_says_what_was_measured(task: str, n_rows: int, n_tokens: int, measured_s: float) -> None:
    assert COSTS[task].run_s(n_rows, n_tokens) == pytest.approx(measured_s, rel=0.12)


def mixed_lengths(n: int, seed: int) -> list[int]:
    """Median near 41, mean near 63, a long tail: like the benchmark's 64 mixed texts."""
    drawn = np.random.default_rng(seed).lognormal(np.log(41), 0.95, n)
    return [int(length) for length in np.clip(drawn, 5, 900)]


@pytest.mark.parametrize("n", [64, 100, 1000, 20_000])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("task", "max_rows"), [("embed", 32), ("rerank", 64)])
def test_mixed_texts_are_padded_by_six_in_a_hundred_at_most(n: int, seed: int, task: str, max_rows: int) -> None:
    lengths = mixed_lengths(n, seed)
    steps = plan(lengths, token_budget=4096, max_rows=max_rows, cost=COSTS[task], pad_to_multiple=4)
    padded = sum(len(batch.indices) * (-(-batch.n_tokens // 4) * 4) for batch in steps.microbatches)
    assert padded <= 1.06 * steps.useful_tokens


def searched_rows(lengths: list[int], monkeypatch: pytest.MonkeyPatch) -> int:
    """Rows the search looks at, which is where the time of planning goes: a count, the same on every machine."""
    seen: list[int] = []
    search = cuts._search

    def counting(searched: NDArray[np.int64], *others: Any) -> list[int]:
        seen.append(searched.size)
        return search(searched, *others)

    with monkeypatch.context() as patch:
        patch.setattr(cuts, "_search", counting)
        steps = plan(lengths, token_budget=4096, max_rows=32, cost=COSTS["embed"], pad_to_multiple=4)
    assert sum(len(batch.indices) for batch in steps.microbatches) == len(lengths)
    assert len(seen) == 1
    return seen[0]


def test_of_a_million_lengths_a_few_runs_of_each_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    longest = 8192  # as many different lengths as models take
    lengths = np.random.default_rng(1).integers(1, longest + 1, 1_000_000).tolist()
    # Of each length at most three open runs and the rest of a fourth.
    most = sum(4 * max(1, min(32, 4096 // n)) for n in range(1, longest + 1))
    assert searched_rows(lengths, monkeypatch) <= most < 100_000


def test_planning_a_text_does_not_cost_more_among_many(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = [searched_rows(mixed_lengths(n, 3), monkeypatch) / n for n in (100, 1000, 100_000)]
    assert shares[0] <= 1.0
    assert shares == sorted(shares, reverse=True)
