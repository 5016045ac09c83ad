"""``samevec parity``: the gate over several models, its receipts and reports."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from samevec.cli.live_reference import compute_live, require_torch
from samevec.cli.outcome import GateOutcome
from samevec.errors import ConfigError
from samevec.gate import binding_of, prove, reference_of
from samevec.machine import cpu_name
from samevec.native.library import load_library
from samevec.native.selftest import differing_kernels
from samevec.opening import open_candidate
from samevec.parity.bisect import bisect
from samevec.parity.cases.builtin import builtin_cases
from samevec.parity.report.files import PAGE_NAME, clear_report, report_record, write_junit, write_report
from samevec.parity.report.moved import moved_lines, read_older
from samevec.parity.tokens import tokenize_cases
from samevec.runtime.collate import collate
from samevec.runtime.sessions.onnx import OnnxSession

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from samevec.hints import Commands
    from samevec.lock import Lock, LockedModel
    from samevec.parity.bisect import Difference
    from samevec.parity.verdict import Verdict
    from samevec.progress import Progress

__all__ = ["ParityPlan", "run_bisect", "run_parity", "run_selftest"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ParityPlan:
    """The flags of ``samevec parity``, by their names."""

    lock: Lock
    entries: tuple[LockedModel, ...]
    home: Path
    commands: Commands
    profile: str = "cpu"
    source_dir: Path | None = None
    quick: bool = False
    reference: Literal["stored", "live"] = "stored"
    report: Path | None = None
    junit: Path | None = None
    compare: Path | None = None


def _now() -> datetime:
    return datetime.now(UTC)


def run_parity(
    plan: ParityPlan,
    *,
    progress: Progress,
    show: Callable[[Verdict], None],
    say: Callable[[str], None],
    now: Callable[[], datetime] = _now,
) -> tuple[dict[str, Any], GateOutcome]:
    """Run the gate for every model of a plan and write the reports it asks for.

    Returns
    -------
    report : dict
        See :func:`samevec.parity.report.files.report_record`.
    outcome : GateOutcome
        Has failed verdicts and failed writes, both of which leave the other models judged.

    Raises
    ------
    ConfigError
        Before any model is loaded: a report path is not writable, the older report is none, or torch is missing.
    ArtifactError, ReferenceMissingError, InferenceError
        A model is not exported, damaged, or cannot be loaded; then no report is written.
    """
    if plan.reference == "live":
        require_torch()
    older = None if plan.compare is None else read_older(plan.compare)
    _prepare_outputs(plan)
    outcome = GateOutcome(say)
    models = []
    for entry in plan.entries:
        verdict, record = _prove_one(entry, plan, progress=progress, now=now)
        models.append(record)
        outcome.add(verdict, show)
        for line in () if older is None else moved_lines(older, record):
            say(line)
    report = report_record(models, created_at=now().isoformat(timespec="seconds"), reference=plan.reference)
    if any(model["passed"] and not model["same_bits_as"] for model in models if model["quick"]):
        say("quick: some of the cases and groupings. No receipt was written for what passed; samevec parity writes it")
    if plan.report is not None and outcome.attempt("--report", functools.partial(write_report, plan.report, report)):
        say(f"report {plan.report / PAGE_NAME}")
    if plan.junit is not None:
        outcome.attempt("--junit", functools.partial(write_junit, plan.junit, report))
    return report, outcome


def run_selftest(*, say: Callable[[str], None]) -> int:
    """Compare the native library's kernels with their hashes on this processor; return 0 if all bits agree, else 1."""
    library = load_library()
    problem = library.float_environment_problem
    wrong = differing_kernels(library)
    for name, found in sorted(library.selftest().items()):
        say(f"{name:<22} {found} {'DIFFERS' if name in wrong else 'as it should be'}")
    where = f"{cpu_name()} ({library.instruction_set}), arithmetic {library.arithmetic}"
    if problem:
        say(f"{problem}, so that no kernel may be used here")
    say(f"{len(wrong)} kernels differ on {where}" if wrong else f"every kernel gives its hash on {where}")
    return 1 if wrong or problem else 0


def run_bisect(plan: ParityPlan, *, say: Callable[[str], None]) -> int:
    """Name, for three cases of each model, the first operator whose bits differ from the export's.

    Returns 0 if all bits agree, else 1; ConfigError where the profile does not compute with the native library.
    """
    found = [difference for entry in plan.entries for difference in _bisect_one(entry, plan, say)]
    return 1 if any(difference.output for difference in found) else 0


def _bisect_one(entry: LockedModel, plan: ParityPlan, say: Callable[[str], None]) -> list[Difference]:
    candidate = open_candidate(entry, profile=plan.profile, home=plan.home, commands=plan.commands)
    answers = candidate.answers
    if answers is None:
        raise ConfigError(f"--bisect compares bits, which only the profile cpu promises; this is {plan.profile}")
    session = OnnxSession(candidate.artifact.trace_path, candidate.profile)
    rows = tokenize_cases(candidate.model, builtin_cases(entry.task, prompts=entry.prompts), together=True)
    found = []
    for case in answers.nodes:
        features = collate([rows[case]], pad_token_id=candidate.model.engine.pad_token_id, pad_to_multiple=1)
        found.append(bisect(session, answers, case, features))
        say(f"{entry.name}: {found[-1].words}")
    return found


def _prepare_outputs(plan: ParityPlan) -> None:
    """Check before the gate runs that its reports can be written, and remove those of an earlier run."""
    for flag, folder in (("--report", plan.report), ("--junit", plan.junit and plan.junit.absolute().parent)):
        if folder is None:
            continue
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{flag}: {folder} cannot be made: {error.strerror or error}") from error
        if not os.access(folder, os.W_OK):
            raise ConfigError(f"{flag}: {folder} cannot be written to")
    clear_report(plan.report, plan.junit)


def _prove_one(
    entry: LockedModel, plan: ParityPlan, *, progress: Progress, now: Callable[[], datetime]
) -> tuple[Verdict, dict[str, Any]]:
    """Run the gate for one model; return its verdict, and the report's record of it."""
    candidate = open_candidate(entry, profile=plan.profile, home=plan.home, commands=plan.commands)
    stored = reference_of(candidate)
    tolerance = plan.lock.tolerance
    live = None
    if plan.reference == "live":
        live = compute_live(candidate, stored, source_dir=plan.source_dir, progress=progress)
    verdict = prove(
        candidate,
        tolerance=tolerance,
        quick=plan.quick,
        live=None if live is None else live.rows,
        progress=progress,
        now=now,
    )
    record = verdict.to_dict()
    record["binding"] = binding_of(candidate).to_dict()
    if live is not None:
        record["live_toolchain"] = dict(live.rows.toolchain)
        baseline = live.baseline(stored, candidate, tolerance=tolerance, progress=progress)
        record["baseline_verdict"] = baseline.to_dict()
    return verdict, record
