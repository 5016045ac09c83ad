"""A verdict for people: one line a grouping, one column a level."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from samevec.parity.verdict import Cell, Verdict

__all__ = ["plain_lines", "verdict_table"]

_NOT_ASKED = "-"


def verdict_table(verdict: Verdict) -> Table:
    """Render a verdict as a table.

    Parameters
    ----------
    verdict : Verdict

    Returns
    -------
    rich.table.Table
        Each cell shows the greatest absolute difference; failing cells also show how many rows fail, in red.
    """
    outcome = "passed" if verdict.passed else f"FAILED ({len(verdict.failures)} findings)"
    table = Table(
        title=f"parity {verdict.model} ({verdict.profile}, {verdict.provider}): {outcome}", title_justify="left"
    )
    for i, heading in enumerate(_headings(verdict)):
        table.add_column(heading, justify="left" if i == 0 else "right", no_wrap=True)
    for row in _rows(verdict):
        table.add_row(*(Text(text, style=style) for text, style in row))
    return table


def plain_lines(verdict: Verdict) -> list[str]:
    """Render a verdict as plain lines, then its failures and notes in words.

    Returns
    -------
    list of str
        Columns aligned by spaces; no colour.
    """
    rows = [_headings(verdict), *([text for text, _ in row] for row in _rows(verdict))]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines += [f"failed: {failure}" for failure in verdict.failures]
    return lines + [f"note: {note}" for note in verdict.notes]


def _value_levels(verdict: Verdict) -> list[str]:
    return list(dict.fromkeys(cell.level for cell in verdict.cells if cell.level != "ids"))


def _headings(verdict: Verdict) -> list[str]:
    return ["grouping", "cases", "runs", *_value_levels(verdict), "repeats", "bits as alone"]


def _rows(verdict: Verdict) -> list[list[tuple[str, str]]]:
    """Return texts with their styles, row by row."""
    levels = _value_levels(verdict)
    not_asked = (_NOT_ASKED, "dim")
    rows = []
    for cell in verdict.cells:
        if cell.level == "ids":
            text = "equal" if cell.passed else _difference(cell)
            name = (f"token ids, {cell.grouping}", "")
            rows.append(
                [name, (str(verdict.n_cases), ""), not_asked, (text, _style(cell)), *[not_asked] * (len(levels) + 1)]
            )
    for run in verdict.runs:
        by_level = {cell.level: cell for cell in verdict.cells if cell.grouping == run.name and cell.level in levels}
        first = by_level[levels[0]]
        name = (run.name + (f" (= {run.same_as})" if run.same_as else ""), "red" if run.problems else "")
        values = [(_difference(by_level[level]), _style(by_level[level])) for level in levels]
        rows.append([name, (str(run.rows), ""), (str(len(run.shapes)), ""), *values, _repeats(first), _bits(first)])
    return rows


def _difference(cell: Cell) -> str:
    if cell.comparison is None:
        return "not computed"
    if cell.comparison.passed:
        return f"{cell.comparison.max_abs:.1e}"
    failing = f"{len(cell.comparison.failing_rows)} rows differ"
    return failing if cell.level == "ids" else f"{cell.comparison.max_abs:.1e} ({failing})"


def _style(cell: Cell) -> str:
    return "green" if cell.passed else "bold red"


def _repeats(cell: Cell) -> tuple[str, str]:
    if cell.comparison is None:
        return _NOT_ASKED, "dim"
    return (f"{cell.repeats}, same bits", "") if cell.repeats_identical else (f"{cell.repeats}, bits differ", "yellow")


def _bits(cell: Cell) -> tuple[str, str]:
    if cell.moved_rows is None:
        return _NOT_ASKED, "dim"
    if not cell.moved_rows:
        return "yes", "green"
    return f"{len(cell.moved_rows)} rows moved", "bold red" if cell.bits_required else "yellow"
