"""The plan's rules on chosen examples; tests/property has them on any lengths."""

from __future__ import annotations

from typing import Any

import pytest

from samevec.errors import InputError
from samevec.runtime.batching.plan import Microbatch, Plan, plan


def test_five_texts_at_batch_size_8_under_limit_2_run_as_2_2_1() -> None:
    steps = plan([3, 9, 5, 7, 1], token_budget=4096, max_rows=min(8, 2))
    assert [batch.indices for batch in steps.microbatches] == [(1, 3), (2, 0), (4,)]
    assert [batch.n_tokens for batch in steps.microbatches] == [9, 5, 1]


def test_batch_size_1_gives_single_rows() -> None:
    steps = plan([3, 9, 3], token_budget=4096, max_rows=1)
    assert [batch.indices for batch in steps.microbatches] == [(1,), (0,), (2,)]


def test_equal_lengths_keep_the_callers_order() -> None:
    steps = plan([5] * 7, token_budget=15, max_rows=32)
    assert [batch.indices for batch in steps.microbatches] == [(0, 1, 2), (3, 4, 5), (6,)]


def test_a_row_longer_than_the_budget_runs_alone() -> None:
    steps = plan([10, 5000, 20, 4096], token_budget=4096, max_rows=32)
    assert [batch.indices for batch in steps.microbatches] == [(1,), (3,), (2, 0)]


def test_the_budget_counts_padding() -> None:
    # 3 rows of 5 tokens are 15; a fourth, of 1 token, would be padded to 20.
    steps = plan([5, 5, 5, 1], token_budget=19, max_rows=32)
    assert [len(batch.indices) for batch in steps.microbatches] == [3, 1]


def test_nothing_to_plan_is_an_empty_plan() -> None:
    assert plan([], token_budget=1, max_rows=1) == Plan((), 0)


def test_tokens_are_counted_with_and_without_padding() -> None:
    steps = plan([4, 3, 3], token_budget=100, max_rows=2)
    assert steps.microbatches == (Microbatch((0, 1), 4), Microbatch((2,), 3))
    assert (steps.padded_tokens, steps.useful_tokens) == (11, 10)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"token_budget": 0}, "token_budget: 0 given, at least 1 is needed"),
        ({"max_rows": 0}, "batch_size: 0 given, at least 1 is needed"),
        ({"max_rows": -3}, "batch_size: -3 given, at least 1 is needed"),
        ({"max_rows": 2.5}, "batch_size: 2.5 is not a whole number"),
        ({"max_rows": True}, "batch_size: True is not a whole number"),
    ],
)
def test_limits_below_one_are_refused(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        plan([1], **{"token_budget": 8, "max_rows": 8, **limits})
    assert str(caught.value) == message
