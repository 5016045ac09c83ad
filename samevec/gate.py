"""Running the gate on this machine and keeping what it found."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from samevec.errors import ArtifactError
from samevec.load import binding_of, receipt_directories, reference_of
from samevec.parity.cases.builtin import builtin_cases
from samevec.parity.compare import compare_ids
from samevec.parity.gate import run_gate
from samevec.parity.receipt import gate_state, write_receipt
from samevec.parity.reference.baseline import run_baseline
from samevec.parity.tokens import tokenize_cases
from samevec.parity.verdict import Cell

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from samevec.load import Candidate
    from samevec.lock import Tolerance
    from samevec.parity.receipt import Binding, GateState
    from samevec.parity.reference.file import Reference
    from samevec.parity.verdict import Verdict
    from samevec.progress import Progress

__all__ = ["prove"]


def _now() -> datetime:
    return datetime.now(UTC)


def prove(
    candidate: Candidate,
    *,
    tolerance: Tolerance,
    quick: bool = False,
    live: Reference | None = None,
    progress: Progress | None = None,
    now: Callable[[], datetime] = _now,
) -> Verdict:
    """Compare a loaded artifact with its reference and keep what was found.

    Parameters
    ----------
    candidate : Candidate
    tolerance : Tolerance
        The lock's.
    quick : bool
        Only the quick subset. When that passes no receipt is written, since it is no leave to serve; but where an older
        receipt passed, nothing except versions of libraries has changed since, and the bits are those of the export, it
        is one. When it fails, a failed receipt is written, since what is known to be wrong must not be served on an
        older one.
    live : Reference, optional
        PyTorch's numbers computed anew (``samevec.parity.reference.baseline.capture_live``), compared as well.
    progress : Progress, optional
    now : callable
        The clock that dates the receipt.

    Returns
    -------
    Verdict
        Its ``receipt_problem`` says what went wrong in keeping it; that never changes the outcome.

    Raises
    ------
    ReferenceMissingError
        The artifact has no reference for the built-in cases of this samevec.
    """
    reference = reference_of(candidate)
    verdict = run_gate(
        candidate.model,
        reference,
        tolerance=tolerance,
        profile=candidate.profile,
        quick=quick,
        artifact_digest=candidate.artifact.digest,
        answers=candidate.answers,
        progress=progress,
        fix=candidate.export_command,
    )
    writer = {"samevec": candidate.artifact.manifest.samevec_version}
    verdict = replace(verdict, reference_toolchain={**verdict.reference_toolchain, **writer})
    if live is not None:
        cells = run_baseline(candidate.model, reference, live, tolerance=tolerance)
        verdict = verdict.with_findings(cells=cells)
    binding = binding_of(candidate.entry, candidate.artifact, candidate.profile, candidate.home)
    directories = receipt_directories(candidate.artifact, candidate.home)
    before = gate_state(directories, binding, now=now())
    if before.libraries and verdict.answers is not None:
        verdict = _compared_with_older_libraries(verdict, before, candidate, reference)
    if verdict.quick and verdict.passed and not verdict.same_bits_as:
        return verdict
    return replace(verdict, receipt_problem=_keep(verdict, binding, directories, now()))


def _compared_with_older_libraries(
    verdict: Verdict, before: GateState, candidate: Candidate, reference: Reference
) -> Verdict:
    """Say of a pass that the bits are those from under other libraries; a quick gate looks at every case's tokens."""
    if verdict.quick:
        cases = builtin_cases(candidate.entry.task, prompts=candidate.entry.prompts)
        found = [row.ids for row in tokenize_cases(candidate.model, cases)]
        cell = Cell(level="ids", grouping="every case", comparison=compare_ids(reference.ids, found))
        verdict = verdict.with_findings(cells=[cell])
    if not verdict.passed:
        return verdict
    older = before.receipt
    gap = f"what a quick gate leaves out, under these libraries; under {' and '.join(before.libraries)} the receipt of "
    gaps = (f"{gap}{older.created_at} has it",) if verdict.quick and older is not None else ()
    return replace(verdict, same_bits_as=before.libraries, not_measured=(*verdict.not_measured, *gaps))


def _keep(verdict: Verdict, binding: Binding, directories: Sequence[Path], now: datetime) -> str:
    """Write a verdict's receipt and read it again; return what is wrong, or nothing."""
    problem = ""
    try:
        write_receipt(directories, verdict.to_receipt(binding, created_at=now.isoformat(timespec="seconds")))
    except ArtifactError as error:
        problem = str(error)
    state = gate_state(directories, binding, now=now)
    if (state.state == "passed") == verdict.passed:
        return problem
    places = " or ".join(map(str, directories))
    return f"{problem or 'the receipt does not count'}: receipts in {places} say {state.summary}; remove them"
