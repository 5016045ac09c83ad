"""The gate: a candidate in, a verdict with every failure out."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from samevec.errors import ReferenceMissingError
from samevec.machine import cpu_name
from samevec.parity.answers import changed_answers
from samevec.parity.cases.builtin import builtin_cases, quick_positions
from samevec.parity.code_digest import code_digest
from samevec.parity.coverage import (
    case_gaps,
    golden_gap,
    profile_gaps,
    quick_gaps,
    ranking_gaps,
    repeat_gap,
    shape_gaps,
    vocabulary_gap,
)
from samevec.parity.golden import golden_cells, is_published
from samevec.parity.levels import levels_of
from samevec.parity.limit import limit_cell
from samevec.parity.matrix import Matrix
from samevec.parity.rankings.check import check_rankings
from samevec.parity.reference.torch_session import TorchSession
from samevec.parity.sweep import Sweep, plan_sweep
from samevec.parity.verdict import AnswersCheck, Verdict, cell_failures
from samevec.progress import SilentProgress
from samevec.runtime.engine import DEFAULT_ROWS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from samevec.lock import Tolerance
    from samevec.parity.answers import Answers
    from samevec.parity.cases.builtin import CaseSet
    from samevec.parity.rankings.figures import Rankings
    from samevec.parity.reference.file import Reference
    from samevec.parity.verdict import Cell, GroupingRun
    from samevec.progress import Progress
    from samevec.runtime.model import Model
    from samevec.runtime.providers.profiles import Profile

__all__ = ["QUICK_REPEATS", "REPEATS", "run_gate"]

#: How often every cell is computed, and in a quick gate where bits are not required. Where they are,
#: the five quick groupings are repeats of each other: each must give the bits of the first, so that one is enough.
REPEATS = 3
QUICK_REPEATS = 2


def run_gate(
    model: Model,
    reference: Reference,
    *,
    tolerance: Tolerance,
    profile: Profile,
    case_set: CaseSet | None = None,
    repeats: int | None = None,
    quick: bool = False,
    golden: bool | None = None,
    artifact_digest: str | None = None,
    answers: Answers | None = None,
    progress: Progress | None = None,
    fix: str | None = None,
) -> Verdict:
    """Compare a candidate with the reference.

    Parameters
    ----------
    model : Model
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
        When not given 3; for a quick gate 1 where bits are required, else 2.
    quick : bool
        Only the quick subset of cases and groupings. Its verdict says so, and is no leave to serve.
    golden : bool, optional
        Whether to check the values of the model card; by default where the entry is the packaged lock's own, so that
        the weights are the published ones.
    artifact_digest : str, optional
        For the record.
    answers : Answers, optional
        The bits recorded at export: where they are given, every case must have them.
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
    """
    started_s = time.monotonic()
    progress = progress or SilentProgress()
    cases = builtin_cases(model.entry.task, prompts=model.entry.prompts) if case_set is None else case_set
    fix = fix or f"samevec export --model {model.name}"
    _require_same_subject(model, reference, cases, fix)
    matrix = _matrix(model, reference, cases, tolerance=tolerance, profile=profile, repeats=repeats, quick=quick)
    cells, runs = matrix.run(progress)
    sweep = _sweep(matrix, reference, fix)
    if sweep is not None:
        began_s = time.monotonic()
        limit = limit_cell(model, sweep.reference.limit)
        cells += [replace(limit, elapsed_s=time.monotonic() - began_s), *sweep.run(progress)]
    rankings = None
    if reference.retrieval is not None and not quick:
        ranked_s = time.monotonic()
        rankings = check_rankings(
            model, reference, tolerance=tolerance, bits_required=matrix.bits_required, progress=progress, fix=fix
        )
        rankings = replace(rankings, elapsed_s=time.monotonic() - ranked_s)
    answered = None if answers is None else _answered(matrix, sweep, answers, fix=fix)
    check_golden = is_published(model.entry) if golden is None else golden
    if check_golden:
        cells += golden_cells(model)
    return replace(
        _verdict(
            matrix,
            profile,
            cells=cells,
            runs=[*runs, *(sweep.runs if sweep else ())],
            rankings=rankings,
            answered=answered,
        ),
        case_set_digest=cases.digest,
        artifact_digest=artifact_digest,
        not_measured=_gaps(
            matrix, profile, cases, reference, sweep=sweep, runs=runs, rankings=rankings, golden=check_golden
        ),
        elapsed_s=time.monotonic() - started_s,
    )


def _matrix(
    model: Model,
    reference: Reference,
    cases: CaseSet,
    *,
    tolerance: Tolerance,
    profile: Profile,
    repeats: int | None,
    quick: bool,
) -> Matrix:
    """Choose what is run: of a quick gate, the quick cases in the quick groupings."""
    numbers = quick_positions(cases) if quick else tuple(range(len(cases)))
    bits_required = profile.bit_identical_groupings and not _is_torch(model)
    if repeats is None:
        repeats = REPEATS if not quick else 1 if bits_required else QUICK_REPEATS
    return Matrix(
        model=model,
        reference=_rows_of(reference, numbers),
        cases=cases.subset(numbers),
        numbers=numbers,
        full_digest=cases.digest,
        tolerance=tolerance,
        bits_required=bits_required,
        repeats=repeats,
        quick=quick,
    )


def _sweep(matrix: Matrix, reference: Reference, fix: str) -> Sweep | None:
    """Return the sweep of what the matrix runs; None where the reference is of a caller's own cases."""
    if reference.sweep is None:
        return None
    model = matrix.model
    plan = plan_sweep(longest_tokens=max(map(len, reference.ids)), max_rows=DEFAULT_ROWS[model.entry.task])
    if plan.lengths != tuple(map(len, reference.sweep.ids)):
        raise ReferenceMissingError(f"{model.name}: the reference was captured for another sweep", fix=fix)
    return Sweep(
        model=model,
        plan=plan.quick() if matrix.quick else plan,
        reference=reference.sweep,
        tolerance=matrix.tolerance,
        bits_required=matrix.bits_required,
    )


def _verdict(
    matrix: Matrix,
    profile: Profile,
    *,
    cells: Sequence[Cell],
    runs: Sequence[GroupingRun],
    rankings: Rankings | None,
    answered: AnswersCheck | None,
) -> Verdict:
    """Put what was found together, failures of all kinds first to last."""
    model = matrix.model
    return Verdict(
        model=model.name,
        task=model.entry.task,
        profile=profile.name,
        provider=model.engine.session.provider,
        case_set_digest=matrix.cases.digest,
        n_cases=len(matrix.cases),
        repeats=matrix.repeats,
        tolerance=matrix.tolerance.to_dict(),
        cells=tuple(cells),
        runs=tuple(runs),
        failures=(
            *_provider_failures(model, profile),
            *cell_failures(cells),
            *(problem for run in runs for problem in run.problems),
            *(rankings.failures if rankings else ()),
            *(answered.failures if answered else ()),
        ),
        notes=(
            *_notes(cells, runs, baseline=_is_torch(model)),
            *_exact_note(matrix, cells, runs),
            *(rankings.notes if rankings else ()),
        ),
        not_measured=(),
        elapsed_s=0.0,
        quick=matrix.quick,
        baseline=_is_torch(model),
        lock_entry_digest=model.entry.digest,
        code_digest=code_digest(),
        reference_toolchain=matrix.reference.toolchain,
        error_level=levels_of(model, matrix.reference)[0].name,
        row_errors=matrix.row_errors,
        histograms=matrix.histograms,
        rankings=rankings,
        torch_baseline=matrix.reference.torch_baseline,
        answers=answered,
    )


def _answered(matrix: Matrix, sweep: Sweep | None, answers: Answers, *, fix: str) -> AnswersCheck:
    """Compare the bits that every case had alone, and each row of the sweep, with those of the export."""
    n_rows = 0 if sweep is None else len(sweep.plan.lengths)
    if answers.case_set_digest != matrix.full_digest or len(answers.sweep) != n_rows:
        raise ReferenceMissingError(f"{matrix.model.name}: the answers were recorded for another case set", fix=fix)
    raw = matrix.alone.get(levels_of(matrix.model, matrix.reference)[0].name)
    changed = matrix.numbers if raw is None else changed_answers(answers, raw, matrix.numbers)
    return AnswersCheck(
        arithmetic=answers.arithmetic,
        digest=answers.digest,
        n_compared=len(matrix.numbers),
        changed=tuple(changed),
        processor=cpu_name(),
        sweep_compared=0 if sweep is None else len(sweep.raw),
        sweep_changed=() if sweep is None else sweep.changed(answers.sweep),
    )


def _gaps(
    matrix: Matrix,
    profile: Profile,
    full: CaseSet,
    whole: Reference,
    *,
    sweep: Sweep | None,
    runs: Sequence[GroupingRun],
    rankings: Rankings | None,
    golden: bool,
) -> tuple[str, ...]:
    model, reference, cases = matrix.model, matrix.reference, matrix.cases
    swept_runs, swept_rows = ((), ()) if sweep is None else (sweep.runs, sweep.rows_run)
    ranked = () if rankings is None or whole.retrieval is None else whole.retrieval.ids
    return (
        *case_gaps(model, reference, cases, runs),
        *shape_gaps(model, max(map(len, whole.ids)), (*runs, *swept_runs)),
        *vocabulary_gap(model, (*reference.ids, *swept_rows, *ranked)),
        *(quick_gaps(reference, full, cases, runs) if matrix.quick else ()),
        *repeat_gap(matrix.repeats),
        *ranking_gaps(model, rankings),
        *golden_gap(model, checked=golden),
        *profile_gaps(profile),
    )


def _require_same_subject(model: Model, reference: Reference, cases: CaseSet, fix: str) -> None:
    if reference.lock_entry_digest != model.entry.digest:
        raise ReferenceMissingError(f"{model.name}: the reference was captured for another lock entry", fix=fix)
    if reference.case_set_digest != cases.digest or len(reference) != len(cases):
        raise ReferenceMissingError(f"{model.name}: the reference was captured for another case set", fix=fix)


def _provider_failures(model: Model, profile: Profile) -> tuple[str, ...]:
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


def _is_torch(model: Model) -> bool:
    return isinstance(model.engine.session, TorchSession)


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


def _exact_note(matrix: Matrix, cells: Sequence[Cell], runs: Sequence[GroupingRun]) -> tuple[str, ...]:
    """Say that nothing differs at all: PyTorch and another runtime hardly ever agree to the last bit."""
    level, names = levels_of(matrix.model, matrix.reference)[0].name, {run.name for run in runs}
    found = [cell.comparison for cell in cells if cell.level == level and cell.grouping in names]
    if _is_torch(matrix.model) or not found or not all(one is not None and one.max_abs == 0.0 for one in found):
        return ()
    words = "reference and candidate agree to the last bit; the reference was perhaps written by the candidate"
    return (f"{level}: 0.0 in every cell: {words}",)
