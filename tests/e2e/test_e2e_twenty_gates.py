"""The gate says the same as often as it is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from e2e_tools import EMBEDDER, LOCK

from samevec.load import open_candidate, reference_of
from samevec.parity.gate import run_gate

if TYPE_CHECKING:
    from e2e_tools import ToyHome

pytestmark = pytest.mark.model


def test_twenty_quick_gates_in_a_row_pass_with_the_same_answers(exported: ToyHome) -> None:
    candidate = open_candidate(LOCK.model(EMBEDDER), profile="cpu", home=exported.path)
    reference, answers = reference_of(candidate), candidate.answers
    assert answers is not None
    for _ in range(20):
        verdict = run_gate(
            candidate.model,
            reference,
            tolerance=LOCK.tolerance,
            profile=candidate.profile,
            quick=True,
            answers=answers,
        )
        assert verdict.failures == ()
        assert verdict.answers is not None
        assert (verdict.answers.n_compared, verdict.answers.changed) == (25, ())
        assert verdict.answers.digest == answers.digest
