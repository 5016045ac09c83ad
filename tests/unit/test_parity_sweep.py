"""The sweep of widths and row counts: what it chooses, what it refuses, and what stays unmeasured beside it."""

from __future__ import annotations

import dataclasses
import itertools
import re
from typing import TYPE_CHECKING

import numpy as np
import pytest
from gate_stand_ins import EXACT, LOCK, LOOSE, SWEPT, gate, make_model

from samevec.errors import ReferenceMissingError
from samevec.parity.answers import Answers
from samevec.parity.coverage import shape_gaps, vocabulary_gap
from samevec.parity.gate import run_gate
from samevec.parity.sweep import WIDTHS_AN_OCTAVE, plan_sweep, sweep_rows
from samevec.parity.verdict import GroupingRun

if TYPE_CHECKING:
    from gate_stand_ins import Wrong
    from numpy.typing import NDArray

    from samevec.parity.verdict import Verdict
    from samevec.runtime.collate import Features

TASKS = ("embed", "rerank")
RAW = {"embed": "raw", "rerank": "logits"}
LONGEST = 2048


def shapes_of(verdict: Verdict) -> set[tuple[int, int]]:
    return {shape for run in verdict.runs for shape in run.shapes}


def wrong_at(axis: int, size: int, by: float = 0.5) -> Wrong:
    """Be wrong where an axis of the run has this size."""

    def wrong(raw: NDArray[np.float32], features: Features) -> NDArray[np.float32]:
        return raw + np.float32(by) if features.shape[axis] == size else raw

    return wrong


@pytest.mark.parametrize("longest", [1, 3, 4, 5, 127, 128, 300, 1034, 2048])
@pytest.mark.parametrize("max_rows", [32, 64])
def test_every_octave_has_its_widths_and_every_row_count_runs(longest: int, max_rows: int) -> None:
    plan = plan_sweep(longest_tokens=longest, max_rows=max_rows)
    widths = plan.lengths[:-max_rows]
    assert list(widths) == sorted(set(widths))
    assert all(4 <= width <= longest for width in widths)
    start = 4
    while start <= longest:
        possible = min(start, longest + 1 - start)
        taken = sum(start <= width < 2 * start for width in widths)
        assert taken >= min(possible, WIDTHS_AN_OCTAVE * possible / start)
        start *= 2
    assert [len(call) for call in plan.calls["row_counts"]] == list(range(1, max_rows + 1))
    assert {i for call in plan.calls["widths"] for i in call} == set(range(len(plan.lengths)))
    assert plan == plan_sweep(longest_tokens=longest, max_rows=max_rows)


def test_widths_have_no_pattern_that_a_graph_could_share() -> None:
    widths = plan_sweep(longest_tokens=LONGEST, max_rows=32).lengths[:-32]
    for modulus in (2, 3, 4, 8):
        assert {width % modulus for width in widths} == set(range(modulus))
    assert max(b / a for a, b in itertools.pairwise(widths)) < 1.5


def test_a_quick_plan_is_some_of_the_whole() -> None:
    plan = plan_sweep(longest_tokens=1034, max_rows=64)
    quick = plan.quick()
    assert all(set(calls) <= set(plan.calls[name]) for name, calls in quick.calls.items())
    assert sum(quick.lengths[i] for calls in quick.calls.values() for call in calls for i in call) < 200


def test_segment_ids_change_in_the_middle() -> None:
    (row,) = sweep_rows([(5, 6, 7)], type_ids=True)
    assert (row.ids, row.type_ids) == ((5, 6, 7), (0, 0, 1))
    assert sweep_rows([(5, 6, 7)], type_ids=False)[0].type_ids is None


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("quick", [False, True])
def test_a_right_candidate_passes(task: str, quick: bool) -> None:
    verdict = gate(task, swept=True, quick=quick, repeats=1, golden=False)
    assert verdict.failures == ()
    names = [cell.name for cell in verdict.cells]
    assert {"ids/limit", f"{RAW[task]}/widths", f"{RAW[task]}/row_counts"} <= set(names)
    assert (f"{RAW[task]}/octaves" in names) is not quick


@pytest.mark.parametrize("task", TASKS)
def test_A2_wrong_at_one_width_is_refused(task: str) -> None:
    before = {n_tokens for _, n_tokens in shapes_of(gate(task, repeats=1, golden=False))}
    tried = {n_tokens for _, n_tokens in shapes_of(gate(task, swept=True, repeats=1, golden=False))}
    width = min(tried - before)
    wrong = wrong_at(1, width)
    assert gate(task, wrong, repeats=1, golden=False).passed
    verdict = gate(task, wrong, swept=True, repeats=1, golden=False)
    named = re.match(rf"{RAW[task]}/widths: 1 of .* rows differ, worst row (\d+) ", verdict.failures[0])
    assert named is not None
    assert width - 4 < int(named[1]) <= width  # runs are padded to a multiple of 4


@pytest.mark.parametrize("task", TASKS)
def test_A2_wrong_at_one_row_count_is_refused(task: str) -> None:
    before = {n_rows for n_rows, _ in shapes_of(gate(task, repeats=1, golden=False))}
    n_rows = max(set(range(1, 64 if task == "rerank" else 32)) - before)
    wrong = wrong_at(0, n_rows)
    assert gate(task, wrong, repeats=1, golden=False).passed
    verdict = gate(task, wrong, swept=True, repeats=1, golden=False)
    assert f"{RAW[task]}/row_counts: {n_rows} of " in verdict.failures[0]
    assert f"worst row {n_rows} " in verdict.failures[0]


def test_A2_other_bits_at_one_row_count_are_refused_where_bits_may_not_move() -> None:
    def a_bit(raw: NDArray[np.float32], features: Features) -> NDArray[np.float32]:
        return np.nextafter(raw, np.float32(9)) if features.shape == (29, 8) else raw

    words = "raw/row_counts: 29 of 528 rows have other bits than alone, first row 29"
    assert words in gate("embed", a_bit, swept=True, repeats=1, golden=False).failures
    loose = gate("embed", a_bit, swept=True, repeats=1, golden=False, profile=LOOSE)
    assert loose.passed
    assert words in loose.notes


def test_a_run_that_fails_is_named_by_its_shape() -> None:
    def nothing(raw: NDArray[np.float32], features: Features) -> NDArray[np.float32]:
        return raw * np.float32("nan") if features.shape == (17, 8) else raw

    verdict = gate("embed", nothing, swept=True, repeats=1, golden=False)
    assert any(text.startswith("raw/row_counts: 17 rows of up to 8 tokens could not be") for text in verdict.failures)


def test_A2_the_sweep_must_have_the_bits_of_the_export() -> None:
    reference = SWEPT["embed"]
    assert reference.sweep is not None
    recorded = reference.sweep.raw.copy()
    recorded[40, 0] = np.nextafter(recorded[40, 0], np.float32(9))

    def verdict_of(sweep: NDArray[np.float32]) -> Verdict:
        answers = Answers.of_rows(
            reference.raw, arithmetic=1, case_set_digest=reference.case_set_digest, nodes={}, sweep=sweep
        )
        return gate("embed", swept=True, repeats=1, golden=False, answers=answers)

    assert verdict_of(reference.sweep.raw).passed
    (failure,) = verdict_of(recorded).failures
    n_rows, n_tokens = len(reference.sweep.ids), len(reference.sweep.ids[40])
    assert (
        f"answers: 1 of {n_rows} sweep rows have other bits than at export, the first of {n_tokens} tokens" in failure
    )
    with pytest.raises(ReferenceMissingError, match="another case set"):
        verdict_of(reference.sweep.raw[:3])


def test_a_reference_of_another_sweep_asks_for_an_export() -> None:
    reference = SWEPT["embed"]
    assert reference.sweep is not None
    other = dataclasses.replace(reference.sweep, ids=reference.sweep.ids[1:], raw=reference.sweep.raw[1:])
    with pytest.raises(ReferenceMissingError, match="another sweep; run: samevec export"):
        run_gate(
            make_model("embed"),
            dataclasses.replace(reference, sweep=other),
            tolerance=LOCK.tolerance,
            profile=EXACT,
            golden=False,
        )


def test_A2_what_never_ran_is_told_by_number() -> None:
    model = make_model("embed")
    engine = dataclasses.replace(model.engine, pad_to_multiple=1)
    model = dataclasses.replace(model, engine=engine)
    run = GroupingRun(name="a", rows=1, shapes=((1, 1), (2, 4), (4, 5), (32, 10)))
    assert shape_gaps(model, 10, [run]) == (
        "6 of the 10 widths up to 10 tokens, the longest stretch of them 6 to 9",
        "28 of the 32 numbers of rows that may run together: 3, 5 to 31",
    )
    padded = dataclasses.replace(model, engine=dataclasses.replace(engine, pad_to_multiple=4))
    assert shape_gaps(padded, 10, [GroupingRun(name="a", rows=1, shapes=((1, 4), (1, 12)))])[0] == (
        "1 of the 3 widths up to 12 tokens, the longest stretch of them 8"
    )
    whole = tuple((n, n) for n in range(1, 33))
    assert shape_gaps(model, 10, [GroupingRun(name="a", rows=1, shapes=whole)]) == ()
    assert vocabulary_gap(model, [(1, 2), (2, 3)]) == ("255 of the 258 token ids (98.8%), which no row that ran has",)
    assert vocabulary_gap(model, [tuple(range(258))]) == ()


def test_the_verdict_says_so_and_the_sweep_makes_it_less() -> None:
    def widths(verdict: Verdict) -> int:
        (gap,) = [words for words in verdict.not_measured if " widths up to " in words]
        return int(gap.split()[0])

    swept = gate("embed", swept=True, repeats=1, golden=False)
    assert 0 < widths(swept) < widths(gate("embed", repeats=1, golden=False))
    assert not any("numbers of rows" in words for words in swept.not_measured)
    assert any("numbers of rows" in words for words in gate("embed", repeats=1, golden=False).not_measured)
