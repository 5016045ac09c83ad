"""The ranking check, with fakes: it passes equal and nearly equal rankings, and refuses each way of being wrong."""

from __future__ import annotations

import dataclasses
import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
from gate_stand_ins import DeafEngine
from ranking_stand_ins import FIXTURE, LOCK, REFERENCES, WIDTH, WrongSession, make_model

from samevec.errors import ReferenceMissingError
from samevec.parity.rankings.check import check_rankings
from samevec.runtime.sessions.fake import FakeSession

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from ranking_stand_ins import Wrong

    from samevec.parity.rankings.figures import Rankings
    from samevec.runtime.collate import Features


def check(task: str, wrong: Wrong | None = None, *, bits_required: bool = True, **options: Any) -> Rankings:
    width = WIDTH if task == "embed" else 1
    model = make_model(task, FakeSession(width) if wrong is None else WrongSession(width, wrong))
    return check_rankings(model, REFERENCES[task], tolerance=LOCK.tolerance, bits_required=bits_required, **options)


def test_an_equal_embedder_passes() -> None:
    found = check("embed")
    assert found.failures == ()
    assert found.not_measured == ()
    assert found.search == "cosine distance"
    assert [run.name for run in found.runs] == ["default", "shuffled", "stored"]
    for run in found.runs:
        assert (run.first_changes, run.member_changes, run.displacement) == (0, 0, 0)
        assert run.quality == found.reference_quality
    assert (found.n_queries, found.n_items, found.top) == (32, 256, 100)
    assert found.decided > 0.9
    assert "toy models' weights are generated" in found.notes[0]


def test_an_equal_reranker_passes() -> None:
    found = check("rerank")
    assert found.failures == ()
    assert [run.name for run in found.runs] == ["default", "shuffled"]
    assert (found.n_queries, found.n_items, found.top) == (32, 6, 6)
    assert found.reference_quality is not None
    assert found.reference_quality.recall_10 is None  # six items: nothing could be missed
    assert all(run.first_changes == run.displacement == 0 for run in found.runs)


def noise(raw: NDArray[np.float32], _features: Features) -> NDArray[np.float32]:
    stream = np.random.default_rng(np.ascontiguousarray(raw).view(np.uint32).reshape(-1)[:64])
    return raw + stream.uniform(-9e-5, 9e-5, raw.shape).astype(np.float32)


def test_other_orders_of_near_ties_are_counted_and_pass() -> None:
    found = check("embed", noise, bits_required=False)
    assert found.failures == ()
    assert max(run.displacement for run in found.runs) > 0
    assert "greatest change of rank 0" not in found.words


def swap_rows(raw: NDArray[np.float32], _features: Features) -> NDArray[np.float32]:
    return raw if len(raw) < 2 else raw[[1, 0, *range(2, len(raw))]]


def half_of_each_vector(raw: NDArray[np.float32], _features: Features) -> NDArray[np.float32]:
    raw[:, WIDTH // 2 :] = 0
    return raw


def first_tokens(raw: NDArray[np.float32], features: Features) -> NDArray[np.float32]:
    return np.stack([FakeSession(raw.shape[1]).row(ids[:12].tolist()) for ids in features.input_ids])


def turned_round(raw: NDArray[np.float32], _features: Features) -> NDArray[np.float32]:
    return -raw


@pytest.mark.parametrize(
    ("task", "wrong"),
    [
        ("embed", swap_rows),
        ("embed", half_of_each_vector),
        ("embed", first_tokens),
        ("rerank", swap_rows),
        ("rerank", first_tokens),
        ("rerank", turned_round),
    ],
)
def test_wrong_vectors_change_rankings_and_are_refused(task: str, wrong: Wrong) -> None:
    found = check(task, wrong)
    for run in found.runs:
        if run.name == "stored" and wrong is swap_rows:
            continue  # queries are longest here and run among themselves, whether or not two of them are swapped
        assert run.first_changes > 0
        assert any(failure.startswith(f"rankings/{run.name}: another first result for ") for failure in run.failures)
        assert any("another order" in failure for failure in run.failures)
        assert set(run.failures) <= set(found.failures)
    if task == "embed":
        assert any("other members" in failure for failure in found.failures)
    assert any("rows differ" in failure for failure in found.failures)  # values are looked at too


def test_vectors_that_turn_together_keep_their_rankings_but_not_a_stores() -> None:
    found = check("embed", turned_round)
    by_name = {run.name: run for run in found.runs}
    assert by_name["default"].failures == ()
    assert by_name["stored"].first_changes == 32
    assert len(by_name["stored"].failures) == 3


def test_a_vector_of_another_width_is_refused_unranked() -> None:
    model = make_model("embed", FakeSession(WIDTH // 2))
    found = check_rankings(model, REFERENCES["embed"], tolerance=LOCK.tolerance, bits_required=True)
    assert found.runs == ()
    assert found.failures[0] == "rankings/default: shape (288, 192) instead of (288, 384)"
    assert found.words.endswith("not computed")


@pytest.mark.parametrize("value", [np.nan, 0.0])
def test_what_cannot_be_computed_is_a_failure(value: float) -> None:
    def bad(raw: NDArray[np.float32], _features: Features) -> NDArray[np.float32]:
        raw[0] = value
        return raw

    found = check("embed", bad)
    assert len(found.failures) == 1
    assert found.failures[0].startswith("rankings: could not be computed: ")


def test_other_bits_in_other_company_fail_only_where_they_may_not() -> None:
    def moved(raw: NDArray[np.float32], features: Features) -> NDArray[np.float32]:
        return np.nextafter(raw, np.float32(2)) if len(raw) > 10 else raw

    strict = check("embed", moved)
    assert [failure for failure in strict.failures if "other bits than in the default run" in failure]
    loose = check("embed", moved, bits_required=False)
    assert loose.failures == ()
    assert any("other bits than in the default run" in note for note in loose.notes)


def test_a_shuffled_run_that_is_the_default_run_proves_nothing() -> None:
    model = make_model("rerank")
    deaf = dataclasses.replace(model, engine=DeafEngine(session=FakeSession(1), width=1, max_rows=1))
    found = check_rankings(deaf, REFERENCES["rerank"], tolerance=LOCK.tolerance, bits_required=True)
    assert "rankings/shuffled: ran the same microbatches as default, so it proves nothing (vacuous)" in found.failures


def test_other_token_ids_are_refused() -> None:
    retrieval = REFERENCES["embed"].retrieval
    assert retrieval is not None
    other = dataclasses.replace(retrieval, ids=((1, *retrieval.ids[0]), *retrieval.ids[1:]))
    reference = dataclasses.replace(REFERENCES["embed"], retrieval=other)
    found = check_rankings(make_model("embed"), reference, tolerance=LOCK.tolerance, bits_required=True)
    assert found.failures[0].startswith("rankings/ids: row 0: token id")


def test_a_reference_without_the_fixture_is_refused_with_the_command() -> None:
    bare = dataclasses.replace(REFERENCES["embed"], retrieval=None)
    retrieval = REFERENCES["embed"].retrieval
    assert retrieval is not None
    other = dataclasses.replace(bare, retrieval=dataclasses.replace(retrieval, fixture_digest="sha256:0"))
    for reference, words in ((bare, "lacks the retrieval fixture"), (other, "for another retrieval fixture")):
        with pytest.raises(ReferenceMissingError) as caught:
            check_rankings(
                make_model("embed"), reference, tolerance=LOCK.tolerance, bits_required=True, fix="samevec export X"
            )
        assert words in str(caught.value)
        assert str(caught.value).endswith("; run: samevec export X")


@pytest.mark.parametrize("task", ["embed", "rerank"])
def test_records_and_lines_are_whole(task: str) -> None:
    for found in (check(task), check(task, swap_rows)):
        record = json.loads(json.dumps(found.to_dict(), allow_nan=False))
        assert record["failures"] == list(found.failures)
        assert [run["name"] for run in record["runs"]] == [run.name for run in found.runs]
        assert record["fixture_digest"] == FIXTURE.digest
        assert found.lines[0] == found.words
        assert "NDCG@10" in found.lines[1]


def test_each_run_is_told_to_progress() -> None:
    seen: list[float] = []

    class Counting:
        @contextmanager
        def step(self, label: str, *, total: float | None = None, unit: str = "") -> Any:
            seen.append(-float(total or 0))
            yield seen.append

        def note(self, message: str) -> None:
            pass

    check("rerank", progress=cast("Any", Counting()))
    assert seen == [-2.0, 1, 1]
