"""Token lengths and limits in, microbatches out. Pure: no clock, no session, no state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from samevec.runtime.checks import whole_number

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "MAX_WORKER_TOKENS",
    "MIN_WORKER_TOKENS",
    "TOTAL_BUDGET_TOKENS",
    "Microbatch",
    "Plan",
    "plan",
    "worker_budget_tokens",
]

#: Bounds of one worker's share, and the default of the whole process: one and two workers keep 4,096 (DESIGN 6).
MIN_WORKER_TOKENS = 1024
MAX_WORKER_TOKENS = 4096
TOTAL_BUDGET_TOKENS = 2 * MAX_WORKER_TOKENS


@dataclass(frozen=True, slots=True)
class Microbatch:
    """Rows that share one session run.

    Attributes
    ----------
    indices : tuple of int
        Positions in the caller's order, longest row first.
    n_tokens : int
        Length of the longest row.
    """

    indices: tuple[int, ...]
    n_tokens: int

    @property
    def padded_tokens(self) -> int:
        """Tokens the run computes when every row is padded to the longest."""
        return self.n_tokens * len(self.indices)


@dataclass(frozen=True, slots=True)
class Plan:
    """A partition of rows into microbatches.

    Attributes
    ----------
    microbatches : tuple of Microbatch
        In the order in which they run: longest rows first, so that the greatest memory is taken first and a later
        microbatch never needs more.
    useful_tokens : int
        Sum of the rows' own lengths.
    """

    microbatches: tuple[Microbatch, ...]
    useful_tokens: int

    @property
    def padded_tokens(self) -> int:
        """Tokens computed, padding included."""
        return sum(batch.padded_tokens for batch in self.microbatches)


def plan(lengths: Sequence[int], *, token_budget: int, max_rows: int) -> Plan:
    """Partition rows into microbatches of near-equal length.

    Parameters
    ----------
    lengths : sequence of int
        Tokens of each row, at least 1 each, in the caller's order.
    token_budget : int
        Most padded tokens (rows x longest row) of one microbatch. A row longer than the budget runs alone.
    max_rows : int
        Most rows of one microbatch.

    Returns
    -------
    Plan
        Every position exactly once; sorted by (tokens descending, position), then cut greedily.

    Raises
    ------
    InputError
        A limit is below 1 or not a whole number.

    Notes
    -----
    Deterministic: equal arguments give equal plans. O(n log n).
    """
    token_budget = whole_number(token_budget, field="token_budget")
    max_rows = whole_number(max_rows, field="batch_size")
    sizes = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(-sizes, kind="stable").tolist()  # stable: equal lengths keep the caller's order
    microbatches: list[Microbatch] = []
    start = 0
    while start < len(order):
        longest = int(sizes[order[start]])
        n_rows = max(1, min(max_rows, token_budget // max(longest, 1)))
        microbatches.append(Microbatch(tuple(order[start : start + n_rows]), longest))
        start += n_rows
    return Plan(tuple(microbatches), int(sizes.sum()))


def worker_budget_tokens(n_workers: int, *, total_tokens: int = TOTAL_BUDGET_TOKENS) -> int:
    """Return one worker's share of the process's token budget.

    Parameters
    ----------
    n_workers : int
        Workers that may run at the same time, at least 1.
    total_tokens : int
        Budget of the whole process.

    Returns
    -------
    int
        ``clamp(total / workers, 1024, 4096)``, so that peak memory stays about flat as workers grow.
    """
    return min(MAX_WORKER_TOKENS, max(MIN_WORKER_TOKENS, total_tokens // max(n_workers, 1)))
