"""The gate: candidate against reference, every level under every grouping, several times over."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import numpy as np

from samevec.errors import InferenceError, InputError, ReferenceMissingError
from samevec.parity.cases import builtin_cases, groupings
from samevec.parity.compare import compare, compare_ids, merge_comparisons
from samevec.parity.verdict import Cell, GroupingRun, Verdict
from samevec.progress import SilentProgress
from samevec.runtime.embedder import Embedder
from samevec.runtime.pooling import shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from samevec.lock import Tolerance
    from samevec.parity.cases import CaseSet, Grouping, PairCase, TextCase
    from samevec.parity.reference_file import Reference
    from samevec.progress import Progress
    from samevec.runtime.collate import Features
    from samevec.runtime.profiles import Profile
    from samevec.runtime.reranker import Reranker
    from samevec.runtime.rows import TokenRow

    # Shape, and which distinct rows it held.
    _Microbatch = tuple[tuple[int, int], tuple[int, ...]]

__all__ = ["PREFIX_DIMENSIONS", "REPEATS", "run_gate", "tokenize_cases"]

#: How often every cell is computed (DESIGN section 5).
REPEATS = 3

#: The Matryoshka prefix that is compared: what TrueMemory's tiers serve.
PREFIX_DIMENSIONS = 256

# With more distinct rows than one default microbatch holds, groupings meant to differ run alike only if a limit is
# ignored; with fewer they may, and then it is only said.
_DEFECT_ROWS = 33


def run_gate(
    model: Embedder | Reranker,
    reference: Reference,
    *,
    tolerance: Tolerance,
    profile: Profile,
    case_set: CaseSet | None = None,
    repeats: int = REPEATS,
    progress: Progress | None = None,
    fix: str | None = None,
) -> Verdict:
    """Compare a candidate with the reference.

    Parameters
    ----------
    model : Embedder or Reranker
        The candidate, through the very objects that serve.
    reference : Reference
    tolerance : Tolerance
        The lock's.
    profile : Profile
        Says whether a text's bits may depend on its neighbours.
    case_set : CaseSet, optional
        The built-in one if not given.
    repeats : int
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
        The reference belongs to another lock entry or case set.

    Notes
    -----
    The session runs once a grouping and repeat; every level is evaluated on that output. Memory is one output a level.
    """
    started_s = time.monotonic()
    cases = builtin_cases(model.entry.task, prompts=model.entry.prompts) if case_set is None else case_set
    _require_same_subject(model, reference, cases, fix or f"samevec export --model {model.name}")
    gate = _Gate(model, reference, cases, tolerance, profile, repeats)
    id_cells, rows = gate.compare_tokens()
    value_cells: list[Cell] = []
    runs: list[GroupingRun] = []
    if rows is not None:
        value_cells, runs = gate.compare_values(rows, progress or SilentProgress())
    cells = (*id_cells, *value_cells)
    return Verdict(
        model=model.name,
        task=model.entry.task,
        profile=profile.name,
        provider=model.engine.session.provider,
        case_set_digest=cases.digest,
        n_cases=len(cases),
        repeats=repeats,
        tolerance=tolerance.to_dict(),
        cells=cells,
        runs=tuple(runs),
        failures=_failures(cells, runs),
        notes=_notes(cells, runs),
        not_measured=gate.not_measured(),
        elapsed_s=time.monotonic() - started_s,
    )


def _require_same_subject(model: Embedder | Reranker, reference: Reference, cases: CaseSet, fix: str) -> None:
    if reference.lock_entry_digest != model.entry.digest:
        raise ReferenceMissingError(f"{model.name}: the reference was captured for another lock entry", fix=fix)
    if reference.case_set_digest != cases.digest or len(reference) != len(cases):
        raise ReferenceMissingError(f"{model.name}: the reference was captured for another case set", fix=fix)


def tokenize_cases(model: Embedder | Reranker, case_set: CaseSet, *, together: bool = True) -> list[TokenRow]:
    """Return the candidate's token rows of the cases.

    Parameters
    ----------
    model : Embedder or Reranker
    case_set : CaseSet
    together : bool
        Hand over all cases with equal settings in one call; False makes a call for each case.

    Returns
    -------
    list of TokenRow
        In the order of the cases.

    Raises
    ------
    InputError
        The candidate refuses a case.
    """
    batches: dict[object, list[int]] = {}
    for i, case in enumerate(case_set.cases):
        settings = (getattr(case, "prompt", None), case.max_tokens)
        batches.setdefault(settings if together else i, []).append(i)
    rows: dict[int, TokenRow] = {}
    for members in batches.values():
        rows.update(zip(members, _tokenize(model, [case_set.cases[i] for i in members]), strict=True))
    return [rows[i] for i in range(len(case_set))]


def _tokenize(model: Embedder | Reranker, cases: Sequence[TextCase | PairCase]) -> list[TokenRow]:
    if isinstance(model, Embedder):
        texts = cast("Sequence[TextCase]", cases)
        first = texts[0]
        return model.tokenize([case.text for case in texts], prompt=first.prompt, max_tokens=first.max_tokens)
    pairs = cast("Sequence[PairCase]", cases)
    return model.tokenize([(case.query, case.document) for case in pairs], max_tokens=pairs[0].max_tokens)


@dataclass(frozen=True, slots=True)
class _Level:
    """A stage of the result: what the reference has there, and how the candidate gets there from its raw output."""

    name: str
    expected: NDArray[np.float32]
    finish: Callable[[NDArray[np.float32]], NDArray[np.float32]]


def _levels(model: Embedder | Reranker, reference: Reference) -> list[_Level]:
    if not isinstance(model, Embedder):
        return [
            _Level("logits", reference.raw, lambda raw: raw),
            _Level("scores", reference.final, model.finish),
        ]
    normalised = reference.final if model.entry.normalize else shorten(reference.raw, dimensions=None, normalize=True)
    levels = [_Level("raw", reference.raw, lambda raw: raw), _Level("normalised", normalised, model.finish)]
    prefix = _prefix_dimensions(model)
    if prefix is not None:
        expected = shorten(reference.raw, dimensions=prefix, normalize=True)
        levels.append(_Level(f"prefix_{prefix}", expected, lambda raw: model.finish(raw, dimensions=prefix)))
    return levels


def _prefix_dimensions(model: Embedder) -> int | None:
    """Return the prefix to compare: 256, or half of a narrower model; None where the lock allows no prefix."""
    least = model.entry.matryoshka_min_dimensions
    prefix = PREFIX_DIMENSIONS if model.dimensions > PREFIX_DIMENSIONS else model.dimensions // 2
    return prefix if least is not None and least <= prefix else None


@dataclass(slots=True)
class _Recorder:
    """Notes what one repeat of a grouping fed to the session."""

    twins: Sequence[int]
    call: tuple[int, ...] = ()
    shapes: list[tuple[int, int]] = field(default_factory=list)
    microbatches: Counter[_Microbatch] = field(default_factory=Counter)
    digests: list[str] = field(default_factory=list)

    def __call__(self, indices: Sequence[int], features: Features) -> None:
        self.shapes.append(features.shape)
        members = tuple(sorted(self.twins[self.call[i]] for i in indices))
        self.microbatches[(features.shape, members)] += 1
        self.digests.append(features.digest)


@dataclass(slots=True)
class _Gate:
    """One run of the gate."""

    model: Embedder | Reranker
    reference: Reference
    cases: CaseSet
    tolerance: Tolerance
    profile: Profile
    repeats: int
    alone: dict[str, NDArray[np.float32]] = field(default_factory=dict)

    def compare_tokens(self) -> tuple[list[Cell], list[TokenRow] | None]:
        """Compare token ids, tokenised together and one by one; give the rows if there are any."""
        cells: list[Cell] = []
        rows: list[TokenRow] | None = None
        for name, together in (("together", True), ("alone", False)):
            try:
                found = tokenize_cases(self.model, self.cases, together=together)
            except InputError as error:
                cells.append(Cell(level="ids", grouping=name, comparison=None, error=f"a case was refused: {error}"))
                continue
            comparison = compare_ids(self.reference.ids, [row.ids for row in found])
            cells.append(Cell(level="ids", grouping=name, comparison=comparison))
            rows = found if rows is None else rows
        return cells, rows

    def compare_values(self, rows: list[TokenRow], progress: Progress) -> tuple[list[Cell], list[GroupingRun]]:
        """Run every grouping, and compare every level of what it gave."""
        cells: list[Cell] = []
        runs: list[GroupingRun] = []
        seen: dict[str, Counter[_Microbatch]] = {}
        plans = groupings([row.n_tokens for row in rows])
        label = f"parity {self.model.name}"
        with progress.step(label, total=len(plans) * self.repeats, unit="runs") as advance:
            for grouping in plans:
                new_cells, recorder = self._run_grouping(rows, grouping, advance)
                cells += new_cells
                runs.append(_grouping_run(grouping, recorder, seen))
                seen[grouping.name] = recorder.microbatches
        return cells, runs

    def _run_grouping(
        self, rows: list[TokenRow], grouping: Grouping, advance: Callable[[float], None]
    ) -> tuple[list[Cell], _Recorder]:
        levels = _levels(self.model, self.reference)
        outputs: dict[str, list[NDArray[np.float32]]] = {level.name: [] for level in levels}
        recorder = _Recorder(_twins(rows))
        for _ in range(self.repeats):
            recorder = _Recorder(recorder.twins)  # every repeat feeds the same; the last one's notes are kept
            try:
                found = self._run_once(rows, grouping, levels, recorder)
            except InferenceError as error:
                return [_error_cell(level, grouping, error, recorder) for level in levels], recorder
            for level in levels:
                outputs[level.name].append(found[level.name])
            advance(1)
        return [self._cell(level, grouping, outputs[level.name], recorder) for level in levels], recorder

    def _run_once(
        self, rows: list[TokenRow], grouping: Grouping, levels: list[_Level], recorder: _Recorder
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

    def _cell(self, level: _Level, grouping: Grouping, outputs: list[NDArray[np.float32]], recorder: _Recorder) -> Cell:
        members = np.asarray(grouping.cases)
        distinct = [outputs[0], *(one for one in outputs[1:] if one.tobytes() != outputs[0].tobytes())]
        comparison = merge_comparisons(
            compare(level.expected[members], one, self.tolerance, row_names=grouping.cases) for one in distinct
        )
        worst = comparison.worst
        return Cell(
            level=level.name,
            grouping=grouping.name,
            comparison=comparison,
            repeats=len(outputs),
            repeats_identical=len(distinct) == 1,
            moved_rows=self._moved_rows(level, grouping, distinct),
            bits_required=self.profile.bit_identical_groupings,
            shapes=tuple(recorder.shapes),
            worst_tag=self.cases.cases[worst.row].tag if worst is not None else "",
        )

    def _moved_rows(
        self, level: _Level, grouping: Grouping, distinct: list[NDArray[np.float32]]
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
        moved = {int(members[i]) for one in distinct for i in _rows_with_other_bits(expected, one)}
        return tuple(sorted(moved))

    def not_measured(self) -> tuple[str, ...]:
        """Return what this gate does not look at, in words."""
        longest = max(len(ids) for ids in self.reference.ids)
        found = [
            f"inputs longer than {longest} tokens (the model takes {self.model.max_tokens})",
            "rankings over a retrieval fixture",
            "the model card's golden values",
        ]
        if isinstance(self.model, Embedder) and _prefix_dimensions(self.model) is None:
            found.append("vector prefixes: the lock allows none")
        return tuple(found)


def _twins(rows: Sequence[TokenRow]) -> list[int]:
    """Return for each row the first one that the model cannot tell from it."""
    first: dict[object, int] = {}
    return [first.setdefault(row.key, i) for i, row in enumerate(rows)]


def _rows_with_other_bits(expected: NDArray[np.float32], found: NDArray[np.float32]) -> list[int]:
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return list(range(len(expected)))
    a, b = (np.ascontiguousarray(x).reshape(len(x), -1).view(np.uint32) for x in (expected, found))
    return np.flatnonzero((a != b).any(axis=1)).tolist()


def _error_cell(level: _Level, grouping: Grouping, error: InferenceError, recorder: _Recorder) -> Cell:
    return Cell(
        level=level.name,
        grouping=grouping.name,
        comparison=None,
        error=f"could not be computed: {error}",
        shapes=tuple(recorder.shapes),
    )


def _grouping_run(grouping: Grouping, recorder: _Recorder, seen: dict[str, Counter[_Microbatch]]) -> GroupingRun:
    """Record how a grouping ran, and what is wrong with that."""
    same_as = next(
        (
            name
            for name, microbatches in seen.items()
            if microbatches == recorder.microbatches and recorder.microbatches and name != grouping.like
        ),
        None,
    )
    limit = 1 if grouping.name == "alone" else grouping.batch_size
    most = max((shape[0] for shape in recorder.shapes), default=0)
    problems = []
    if limit is not None and most > limit:
        problems.append(f"{grouping.name}: {most} rows ran together although at most {limit} were asked for")
    n_rows = len({member for _, members in recorder.microbatches for member in members})
    if same_as is not None and n_rows >= _DEFECT_ROWS:
        problems.append(f"{grouping.name}: ran the same microbatches as {same_as}, so it proves nothing (vacuous)")
    return GroupingRun(
        name=grouping.name,
        rows=len(grouping.cases),
        shapes=tuple(recorder.shapes),
        features_digest="sha256:" + hashlib.sha256("".join(recorder.digests).encode("ascii")).hexdigest(),
        same_as=same_as,
        problems=tuple(problems),
    )


def _failures(cells: Sequence[Cell], runs: Sequence[GroupingRun]) -> tuple[str, ...]:
    """Return every failure in words; a grouping that could not run is said once, not once a level."""
    found: list[str] = []
    unrun: set[str] = set()
    for cell in cells:
        if cell.comparison is None and cell.level != "ids":
            if cell.grouping in unrun:
                continue
            unrun.add(cell.grouping)
        found += cell.failures
    found += [problem for run in runs for problem in run.problems]
    return tuple(found)


def _notes(cells: Sequence[Cell], runs: Sequence[GroupingRun]) -> tuple[str, ...]:
    found = [finding for cell in cells if not cell.bits_required for finding in cell.bit_findings]
    found += [
        f"{run.name}: ran the same microbatches as {run.same_as} (vacuous; the case set is small)"
        for run in runs
        if run.same_as is not None and not run.problems
    ]
    return tuple(found)
