"""The quick gate: what it runs, by which numbers it reports, and that it refuses what the full one refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from gate_stand_ins import EXACT, LOOSE, REFERENCES, gate, noise_by_row, one_component, padding_leaks, swap_rows

from samevec.parity.cases.builtin import builtin_cases, quick_positions
from samevec.parity.cases.groupings import QUICK_GROUPINGS

if TYPE_CHECKING:
    from gate_stand_ins import Wrong
    from numpy.typing import NDArray

    from samevec.runtime.collate import Features
    from samevec.runtime.providers.profiles import Profile


@pytest.mark.parametrize("task", ["embed", "rerank"])
@pytest.mark.parametrize(("profile", "repeats"), [(EXACT, 1), (LOOSE, 2)])
def test_a_quick_gate_runs_less_and_says_so(task: str, profile: Profile, repeats: int) -> None:
    full = builtin_cases(task, prompts=("query", "document"))
    verdict = gate(task, profile=profile, quick=True)
    assert verdict.passed
    assert verdict.quick
    assert verdict.to_dict()["quick"] is True
    assert verdict.case_set_digest == full.digest
    assert verdict.n_cases == len(quick_positions(full))
    assert tuple(run.name for run in verdict.runs) == QUICK_GROUPINGS
    assert verdict.repeats == repeats  # where bits must be those of "alone", each grouping is a repeat of it
    assert ("repeats of the same run: every grouping ran once" in verdict.not_measured) is (repeats == 1)
    assert f"{len(full) - verdict.n_cases} of the {len(full)} cases (quick)" in verdict.not_measured
    assert any(words.startswith("groupings (quick): batch_1, batch_32") for words in verdict.not_measured)
    assert "quick parity passed" in verdict.words
    assert [error.case for error in verdict.row_errors["alone"]] == list(quick_positions(full))


def test_a_quick_gate_reports_cases_by_their_numbers_in_the_full_set() -> None:
    full = builtin_cases("embed", prompts=("query", "document"))
    target = next(i for i in reversed(quick_positions(full)) if full.texts[i].tag == "marker-like")
    ids = REFERENCES["embed"].ids[target]

    def marked_row_is_wrong(raw: NDArray[np.float32], features: Features) -> NDArray[np.float32]:
        for i, row in enumerate(features.input_ids):
            if tuple(row[: len(ids)].tolist()) == ids:
                raw[i] += np.float32(0.5)
        return raw

    verdict = gate("embed", marked_row_is_wrong, quick=True)
    cell = next(cell for cell in verdict.cells if cell.name == "raw/default")
    assert cell.comparison is not None
    assert cell.comparison.failing_rows == (target,)
    assert f"worst row {target} " in cell.failures[0]
    assert "(marker-like)" in cell.failures[0]
    assert verdict.worst_rows[0][1].case == target
    assert verdict.worst_rows[0][1].tag == "marker-like"


@pytest.mark.parametrize("wrong", [swap_rows, one_component, noise_by_row, padding_leaks])
def test_a_quick_gate_refuses_what_the_full_one_refuses(wrong: Wrong) -> None:
    for task in ("embed", "rerank"):
        assert not gate(task, wrong, quick=True).passed
