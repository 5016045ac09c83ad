"""Progress: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from samevec.cli.terminal import LineProgress, RichProgress, make_progress


def test_one_line_a_step_with_its_seconds() -> None:
    lines: list[str] = []
    times = iter([10.0, 12.5, 20.0, 20.1, 30.0, 30.0])
    progress = LineProgress(lines.append, clock=lambda: next(times))
    with progress.step("verify model.safetensors", total=2_500_000, unit="bytes") as advance:
        advance(1_000_000)
        assert lines == []
    with progress.step("sweep", total=35, unit="shapes"):
        pass
    with progress.step("load"):
        pass
    progress.note("done")
    assert lines == [
        "verify model.safetensors (2.5 MB): 2.5 s",
        "sweep (35 shapes): 0.1 s",
        "load: 0.0 s",
        "done",
    ]


def failing_step(progress: LineProgress | RichProgress) -> None:
    with progress.step("load", total=4, unit="files") as advance:
        advance(1)
        raise RuntimeError("no")


def test_a_step_that_fails_claims_no_success() -> None:
    lines: list[str] = []
    with pytest.raises(RuntimeError, match="no"):
        failing_step(LineProgress(lines.append))
    assert lines == []


def test_a_terminal_gets_bars_and_anything_else_lines() -> None:
    assert isinstance(make_progress(Console(file=io.StringIO(), force_terminal=True)), RichProgress)
    file = io.StringIO()
    plain = make_progress(Console(file=file, force_terminal=False, width=20))
    assert isinstance(plain, LineProgress)
    plain.note("[bold] a line longer than the terminal is wide, /with/a/path")
    assert file.getvalue() == "[bold] a line longer than the terminal is wide, /with/a/path\n"


def test_bars_show_the_step_its_count_and_notes() -> None:
    file = io.StringIO()
    progress = RichProgress(Console(file=file, force_terminal=True, width=120))
    with progress.step("verify model.safetensors", total=3 * 2**20, unit="bytes") as advance:
        advance(2**20)
    with progress.step("sweep", total=35, unit="shapes") as advance:
        advance(34)
    with progress.step("load"):
        pass
    progress.note("[done]")
    shown = file.getvalue()
    for words in ("verify model.safetensors", "3.0/3.0 MiB", "35/35", "shapes", "load", "[done]"):
        assert words in shown
    with pytest.raises(RuntimeError, match="no"):
        failing_step(progress)
    assert "4/4" not in file.getvalue()
