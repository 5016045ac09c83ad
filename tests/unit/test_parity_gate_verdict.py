"""What a verdict says and keeps: receipts, tables, progress, rows for plots, digests, findings from elsewhere."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from gate_stand_ins import LOCK, REFERENCES, WIDTH, gate, padding_leaks, swap_rows
from parity_records import make_binding
from rich.console import Console

from samevec.parity.cases.builtin import builtin_cases
from samevec.parity.code_digest import code_digest
from samevec.parity.receipt import gate_state, write_receipt
from samevec.parity.report.terminal import plain_lines, verdict_table
from samevec.parity.verdict import Cell

if TYPE_CHECKING:
    from pathlib import Path


def test_the_verdict_becomes_a_receipt(tmp_path: Path) -> None:
    binding = make_binding(model="toy-qwen3-embedder", profile="exact", provider="Fake")
    for verdict, state in ((gate("embed", padding_leaks), "failed"), (gate("embed"), "passed")):
        write_receipt([tmp_path], verdict.to_receipt(binding, created_at="2020-01-01T00:00:00+00:00"))
        found = gate_state([tmp_path], binding)
        assert found.state == state
        assert found.receipt is not None
        assert found.receipt.failures == list(verdict.failures)
        assert found.receipt.summary["n_cases"] == 301
        assert len(found.receipt.summary["cells"]) == len(verdict.cells)


def test_rendering_names_every_grouping() -> None:
    for verdict in (gate("embed"), gate("rerank", swap_rows), gate("embed", swept=True, quick=True)):
        lines = plain_lines(verdict)
        assert all(any(line.startswith(run.name) for line in lines) for run in verdict.runs)
        assert [line for line in lines if line.startswith("failed: ")] == [f"failed: {f}" for f in verdict.failures]
        console = Console(width=200, record=True, file=None, quiet=True)
        console.print(verdict_table(verdict))
        json.dumps(verdict.to_dict(), allow_nan=False)


def test_progress_is_told_every_run() -> None:
    seen: list[float] = []

    class Counting:
        @contextmanager
        def step(self, label: str, *, total: float | None = None, unit: str = "") -> Any:
            seen.append(-float(total or 0))
            yield seen.append

        def note(self, message: str) -> None:
            pass

    gate("rerank", progress=cast("Any", Counting()))
    assert seen == [-36.0, *[1] * 36]


def test_row_errors_and_histograms_are_there_for_plots() -> None:
    verdict = gate("embed", padding_leaks)
    assert verdict.error_level == "raw"
    assert set(verdict.row_errors) == set(verdict.histograms) == {"alone", "default"}
    for name, errors in verdict.row_errors.items():
        assert [error.case for error in errors] == list(range(301))
        assert [error.tokens for error in errors] == [len(ids) for ids in REFERENCES["embed"].ids]
        assert sum(verdict.histograms[name].counts) == 301 * WIDTH
    assert {error.ratio for error in verdict.row_errors["alone"]} == {0.0}
    default = next(cell for cell in verdict.cells if cell.name == "raw/default")
    assert default.comparison is not None
    failing = tuple(error.case for error in verdict.row_errors["default"] if error.ratio > 1)
    assert failing == default.comparison.failing_rows
    assert max(error.max_abs for error in verdict.row_errors["default"]) == default.comparison.max_abs
    grouping, worst = verdict.worst_rows[0]
    assert (grouping, worst.ratio) == ("default", default.comparison.worst_ratio)
    assert len(verdict.worst_rows) == 10
    record = json.loads(json.dumps(verdict.to_dict(), allow_nan=False))
    assert record["worst_rows"][0] == {"grouping": "default", **worst.to_dict()}
    assert len(record["row_errors"]["default"]) == 301


def test_what_was_fed_is_recorded_with_every_cell() -> None:
    verdict = gate("rerank")
    runs = {run.name: run for run in verdict.runs}
    for cell in verdict.cells:
        if cell.level != "ids":
            assert cell.features_digest == runs[cell.grouping].features_digest
            assert cell.shapes == runs[cell.grouping].shapes
    assert gate("rerank").runs == verdict.runs


def test_the_verdict_says_what_was_judged_by_what() -> None:
    verdict = gate("embed", artifact_digest="sha256:a")
    record = verdict.to_dict()
    assert record["lock_entry_digest"] == LOCK.model("toy-qwen3-embedder").digest
    assert record["artifact_digest"] == "sha256:a"
    assert record["case_set_digest"] == builtin_cases("embed", prompts=("query", "document")).digest
    assert record["code_digest"] == code_digest()


def test_findings_from_elsewhere_are_added() -> None:
    verdict = gate("rerank")
    bad = Cell(level="logits", grouping="elsewhere", comparison=None, error="not there")
    gap = verdict.not_measured[0]
    more = verdict.with_findings(cells=[bad], failures=["a failure"], notes=["a note"], measured=[gap])
    assert more.failures == ("logits/elsewhere: not there", "a failure")
    assert more.notes == (*verdict.notes, "a note")
    assert gap not in more.not_measured
    assert len(more.cells) == len(verdict.cells) + 1
    assert any(line.startswith("elsewhere") for line in plain_lines(more))
