"""The probe of every start: what is asked, and what it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from gate_stand_ins import LOCK, REFERENCES, WIDTH, WrongSession, make_model, one_component

from samevec.errors import ParityFailedError
from samevec.parity.answers import Answers
from samevec.parity.cases.builtin import builtin_cases
from samevec.parity.probe import Probe, ProbeCall, require_probe

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from samevec.runtime.collate import Features

TASKS = pytest.mark.parametrize("task", ["embed", "rerank"])
FIX = "samevec parity --model fake"


def probe_of(task: str, *, bits: bool = False) -> Probe:
    model, reference = make_model(task), REFERENCES[task]
    cases = builtin_cases(task, prompts=model.entry.prompts)
    answers = Answers.of_rows(reference.raw, arithmetic=1, case_set_digest=cases.digest, nodes={}) if bits else None
    return Probe.of(model.entry, reference, cases, tolerance=LOCK.tolerance, answers=answers, fix=FIX)


def calls_of(probe: Probe) -> list[ProbeCall]:
    return [call for calls in probe.library for call in calls]


def test_every_way_of_asking_an_embedder_is_in_it() -> None:
    mixed, twin, prompted, over_seam = calls_of(probe_of("embed"))
    lengths = [len(REFERENCES["embed"].ids[i]) for i in mixed.cases]
    assert lengths != sorted(lengths)
    assert lengths != sorted(lengths, reverse=True)
    assert max(lengths) > 4 * sorted(lengths)[2]  # asked together, so that most are mostly padding
    assert mixed.cases[0] == mixed.cases[-1]
    assert mixed.max_tokens == max(lengths)
    assert max(map(len, mixed.items)) > 4 * mixed.max_tokens  # it is cut
    assert (twin.items, twin.dimensions) == (prompted.items, prompted.dimensions)
    assert (twin.prompt, prompted.prompt) == (None, "query")
    assert prompted.dimensions != over_seam.dimensions
    assert (over_seam.over_seam, len(over_seam.items[0]) > 64) == (True, True)


def test_every_way_of_asking_a_reranker_is_in_it() -> None:
    mixed, over_seam, ranked, cut = calls_of(probe_of("rerank"))
    assert (mixed.raw, over_seam.over_seam, ranked.ranked) == (True, True, True)
    assert len({query for query, _ in ranked.items}) == 1
    assert list(ranked.expected) == sorted(ranked.expected)  # so that the ranking has to turn them round
    assert cut.max_tokens == 32
    lengths = [len(REFERENCES["rerank"].ids[i]) for i in mixed.cases]
    assert max(lengths) > 10 * sorted(lengths)[2]


@TASKS
def test_one_request_to_a_server_is_bulk_work_beside_a_small_one(task: str) -> None:
    crowd, small = probe_of(task).server[0]
    assert len({REFERENCES[task].ids[i] for i in crowd.cases}) > 8 >= len(small.items)
    assert not any(call.max_tokens for calls in probe_of(task).server for call in calls)


@TASKS
@pytest.mark.parametrize("bits", [False, True])
def test_the_right_model_passes(task: str, bits: bool) -> None:
    require_probe(make_model(task), probe_of(task, bits=bits))


@TASKS
def test_a_model_that_differs_is_refused_with_the_command(task: str) -> None:
    model = make_model(task, WrongSession(WIDTH if task == "embed" else 1, one_component))
    with pytest.raises(ParityFailedError) as caught:
        require_probe(model, probe_of(task))
    assert str(caught.value).startswith(f"{model.name}: the start-up probe differs from the reference: ")
    assert " (asked together: 4, raw" in str(caught.value)
    assert str(caught.value).endswith(f"; run: {FIX}")
    assert caught.value.fix == FIX


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(value: float) -> None:
    def spoil(raw: NDArray[np.float32], _: Features) -> NDArray[np.float32]:
        raw[-1, 0] = value
        return raw

    with pytest.raises(ParityFailedError, match="the start-up probe came to nothing: the output for item "):
        require_probe(make_model("embed", WrongSession(WIDTH, spoil)), probe_of("embed"))


@TASKS
def test_other_bits_within_the_tolerance_are_refused_where_answers_are_given(task: str) -> None:
    def last_bit(raw: NDArray[np.float32], _: Features) -> NDArray[np.float32]:
        return np.nextafter(raw, np.float32(9))

    model = make_model(task, WrongSession(WIDTH if task == "embed" else 1, last_bit))
    require_probe(model, probe_of(task))
    case = calls_of(probe_of(task))[0].cases[0]
    with pytest.raises(ParityFailedError, match=rf"other bits than at export, in case {case}, .* on "):
        require_probe(model, probe_of(task, bits=True))
