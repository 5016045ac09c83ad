"""Running the gate on this machine and keeping what it found."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from samevec.load import binding_of, receipt_directories, reference_of
from samevec.parity.gate import run_gate
from samevec.parity.receipt import write_receipt
from samevec.parity.reference.baseline import run_baseline

if TYPE_CHECKING:
    from collections.abc import Callable

    from samevec.load import Candidate
    from samevec.lock import Tolerance
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
        Only the quick subset. When that passes no receipt is written, since it is no leave to serve; when it fails, a
        failed receipt is, since what is known to be wrong must not be served on an older one.
    live : Reference, optional
        PyTorch's numbers computed anew (``samevec.parity.reference.baseline.capture_live``), compared as well.
    progress : Progress, optional
    now : callable
        The clock that dates the receipt.

    Returns
    -------
    Verdict

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
    if live is not None:
        cells = run_baseline(candidate.model, reference, live, tolerance=tolerance)
        verdict = verdict.with_findings(cells=cells)
    if verdict.quick and verdict.passed:
        return verdict
    binding = binding_of(candidate.entry, candidate.artifact, candidate.profile, candidate.home)
    receipt = verdict.to_receipt(binding, created_at=now().isoformat(timespec="seconds"))
    write_receipt(receipt_directories(candidate.artifact, candidate.home), receipt)
    return verdict
