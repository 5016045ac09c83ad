"""PyTorch against itself: which batches, what is measured, its record, and where reports show it."""

from __future__ import annotations

import dataclasses
import io
import json
import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from gate_stand_ins import EXACT, LOCK, REFERENCES, WrongSession, make_model
from parity_records import passed_model, report
from rich.console import Console

from samevec.parity.cases.builtin import builtin_cases, quick_positions
from samevec.parity.gate import run_gate
from samevec.parity.reference.torch_baseline import (
    BASELINE_TITLE,
    BaselineLevel,
    TorchBaseline,
    baseline_batches,
    measure_torch_baseline,
)
from samevec.parity.report.page import html_page
from samevec.parity.report.terminal import plain_lines, verdict_table
from samevec.runtime.sessions.fake import FakeSession

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from samevec.parity.verdict import Verdict
    from samevec.runtime.collate import Features

TASKS = ("embed", "rerank")


def measure(task: str, session: FakeSession | None = None) -> TorchBaseline:
    model = make_model(task, session)
    cases = builtin_cases(task, prompts=model.entry.prompts)
    return measure_torch_baseline(model, REFERENCES[task], cases, tolerance=LOCK.tolerance)


def test_batches_are_alone_as_they_arrive_and_of_near_equal_length() -> None:
    lengths = [*range(1, 30), *[40] * 20, *[41] * 20, 42, 90]
    batches = baseline_batches(lengths, [3, 0, 70, 5, 1, 2, 4, 6, 7, 30])
    assert batches["alone"] == ((3,), (0,), (70,), (5,), (1,), (2,), (4,), (6,), (7,), (30,))
    assert batches["arrival_8"] == ((3, 0, 70, 5, 1, 2, 4, 6), (7, 30))
    (near,) = batches["near_equal_32"]
    assert len(near) == 32
    assert {lengths[i] for i in near} == {40, 41, 42}  # the longest; 90 would be half padding


@pytest.mark.parametrize("n_cases", [1, 2, 31, 33])
def test_small_sets_are_one_batch_and_no_case_is_asked_for_that_is_not_there(n_cases: int) -> None:
    lengths = [2**i for i in range(n_cases)]  # none near another
    (near,) = baseline_batches(lengths, range(n_cases))["near_equal_32"]
    assert len(near) == min(n_cases, 32)
    assert set(near) <= set(range(n_cases))


@pytest.mark.parametrize("task", TASKS)
def test_every_level_is_measured_in_every_grouping(task: str) -> None:
    session = FakeSession(384 if task == "embed" else 1)
    found = measure(task, session)
    levels = ["raw", "normalised", "prefix_256", "truncated_256"] if task == "embed" else ["logits", "scores"]
    assert [grouping.name for grouping in found.groupings] == ["alone", "arrival_8", "near_equal_32"]
    assert all([level.level for level in grouping.levels] == levels for grouping in found.groupings)
    assert len(session.runs) == sum(grouping.runs for grouping in found.groupings)
    assert [rows for rows, _ in session.runs][-1] == 32
    n_quick = len(quick_positions(builtin_cases(task, prompts=make_model(task).entry.prompts)))
    assert [grouping.rows for grouping in found.groupings] == [n_quick, n_quick, 32]
    every = [level for grouping in found.groupings for level in grouping.levels]
    assert {(level.max_abs, level.failing_rows, level.moved_rows) for level in every} == {(0.0, 0, 0)}


def test_what_company_moves_is_told_by_size_and_by_rows() -> None:
    def off_in_company(raw: NDArray[np.float32], _features: Features) -> NDArray[np.float32]:
        if len(raw) > 1:
            raw[0, 0] += np.float32(0.5)  # one component of one row a batch
        return raw

    alone, arrival, near = measure("embed", WrongSession(384, off_in_company)).groupings
    assert alone.levels[0].moved_rows == 0
    raw = arrival.levels[0]
    in_company = arrival.runs - (arrival.rows % 8 == 1)
    assert (raw.failing_rows, raw.failing_components, raw.moved_rows) == (in_company,) * 3
    assert raw.max_abs == pytest.approx(0.5, rel=1e-6)
    assert 0.5 < raw.max_relative < 0.6  # no component is greater than 1
    assert raw.worst_ratio > 400
    assert near.levels[0].failing_rows == 1


def test_the_record_survives_json_even_where_numbers_are_not_finite() -> None:
    level = BaselineLevel(
        level="raw",
        components=4,
        failing_rows=1,
        failing_components=1,
        moved_rows=1,
        max_abs=math.inf,
        max_relative=math.inf,
        worst_ratio=math.inf,
    )
    found = measure("rerank")
    spoilt = dataclasses.replace(found.groupings[0], levels=(level,))
    for one in (found, TorchBaseline((spoilt,))):
        assert TorchBaseline.from_dict(json.loads(json.dumps(one.to_dict(), allow_nan=False))) == one


def gate(task: str, baseline: TorchBaseline | None) -> Verdict:
    reference = dataclasses.replace(REFERENCES[task], torch_baseline=baseline)
    return run_gate(make_model(task), reference, tolerance=LOCK.tolerance, profile=EXACT, quick=True)


def shown(verdict: Verdict) -> str:
    out = io.StringIO()
    Console(width=160, file=out).print(verdict_table(verdict))
    return out.getvalue()


@pytest.mark.parametrize("task", TASKS)
def test_tables_and_record_have_a_line_for_every_grouping(task: str) -> None:
    baseline = measure(task)
    verdict = gate(task, baseline)
    assert verdict.passed
    assert verdict.to_dict()["torch_baseline"] == baseline.to_dict()
    assert not any(BASELINE_TITLE in words for words in verdict.not_measured)
    for lines in (plain_lines(verdict), shown(verdict).splitlines()):
        at = next(i for i, line in enumerate(lines) if BASELINE_TITLE in line)
        for grouping, line in zip(baseline.groupings, lines[at + 1 :], strict=False):
            assert grouping.name in line
            assert "0.0e+00" in line


def test_rows_outside_the_tolerance_are_told_and_fail_nothing() -> None:
    def off_in_company(raw: NDArray[np.float32], _features: Features) -> NDArray[np.float32]:
        return raw if len(raw) == 1 else raw + np.float32(0.5)

    baseline = measure("rerank", WrongSession(1, off_in_company))
    verdict = gate("rerank", baseline)
    assert verdict.passed
    lines = plain_lines(verdict)
    assert any("arrival_8" in line and "5.0e-01 (24 rows differ)" in line for line in lines)
    page = html_page(report(passed_model(torch_baseline=baseline.to_dict())))
    assert f"<h3>{BASELINE_TITLE}</h3>" in page
    assert "arrival 8" in page


def test_a_page_of_a_record_without_it_has_no_empty_table() -> None:
    assert f"<h3>{BASELINE_TITLE}</h3>" not in html_page(report(passed_model(torch_baseline=None)))
    assert f"<h3>{BASELINE_TITLE}</h3>" not in html_page(report(passed_model()))
