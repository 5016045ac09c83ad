"""Progress as bars on a terminal, elsewhere as plain lines."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console
    from rich.progress import ProgressColumn

    from samevec.progress import Progress as ProgressProtocol

__all__ = ["LineProgress", "RichProgress", "make_progress"]


class RichProgress:
    """Draws one bar a step; finished steps stay as a line with their time."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def step(self, label: str, *, total: float | None = None, unit: str = "") -> Iterator[Callable[[float], None]]:
        """Open a step, see :class:`samevec.progress.Progress`."""
        counts: list[ProgressColumn] = []
        if unit == "bytes":
            counts = [DownloadColumn(binary_units=True)]
        elif total:
            counts = [MofNCompleteColumn(), TextColumn(unit)]
        columns = [TextColumn("{task.description:<44}"), BarColumn(bar_width=24), *counts, TimeElapsedColumn()]
        with Progress(*columns, console=self._console) as bars:
            task = bars.add_task(label, total=total)
            yield lambda advance: bars.advance(task, advance)
            bars.update(task, total=total or 1, completed=total or 1)

    def note(self, message: str) -> None:
        """Print a line above the bars."""
        self._console.print(message, highlight=False, markup=False)


class LineProgress:
    """Prints one line, with the seconds, when a step ends."""

    def __init__(self, write: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._clock = clock

    @contextmanager
    def step(self, label: str, *, total: float | None = None, unit: str = "") -> Iterator[Callable[[float], None]]:
        """Open a step, see :class:`samevec.progress.Progress`."""
        started_s = self._clock()
        yield lambda advance: None
        amount = f" ({total / 1e6:.1f} MB)" if total and unit == "bytes" else f" ({total:.0f} {unit})" if total else ""
        self._write(f"{label}{amount}: {self._clock() - started_s:.1f} s")

    def note(self, message: str) -> None:
        """Print a line."""
        self._write(message)


def make_progress(console: Console) -> ProgressProtocol:
    """Return bars on a terminal, lines elsewhere."""
    if console.is_terminal:
        return RichProgress(console)
    return LineProgress(lambda line: console.print(line, highlight=False, markup=False, soft_wrap=True))
