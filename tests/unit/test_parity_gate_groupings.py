"""Groupings in the gate: what ran together, whose bits may move, and what proves nothing."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
from gate_stand_ins import EXACT, LOCK, LOOSE, REFERENCES, WIDTH, DeafEngine, gate, make_model, make_reference

from samevec.parity.cases.builtin import CaseSet, TextCase
from samevec.parity.gate import run_gate
from samevec.runtime.engine import Engine
from samevec.runtime.sessions.fake import FakeSession

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from samevec.runtime.collate import Features
    from samevec.runtime.rows import TokenRow


def test_the_session_runs_once_a_grouping_and_repeat() -> None:
    session = FakeSession(WIDTH)
    verdict = run_gate(
        make_model("embed", session), REFERENCES["embed"], tolerance=LOCK.tolerance, profile=EXACT, repeats=2
    )
    assert len(session.runs) == 2 * sum(len(run.shapes) for run in verdict.runs)
    by_name = {run.name: run for run in verdict.runs}
    assert {rows for rows, _ in by_name["alone"].shapes} == {1}
    assert max(rows for rows, _ in by_name["batch_8"].shapes) == 8
    assert by_name["long_among_short"].shapes[0][0] == 3
    assert len({run.features_digest for run in verdict.runs}) == len(verdict.runs) == 11


def other_bits_in_company(raw: NDArray[np.float32], _features: Features) -> NDArray[np.float32]:
    return raw if len(raw) == 1 else np.nextafter(raw, np.float32(2))


def test_bits_that_depend_on_the_grouping_fail_only_where_they_may_not() -> None:
    verdict = gate("embed", other_bits_in_company)
    assert not verdict.passed
    moved = next(failure for failure in verdict.failures if failure.startswith("raw/batch_8: "))
    assert moved.endswith("294 of 294 rows have other bits than alone, first row 0")
    assert all(cell.comparison is None or cell.comparison.passed for cell in verdict.cells)
    assert not any(failure.startswith("raw/batch_1:") for failure in verdict.failures)
    loose = gate("embed", other_bits_in_company, profile=LOOSE)
    assert loose.passed
    assert moved in loose.notes


def test_repeats_with_other_bits_fail_only_where_they_may_not() -> None:
    runs = iter(range(10**6))

    def drifting(raw: NDArray[np.float32], _features: Features) -> NDArray[np.float32]:
        return raw if next(runs) < 130 else np.nextafter(raw, np.float32(2))  # from the second repeat of "alone" on

    verdict = gate("rerank", drifting)
    assert any("repeats of the same run gave other bits" in failure for failure in verdict.failures)
    runs = iter(range(10**6))
    assert gate("rerank", drifting, profile=LOOSE).passed


def test_a_batch_size_that_is_ignored_is_refused() -> None:
    model = make_model("embed")
    deaf = dataclasses.replace(model, engine=DeafEngine(session=FakeSession(WIDTH), width=WIDTH))
    verdict = run_gate(deaf, REFERENCES["embed"], tolerance=LOCK.tolerance, profile=EXACT)
    assert "batch_8: 32 rows ran together although at most 8 were asked for" in verdict.failures
    assert "batch_1: 32 rows ran together although at most 1 were asked for" in verdict.failures
    for budget in (512, 1024):
        words = f"tokens ran together although at most {budget} were asked for"
        assert any(failure.startswith(f"budget_{budget}: ") and failure.endswith(words) for failure in verdict.failures)
    vacuous = "batch_32: ran the same microbatches as batch_8, so it proves nothing (vacuous)"
    assert vacuous in verdict.failures
    assert {run.same_as for run in verdict.runs if run.name == "batch_32"} == {"batch_8"}


def test_a_limit_lower_than_asked_for_makes_batches_alike() -> None:
    model = make_model("embed")
    narrow = dataclasses.replace(model, engine=Engine(session=FakeSession(WIDTH), width=WIDTH, max_rows=8))
    verdict = run_gate(narrow, REFERENCES["embed"], tolerance=LOCK.tolerance, profile=EXACT)
    assert [run.name for run in verdict.runs if run.same_as] == ["batch_32"]
    assert verdict.failures == ("batch_32: ran the same microbatches as batch_8, so it proves nothing (vacuous)",)


class UnbudgetedEngine(Engine):
    """An engine that drops the token budget asked for, in silence."""

    def run_rows(self, rows: Sequence[TokenRow], **asked: Any) -> NDArray[np.float32]:
        return Engine.run_rows(self, rows, **{**asked, "token_budget": None})


def test_a_budget_that_is_dropped_is_refused_even_where_it_would_not_bind() -> None:
    model = make_model("embed")
    deaf = dataclasses.replace(model, engine=UnbudgetedEngine(session=FakeSession(WIDTH), width=WIDTH))
    verdict = run_gate(deaf, REFERENCES["embed"], tolerance=LOCK.tolerance, profile=EXACT)
    for name in ("budget_512", "budget_1024", "budget_4096"):
        assert f"{name}: ran the same microbatches as default, so it proves nothing (vacuous)" in verdict.failures


def test_a_small_case_set_may_be_vacuous_but_says_so() -> None:
    cases = CaseSet(task="embed", texts=tuple(TextCase(text=text, tag="") for text in ("a", "bb", "ccc")))
    reference = make_reference("embed", cases)
    verdict = run_gate(make_model("embed"), reference, tolerance=LOCK.tolerance, profile=EXACT, case_set=cases)
    assert verdict.passed
    assert "batch_8: ran the same microbatches as default (vacuous; the case set is small)" in verdict.notes
