"""The state that ``samevec status`` shows: artifacts, receipts, sizes and gates. Loads no model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from samevec.errors import ArtifactMissingError
from samevec.gate import fix_of, state_of
from samevec.opening import locate
from samevec.runtime.providers.profiles import get_profile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from samevec.hints import Commands
    from samevec.lock import Lock, LockedModel
    from samevec.runtime.providers.profiles import Profile

__all__ = ["ModelReport", "model_reports", "report_lines", "report_table"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelReport:
    """One model of a lock under one profile."""

    model: str
    task: str
    profile: str
    revision: str
    artifact: Path | None  # its directory; None when nothing usable was exported
    size_bytes: int
    gate: str  # "passed", "failed", "stale", "missing" or "not exported"
    words: str  # the state with its reason
    fix: str | None  # the command that makes it servable; None when it is

    def to_dict(self) -> dict[str, Any]:
        """Return a record for JSON."""
        record = {name: getattr(self, name) for name in self.__slots__}
        record["artifact"] = None if self.artifact is None else str(self.artifact)
        record["would_be_served"] = self.gate == "passed"
        return record


def model_reports(lock: Lock, *, profile: str, home: Path, commands: Commands) -> list[ModelReport]:
    """Return a report for every model of a lock, in its order; file digests are checked at load, not here."""
    settings = get_profile(profile)  # an unknown one is refused before anything is read
    return [_report(entry, settings, home, commands) for entry in lock.models]


def _report(entry: LockedModel, profile: Profile, home: Path, commands: Commands) -> ModelReport:
    facts = {"model": entry.name, "task": entry.task, "profile": profile.name, "revision": entry.revision}
    try:
        located = locate(entry, profile, home=home, commands=commands)
    except ArtifactMissingError as error:
        return ModelReport(**facts, artifact=None, size_bytes=0, gate="not exported", words=error.reason, fix=error.fix)
    state = state_of(located)
    return ModelReport(
        **facts,
        artifact=located.artifact.path,
        size_bytes=located.artifact.size_bytes,
        gate=state.state,
        words=state.summary,
        fix=None if state.state == "passed" else fix_of(state, located),
    )


def report_table(reports: Sequence[ModelReport]) -> Table:
    """Return the short facts as a table; the long ones are in :func:`report_lines`."""
    table = Table(box=None, pad_edge=False)
    for heading in ("model", "task", "profile", "gate", "size"):
        table.add_column(heading, no_wrap=True, overflow="fold")
    for report in reports:
        style = "green" if report.gate == "passed" else "yellow"
        size = f"{report.size_bytes / 1e6:,.1f} MB" if report.artifact else ""
        table.add_row(report.model, report.task, report.profile, Text(report.gate, style), size)
    return table


def report_lines(reports: Sequence[ModelReport]) -> list[str]:
    """Return where each artifact is, or what is wrong and the command to run, on lines that can be copied whole."""
    lines = []
    for report in reports:
        lines.append(f"{report.model}: {report.words if report.fix else report.artifact}")
        lines += [f"  run: {report.fix}"] if report.fix else []
    return lines
