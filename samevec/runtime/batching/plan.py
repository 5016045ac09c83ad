"""Token lengths and limits in, microbatches out. Pure: no clock, no session, no state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from samevec.errors import InputError
from samevec.runtime.batching.cuts import Limits, cut_cheapest, cut_greedily
from samevec.runtime.checks import whole_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from samevec.runtime.batching.cost import CostModel

__all__ = [
    "MAX_RUN_TOKENS",
    "NATIVE_ROWS",
    "POLICIES",
    "Microbatch",
    "Plan",
    "Policy",
    "plan",
    "plan_native",
    "require_policy",
]

#: Padded tokens of one microbatch unless the profile or the caller says otherwise.
MAX_RUN_TOKENS = 4096

#: How rows are grouped: ours, or as sentence-transformers would, for comparisons.
Policy = Literal["samevec", "native"]
POLICIES: tuple[Policy, ...] = ("samevec", "native")
#: Rows of a run in sentence-transformers when the caller asks for nothing, for texts and for pairs.
NATIVE_ROWS = 32


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


def plan(
    lengths: Sequence[int],
    *,
    token_budget: int,
    max_rows: int,
    cost: CostModel | None = None,
    pad_to_multiple: int = 1,
) -> Plan:
    """Partition rows into microbatches of near-equal length.

    Parameters
    ----------
    lengths : sequence of int
        Tokens of each row, at least 1 each, in the caller's order.
    token_budget : int
        Most padded tokens (rows x longest row) of one microbatch. A row longer than the budget runs alone.
    max_rows : int
        Most rows of one microbatch.
    cost : CostModel, optional
        The cheapest partition by this model; without one, every microbatch is filled as far as the limits allow. Where
        padding costs nothing, microbatches are filled up to the model's `full_tokens`.
    pad_to_multiple : int
        How runs are padded, for the cost. The budget counts true lengths.

    Returns
    -------
    Plan
        Every position exactly once; sorted by (tokens descending, position), then cut.

    Raises
    ------
    InputError
        A limit is below 1 or not a whole number.

    Notes
    -----
    Deterministic: equal arguments give equal plans. O(n log n); a million lengths take about a second.
    """
    limits = Limits(
        token_budget=whole_number(token_budget, field="token_budget"),
        max_rows=whole_number(max_rows, field="batch_size"),
        pad_to_multiple=pad_to_multiple,
    )
    sizes = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(-sizes, kind="stable")  # stable: equal lengths keep the caller's order
    descending = sizes[order]
    if cost is None or not cost.pads:
        cut = cut_greedily(descending, limits if cost is None else limits.up_to(cost.full_tokens))
    else:
        cut = cut_cheapest(descending, limits, cost)
    return _cut_plan(order, descending, cut)


def plan_native(char_lengths: Sequence[int], lengths: Sequence[int], *, max_rows: int) -> Plan:
    """Partition rows as sentence-transformers does, for comparisons: by characters, a fixed number of rows a run.

    Parameters
    ----------
    char_lengths : sequence of int
        Characters of each text, or of both texts of a pair together.
    lengths : sequence of int
        Tokens of each row.
    max_rows : int
        Rows of every microbatch but the last.

    Returns
    -------
    Plan
        No token budget holds, and equal rows are not computed once.

    References
    ----------
    sentence-transformers 5.7.0, ``SentenceTransformer.encode`` and ``CrossEncoder.predict``: ``np.argsort`` of the
    negated ``_input_length``, then slices of ``batch_size``. Its argsort leaves the order of equal character lengths
    open; here they keep the caller's order.
    """
    max_rows = whole_number(max_rows, field="batch_size")
    sizes = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(-np.asarray(char_lengths, dtype=np.int64), kind="stable")
    n_full, rest = divmod(sizes.size, max_rows)
    return _cut_plan(order, sizes[order], [max_rows] * n_full + ([rest] if rest else []))


def require_policy(policy: str) -> None:
    """Refuse a policy that does not exist.

    Raises
    ------
    InputError
    """
    if policy not in POLICIES:
        raise InputError(f"{policy!r} given, one of {', '.join(POLICIES)} is needed", field="policy")


def _cut_plan(order: NDArray[np.int64], sizes: NDArray[np.int64], cut: Sequence[int]) -> Plan:
    """Make the microbatches of a cut; `sizes` are the rows' lengths in `order`."""
    if not cut:
        return Plan((), 0)
    ends = np.cumsum(np.asarray(cut, dtype=np.int64))
    starts = ends - np.asarray(cut, dtype=np.int64)
    longest = np.maximum.reduceat(sizes, starts).tolist()
    indices = order.tolist()
    microbatches = [
        Microbatch(tuple(indices[start:end]), n_tokens)
        for start, end, n_tokens in zip(starts.tolist(), ends.tolist(), longest, strict=True)
    ]
    return Plan(tuple(microbatches), int(sizes.sum()))
