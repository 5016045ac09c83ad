"""Rankings compared and rated. Pure: numbers in, counts and figures out; a change is data, never an exception.

Values are costs, the smaller the better: cosine distances, or a reranker's scores with their sign changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

__all__ = [
    "OrderChange",
    "Quality",
    "RankingRun",
    "Rankings",
    "compare_order",
    "cosine_distances",
    "decided_share",
    "ndcg_at",
    "order_of",
    "rate",
    "recall_at",
    "reciprocal_rank",
]


def cosine_distances(documents: NDArray[np.float32], queries: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return ``1 - cosine`` of every query with every document in float64, shape (n_queries, n_documents)."""
    rows, columns = (
        vectors.astype(np.float64) / np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
        for vectors in (queries, documents)
    )
    distances: NDArray[np.float64] = 1 - rows @ columns.T
    return distances


def order_of(costs: NDArray[Any], *, top: int | None = None) -> list[int]:
    """Return positions by ascending cost, equal costs by position; only the first `top` if given."""
    return [int(i) for i in np.argsort(costs, kind="stable")[:top]]


def recall_at(order: Sequence[int], grades: Mapping[int, int], k: int) -> float:
    """Return the share of the relevant items, which `grades` has at least one of, among the first k."""
    return len(grades.keys() & set(order[:k])) / len(grades)


def reciprocal_rank(order: Sequence[int], grades: Mapping[int, int]) -> float:
    """Return 1 over the rank of the first relevant item; 0 where there is none."""
    return next((1 / rank for rank, item in enumerate(order, start=1) if item in grades), 0.0)


def ndcg_at(order: Sequence[int], grades: Mapping[int, int], k: int) -> float:
    """Return the normalised discounted cumulative gain of the first k items.

    Gain ``2**grade - 1``, discount ``log2(rank + 1)`` (Burges et al. 2005, "Learning to Rank using Gradient Descent");
    the ideal order has every relevant item, best grades first.
    """
    gains = [2.0 ** grades[item] - 1 if item in grades else 0.0 for item in order[:k]]
    ideal = sorted((2.0**grade - 1 for grade in grades.values()), reverse=True)[:k]
    return _discounted(gains) / _discounted(ideal)


def _discounted(gains: Sequence[float]) -> float:
    return float(sum(gain / np.log2(rank + 1) for rank, gain in enumerate(gains, start=1)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Quality:
    """Means over all queries; a recall is None where no more than k items were ranked."""

    recall_10: float | None
    recall_100: float | None
    mrr: float
    ndcg_10: float

    def to_dict(self) -> dict[str, Any]:
        """Return a record for JSON."""
        return {"recall_10": self.recall_10, "recall_100": self.recall_100, "mrr": self.mrr, "ndcg_10": self.ndcg_10}


def rate(orders: Sequence[Sequence[int]], labels: Sequence[Mapping[int, int]], *, n_items: int) -> Quality:
    """Rate one ranking a query by the grades of its relevant items; `n_items` were ranked for each."""
    each = list(zip(orders, labels, strict=True))

    def recall(k: int) -> float | None:
        return _mean([recall_at(order, grades, k) for order, grades in each]) if n_items > k else None

    return Quality(
        recall_10=recall(10),
        recall_100=recall(100),
        mrr=_mean([reciprocal_rank(order, grades) for order, grades in each]),
        ndcg_10=_mean([ndcg_at(order, grades, 10) for order, grades in each]),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@dataclass(frozen=True, kw_only=True, slots=True)
class OrderChange:
    """How one query's ranking differs from the reference's. Swapped items are those that the reference holds apart."""

    shared: int  # items that are in both rankings
    size: int  # items of the reference's ranking
    first: tuple[int, int] | None  # first item of the reference and of the candidate, where they differ
    displacement: int  # greatest change of rank; an item that fell out counts as just behind the last
    swapped: int  # pairs in another order
    swapped_first: bool  # the first item changed by a swap
    swapped_members: bool  # membership changed by a swap
    example: tuple[int, int] | None  # the swapped pair that the reference holds furthest apart, better item first


def compare_order(
    reference: Sequence[int], candidate: Sequence[int], costs: NDArray[np.float64], allowance: NDArray[np.float64]
) -> OrderChange:
    """Compare two rankings of the same items.

    Parameters
    ----------
    reference, candidate : sequence of int
        Items, best first; of equal length, each the first N of all items.
    costs : ndarray of float64, shape (n_items,)
        The reference's cost of every item, ranked or not.
    allowance : ndarray of float64, shape (n_items,)
        The allowed error of each cost.

    Notes
    -----
    Two items are a near tie if their costs differ by no more than their two allowances together. A pair counts as
    swapped if it is no near tie and the candidate ranks the worse item first; unranked items come after all ranked
    ones.
    """
    n_items, top = len(costs), len(reference)
    ranks = np.full(n_items, top)
    ranks[list(candidate)] = np.arange(len(candidate))
    gaps = costs[None, :] - costs[:, None]  # row: an item; column: how much worse the other is
    apart = gaps > allowance[:, None] + allowance[None, :]
    swapped = apart & (ranks[None, :] < ranks[:, None])
    at = np.unravel_index(int(np.where(swapped, gaps, -np.inf).argmax()), gaps.shape)
    outside = ranks == top
    return OrderChange(
        shared=len(set(reference) & set(candidate)),
        size=top,
        first=(reference[0], candidate[0]) if reference[0] != candidate[0] else None,
        displacement=int(np.abs(ranks[list(reference)] - np.arange(top)).max()),
        swapped=int(swapped.sum()),
        swapped_first=bool(swapped[:, candidate[0]].any()),
        swapped_members=bool(swapped[outside].any()),
        example=(int(at[0]), int(at[1])) if swapped.any() else None,
    )


def decided_share(order: Sequence[int], costs: NDArray[np.float64], allowance: NDArray[np.float64]) -> float:
    """Return the share of a ranking's pairs that are no near ties, see :func:`compare_order`; at least two items."""
    chosen = list(order)
    gaps = np.abs(costs[chosen][None, :] - costs[chosen][:, None])
    apart = gaps > allowance[chosen][:, None] + allowance[chosen][None, :]
    return float(apart.sum() / (len(chosen) * (len(chosen) - 1)))


@dataclass(frozen=True, kw_only=True, slots=True)
class RankingRun:
    """The rankings of one way to compute them, beside the reference's.

    ``default`` is one call, ``shuffled`` other batches, ``stored`` the candidate's queries against PyTorch's document
    vectors, as in a store whose backend changes.
    """

    name: str
    changes: tuple[OrderChange, ...]  # one a query
    quality: Quality

    @property
    def first_changes(self) -> int:
        """Queries whose first result differs."""
        return sum(change.first is not None for change in self.changes)

    @property
    def member_changes(self) -> int:
        """Results that are not among the reference's, over all queries."""
        return sum(change.size - change.shared for change in self.changes)

    @property
    def displacement(self) -> int:
        """Greatest change of rank."""
        return max(change.displacement for change in self.changes)

    @property
    def failures(self) -> tuple[str, ...]:
        """Changes that near ties do not explain, one sentence for each kind."""
        kinds = {
            "another first result": [change.swapped_first for change in self.changes],
            "other members": [change.swapped_members for change in self.changes],
            "another order": [change.swapped > 0 for change in self.changes],
        }
        return tuple(self._sentence(words, flags) for words, flags in kinds.items() if any(flags))

    def _sentence(self, words: str, flags: Sequence[bool]) -> str:
        query = flags.index(True)
        better, worse = self.changes[query].example or (-1, -1)
        return (
            f"rankings/{self.name}: {words} for {sum(flags)} of {len(flags)} queries, beyond near ties "
            f"(first query {query}: item {worse} comes before item {better})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a record for JSON."""
        return {
            "name": self.name,
            "first_changes": self.first_changes,
            "member_changes": self.member_changes,
            "displacement": self.displacement,
            "swapped_pairs": sum(change.swapped for change in self.changes),
            "quality": self.quality.to_dict(),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Rankings:
    """The findings of the ranking check; one sentence for each failure, note and gap."""

    task: str
    fixture_digest: str
    n_queries: int
    n_items: int  # ranked for each query
    top: int  # items compared
    search: str = ""  # the cost they were ranked by
    decided: float = 0.0  # share of the reference's pairs of results that are no near ties: only those can fail
    reference_quality: Quality | None = None
    runs: tuple[RankingRun, ...] = ()  # empty when nothing could be computed
    failures: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    not_measured: tuple[str, ...] = ()
    elapsed_s: float = field(default=0.0, compare=False)

    @property
    def words(self) -> str:
        """One line: the ranked items, and how many changed."""
        what = f"rankings of {self.n_items} items for {self.n_queries} queries"
        if not self.runs:
            return f"{what}: not computed"
        firsts = max(run.first_changes for run in self.runs)
        members = max(run.member_changes for run in self.runs)
        moved = max(run.displacement for run in self.runs)
        return (
            f"{what}, top {self.top} by {self.search}: {firsts} first results changed, {members} members changed, "
            f"greatest change of rank {moved}; {self.decided:.1%} of pairs are no near ties"
        )

    @property
    def lines(self) -> tuple[str, ...]:
        """:attr:`words`, and the figures of the reference and of the candidate."""
        if self.reference_quality is None:
            return (self.words,)
        expected, found = self.reference_quality.to_dict(), self.runs[0].quality.to_dict()
        titles = {"recall_10": "Recall@10", "recall_100": "Recall@100", "mrr": "MRR", "ndcg_10": "NDCG@10"}
        figures = [
            f"{title} {expected[key]:.4f} / {found[key]:.4f}"
            for key, title in titles.items()
            if expected[key] is not None
        ]
        return (self.words, f"reference / candidate: {', '.join(figures)}")

    def to_dict(self) -> dict[str, Any]:
        """Return a record for JSON."""
        return {
            "task": self.task,
            "fixture_digest": self.fixture_digest,
            "n_queries": self.n_queries,
            "n_items": self.n_items,
            "top": self.top,
            "search": self.search,
            "decided": round(self.decided, 6),
            "reference_quality": None if self.reference_quality is None else self.reference_quality.to_dict(),
            "runs": [run.to_dict() for run in self.runs],
            "failures": list(self.failures),
            "notes": list(self.notes),
            "not_measured": list(self.not_measured),
            "elapsed_s": round(self.elapsed_s, 6),
        }
