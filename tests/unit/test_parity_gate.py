"""The gate, with fakes: it passes what is equal and refuses each way of being wrong, naming the cell."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
from gate_stand_ins import (
    EXACT,
    LOCK,
    LOOSE,
    REFERENCES,
    WIDTH,
    gate,
    make_model,
    noise_by_row,
    one_component,
    padding_leaks,
    raw_tokenizer,
    swap_rows,
)

from samevec.errors import ReferenceMissingError, SessionRunError
from samevec.parity.gate import run_gate
from samevec.parity.report.terminal import plain_lines
from samevec.runtime.sessions.fake import FakeSession
from samevec.runtime.tokenization import Tokenizer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from samevec.runtime.collate import Features
    from samevec.runtime.providers.profiles import Profile


@pytest.mark.parametrize(
    ("task", "levels"),
    [("embed", {"ids", "raw", "normalised", "prefix_256", "truncated_256"}), ("rerank", {"ids", "logits", "scores"})],
)
def test_an_equal_candidate_passes(task: str, levels: set[str]) -> None:
    verdict = gate(task)
    assert verdict.failures == ()
    assert verdict.passed
    assert {cell.level for cell in verdict.cells} == levels
    sizes = ["batch_1", "batch_8", "batch_32"] + (["batch_64"] if task == "rerank" else [])
    budgets = ["budget_512", "budget_1024", "budget_4096"]
    names = ["alone", "default", *sizes, *budgets, "shuffled", "equal_lengths", "long_among_short"]
    assert [run.name for run in verdict.runs] == names
    assert {run.same_as for run in verdict.runs} == {None}
    values = [cell for cell in verdict.cells if cell.level != "ids"]
    assert {cell.repeats for cell in values} == {3}
    assert all(cell.repeats_identical for cell in values)
    assert all(cell.moved_rows == () for cell in values if cell.grouping != "alone")
    assert verdict.notes[0] == "batch_1: ran microbatches of alone, as it is meant to"
    assert "parity passed" in verdict.words
    assert not verdict.quick
    assert not verdict.baseline


def by_one_bit(raw: NDArray[np.float32], _features: Features) -> NDArray[np.float32]:
    return np.nextafter(raw, np.float32(1e9))


def test_a8_no_difference_at_all_is_said_in_words_and_one_of_a_bit_is_not() -> None:
    for task, level in (("embed", "raw"), ("rerank", "logits")):
        verdict = gate(task, quick=True)
        assert verdict.passed
        (note,) = [note for note in verdict.notes if note.startswith(f"{level}: 0.0 in every cell: ")]
        assert note.endswith("the reference was perhaps written by the candidate")
        assert f"note: {note}" in plain_lines(verdict)
        assert "greatest difference 0.0, as if the candidate had written the reference" in verdict.words
        other = gate(task, by_one_bit, quick=True)
        assert other.passed
        assert "0.0 in every cell" not in " ".join(other.notes)
        assert "as if" not in other.words


def not_finite(raw: NDArray[np.float32], _features: Features) -> NDArray[np.float32]:
    return raw * np.float32("nan")


def test_a10_a_gate_that_meets_what_is_not_finite_does_not_advise_the_gate() -> None:
    failures = gate("embed", not_finite, quick=True).failures
    assert "raw/alone: could not be computed: the output for item 0 is not finite; it was withheld" in failures
    assert "samevec parity" not in " ".join(failures)


def test_swapped_rows_are_refused_in_every_grouping_but_alone() -> None:
    for task, level in (("embed", "raw"), ("rerank", "logits")):
        verdict = gate(task, swap_rows)
        failing = {cell.grouping for cell in verdict.cells if not cell.passed}
        assert failing == {run.name for run in verdict.runs} - {"alone", "batch_1"}
        assert any(failure.startswith(f"{level}/batch_8: ") for failure in verdict.failures)


def test_one_component_off_is_refused_everywhere() -> None:
    verdict = gate("embed", one_component)
    failing = {cell.name for cell in verdict.cells if not cell.passed}
    assert {f"raw/{run.name}" for run in verdict.runs} <= failing
    assert "worst row" in verdict.failures[0]
    assert "component 383" in verdict.failures[0]
    # It lies beyond the prefix, which is cut before normalising and so cannot see it.
    assert not any(name.startswith("prefix_256") for name in failing)


def test_noise_by_position_is_refused_with_the_rows() -> None:
    verdict = gate("rerank", noise_by_row)
    default = next(cell for cell in verdict.cells if cell.name == "logits/default")
    assert default.comparison is not None
    assert 0 < len(default.comparison.failing_rows) < default.comparison.rows
    assert next(cell for cell in verdict.cells if cell.name == "logits/alone").passed


def test_padding_that_leaks_is_refused_where_there_is_padding() -> None:
    verdict = gate("embed", padding_leaks)
    failing = {cell.grouping for cell in verdict.cells if not cell.passed}
    assert "long_among_short" in failing
    assert {"alone", "equal_lengths"}.isdisjoint(failing)


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_rows_that_are_not_finite_or_zero_are_refused(value: float) -> None:
    def bad_long_rows(raw: NDArray[np.float32], features: Features) -> NDArray[np.float32]:
        raw[features.attention_mask.sum(axis=1) > 1000] = value
        return raw

    verdict = gate("embed", bad_long_rows)
    assert not verdict.passed
    alone = [failure for failure in verdict.failures if "/alone: " in failure]
    assert len(alone) == 1  # a grouping that cannot run is said once, not once a level
    assert alone[0].startswith("raw/alone: could not be computed: ")


def test_failures_go_on_after_a_grouping_that_cannot_run() -> None:
    def no_eights(raw: NDArray[np.float32], _features: Features) -> NDArray[np.float32]:
        if len(raw) == 8:
            raise SessionRunError("out of luck")
        return one_component(raw, _features)

    verdict = gate("embed", no_eights)
    assert "raw/batch_8: could not be computed: out of luck" in verdict.failures
    assert any(failure.startswith("raw/shuffled: ") for failure in verdict.failures)


def test_a_failure_in_one_repeat_is_a_failure() -> None:
    runs = iter(range(10**6))

    def once_wrong(raw: NDArray[np.float32], _features: Features) -> NDArray[np.float32]:
        return raw + np.float32(1) if next(runs) == 130 else raw  # within the second repeat of "alone"

    verdict = gate("rerank", once_wrong, profile=LOOSE)
    assert any(failure.startswith("logits/alone: 1 of 126 rows differ") for failure in verdict.failures)


def test_other_token_ids_are_refused_and_values_still_compared() -> None:
    model = make_model("embed", end=False)
    verdict = run_gate(model, REFERENCES["embed"], tolerance=LOCK.tolerance, profile=EXACT)
    assert verdict.failures[0].startswith("ids/together: row 0: token id 257 instead of 256 at position 0")
    assert any(failure.startswith("ids/alone: ") for failure in verdict.failures)
    assert any(failure.startswith("raw/alone: ") for failure in verdict.failures)


def test_a_case_that_is_refused_fails_the_gate() -> None:
    model = make_model("embed")
    short = dataclasses.replace(model, tokenizer=Tokenizer(raw_tokenizer(), 8))
    verdict = run_gate(short, REFERENCES["embed"], tolerance=LOCK.tolerance, profile=EXACT)
    assert verdict.failures[0].startswith("ids/together: a case was refused: max_tokens: 16 given")
    assert not verdict.runs


class OtherProviderSession(FakeSession):
    """Right in every bit, computed by another provider than was asked for."""

    provider = "DmlExecutionProvider"


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("profile", [EXACT, LOOSE])
def test_a_session_of_another_provider_is_refused_in_words(profile: Profile, quick: bool) -> None:
    for task, width in (("embed", WIDTH), ("rerank", 1)):
        model = make_model(task, OtherProviderSession(width))
        verdict = run_gate(model, REFERENCES[task], tolerance=LOCK.tolerance, profile=profile, quick=quick)
        assert all(cell.passed for cell in verdict.cells)
        (failure,) = verdict.failures
        assert failure.startswith("provider: the session computes with DmlExecutionProvider, ")
        assert failure.endswith(f"the profile {profile.name} is for {FakeSession.provider}")
        assert not verdict.passed
        assert f"failed: {failure}" in plain_lines(verdict)


def test_a_reference_for_something_else_is_refused() -> None:
    reference = REFERENCES["embed"]
    for change, words in (
        ({"case_set_digest": "sha256:0"}, "case set"),
        ({"lock_entry_digest": "sha256:0"}, "lock entry"),
    ):
        with pytest.raises(ReferenceMissingError) as caught:
            run_gate(
                make_model("embed"),
                dataclasses.replace(reference, **cast("Any", change)),
                tolerance=LOCK.tolerance,
                profile=EXACT,
            )
        assert f"was captured for another {words}" in str(caught.value)
