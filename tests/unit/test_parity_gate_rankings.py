"""The gate and the rankings: in the verdict, in its failures, in its table, or said not to be measured."""

from __future__ import annotations

import dataclasses
import io
from typing import TYPE_CHECKING

import pytest
from ranking_stand_ins import LOCK, REFERENCES, WrongSession, make_model
from rich.console import Console

from samevec.errors import ReferenceMissingError
from samevec.parity.cases.builtin import CaseSet
from samevec.parity.gate import run_gate
from samevec.parity.rankings.retrieval import builtin_fixture, fixture_cases
from samevec.parity.report.terminal import plain_lines, verdict_table
from samevec.runtime.providers.profiles import Profile
from samevec.runtime.sessions.fake import FakeSession

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from ranking_stand_ins import Model

    from samevec.parity.reference.file import Reference
    from samevec.parity.verdict import Verdict
    from samevec.runtime.collate import Features

EXACT = Profile(name="exact", provider=FakeSession.provider, graph_form="none", bit_identical_groupings=True)


def gate(task: str, model: Model | None = None, *, reference: Reference | None = None, quick: bool = False) -> Verdict:
    model = model or make_model(task)
    every = fixture_cases(builtin_fixture(), task, prompts=model.entry.prompts)
    return run_gate(
        model,
        reference or REFERENCES[task],
        tolerance=LOCK.tolerance,
        profile=EXACT,
        case_set=CaseSet(task=every.task, texts=every.texts[:1], pairs=every.pairs[:1]),
        quick=quick,
    )


@pytest.mark.parametrize("task", ["embed", "rerank"])
def test_a_verdict_has_its_rankings(task: str) -> None:
    verdict = gate(task)
    assert verdict.failures == ()
    assert verdict.rankings is not None
    assert verdict.to_dict()["rankings"] == verdict.rankings.to_dict()
    assert "rankings over the retrieval fixture" not in verdict.not_measured
    lines = plain_lines(verdict)
    assert set(verdict.rankings.lines) <= set(lines)
    shown = io.StringIO()
    Console(width=200, file=shown).print(verdict_table(verdict))
    assert "NDCG@10" in shown.getvalue()


def test_a_changed_ranking_fails_the_gate() -> None:
    def turned_round(raw: NDArray[np.float32], features: Features) -> NDArray[np.float32]:
        return raw if len(features.input_ids) == 1 else -raw  # right alone: the one case of the matrix passes

    verdict = gate("rerank", make_model("rerank", WrongSession(1, turned_round)))
    assert all(cell.passed for cell in verdict.cells)
    assert not verdict.passed
    assert verdict.rankings is not None
    assert verdict.failures == verdict.rankings.failures
    assert any(failure.startswith("rankings/default: another first result") for failure in verdict.failures)


def test_a_quick_gate_says_that_it_ranked_nothing() -> None:
    verdict = gate("embed", quick=True)
    assert verdict.rankings is None
    assert "rankings over the retrieval fixture" in verdict.not_measured


def test_a_reference_of_another_fixture_is_refused() -> None:
    retrieval = REFERENCES["embed"].retrieval
    assert retrieval is not None
    other = dataclasses.replace(retrieval, fixture_digest="sha256:0")
    with pytest.raises(ReferenceMissingError, match="another retrieval fixture"):
        gate("embed", reference=dataclasses.replace(REFERENCES["embed"], retrieval=other))
