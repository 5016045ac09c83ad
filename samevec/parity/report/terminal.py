"""A verdict on a terminal: one line a grouping, one column a level."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from samevec.parity.reference.torch_baseline import BASELINE_TITLE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from samevec.parity.reference.torch_baseline import BaselineLevel
    from samevec.parity.verdict import Cell, GroupingRun, Verdict

__all__ = ["SHOWN_FAILURES", "failure_lines", "plain_lines", "verdict_table"]

#: Failures that a command prints; reports and receipts have all of them.
SHOWN_FAILURES = 3

_NOT_ASKED = "-"


def verdict_table(verdict: Verdict) -> Table:
    """Render a verdict, without its rankings, as a table of greatest absolute differences.

    Failing cells also show how many rows fail, in red; the last lines are PyTorch's own differences between batches.
    """
    outcome = "passed" if verdict.passed else f"FAILED ({len(verdict.failures)} findings)"
    name = "quick parity" if verdict.quick else "parity"
    table = Table(
        title=f"{name} {verdict.model} ({verdict.profile}, {verdict.provider}): {outcome}", title_justify="left"
    )
    for i, heading in enumerate(_headings(verdict)):
        table.add_column(heading, justify="left" if i == 0 else "right", no_wrap=True)
    if verdict.rankings is not None:
        table.caption, table.caption_justify = Text("\n".join(verdict.rankings.lines)), "left"
    for row in _rows(verdict):
        table.add_row(*(Text(text, style=style) for text, style in row))
    return table


def failure_lines(verdict: Verdict, *, most: int | None = SHOWN_FAILURES) -> list[str]:
    """Return the first failures, and how many more there are; all of them for None."""
    lines = [f"failed: {failure}" for failure in verdict.failures[:most]]
    more = len(verdict.failures) - len(lines)
    return [*lines, f"and {more} more"] if more else lines


def plain_lines(verdict: Verdict, *, most_failures: int | None = None) -> list[str]:
    """Render a verdict as plain lines with aligned columns, then its rankings, failures and notes in words."""
    rows = [_headings(verdict), *([text for text, _ in row] for row in _rows(verdict))]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines += verdict.rankings.lines if verdict.rankings is not None else ()
    lines += failure_lines(verdict, most=most_failures)
    return lines + [f"note: {note}" for note in verdict.notes]


def _value_levels(verdict: Verdict) -> list[str]:
    """Return the levels that have a column: those of the groupings."""
    names = {run.name for run in verdict.runs}
    return list(dict.fromkeys(cell.level for cell in verdict.cells if cell.level != "ids" and cell.grouping in names))


def _headings(verdict: Verdict) -> list[str]:
    return ["grouping", "cases", "runs", *_value_levels(verdict), "repeats", "bits as alone"]


def _rows(verdict: Verdict) -> list[list[tuple[str, str]]]:
    """Return texts with their styles, row by row: token ids, groupings, then the other comparisons."""
    levels, runs = _value_levels(verdict), {run.name for run in verdict.runs}
    alone = [cell for cell in verdict.cells if cell.level not in levels]  # no column of its own level
    others = dict.fromkeys(
        cell.grouping for cell in verdict.cells if cell.level in levels and cell.grouping not in runs
    )
    return [
        *(_single_row(cell, len(levels)) for cell in alone if cell.level == "ids"),
        *(_run_row(verdict, run, levels) for run in verdict.runs),
        *(_other_row(verdict, grouping, levels) for grouping in others),
        *(_single_row(cell, len(levels)) for cell in alone if cell.level != "ids"),
        *_baseline_rows(verdict, levels),
    ]


def _single_row(cell: Cell, n_levels: int) -> list[tuple[str, str]]:
    """Return the line of a cell whose level has no column."""
    level = "token ids" if cell.level == "ids" else cell.level
    text = "equal" if cell.passed and "ids" in (cell.level, cell.grouping) else _difference(cell)
    n_rows = str(cell.comparison.rows) if cell.comparison else "0"
    blank = (_NOT_ASKED, "dim")
    return [(f"{level}, {cell.grouping}", ""), (n_rows, ""), blank, (text, _style(cell)), *[blank] * (n_levels + 1)]


def _run_row(verdict: Verdict, run: GroupingRun, levels: list[str]) -> list[tuple[str, str]]:
    by_level = {cell.level: cell for cell in verdict.cells if cell.grouping == run.name and cell.level in levels}
    first = by_level[levels[0]]
    twin = run.same_as or run.like
    name = (run.name + (f" (= {twin})" if twin else ""), "red" if run.problems else "")
    return [
        name,
        (str(run.rows), ""),
        (str(len(run.shapes)), ""),
        *_values(by_level, levels),
        _repeats(first),
        _bits(first),
    ]


def _other_row(verdict: Verdict, grouping: str, levels: list[str]) -> list[tuple[str, str]]:
    """Return the line of cells outside the groupings, such as comparisons with a live reference."""
    by_level = {cell.level: cell for cell in verdict.cells if cell.grouping == grouping}
    blank = (_NOT_ASKED, "dim")
    first = next(by_level[level] for level in levels if level in by_level)
    n_rows = str(first.comparison.rows) if first.comparison else "0"
    return [(grouping, ""), (n_rows, ""), blank, *_values(by_level, levels), blank, blank]


def _values(by_level: Mapping[str, Cell], levels: list[str]) -> list[tuple[str, str]]:
    """Return the differences, and a dash where a level was not compared."""
    found = (by_level.get(level) for level in levels)
    return [(_NOT_ASKED, "dim") if cell is None else (_difference(cell), _style(cell)) for cell in found]


def _baseline_rows(verdict: Verdict, levels: list[str]) -> list[list[tuple[str, str]]]:
    """Return the lines of PyTorch's own differences between batches at export."""
    blank, baseline = (_NOT_ASKED, "dim"), verdict.torch_baseline
    if baseline is None:
        return []
    lines = [[(BASELINE_TITLE, ""), *[("", "")] * (len(levels) + 4)]]
    for grouping in baseline.groupings:
        by_level = {level.level: level for level in grouping.levels}
        values = [(_baseline_text(by_level[name]), "dim") if name in by_level else blank for name in levels]
        moved = max(level.moved_rows for level in grouping.levels)
        bits = (f"{moved} rows moved" if moved else "yes", "dim")
        counts = [(str(grouping.rows), "dim"), (str(grouping.runs), "dim")]
        lines.append([(f"  {grouping.name}", "dim"), *counts, *values, blank, bits])
    return lines


def _baseline_text(level: BaselineLevel) -> str:
    outside = f" ({level.failing_rows} rows differ)" if level.failing_rows else ""
    return f"{level.max_abs:.1e}{outside}"


def _difference(cell: Cell) -> str:
    if cell.comparison is None:
        return "not computed"
    if cell.comparison.passed:
        return f"{cell.comparison.max_abs:.1e}"
    failing = f"{len(cell.comparison.failing_rows)} rows differ"
    return failing if "ids" in (cell.level, cell.grouping) else f"{cell.comparison.max_abs:.1e} ({failing})"


def _style(cell: Cell) -> str:
    return "green" if cell.passed else "bold red"


def _repeats(cell: Cell) -> tuple[str, str]:
    if cell.comparison is None:
        return _NOT_ASKED, "dim"
    if cell.repeats < 2:
        return str(cell.repeats), "dim"
    return (f"{cell.repeats}, same bits", "") if cell.repeats_identical else (f"{cell.repeats}, bits differ", "yellow")


def _bits(cell: Cell) -> tuple[str, str]:
    if cell.moved_rows is None:
        return _NOT_ASKED, "dim"
    if not cell.moved_rows:
        return "yes", "green"
    return f"{len(cell.moved_rows)} rows moved", "bold red" if cell.bits_required else "yellow"
