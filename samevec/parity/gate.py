"""The gate: candidate against reference, every level under every grouping, several times over."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from samevec.errors import InferenceError, InputError, ReferenceMissingError
from samevec.parity.cases import builtin_cases, quick_positions
from samevec.parity.compare import (
    compare,
    compare_ids,
    deviations,
    merge_comparisons,
    ratio_histogram,
    row_deviations,
    rows_with_other_bits,
)
from samevec.parity.driver import driver_digest
from samevec.parity.golden import golden_cells, has_card_values, is_published
from samevec.parity.groupings import groupings
from samevec.parity.levels import PREFIX_DIMENSIONS, levels_of, prefix_dimensions
from samevec.parity.ranking_check import check_rankings
from samevec.parity.recorder import Recorder, grouping_run, twins, unasked_microbatches
from samevec.parity.tokens import tokenize_cases
from samevec.parity.torch_baseline import BASELINE_TITLE
from samevec.parity.torch_session import TorchSession
from samevec.parity.verdict import Cell, RowError, Verdict, cell_failures
from samevec.progress import SilentProgress
from samevec.runtime.embedder import Embedder

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from samevec.lock import Tolerance
    from samevec.parity.cases import CaseSet
    from samevec.parity.compare import Histogram
    from samevec.parity.groupings import Grouping
    from samevec.parity.levels import Level
    from samevec.parity.rankings import Rankings
    from samevec.parity.recorder import Microbatch
    from samevec.parity.reference_file import Reference
    from samevec.parity.verdict import GroupingRun
    from samevec.progress import Progress
    from samevec.runtime.profiles import Profile
    from samevec.runtime.reranker import Reranker
    from samevec.runtime.rows import TokenRow

__all__ = ["PREFIX_DIMENSIONS", "QUICK_REPEATS", "REPEATS", "run_gate", "tokenize_cases"]

#: How often every cell is computed (DESIGN section 5), and in a quick gate.
REPEATS = 3
QUICK_REPEATS = 2

# Groupings whose errors are kept row by row: unpadded, and as served.
_PLOTTED = ("alone", "default")


def run_gate(
    model: Embedder | Reranker,
    reference: Reference,
    *,
    tolerance: Tolerance,
    profile: Profile,
    case_set: CaseSet | None = None,
    repeats: int | None = None,
    quick: bool = False,
    golden: bool | None = None,
    artifact_digest: str | None = None,
    progress: Progress | None = None,
    fix: str | None = None,
) -> Verdict:
    """Compare a candidate with the reference.

    Parameters
    ----------
    model : Embedder or Reranker
        The candidate, through the very objects that serve. PyTorch itself may be one (``TorchSession``): then bits are
        reported and not required, whatever the profile says.
    reference : Reference
        Of the whole case set, for a quick gate too. Rankings are compared where it holds the retrieval fixture, as
        every file does, unless the gate is quick.
    tolerance : Tolerance
        The lock's.
    profile : Profile
        Names the provider that the model's session must compute with, and says whether a text's bits may depend on its
        neighbours.
    case_set : CaseSet, optional
        The built-in one if not given.
    repeats : int, optional
        3, or 2 for a quick gate, when not given.
    quick : bool
        Only the quick subset of cases and groupings. Its verdict says so, and is no leave to serve.
    golden : bool, optional
        Whether to check the values of the model card; by default where the entry is the packaged lock's own, so that
        the weights are the published ones.
    artifact_digest : str, optional
        For the record.
    progress : Progress, optional
    fix : str, optional
        The command that captures the reference anew, for the message.

    Returns
    -------
    Verdict
        With every failure, not only the first.

    Raises
    ------
    ReferenceMissingError
        The reference belongs to another lock entry, case set or retrieval fixture.

    Notes
    -----
    The session runs once a grouping and repeat; every level is evaluated on that output. Memory is one output a level.
    """
    started_s = time.monotonic()
    cases = builtin_cases(model.entry.task, prompts=model.entry.prompts) if case_set is None else case_set
    _require_same_subject(model, reference, cases, fix or f"samevec export --model {model.name}")
    numbers = quick_positions(cases) if quick else tuple(range(len(cases)))
    gate = _Gate(
        model=model,
        reference=_rows_of(reference, numbers),
        cases=cases.subset(numbers),
        numbers=numbers,
        tolerance=tolerance,
        bits_required=profile.bit_identical_groupings and not _is_torch(model),
        repeats=(QUICK_REPEATS if quick else REPEATS) if repeats is None else repeats,
        quick=quick,
    )
    cells, runs = gate.run(progress or SilentProgress())
    rankings = None
    if reference.retrieval is not None and not quick:
        rankings = check_rankings(
            model, reference, tolerance=tolerance, bits_required=gate.bits_required, progress=progress, fix=fix
        )
    check_golden = is_published(model.entry) if golden is None else golden
    if check_golden:
        cells += golden_cells(model)
    return Verdict(
        model=model.name,
        task=model.entry.task,
        profile=profile.name,
        provider=model.engine.session.provider,
        case_set_digest=cases.digest,
        n_cases=len(numbers),
        repeats=gate.repeats,
        tolerance=tolerance.to_dict(),
        cells=tuple(cells),
        runs=tuple(runs),
        failures=(
            *_provider_failures(model, profile),
            *cell_failures(cells),
            *(problem for run in runs for problem in run.problems),
            *(rankings.failures if rankings else ()),
        ),
        notes=(*_notes(cells, runs, baseline=_is_torch(model)), *(rankings.notes if rankings else ())),
        not_measured=(
            *gate.not_measured(cases, runs),
            *_ranking_gap(rankings),
            *_golden_gap(model, check_golden),
            *_baseline_gap(reference),
        ),
        elapsed_s=time.monotonic() - started_s,
        quick=quick,
        baseline=_is_torch(model),
        lock_entry_digest=model.entry.digest,
        driver_digest=driver_digest(),
        artifact_digest=artifact_digest,
        error_level=levels_of(model, reference)[0].name,
        row_errors=gate.row_errors,
        histograms=gate.histograms,
        rankings=rankings,
        torch_baseline=reference.torch_baseline,
    )


def _require_same_subject(model: Embedder | Reranker, reference: Reference, cases: CaseSet, fix: str) -> None:
    if reference.lock_entry_digest != model.entry.digest:
        raise ReferenceMissingError(f"{model.name}: the reference was captured for another lock entry", fix=fix)
    if reference.case_set_digest != cases.digest or len(reference) != len(cases):
        raise ReferenceMissingError(f"{model.name}: the reference was captured for another case set", fix=fix)


def _provider_failures(model: Embedder | Reranker, profile: Profile) -> tuple[str, ...]:
    """Compare what the session says it computes with; its values may be right and the receipt would be about another.

    PyTorch itself, as the baseline, runs under no profile.
    """
    used = model.engine.session.provider
    if used == profile.provider or _is_torch(model):
        return ()
    return (f"provider: the session computes with {used}, the profile {profile.name} is for {profile.provider}",)


def _rows_of(reference: Reference, positions: Sequence[int]) -> Reference:
    """Return the reference of some of its cases."""
    chosen = np.asarray(positions, dtype=np.int64)
    ids = tuple(reference.ids[i] for i in positions)
    return replace(reference, ids=ids, raw=reference.raw[chosen], final=reference.final[chosen])


def _is_torch(model: Embedder | Reranker) -> bool:
    return isinstance(model.engine.session, TorchSession)


@dataclass(kw_only=True, slots=True)
class _Gate:
    """One run of the gate over `cases`; `numbers` are theirs in the full set, by which everything is reported."""

    model: Embedder | Reranker
    reference: Reference
    cases: CaseSet
    numbers: tuple[int, ...]
    tolerance: Tolerance
    bits_required: bool
    repeats: int
    quick: bool
    alone: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    row_errors: dict[str, tuple[RowError, ...]] = field(default_factory=dict)
    histograms: dict[str, Histogram] = field(default_factory=dict)

    def run(self, progress: Progress) -> tuple[list[Cell], list[GroupingRun]]:
        """Compare token ids, then every level under every grouping."""
        cells, rows = self._compare_tokens()
        runs: list[GroupingRun] = []
        if rows is None:
            return cells, runs
        seen: dict[str, Counter[Microbatch]] = {}
        plans = groupings([row.n_tokens for row in rows], task=self.model.entry.task, quick=self.quick)
        with progress.step(f"parity {self.model.name}", total=len(plans) * self.repeats, unit="runs") as advance:
            for grouping in plans:
                new_cells, recorder = self._run_grouping(rows, grouping, advance)
                cells += new_cells
                unasked = unasked_microbatches(self.model.engine, rows, recorder.twins, grouping.calls)
                runs.append(grouping_run(grouping, recorder, seen, unasked))
                seen[grouping.name] = recorder.microbatches
        return cells, runs

    def _compare_tokens(self) -> tuple[list[Cell], list[TokenRow] | None]:
        """Compare token ids, tokenised together and one by one; give the rows if there are any."""
        cells: list[Cell] = []
        rows: list[TokenRow] | None = None
        for name, together in (("together", True), ("alone", False)):
            try:
                found = tokenize_cases(self.model, self.cases, together=together)
            except InputError as error:
                cells.append(Cell(level="ids", grouping=name, comparison=None, error=f"a case was refused: {error}"))
                continue
            comparison = compare_ids(self.reference.ids, [row.ids for row in found], row_names=self.numbers)
            cells.append(Cell(level="ids", grouping=name, comparison=comparison))
            rows = found if rows is None else rows
        return cells, rows

    def _run_grouping(
        self, rows: list[TokenRow], grouping: Grouping, advance: Callable[[float], None]
    ) -> tuple[list[Cell], Recorder]:
        levels = levels_of(self.model, self.reference)
        outputs: dict[str, list[NDArray[np.float32]]] = {level.name: [] for level in levels}
        recorder = Recorder(twins(rows), [row.n_tokens for row in rows])
        for _ in range(self.repeats):
            recorder = Recorder(
                recorder.twins, recorder.lengths
            )  # every repeat feeds the same; the last one's notes are kept
            try:
                found = self._run_once(rows, grouping, levels, recorder)
            except InferenceError as error:
                return [_error_cell(level, grouping, error, recorder) for level in levels], recorder
            for level in levels:
                outputs[level.name].append(found[level.name])
            advance(1)
        distinct = {name: _distinct(every) for name, every in outputs.items()}
        if grouping.name in _PLOTTED:
            self._keep_errors(levels[0], grouping, distinct[levels[0].name], rows)
        return [self._cell(level, grouping, distinct[level.name], recorder) for level in levels], recorder

    def _run_once(
        self, rows: list[TokenRow], grouping: Grouping, levels: list[Level], recorder: Recorder
    ) -> dict[str, NDArray[np.float32]]:
        parts: dict[str, list[NDArray[np.float32]]] = {level.name: [] for level in levels}
        for call in grouping.calls:
            recorder.call = call
            raw = self.model.compute(
                [rows[i] for i in call],
                batch_size=grouping.batch_size,
                token_budget=grouping.token_budget,
                recorder=recorder,
            )
            for level in levels:
                parts[level.name].append(level.finish(raw))
        return {name: np.concatenate(found) for name, found in parts.items()}

    def _cell(self, level: Level, grouping: Grouping, distinct: list[NDArray[np.float32]], recorder: Recorder) -> Cell:
        members = np.asarray(grouping.cases)
        names = [self.numbers[i] for i in grouping.cases]
        comparison = merge_comparisons(
            compare(level.expected[members], one, self.tolerance, row_names=names) for one in distinct
        )
        worst = comparison.worst
        return Cell(
            level=level.name,
            grouping=grouping.name,
            comparison=comparison,
            repeats=self.repeats,
            repeats_identical=len(distinct) == 1,
            moved_rows=self._moved_rows(level, grouping, distinct),
            bits_required=self.bits_required,
            shapes=tuple(recorder.shapes),
            features_digest=recorder.features_digest,
            worst_tag=self.cases.cases[self.numbers.index(worst.row)].tag if worst is not None else "",
        )

    def _moved_rows(
        self, level: Level, grouping: Grouping, distinct: list[NDArray[np.float32]]
    ) -> tuple[int, ...] | None:
        """Return the cases whose bits differ from those they had alone; the first grouping is what "alone" means."""
        members = np.asarray(grouping.cases)
        if grouping.name == "alone":
            in_case_order = np.empty_like(distinct[0])
            in_case_order[members] = distinct[0]
            self.alone[level.name] = in_case_order
            return None
        if level.name not in self.alone:
            return None
        expected = self.alone[level.name][members]
        moved = {self.numbers[members[i]] for one in distinct for i in rows_with_other_bits(expected, one)}
        return tuple(sorted(moved))

    def _keep_errors(
        self, level: Level, grouping: Grouping, distinct: list[NDArray[np.float32]], rows: Sequence[TokenRow]
    ) -> None:
        """Keep how far every case is off, the worst of all repeats, in order of the cases."""
        members = np.asarray(grouping.cases)
        measured = [deviations(level.expected[members], one, self.tolerance) for one in distinct]
        difference, ratio = (np.max(np.stack(every), axis=0) for every in zip(*measured, strict=True))
        by_case = dict(zip(grouping.cases, row_deviations(difference, ratio), strict=True))
        self.histograms[grouping.name] = ratio_histogram(ratio)
        self.row_errors[grouping.name] = tuple(
            RowError(
                case=self.numbers[i],
                tag=self.cases.cases[i].tag,
                tokens=rows[i].n_tokens,
                max_abs=by_case[i][0],
                ratio=by_case[i][1],
            )
            for i in sorted(by_case)
        )

    def not_measured(self, full: CaseSet, runs: Sequence[GroupingRun]) -> tuple[str, ...]:
        """Return what this gate does not look at, in words."""
        longest = max(len(ids) for ids in self.reference.ids)
        found = [f"inputs longer than {longest} tokens (the model takes {self.model.max_tokens})"]
        parts = [f"{run.name} {run.rows}" for run in runs if run.rows < len(self.cases)]
        if parts:
            found.append(f"every one of the {len(self.cases)} cases in every grouping: of them, {', '.join(parts)}")
        if isinstance(self.model, Embedder) and prefix_dimensions(self.model) is None:
            found.append("vector prefixes: the lock allows none")
        return (*found, *self._quick_gap(full, runs)) if self.quick else tuple(found)

    def _quick_gap(self, full: CaseSet, runs: Sequence[GroupingRun]) -> list[str]:
        """Return what a full gate would have run."""
        lengths = [len(ids) for ids in self.reference.ids]
        ran = {run.name for run in runs}
        every = groupings(lengths, task=self.model.entry.task)
        missing = [grouping.name for grouping in every if grouping.name not in ran]
        tags = {case.tag for case in self.cases.cases}
        kinds = list(dict.fromkeys(case.tag for case in full.cases if case.tag not in tags))
        found = [f"{len(full) - len(self.cases)} of the {len(full)} cases (quick)"]
        if kinds:
            found.append(f"any case of these kinds (quick): {', '.join(kinds)}")
        if missing:
            found.append(f"groupings (quick): {', '.join(missing)}")
        return found


def _ranking_gap(rankings: Rankings | None) -> tuple[str, ...]:
    return ("rankings over the retrieval fixture",) if rankings is None else rankings.not_measured


def _golden_gap(model: Embedder | Reranker, checked: bool) -> tuple[str, ...]:
    if checked and has_card_values(model.entry):
        return ()
    reason = "the lock states none" if checked else "these are not the published weights of the packaged lock"
    return (f"the model card's golden values: {reason}",)


def _baseline_gap(reference: Reference) -> tuple[str, ...]:
    if reference.torch_baseline is not None:
        return ()
    return (f"{BASELINE_TITLE}: not captured in this artifact, which an older samevec exported",)


def _distinct(outputs: list[NDArray[np.float32]]) -> list[NDArray[np.float32]]:
    """Return the first repeat and those with other bits."""
    return [outputs[0], *(one for one in outputs[1:] if one.tobytes() != outputs[0].tobytes())]


def _error_cell(level: Level, grouping: Grouping, error: InferenceError, recorder: Recorder) -> Cell:
    return Cell(
        level=level.name,
        grouping=grouping.name,
        comparison=None,
        error=f"could not be computed: {error}",
        shapes=tuple(recorder.shapes),
        features_digest=recorder.features_digest,
    )


def _notes(cells: Sequence[Cell], runs: Sequence[GroupingRun], *, baseline: bool) -> tuple[str, ...]:
    found = ["PyTorch itself: the baseline, what batching alone moves; bits reported, not required"] if baseline else []
    found += [finding for cell in cells if not cell.bits_required for finding in cell.bit_findings]
    found += [f"{run.name}: ran microbatches of {run.like}, as it is meant to" for run in runs if run.like is not None]
    found += [
        f"{run.name}: ran the same microbatches as {run.same_as} (vacuous; the case set is small)"
        for run in runs
        if run.same_as is not None and not run.problems
    ]
    return tuple(found)
