"""What two verdicts of the same model differ in."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import parity_records as records
import pytest

from samevec.errors import ConfigError
from samevec.parity.report.moved import moved_lines, read_older

if TYPE_CHECKING:
    from pathlib import Path


def older(**bound: Any) -> dict[str, Any]:
    """A verdict of before: one cell further off, one that did not run, another onnxruntime."""
    model = records.passed_model()
    for cell in model["cells"]:
        name = f"{cell['level']}/{cell['grouping']}"
        if name == "raw/alone":
            cell["comparison"] = records.comparison(max_abs=2.1e-6)
        elif name == "raw/default":
            cell["comparison"] = None
        elif name == "raw/shuffled":
            cell["comparison"] = records.comparison(max_abs="inf")
    return {**model, "binding": {**model["binding"], "onnxruntime_version": "1.31.1", **bound}}


def test_d9_every_cell_that_moved_is_told_with_how_far() -> None:
    assert moved_lines([older()], records.passed_model()) == [
        "toy-qwen3-embedder (cpu): changed since: onnxruntime 1.31.1 -> 1.32.0",
        "  raw/alone: 2.100e-06 -> 3.100e-06 (+1.0e-06)",
        "  raw/default: not computed -> 3.100e-06",
        "  raw/shuffled: inf -> 3.100e-06",
        "toy-qwen3-embedder (cpu): 3 of 26 cells moved",
    ]


def test_d9_equal_verdicts_moved_nothing_and_a_cell_more_is_said() -> None:
    model = records.passed_model()
    assert moved_lines([model], model) == [
        "toy-qwen3-embedder (cpu): changed since: nothing that is bound",
        "toy-qwen3-embedder (cpu): 0 of 26 cells moved",
    ]
    shorter = records.passed_model(cells=model["cells"][1:], binding={"model": "of an older samevec"})
    assert moved_lines([shorter], model) == [
        "toy-qwen3-embedder (cpu): changed since: not told by the older file",
        "toy-qwen3-embedder (cpu): 0 of 25 cells moved, 1 are in one of the two only",
    ]
    assert moved_lines([], model) == ["toy-qwen3-embedder (cpu): the older file has no verdict about it"]


def test_d9_reports_lists_and_receipts_are_read(tmp_path: Path) -> None:
    model, path = older(), tmp_path / "older.json"
    binding = model.pop("binding")
    for record in (records.report({**model, "binding": binding}), [model], {"summary": model, "binding": binding}):
        path.write_text(json.dumps(record))
        assert [one["model"] for one in read_older(path)] == ["toy-qwen3-embedder"]


@pytest.mark.parametrize("text", ["", "{}", "[1]", "7", '{"models": [{}]}', '[{"cells": []}]', "[" * 100_000])
def test_d9_what_is_neither_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "older.json").write_text(text)
    with pytest.raises(ConfigError, match="neither a report nor a receipt of samevec"):
        read_older(tmp_path / "older.json")
    with pytest.raises(ConfigError, match="No such file"):
        read_older(tmp_path / "none.json")
