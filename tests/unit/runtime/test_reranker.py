"""Pairs in, scores out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from makers import Clock, reranker

from samevec.errors import DeadlineExceededError, EmptyInputError, InputError, InputTooLongError
from samevec.runtime.pooling import activate
from samevec.runtime.reranker import Ranked, rank_scores
from samevec.runtime.sessions.fake import FakeSession

PAIRS = [("q", "a"), ("q", "a longer document"), ("", ""), ("q", "a"), ("another", "Öl")]


def test_score_i_belongs_to_pair_i_in_any_company() -> None:
    model = reranker()
    together = model.score(PAIRS)
    assert together.dtype == np.float32
    assert together.shape == (5,)
    for i, pair in enumerate(PAIRS):
        assert model.score([pair]).tobytes() == together[i].tobytes()
        assert model.score([*PAIRS, pair], batch_size=1)[-1].tobytes() == together[i].tobytes()
    assert together[0] == together[3]
    assert len(set(together.tolist())) == 4


def test_it_says_what_it_is() -> None:
    assert reranker().name == "toy-modernbert-reranker"
    assert reranker().max_tokens == reranker().entry.max_tokens


def test_o08_the_activation_is_applied_once_and_not_at_all_to_raw_scores() -> None:
    model = reranker()
    logits = model.compute(model.tokenize(PAIRS))
    assert logits.shape == (5, 1)
    assert model.score(PAIRS, raw=True).tobytes() == logits.tobytes()
    assert model.score(PAIRS).tobytes() == activate(logits, "sigmoid").tobytes()
    identity = replace(model, entry=replace(model.entry, activation="identity"))
    assert identity.score(PAIRS).tobytes() == logits.tobytes()


def test_ranking_is_sorted_cut_and_names_positions() -> None:
    model = reranker()
    documents = [f"document {i}" for i in range(9)]
    scores = model.score([("q", document) for document in documents])
    ranked = model.rank("q", documents)
    assert [item.index for item in ranked] == np.argsort(-scores, kind="stable").tolist()
    assert [item.score for item in ranked] == sorted(scores.tolist(), reverse=True)
    assert ranked[0] == Ranked(index=ranked[0].index, score=ranked[0].score)
    for top_n in (1, 3, 9, 1_000_000):
        assert model.rank("q", documents, top_n=top_n) == ranked[:top_n]
    raw = model.rank("q", documents, raw=True)
    assert [item.index for item in raw] == [item.index for item in ranked]
    assert [item.score for item in raw] == sorted(model.score([("q", d) for d in documents], raw=True), reverse=True)


def test_ties_stay_in_request_order() -> None:
    scores = np.array([0.5, 0.9, 0.5, 0.9, 0.1], dtype=np.float32)
    assert [item.index for item in rank_scores(scores)] == [1, 3, 0, 2, 4]
    assert [item.index for item in rank_scores(scores, top_n=3)] == [1, 3, 0]
    assert all(type(item.index) is int and type(item.score) is float for item in rank_scores(scores))


@pytest.mark.parametrize(
    ("top_n", "problem"),
    [
        (0, "0 given, at least 1 is needed"),
        (-1, "-1 given, at least 1 is needed"),
        ("1", "'1' is not a whole number"),
        (1.5, "1.5 is not a whole number"),
        (True, "True is not a whole number"),
    ],
)
def test_o09_a_bad_top_n_is_refused_before_anything_runs(top_n: Any, problem: str) -> None:
    session = FakeSession(1)
    with pytest.raises(InputError) as caught:
        reranker(session).rank("q", ["a"], top_n=top_n)
    assert str(caught.value) == f"top_n: {problem}"
    assert session.runs == []


def test_wrong_inputs_are_refused() -> None:
    model = reranker()
    with pytest.raises(EmptyInputError, match=r"^pairs: no pairs given, at least one is needed$"):
        model.score([])
    with pytest.raises(EmptyInputError, match=r"^documents: no documents given, at least one is needed$"):
        model.rank("q", [])
    with pytest.raises(InputError, match=r"^documents: one string given, a list of documents is needed$"):
        model.rank("q", "abc")
    wrong: list[Any] = ["ab", ("a",), ("a", "b", "c"), None, 3, [], {"query": "a", "document": "b"}]
    for bad in wrong:
        with pytest.raises(InputError, match=r"^pairs\[1\]: a query and a document are needed$"):
            model.score([("a", "b"), bad])
    with pytest.raises(InputError, match=r"^pairs\[0\]: NoneType given, text is needed$"):
        model.score([("a", None)])  # type: ignore[list-item]
    with pytest.raises(InputTooLongError, match=r"^pairs\[1\]: 6 tokens, the limit is 5;"):
        model.score([("a", "b"), ("a", "bc")], max_tokens=5, truncate=False)


def test_lists_serve_as_pairs_too() -> None:
    model = reranker()
    assert model.score([["q", "a"]]).tobytes() == model.score([("q", "a")]).tobytes()  # type: ignore[list-item]


def test_limits_of_the_call_reach_the_runs() -> None:
    clock = Clock()
    session = FakeSession(1, before_run=clock.passes(1.0))
    model = reranker(session, clock=clock, max_rows=2)
    model.score(PAIRS, batch_size=8, max_tokens=9)
    assert [n for n, _ in session.runs] == [2, 2]  # one of the five is there twice
    with pytest.raises(DeadlineExceededError):
        model.score(PAIRS, deadline_s=0.5)
    assert len(session.runs) == 3


def test_o10_one_giant_document_changes_no_other_score() -> None:
    model = reranker()
    documents = [f"short {i}" for i in range(20)]
    alone = model.score([("q", document) for document in documents], max_tokens=128)
    documents[7] = "giant " * 10_000
    scores = model.score([("q", document) for document in documents], max_tokens=128)
    assert np.isfinite(scores).all()
    assert np.delete(scores, 7).tobytes() == np.delete(alone, 7).tobytes()
