"""The probe of every start: which rows, and what it refuses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from samevec.errors import ParityFailedError
from samevec.lock import load_lock
from samevec.parity.answers import Answers
from samevec.parity.probe import PROBE_TOKENS, probe, probe_cases, require_probe
from samevec.runtime.sessions.fake import FakeSession

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from samevec.runtime.rows import TokenRow

TOLERANCE = load_lock("toy").tolerance
LENGTHS = [40, 2, 900, PROBE_TOKENS + 10, 3, 8, 2, PROBE_TOKENS - 10]


def test_the_probe_takes_two_short_rows_and_a_long_one() -> None:
    assert probe_cases(LENGTHS) == [1, 6, 3]
    assert abs(LENGTHS[7] - PROBE_TOKENS) == abs(LENGTHS[3] - PROBE_TOKENS)  # equally near: the first is taken


@pytest.mark.parametrize(
    ("lengths", "chosen"), [([5], [0]), ([5, 5], [0, 1]), ([9, 1, 5], [1, 2, 0]), ([2] * 9, [0, 1])]
)
def test_small_references_are_probed_whole(lengths: list[int], chosen: list[int]) -> None:
    assert probe_cases(lengths) == chosen


@dataclass
class Reference:
    """The two things the probe reads of a reference."""

    ids: list[tuple[int, ...]]
    raw: NDArray[np.float32]


class Model:
    """A fake model that may spoil what it computes."""

    name = "fake"

    def __init__(self, *, error: float = 0.0) -> None:
        self.error = np.float32(error)
        self.runs: list[list[tuple[int, ...]]] = []

    def run_microbatch(self, rows: Sequence[TokenRow]) -> NDArray[np.float32]:
        self.runs.append([row.ids for row in rows])
        raw = np.stack([FakeSession(8).row(list(row.ids)) for row in rows])
        raw[-1, 0] += self.error
        return raw


def reference() -> Any:
    ids = [tuple(range(n)) for n in LENGTHS]
    return Reference(ids, np.stack([FakeSession(8).row(list(row)) for row in ids]))


def test_the_chosen_rows_run_together_once() -> None:
    model: Any = Model()
    known = reference()
    assert probe(model, known, tolerance=TOLERANCE) is None
    assert model.runs == [[known.ids[i] for i in probe_cases(LENGTHS)]]
    require_probe(model, known, tolerance=TOLERANCE, fix="samevec parity")


@pytest.mark.parametrize("error", [0.01, np.nan, np.inf])
def test_a_model_that_differs_is_refused_with_the_command(error: float) -> None:
    model: Any = Model(error=error)
    problem = probe(model, reference(), tolerance=TOLERANCE)
    assert problem is not None
    assert problem.startswith("the start-up probe differs from the reference: ")
    with pytest.raises(ParityFailedError) as caught:
        require_probe(model, reference(), tolerance=TOLERANCE, fix="samevec parity --model fake")
    assert str(caught.value).startswith("fake: the start-up probe differs from the reference: ")
    assert str(caught.value).endswith("; run: samevec parity --model fake")
    assert caught.value.fix == "samevec parity --model fake"


def test_other_bits_within_the_tolerance_are_refused_where_answers_are_given() -> None:
    known = reference()
    answers = Answers.of_rows(known.raw, arithmetic=1, case_set_digest="sha256:x", nodes={})
    chosen = probe_cases(LENGTHS)
    require_probe(Model(), known, tolerance=TOLERANCE, fix="samevec parity", answers=answers)  # type: ignore[arg-type]
    a_bit_off: Any = Model(error=float(np.spacing(known.raw[chosen[-1], 0])))
    assert probe(a_bit_off, known, tolerance=TOLERANCE) is None
    with pytest.raises(ParityFailedError, match=rf"other bits than at export, in case {chosen[-1]}, on "):
        require_probe(a_bit_off, known, tolerance=TOLERANCE, fix="samevec parity", answers=answers)
