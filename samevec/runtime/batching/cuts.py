"""Where to cut a sorted list of lengths into runs: as few runs as the limits allow, or the cheapest by a cost model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from samevec.runtime.batching.cost import CostModel

__all__ = ["Limits", "cut_cheapest", "cut_greedily"]

# Of a group of equal lengths this many full runs stay open to the search; the rest can only be full runs of their own.
_OPEN_RUNS = 3
# Costs as near as this differ by rounding only.
_TIE = 1 + 1e-12


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What every run must obey, and how it is padded.

    Attributes
    ----------
    token_budget : int
        Most tokens of one run, rows x longest row; a row longer than this runs alone.
    max_rows : int
    pad_to_multiple : int
        The width of a run is its longest row rounded up to a multiple of this.
    """

    token_budget: int
    max_rows: int
    pad_to_multiple: int = 1

    def rows_at(self, longest: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many rows fit a run whose longest row has `longest` tokens, at least 1."""
        fitting = np.minimum(self.token_budget // np.maximum(longest, 1), self.max_rows)
        return np.asarray(np.maximum(fitting, 1), dtype=np.int64)

    def up_to(self, full_tokens: int | None) -> Limits:
        """Return limits under which a run of equal rows is no larger than it pays to be."""
        return self if full_tokens is None else replace(self, token_budget=min(self.token_budget, full_tokens))

    def width(self, longest: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the padded length of a run."""
        return -(-longest // self.pad_to_multiple) * self.pad_to_multiple


@dataclass(frozen=True, slots=True)
class _Groups:
    """Runs of equal values in a descending list: the lengths, how often each occurs, and rows of a full run."""

    lengths: NDArray[np.int64]
    counts: NDArray[np.int64]
    caps: NDArray[np.int64]

    @classmethod
    def of(cls, descending: NDArray[np.int64], limits: Limits) -> _Groups:
        starts = np.flatnonzero(np.diff(descending, prepend=descending[0] + 1))
        counts = np.diff(starts, append=descending.size)
        lengths = descending[starts]
        return cls(lengths, counts, limits.rows_at(lengths))


def cut_greedily(descending: NDArray[np.int64], limits: Limits) -> list[int]:
    """Fill every run as far as the limits allow.

    Parameters
    ----------
    descending : ndarray of int64, shape (n,)
        Lengths, longest first.
    limits : Limits

    Returns
    -------
    list of int
        Rows of each run, in order; their sum is n.
    """
    if not descending.size:
        return []
    groups = _Groups.of(descending, limits)
    sizes: list[int] = []
    room = 0  # rows the last run may still take
    for count, cap in zip(groups.counts.tolist(), groups.caps.tolist(), strict=True):
        taken = min(count, room)
        if taken:
            sizes[-1] += taken
        n_full, rest = divmod(count - taken, cap)
        sizes += [cap] * n_full
        room -= taken
        if n_full:
            room = 0
        if rest:
            sizes.append(rest)
            room = cap - rest
    return sizes


def cut_cheapest(descending: NDArray[np.int64], limits: Limits, cost: CostModel) -> list[int]:
    """Cut so that the runs together cost least.

    Parameters
    ----------
    descending : ndarray of int64, shape (n,)
        Lengths, longest first.
    limits : Limits
    cost : CostModel

    Returns
    -------
    list of int
        Rows of each run, in order. Never dearer than :func:`cut_greedily`.

    Notes
    -----
    A dynamic programme from the shortest row to the longest: the best cut of what follows row i is known for every
    later row, so a run that starts at i is tried at every size the limits allow. O(n x max_rows) at first, but of many
    equal lengths only a few runs' worth is searched, the others being full runs of their own (full by the limits, or by
    the cost's `full_tokens`): a million lengths are a few ten thousand rows of search. Within a group of equal lengths
    that is exact as long as splitting rows evenly over three runs leaves none below `stream_s` and runs gain nothing
    beyond `full_tokens`; the comparison with the greedy cut covers what is left.
    """
    if not descending.size:
        return []
    groups = _Groups.of(descending, limits)
    full = limits.up_to(cost.full_tokens).rows_at(groups.lengths)
    n_set_aside = np.maximum(groups.counts // full - _OPEN_RUNS, 0)
    searched = np.repeat(np.arange(groups.counts.size), groups.counts - n_set_aside * full)
    steps = _search(searched, groups, limits, cost)
    sizes: list[int] = []
    set_aside, full_rows, members = n_set_aside.tolist(), full.tolist(), searched.tolist()
    i = 0
    while i < len(members):
        group = members[i]
        if set_aside[group]:  # the first run that starts in the group: its full runs go before
            sizes += [full_rows[group]] * set_aside[group]
            set_aside[group] = 0
        sizes.append(steps[i])
        i += steps[i]
    greedy = cut_greedily(descending, limits)
    return min(sizes, greedy, key=lambda cut: _total_s(descending, cut, limits, cost))


def _search(searched: NDArray[np.int64], groups: _Groups, limits: Limits, cost: CostModel) -> list[int]:
    """Return, for every searched row, how many rows the best run that starts there has."""
    n_rows = searched.size
    most = int(groups.caps.max())
    best_s = np.full(n_rows + 1 + most, np.inf)  # of everything from row i on; past the end nothing is possible
    best_s[n_rows] = 0.0
    steps = [1] * n_rows
    counts = np.arange(1, most + 1)
    widths = limits.width(groups.lengths)
    end = n_rows
    for group in reversed(range(groups.lengths.size)):
        cap = int(groups.caps[group])
        run_s = cost.run_s(counts[:cap], widths[group])
        start = int(np.searchsorted(searched, group))
        for i in range(end - 1, start - 1, -1):
            totals = best_s[i + 1 : i + 1 + cap] + run_s
            k = int(np.flatnonzero(totals <= totals.min() * _TIE)[-1])  # of equals the fullest run first
            best_s[i] = totals[k]
            steps[i] = k + 1
        end = start
    return steps


def _total_s(descending: NDArray[np.int64], sizes: list[int], limits: Limits, cost: CostModel) -> float:
    n_rows = np.asarray(sizes, dtype=np.int64)
    starts = np.cumsum(n_rows) - n_rows
    return float(np.sum(cost.run_s(n_rows, limits.width(descending[starts]))))
