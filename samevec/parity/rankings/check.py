"""Rankings over the retrieval fixture, the candidate's beside the reference's, through the model that serves."""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from samevec.errors import InferenceError, InputError, ReferenceMissingError
from samevec.parity.compare import compare, compare_ids
from samevec.parity.rankings.figures import (
    RankingRun,
    Rankings,
    compare_order,
    cosine_distances,
    decided_share,
    order_of,
    rate,
)
from samevec.parity.rankings.retrieval import builtin_fixture, fixture_cases
from samevec.parity.tokens import tokenize_cases
from samevec.progress import SilentProgress
from samevec.runtime.pooling import shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from samevec.lock import LockedModel, Tolerance
    from samevec.parity.rankings.retrieval import RetrievalFixture, RetrievalQuery
    from samevec.parity.reference.file import Reference, RetrievalReference
    from samevec.progress import Progress
    from samevec.runtime.collate import Features
    from samevec.runtime.embedder import Embedder
    from samevec.runtime.reranker import Reranker
    from samevec.runtime.rows import TokenRow

__all__ = ["TOP", "check_rankings"]

#: Results taken for each query.
TOP = 100

# Puts rows into other microbatches than one sorted call at the default budget.
_SHUFFLED_BUDGET = 512
_SHUFFLED_SEED = 32


def check_rankings(
    model: Embedder | Reranker,
    reference: Reference,
    *,
    tolerance: Tolerance,
    bits_required: bool,
    top: int = TOP,
    fixture: RetrievalFixture | None = None,
    progress: Progress | None = None,
    fix: str | None = None,
) -> Rankings:
    """Rank the retrieval fixture with a candidate and compare with the reference's ranking.

    Parameters
    ----------
    model : Embedder or Reranker
        As it serves; runs once in one call at the default policy, once shuffled.
    reference : Reference
        With the fixture's rows.
    bits_required : bool
        Whether the shuffled run must give the same bits.
    fixture : RetrievalFixture, optional
        The built-in one if not given.
    fix : str, optional
        The command that captures the reference again, for the message.

    Returns
    -------
    Rankings
        With every failure, not only the first.

    Raises
    ------
    ReferenceMissingError
        The reference lacks the fixture, or has another one.

    Notes
    -----
    Two results are a near tie if their costs differ by no more than the tolerance allows both together:
    ``atol + rtol * |score|`` for a score, ``atol`` for a cosine distance. Another order of near ties is counted; any
    other change of order fails.
    """
    fixture = fixture or builtin_fixture()
    retrieval = reference.retrieval
    if retrieval is None or retrieval.fixture_digest != fixture.digest:
        what = "lacks the retrieval fixture" if retrieval is None else "was captured for another retrieval fixture"
        raise ReferenceMissingError(f"{model.name}: the reference {what}", fix=fix or "samevec export")
    check = _Check(model, retrieval, tolerance, fixture, top)
    with (progress or SilentProgress()).step(f"rankings {model.name}", total=2, unit="runs") as advance:
        try:
            rows = tokenize_cases(model, fixture_cases(fixture, model.entry.task, prompts=model.entry.prompts))
            computed = _compute(model, rows, advance)
        except (InferenceError, InputError) as error:
            return check.result(failures=(f"rankings: could not be computed: {error.without_advice}",))
    failures, notes = check.value_findings(rows, computed, bits_required=bits_required)
    if any(run.raw.shape != retrieval.raw.shape for run in computed.values()):
        return check.result(failures=tuple(failures), notes=tuple(notes))
    if model.task == "embed":
        return check.rank_vectors(computed, failures, notes)
    return check.rank_scores(computed, failures, notes)


@dataclass(frozen=True, slots=True)
class _Computed:
    """Raw and final rows of one run in the order of the cases, and which of them ran together."""

    raw: NDArray[np.float32]
    final: NDArray[np.float32]
    microbatches: frozenset[tuple[int, ...]]


def _compute(
    model: Embedder | Reranker, rows: Sequence[TokenRow], advance: Callable[[float], None]
) -> dict[str, _Computed]:
    stream = random.Random(_SHUFFLED_SEED)  # noqa: S311
    keys = [stream.random() for _ in rows]
    orders = {"default": list(range(len(rows))), "shuffled": sorted(range(len(rows)), key=keys.__getitem__)}
    found = {}
    for name, order in orders.items():
        together: set[tuple[int, ...]] = set()
        raw = model.compute(
            [rows[i] for i in order],
            token_budget=_SHUFFLED_BUDGET if name == "shuffled" else None,
            recorder=functools.partial(_note_microbatch, order, together),
        )
        in_order = np.empty_like(raw)
        in_order[order] = raw
        found[name] = _Computed(in_order, model.finish(in_order), frozenset(together))
        advance(1)
    return found


def _note_microbatch(
    order: Sequence[int], together: set[tuple[int, ...]], indices: Sequence[int], _features: Features
) -> None:
    together.add(tuple(sorted(order[i] for i in indices)))


@dataclass(frozen=True, slots=True)
class _Check:
    model: Embedder | Reranker
    retrieval: RetrievalReference
    tolerance: Tolerance
    fixture: RetrievalFixture
    top: int

    @property
    def n_queries(self) -> int:
        return len(self.fixture.queries)

    def result(self, **found: Any) -> Rankings:
        """Return the record of the findings."""
        entry = self.model.entry
        n_items = len(self.fixture.documents if entry.task == "embed" else self.fixture.queries[0].candidates)
        return Rankings(
            task=entry.task,
            fixture_digest=self.fixture.digest,
            n_queries=self.n_queries,
            n_items=n_items,
            top=min(self.top, n_items),
            **found,
        )

    def value_findings(
        self, rows: Sequence[TokenRow], computed: dict[str, _Computed], *, bits_required: bool
    ) -> tuple[list[str], list[str]]:
        """Compare ids and raw rows by the frozen rule, and the two runs with each other; return failures and notes."""
        failures, notes = [], _weight_notes(self.model.entry)
        ids = compare_ids(self.retrieval.ids, [row.ids for row in rows])
        if not ids.passed:
            failures.append(f"rankings/ids: {ids.words}")
        for name, run in computed.items():
            comparison = compare(self.retrieval.raw, run.raw, self.tolerance)
            if not comparison.passed:
                failures.append(f"rankings/{name}: {comparison.words}")
        default, shuffled = computed["default"], computed["shuffled"]
        if default.microbatches == shuffled.microbatches:
            failures.append("rankings/shuffled: ran the same microbatches as default, so it proves nothing (vacuous)")
        moved = int((default.raw.view(np.uint32) != shuffled.raw.view(np.uint32)).any(axis=1).sum())
        if moved:
            words = f"rankings/shuffled: {moved} of {len(rows)} rows have other bits than in the default run"
            (failures if bits_required else notes).append(words)
        return failures, notes

    def rank_vectors(self, computed: dict[str, _Computed], failures: list[str], notes: list[str]) -> Rankings:
        """Rank documents by cosine distance."""
        entry, raw = self.model.entry, self.retrieval.raw
        expected = self.retrieval.final if entry.normalize else shorten(raw, dimensions=None, normalize=True)
        queries, documents = self._split(expected)
        tables = {"reference": (queries, documents)}
        tables |= {name: self._split(run.final) for name, run in computed.items()}
        tables["stored"] = (tables["default"][0], documents)
        orders = {
            name: [order_of(row, top=self.top) for row in cosine_distances(stored, asked)]
            for name, (asked, stored) in tables.items()
        }
        costs = cosine_distances(documents, queries)
        return self._compare(
            orders,
            costs,
            np.full_like(costs, self.tolerance.atol),
            [dict(query.grades) for query in self.fixture.queries],
            search="cosine distance",
            failures=failures,
            notes=notes,
        )

    def _split(self, vectors: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        return vectors[: self.n_queries], vectors[self.n_queries :]

    def rank_scores(self, computed: dict[str, _Computed], failures: list[str], notes: list[str]) -> Rankings:
        """Rank each query's candidates by score."""
        expected = self.retrieval.final.reshape(self.n_queries, -1)
        scores = {name: run.final.reshape(expected.shape) for name, run in computed.items()}
        orders = {
            name: [order_of(-row, top=self.top) for row in values]
            for name, values in {"reference": expected, **scores}.items()
        }
        costs = -expected.astype(np.float64)
        allowance = self.tolerance.atol + self.tolerance.rtol * np.abs(costs)
        labels = [_place_grades(query) for query in self.fixture.queries]
        return self._compare(orders, costs, allowance, labels, search="score", failures=failures, notes=notes)

    def _compare(
        self,
        orders: dict[str, list[list[int]]],
        costs: NDArray[np.float64],
        allowance: NDArray[np.float64],
        labels: list[dict[int, int]],
        *,
        failures: list[str],
        notes: list[str],
        **found: Any,
    ) -> Rankings:
        expected = orders.pop("reference")
        n_items = costs.shape[1]
        runs = tuple(
            RankingRun(
                name=name,
                changes=tuple(map(compare_order, expected, order, costs, allowance)),
                quality=rate(order, labels, n_items=n_items),
            )
            for name, order in orders.items()
        )
        decided = float(np.mean(list(map(decided_share, expected, costs, allowance))))
        return self.result(
            decided=decided,
            reference_quality=rate(expected, labels, n_items=n_items),
            runs=runs,
            failures=(*failures, *(failure for run in runs for failure in run.failures)),
            notes=tuple(notes),
            **found,
        )


def _place_grades(query: RetrievalQuery) -> dict[int, int]:
    """Return grades by place among a query's candidates."""
    grades = dict(query.grades)
    return {place: grades[i] for place, i in enumerate(query.candidates) if i in grades}


def _weight_notes(entry: LockedModel) -> list[str]:
    """Say where ratings mean nothing; a folder's weights may be untrained, which cannot be known here."""
    if entry.source.startswith("toy:"):
        return ["rankings: the toy models' weights are generated; the ratings say nothing, only their equality does"]
    if entry.source.startswith("local:"):
        return ["rankings: where a folder's weights are generated, the ratings say nothing, only their equality does"]
    return []
