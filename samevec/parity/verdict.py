"""What the gate found, as records."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from samevec.parity.compare import plain_number
from samevec.parity.receipt import Receipt

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from samevec.parity.compare import Comparison, Histogram
    from samevec.parity.rankings.figures import Rankings
    from samevec.parity.receipt import Binding
    from samevec.parity.reference.torch_baseline import TorchBaseline

__all__ = ["WORST_ROWS", "AnswersCheck", "Cell", "GroupingRun", "RowError", "Verdict", "cell_failures"]

#: Worst cases that a verdict lists.
WORST_ROWS = 10


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
        An earlier grouping that ran every one of these microbatches, so that this one proves nothing more.
    like : str or None
        The same, where the two are meant to be alike (``Grouping.like``): what this one adds is how it was asked for.
    problems : tuple of str
        Rules of the grouping itself that were broken, in words.
    elapsed_s : float
        Of checking those rules; what the runs took is in the grouping's cells.
    """

    name: str
    rows: int
    shapes: tuple[tuple[int, int], ...] = ()
    features_digest: str = ""
    same_as: str | None = None
    like: str | None = None
    problems: tuple[str, ...] = ()
    elapsed_s: float = field(default=0.0, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Return a record for JSON."""
        return {
            "name": self.name,
            "rows": self.rows,
            "shapes": [list(shape) for shape in self.shapes],
            "features_digest": self.features_digest,
            "same_as": self.same_as,
            "like": self.like,
            "problems": list(self.problems),
            "elapsed_s": round(self.elapsed_s, 6),
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
    features_digest : str
        See :class:`GroupingRun`; empty for what runs nothing of its own.
    worst_tag : str
        What the worst case is there for.
    limits : tuple of (float, float), or None
        atol and rtol where they are not the lock's tolerance: values of a model card, computed in other precisions.
    elapsed_s : float
        What it took; where one run serves several levels, each has an equal share of it.
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
    features_digest: str = ""
    worst_tag: str = ""
    limits: tuple[float, float] | None = None
    elapsed_s: float = field(default=0.0, compare=False)

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
            "features_digest": self.features_digest,
            "limits": None if self.limits is None else list(self.limits),
            "elapsed_s": round(self.elapsed_s, 6),
        }


def cell_failures(cells: Iterable[Cell]) -> tuple[str, ...]:
    """Return every failure in words; a grouping that could not run is said once, not once a level."""
    found: list[str] = []
    unrun: set[str] = set()
    for cell in cells:
        if cell.comparison is None and cell.level != "ids":
            if cell.grouping in unrun:
                continue
            unrun.add(cell.grouping)
        found += cell.failures
    return tuple(found)


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswersCheck:
    """Whether the cases have the bits that they had at export.

    Attributes
    ----------
    arithmetic : int
        Of the native library at export.
    digest : str
        Of the recorded answers.
    n_compared : int
    changed : tuple of int
        Cases with other bits.
    processor : str
        What computed here.
    sweep_compared : int
        Rows of the sweep that were compared too.
    sweep_changed : tuple of int
        Tokens of those with other bits.
    """

    arithmetic: int
    digest: str
    n_compared: int
    changed: tuple[int, ...]
    processor: str
    sweep_compared: int = 0
    sweep_changed: tuple[int, ...] = ()

    @property
    def failures(self) -> tuple[str, ...]:
        """One sentence where any bit differs, for the cases and for the sweep."""
        found = []
        if self.changed:
            words = f"{len(self.changed)} of {self.n_compared} cases have other bits than at export"
            where = f"first case {self.changed[0]}, on {self.processor}"
            found.append(f"answers: {words}, {where}; samevec parity --bisect names the operator")
        if self.sweep_changed:
            words = f"{len(self.sweep_changed)} of {self.sweep_compared} sweep rows have other bits than at export"
            found.append(f"answers: {words}, the first of {self.sweep_changed[0]} tokens, on {self.processor}")
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """Return a record for JSON."""
        return {
            "arithmetic": self.arithmetic,
            "digest": self.digest,
            "n_compared": self.n_compared,
            "changed": list(self.changed),
            "processor": self.processor,
            "sweep_compared": self.sweep_compared,
            "sweep_changed": list(self.sweep_changed),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class RowError:
    """How far one case is off, at the first value level, in one grouping; the worst of all repeats.

    Attributes
    ----------
    case : int
        Its number in the full case set.
    tag : str
    tokens : int
        Length as the candidate tokenised it.
    max_abs : float
        Greatest absolute difference of its components.
    ratio : float
        Greatest difference over its allowance; above 1 fails.
    """

    case: int
    tag: str
    tokens: int
    max_abs: float
    ratio: float

    def to_dict(self) -> dict[str, Any]:
        """Return a record for JSON; what is not finite becomes a word."""
        return {
            "case": self.case,
            "tag": self.tag,
            "tokens": self.tokens,
            "max_abs": plain_number(self.max_abs),
            "ratio": plain_number(self.ratio),
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
    quick : bool
        Only the quick subset was run: good for finding faults early, never for serving.
    baseline : bool
        The candidate is PyTorch itself, behind the Session protocol: what batching alone moves.
    lock_entry_digest, code_digest : str
    reference_toolchain : mapping of str to str
        What computed the reference: versions of torch, transformers and others, and of the samevec that wrote it.
    artifact_digest : str or None
        None where what ran is no exported artifact.
    error_level : str
        The level of `row_errors` and `histograms`: ``"raw"`` or ``"logits"``.
    row_errors : mapping of str to tuple of RowError
        By grouping (``alone`` and ``default``), in order of the cases.
    histograms : mapping of str to Histogram
        By grouping: how many components take how much of their allowance.
    rankings : Rankings or None
        Over the retrieval fixture; None where that was not measured. Its failures and notes are among the verdict's.
    torch_baseline : TorchBaseline or None
        What PyTorch's own batches moved at export; None where the artifact does not say.
    answers : AnswersCheck or None
        Bits compared with those of the export; None where the native library does not compute.
    same_bits_as : tuple of str
        Libraries of other versions under which the answers were the same to the last bit: ``"onnxruntime 1.31.1"``.
    receipt_problem : str
        Why this verdict is not on file as it should be; empty when it is, and for what needs no receipt.
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
    quick: bool = False
    baseline: bool = False
    lock_entry_digest: str = ""
    code_digest: str = ""
    reference_toolchain: Mapping[str, str] = field(default_factory=dict)
    artifact_digest: str | None = None
    error_level: str = ""
    row_errors: Mapping[str, tuple[RowError, ...]] = field(default_factory=dict)
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    rankings: Rankings | None = None
    torch_baseline: TorchBaseline | None = None
    answers: AnswersCheck | None = None
    same_bits_as: tuple[str, ...] = ()
    receipt_problem: str = ""

    @property
    def passed(self) -> bool:
        """Whether nothing failed; a quick verdict that passed is still no leave to serve."""
        return not self.failures

    @property
    def worst_rows(self) -> tuple[tuple[str, RowError], ...]:
        """The worst cases, worst first, each once, with the grouping in which it is worst."""
        worst: dict[int, tuple[str, RowError]] = {}
        for grouping, errors in self.row_errors.items():
            for error in errors:
                if error.case not in worst or error.ratio > worst[error.case][1].ratio:
                    worst[error.case] = (grouping, error)
        ranked = sorted(worst.values(), key=lambda found: (-found[1].ratio, found[1].case))
        return tuple(ranked[:WORST_ROWS])

    @property
    def words(self) -> str:
        """One line: the outcome, with the greatest difference found, and what became of the receipt."""
        name = "quick parity" if self.quick else "parity"
        unwritten = f"; {self.receipt_problem}" if self.receipt_problem else ""
        if not self.passed:
            return f"{self.model} ({self.profile}): {name} failed, {len(self.failures)} findings{unwritten}"
        greatest = max((cell.comparison.max_abs for cell in self.cells if cell.comparison), default=0.0)
        same = "" if self.answers is None else f", bits as at export: {self.answers.digest[:19]}"
        same += f", the same bits as under {' and '.join(self.same_bits_as)}" if self.same_bits_as else ""
        exact = bool(self.cells) and not greatest
        figure = "0.0, as if the candidate had written the reference" if exact else f"{greatest:.1e}"
        return (
            f"{self.model} ({self.profile}): {name} passed, {len(self.cells)} cells, greatest difference "
            f"{figure}{same}{unwritten}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a record for JSON."""
        return {
            "model": self.model,
            "task": self.task,
            "profile": self.profile,
            "provider": self.provider,
            "passed": self.passed,
            "quick": self.quick,
            "baseline": self.baseline,
            "lock_entry_digest": self.lock_entry_digest,
            "artifact_digest": self.artifact_digest,
            "case_set_digest": self.case_set_digest,
            "code_digest": self.code_digest,
            "reference_toolchain": dict(self.reference_toolchain),
            "n_cases": self.n_cases,
            "repeats": self.repeats,
            "tolerance": dict(self.tolerance),
            "cells": [cell.to_dict() for cell in self.cells],
            "groupings": [run.to_dict() for run in self.runs],
            "failures": list(self.failures),
            "notes": list(self.notes),
            "not_measured": list(self.not_measured),
            "elapsed_s": round(self.elapsed_s, 3),
            "error_level": self.error_level,
            "row_errors": {name: [error.to_dict() for error in errors] for name, errors in self.row_errors.items()},
            "worst_rows": [{"grouping": grouping, **error.to_dict()} for grouping, error in self.worst_rows],
            "histograms": {name: histogram.to_dict() for name, histogram in self.histograms.items()},
            "rankings": None if self.rankings is None else self.rankings.to_dict(),
            "torch_baseline": None if self.torch_baseline is None else self.torch_baseline.to_dict(),
            "answers": None if self.answers is None else self.answers.to_dict(),
            "same_bits_as": list(self.same_bits_as),
            "receipt_problem": self.receipt_problem,
        }

    def with_findings(
        self,
        *,
        cells: Iterable[Cell] = (),
        failures: Iterable[str] = (),
        notes: Iterable[str] = (),
        measured: Iterable[str] = (),
    ) -> Verdict:
        """Return the verdict with what else was looked at.

        Parameters
        ----------
        cells : iterable of Cell
            Whatever fails in them fails the verdict.
        failures, notes : iterable of str
            Findings that belong to no cell.
        measured : iterable of str
            Entries of `not_measured` that are true no more.
        """
        added, done = tuple(cells), set(measured)
        return replace(
            self,
            cells=(*self.cells, *added),
            failures=(*self.failures, *cell_failures(added), *failures),
            notes=(*self.notes, *notes),
            not_measured=tuple(words for words in self.not_measured if words not in done),
        )

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
        # Said once, in the receipt itself; or not to be said in one.
        for name in ("passed", "tolerance", "failures", "not_measured", "receipt_problem"):
            del summary[name]
        for name in ("row_errors", "histograms"):  # for plots; a receipt is read at every start
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
