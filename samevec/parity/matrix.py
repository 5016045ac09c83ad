"""The matrix of a gate: every level under every grouping, several times over."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from samevec.errors import InferenceError, InputError
from samevec.parity.cases.groupings import groupings
from samevec.parity.compare import (
    compare,
    compare_ids,
    deviations,
    merge_comparisons,
    ratio_histogram,
    row_deviations,
    rows_with_other_bits,
)
from samevec.parity.levels import levels_of
from samevec.parity.recorder import Recorder, grouping_run, twins, unasked_microbatches
from samevec.parity.tokens import tokenize_cases
from samevec.parity.verdict import Cell, RowError

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from samevec.lock import Tolerance
    from samevec.parity.cases.builtin import CaseSet
    from samevec.parity.cases.groupings import Grouping
    from samevec.parity.compare import Histogram
    from samevec.parity.levels import Level
    from samevec.parity.recorder import Microbatch
    from samevec.parity.reference.file import Reference
    from samevec.parity.verdict import GroupingRun
    from samevec.progress import Progress
    from samevec.runtime.model import Model
    from samevec.runtime.rows import TokenRow

__all__ = ["Matrix"]

# Groupings whose errors are kept row by row: unpadded, and as served.
_PLOTTED = ("alone", "default")


@dataclass(kw_only=True, slots=True)
class Matrix:
    """Levels by groupings, each several times over.

    Attributes
    ----------
    model : Model
    reference : Reference
        Of `cases`.
    cases : CaseSet
        Those that run.
    numbers : tuple of int
        Theirs in the full set, by which everything is reported.
    full_digest : str
        Of the full set.
    tolerance : Tolerance
    bits_required : bool
        Whether moved bits fail a cell.
    repeats : int
    quick : bool
        Only the quick groupings.
    alone : dict of str to ndarray
        By level, what every case gave alone; there once that grouping has run.
    row_errors, histograms : dict
        See :class:`samevec.parity.verdict.Verdict`; filled while it runs.
    """

    model: Model
    reference: Reference
    cases: CaseSet
    numbers: tuple[int, ...]
    full_digest: str
    tolerance: Tolerance
    bits_required: bool
    repeats: int
    quick: bool
    alone: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    row_errors: dict[str, tuple[RowError, ...]] = field(default_factory=dict)
    histograms: dict[str, Histogram] = field(default_factory=dict)

    def run(self, progress: Progress) -> tuple[list[Cell], list[GroupingRun]]:
        """Compare token ids, then every level under every grouping.

        Parameters
        ----------
        progress : Progress
            Told every repeat of a grouping.

        Returns
        -------
        list of Cell, list of GroupingRun
            No run where every case was refused.

        Notes
        -----
        The session runs once a grouping and repeat; every level is evaluated on that output. Memory is one output a
        level.
        """
        cells, rows = self._compare_tokens()
        runs: list[GroupingRun] = []
        if rows is None:
            return cells, runs
        seen: dict[str, Counter[Microbatch]] = {}
        plans = groupings([row.n_tokens for row in rows], task=self.model.entry.task, quick=self.quick)
        with progress.step(f"parity {self.model.name}", total=len(plans) * self.repeats, unit="runs") as advance:
            for grouping in plans:
                started_s = time.monotonic()
                new_cells, recorder = self._run_grouping(rows, grouping, advance)
                ran_s = time.monotonic()
                cells += [replace(cell, elapsed_s=(ran_s - started_s) / len(new_cells)) for cell in new_cells]
                unasked = unasked_microbatches(self.model.engine, rows, recorder.twins, grouping.calls)
                run = grouping_run(grouping, recorder, seen, unasked)
                runs.append(replace(run, elapsed_s=time.monotonic() - ran_s))
                seen[grouping.name] = recorder.microbatches
        return cells, runs

    def _compare_tokens(self) -> tuple[list[Cell], list[TokenRow] | None]:
        """Compare token ids, tokenised together and one by one; give the rows if there are any."""
        cells: list[Cell] = []
        rows: list[TokenRow] | None = None
        for name, together in (("together", True), ("alone", False)):
            started_s = time.monotonic()
            try:
                found = tokenize_cases(self.model, self.cases, together=together)
            except InputError as error:
                cells.append(Cell(level="ids", grouping=name, comparison=None, error=f"a case was refused: {error}"))
                continue
            comparison = compare_ids(self.reference.ids, [row.ids for row in found], row_names=self.numbers)
            elapsed_s = time.monotonic() - started_s
            cells.append(Cell(level="ids", grouping=name, comparison=comparison, elapsed_s=elapsed_s))
            rows = found if rows is None else rows
        return cells, rows

    def _run_grouping(
        self, rows: list[TokenRow], grouping: Grouping, advance: Callable[[float], None]
    ) -> tuple[list[Cell], Recorder]:
        levels = levels_of(self.model, self.reference)
        outputs: dict[str, list[NDArray[np.float32]]] = {level.name: [] for level in levels}
        recorder = Recorder(twins(rows), [row.n_tokens for row in rows])
        for _ in range(self.repeats):
            # Every repeat feeds the same: the notes of the last one are kept.
            recorder = Recorder(recorder.twins, recorder.lengths)
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


def _distinct(outputs: list[NDArray[np.float32]]) -> list[NDArray[np.float32]]:
    """Return the first repeat and those with other bits."""
    return [outputs[0], *(one for one in outputs[1:] if one.tobytes() != outputs[0].tobytes())]


def _error_cell(level: Level, grouping: Grouping, error: InferenceError, recorder: Recorder) -> Cell:
    return Cell(
        level=level.name,
        grouping=grouping.name,
        comparison=None,
        error=f"could not be computed: {error.without_advice}",
        shapes=tuple(recorder.shapes),
        features_digest=recorder.features_digest,
    )
