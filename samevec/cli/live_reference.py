"""PyTorch computed again beside the stored reference, for ``samevec parity --reference live``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from samevec.errors import ReferenceMissingError
from samevec.opening import build_model
from samevec.parity.cases.builtin import builtin_cases
from samevec.parity.gate import run_gate

if TYPE_CHECKING:
    from pathlib import Path

    from samevec.lock import Tolerance
    from samevec.opening import Candidate
    from samevec.parity.reference.file import Reference
    from samevec.parity.verdict import Verdict
    from samevec.progress import Progress
    from samevec.runtime.model import Model

__all__ = ["LiveReference", "compute_live", "require_torch"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveReference:
    """PyTorch's numbers as this machine computes them now."""

    rows: Reference  # of the built-in cases, one at a time
    model: Model  # PyTorch itself as a model, to run in batches

    def baseline(self, stored: Reference, candidate: Candidate, *, tolerance: Tolerance, progress: Progress) -> Verdict:
        """Compare PyTorch in the quick groupings with the stored reference: the effect of batching alone.

        The full groupings would take minutes each for full-size models.
        """
        return run_gate(
            self.model,
            stored,
            tolerance=tolerance,
            profile=candidate.profile,
            repeats=1,
            quick=True,
            golden=False,
            progress=progress,
        )


def require_torch() -> None:
    """Refuse with a ConfigError, before any download, where PyTorch is not installed."""
    from samevec.parity.reference.pytorch import import_reference_libraries  # noqa: PLC0415

    import_reference_libraries()


def compute_live(
    candidate: Candidate, stored: Reference, *, source_dir: Path | None, progress: Progress
) -> LiveReference:
    """Load the checkpoint in PyTorch and compute the built-in cases, to compare with the stored reference.

    Raises
    ------
    ReferenceMissingError
        The stored reference is for other cases.
    ConfigError, SourceError, ExportError
        torch is not installed; the pinned files are not available; they and the lock disagree.
    """
    # They load torch and the hub's client.
    from samevec.export.pipeline import installed_toolchain  # noqa: PLC0415
    from samevec.export.source.snapshot import locate_snapshot, verify_snapshot  # noqa: PLC0415
    from samevec.parity.reference.pytorch import capture_reference, load_reference_model  # noqa: PLC0415
    from samevec.parity.reference.torch_session import TorchSession  # noqa: PLC0415

    entry = candidate.entry
    cases = builtin_cases(entry.task, prompts=entry.prompts)
    if stored.case_set_digest != cases.digest:
        message = f"{entry.name}: the reference was captured for another case set"
        raise ReferenceMissingError(message, fix=candidate.export_command)
    snapshot = locate_snapshot(entry, home=candidate.home, source_dir=source_dir, progress=progress)
    verify_snapshot(snapshot, entry, progress)
    with progress.step(f"load {entry.name} in PyTorch"):
        reference = load_reference_model(snapshot, entry)
    rows = capture_reference(reference, cases, toolchain=installed_toolchain(), progress=progress)
    tokenizer = candidate.artifact.manifest.tokenizer
    model = build_model(
        entry,
        TorchSession(reference),
        tokenizer_path=snapshot / "tokenizer.json",
        pad_token_id=tokenizer.pad_token_id,
        type_ids=tokenizer.type_ids,
    )
    return LiveReference(rows=rows, model=model)
