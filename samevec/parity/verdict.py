"""What the gate found, as records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from samevec.parity.receipt import Receipt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from samevec.parity.compare import Comparison
    from samevec.parity.receipt import Binding

__all__ = ["Cell", "GroupingRun", "Verdict"]


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupingRun:
    """How a grouping really ran.

    Attributes
    ----------
    name : str
    rows : int
        Cases it covers.
    shapes : tuple of (int, int)
        Rows and padded tokens of every session run of one repeat, in order.
    features_digest : str
        Over everything the session was fed in one repeat: ids, masks, shapes, types.
    same_as : str or None
        An earlier grouping that ran the very same microbatches, so that this one proves nothing more.
    problems : tuple of str
        Rules of the grouping itself that were broken, in words.
    """

    name: str
    rows: int
    shapes: tuple[tuple[int, int], ...] = ()
    features_digest: str = ""
    same_as: str | None = None
    problems: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return a record for JSON."""
        return {
            "name": self.name,
            "rows": self.rows,
            "shapes": [list(shape) for shape in self.shapes],
            "features_digest": self.features_digest,
            "same_as": self.same_as,
            "problems": list(self.problems),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One level under one grouping, all repeats together.

    Attributes
    ----------
    level, grouping : str
    comparison : Comparison or None
        The worst of all repeats; None when nothing could be computed.
    error : str
        Why nothing could be computed; empty otherwise.
    repeats : int
        How often it was computed; 0 for what is not repeated.
    repeats_identical : bool
        Whether all repeats gave the same bits.
    moved_rows : tuple of int or None
        Cases whose bits differ from those they have alone; None where that is not asked.
    bits_required : bool
        Whether moved bits fail the cell.
    shapes : tuple of (int, int)
        See :class:`GroupingRun`.
    worst_tag : str
        What the worst case is there for.
    """

    level: str
    grouping: str
    comparison: Comparison | None
    error: str = ""
    repeats: int = 0
    repeats_identical: bool = True
    moved_rows: tuple[int, ...] | None = None
    bits_required: bool = False
    shapes: tuple[tuple[int, int], ...] = ()
    worst_tag: str = ""

    @property
    def name(self) -> str:
        """``level/grouping``."""
        return f"{self.level}/{self.grouping}"

    @property
    def passed(self) -> bool:
        """Whether nothing in this cell fails the gate."""
        return not self.failures

    @property
    def failures(self) -> tuple[str, ...]:
        """Every failure of this cell, one sentence each."""
        if self.comparison is None:
            return (f"{self.name}: {self.error}",)
        found = []
        if not self.comparison.passed:
            tag = f" ({self.worst_tag})" if self.worst_tag else ""
            found.append(f"{self.name}: {self.comparison.words}{tag}")
        if self.bits_required:
            found += self.bit_findings
        return tuple(found)

    @property
    def bit_findings(self) -> tuple[str, ...]:
        """Where bits moved, one sentence each, whether or not that fails the gate."""
        found = []
        if self.moved_rows:
            count = f"{len(self.moved_rows)} of {self.comparison.rows if self.comparison else 0} rows"
            found.append(f"{self.name}: {count} have other bits than alone, first row {self.moved_rows[0]}")
        if not self.repeats_identical:
            found.append(f"{self.name}: repeats of the same run gave other bits")
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """Return a record for JSON; shapes are in the grouping's record."""
        return {
            "level": self.level,
            "grouping": self.grouping,
            "passed": self.passed,
            "error": self.error,
            "comparison": None if self.comparison is None else self.comparison.to_dict(),
            "repeats": self.repeats,
            "repeats_identical": self.repeats_identical,
            "moved_rows": None if self.moved_rows is None else list(self.moved_rows),
            "bits_required": self.bits_required,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What the gate found for one model under one profile.

    Attributes
    ----------
    model, task, profile, provider : str
    case_set_digest : str
    n_cases, repeats : int
    tolerance : mapping of str to float
        ``atol`` and ``rtol`` that were applied.
    cells : tuple of Cell
    runs : tuple of GroupingRun
    failures : tuple of str
        Every failure, one sentence each; the gate passed when there is none.
    notes : tuple of str
        Findings that do not fail the gate.
    not_measured : tuple of str
        What this verdict does not cover.
    elapsed_s : float
    """

    model: str
    task: str
    profile: str
    provider: str
    case_set_digest: str
    n_cases: int
    repeats: int
    tolerance: Mapping[str, float]
    cells: tuple[Cell, ...]
    runs: tuple[GroupingRun, ...]
    failures: tuple[str, ...]
    notes: tuple[str, ...]
    not_measured: tuple[str, ...]
    elapsed_s: float

    @property
    def passed(self) -> bool:
        """Whether the candidate may be served."""
        return not self.failures

    @property
    def words(self) -> str:
        """One line: the outcome, with the greatest difference found."""
        if not self.passed:
            return f"{self.model} ({self.profile}): parity failed, {len(self.failures)} findings"
        greatest = max((cell.comparison.max_abs for cell in self.cells if cell.comparison), default=0.0)
        return (
            f"{self.model} ({self.profile}): parity passed, {len(self.cells)} cells, greatest difference {greatest:.1e}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a record for JSON."""
        return {
            "model": self.model,
            "task": self.task,
            "profile": self.profile,
            "provider": self.provider,
            "passed": self.passed,
            "case_set_digest": self.case_set_digest,
            "n_cases": self.n_cases,
            "repeats": self.repeats,
            "tolerance": dict(self.tolerance),
            "cells": [cell.to_dict() for cell in self.cells],
            "groupings": [run.to_dict() for run in self.runs],
            "failures": list(self.failures),
            "notes": list(self.notes),
            "not_measured": list(self.not_measured),
            "elapsed_s": round(self.elapsed_s, 3),
        }

    def to_receipt(self, binding: Binding, *, created_at: str) -> Receipt:
        """Return the receipt of this verdict.

        Parameters
        ----------
        binding : Binding
            What was measured.
        created_at : str
            ISO 8601 in UTC.
        """
        summary = self.to_dict()
        for name in ("passed", "tolerance", "failures", "not_measured"):  # said once, in the receipt itself
            del summary[name]
        return Receipt(
            binding=binding,
            passed=self.passed,
            created_at=created_at,
            tolerance=dict(self.tolerance),
            failures=self.failures,
            summary=summary,
            not_measured=self.not_measured,
        )
