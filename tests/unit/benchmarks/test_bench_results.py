"""What a benchmark run writes: JSON shape, tables, targets, arithmetic; no timing."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from benchmarks.__main__ import _chosen, _parse
from benchmarks.ceiling import ceiling_fraction
from benchmarks.measure import repeats_after
from benchmarks.memory import Memory, parse_rollup
from benchmarks.reference import count_violations
from benchmarks.results import NOTICE, Report, Row, machine_record, to_markdown, write_report
from benchmarks.systems import SYSTEMS
from benchmarks.targets import target_lines
from benchmarks.workloads import WORKLOADS, make_workload
from samevec.lock import load_lock

if TYPE_CHECKING:
    from pathlib import Path

PROMISED = {
    *("workload", "system", "useful_tokens_per_s", "latency_p50_s", "cpu_s", "wall_s", "padding_ratio"),
    *("private_peak_bytes", "resident_peak_bytes", "load_s", "ceiling_fraction", "violations"),
}


def row(workload: str = "mixed64", system: str = "samevec/cpu", wall_s: float = 10.0, violations: int = 0) -> Row:
    return Row(
        workload=workload,
        system=system,
        task="embed",
        status="ok",
        items=64,
        useful_tokens=4039,
        repeats=2,
        useful_tokens_per_s=4039 / wall_s,
        latency_p50_s=wall_s,
        cpu_s=2 * wall_s,
        wall_s=wall_s,
        wall_min_s=wall_s,
        padding_ratio=1.05,
        private_peak_bytes=250_000_000,
        resident_peak_bytes=2_500_000_000,
        private_loaded_bytes=100_000_000,
        resident_loaded_bytes=300_000_000,
        load_s=0.5,
        ceiling_fraction=0.9,
        violations=violations,
        compared=64,
        greatest_difference=1e-6,
    )


def failed(system: str = "fastembed/custom") -> Row:
    return Row(workload="mixed64", system=system, task="embed", reason="ValueError: position_ids", items=64)


def report(*rows: Row) -> Report:
    return Report(machine=machine_record(), ceiling_gflops=450.0, rows=list(rows))


def test_json_has_what_is_promised(tmp_path: Path) -> None:
    write_report(report(row(), failed()), tmp_path)
    record = json.loads((tmp_path / "latest.json").read_bytes())
    assert record["ceiling_gflops"] == 450.0
    assert record["notice"] == NOTICE
    assert {"cpu", "threads", "memory_bytes"} <= set(record["machine"])
    assert all(set(found) >= PROMISED for found in record["rows"])
    assert record["rows"][1]["status"] == "failed"
    assert record["rows"][1]["useful_tokens_per_s"] is None


def test_json_has_no_number_that_json_has_not() -> None:
    found = replace(row(), greatest_difference=float("inf"), padding_ratio=float("nan")).to_dict()
    assert found["greatest_difference"] is None
    assert found["padding_ratio"] is None


def test_machine_record_names_no_machine() -> None:
    assert set(machine_record()) == {"cpu", "threads", "memory_bytes", "system", "python"}


def test_tables_show_ratios_reasons_and_the_notice() -> None:
    text = to_markdown(report(row(), row(system="sentence-transformers/torch-b32", wall_s=60.0), failed()))
    assert NOTICE in text
    assert "| sentence-transformers/torch-b32 | 67 | 6.00x |" in text
    assert "| fastembed/custom | failed: ValueError: position_ids |" in text
    cells = [line.count("|") for line in text.splitlines() if line.startswith("| ")]
    assert set(cells[-4:]) == {13}


def test_targets_count_only_peers_without_violations() -> None:
    openvino = "sentence-transformers/openvino-f32-b1"
    rows = [row(), row(system=openvino, wall_s=13.0), row(system="fast/wrong", wall_s=5.0, violations=64)]
    lines = target_lines(rows)
    assert "| mixed64 over OpenVINO f32 | >= 1.2x | 1.3 | yes |" in lines
    assert "| mixed64 over the fastest peer without violations | >= 1x | 1.3 | yes |" in lines
    assert "| mixed64 of the ceiling | >= 85% | 0.9 | yes |" in lines
    assert "| private added, mixed64, MB | <= 200 | 150 | yes |" in lines


def test_targets_that_are_missed_say_so() -> None:
    lines = target_lines([row("text4096", wall_s=15.0), row("texts4x1024", wall_s=10.0)])
    assert "| text4096 over 4 x 1,024 | <= 1.35 | 1.5 | **no** |" in lines
    assert target_lines([failed()]) == []


def test_ceiling_fraction_is_linear_work_over_the_ceiling() -> None:
    assert ceiling_fraction(450.0, "embed", 450.0) == pytest.approx(0.88)
    assert ceiling_fraction(1000.0, "rerank", 440.0) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("first_s", "quick", "repeats"),
    [(0.02, False, 30), (1.0, False, 7), (10.0, False, 2), (30.0, False, 1), (60.0, False, 0), (20.0, True, 0)],
)
def test_longer_passes_are_repeated_less(first_s: float, quick: bool, repeats: int) -> None:
    assert repeats_after(first_s, quick=quick) == repeats


def test_rollup_is_parsed_in_bytes() -> None:
    text = "55d0-7ffe ---p 00000000 00:00 0 [rollup]\nRss:    2048 kB\nPss:  1024 kB\nAnonymous:     512 kB\n"
    assert parse_rollup(text) == Memory(512 * 1024, 2048 * 1024, 1024 * 1024)
    assert Memory(1, 5, 2).peak(Memory(3, 4, 2)) == Memory(3, 5, 2)


def test_violations_are_items_by_the_locks_rule() -> None:
    workload, tolerance = make_workload("pairs50"), load_lock(None).tolerance
    reference = {"raw": np.ones((50, 1), np.float32), "final": np.full((50, 1), 0.7, np.float32)}
    good = np.ones(50, np.float32)
    assert count_violations(workload, reference, [("raw", good)], tolerance) == (0, 0.0)
    bad = good.copy()
    bad[[3, 7]] += 0.01
    scores = np.full(50, 0.7, np.float32)
    scores[7] = np.nan
    count, greatest = count_violations(workload, reference, [("raw", bad), ("final", scores)], tolerance)
    assert count == 2
    assert greatest == float("inf")


def test_violations_look_at_compared_items_only() -> None:
    workload, tolerance = make_workload("short2000"), load_lock(None).tolerance
    reference = {"raw": np.ones((250, 2), np.float32)}
    values = np.zeros((2000, 2), np.float32)
    values[list(workload.compared)] = 1.0
    assert count_violations(workload, reference, [("raw", values)], tolerance)[0] == 0


def test_every_system_runs_every_workload_but_the_extra_ones() -> None:
    chosen = _chosen(_parse([]))
    per_workload = {name: [s.name for w, s in chosen if w.name == name] for name in WORKLOADS}
    assert per_workload["mixed64"] == list(SYSTEMS)
    assert per_workload["pair4096"] == ["samevec/cpu", "samevec/portable"]


def test_quick_runs_no_peer() -> None:
    assert {system.name for _, system in _chosen(_parse(["--quick"]))} == {"samevec/cpu"}


def test_filters_take_names_and_prefixes() -> None:
    chosen = _chosen(_parse(["--systems", "samevec/*,fastembed/custom", "--workloads", "pair4096"]))
    names = ["samevec/cpu", "samevec/portable", "fastembed/custom"]
    assert [(w.name, s.name) for w, s in chosen] == [("pair4096", name) for name in names]
    with pytest.raises(SystemExit):
        _parse(["--systems", "nonesuch"])
