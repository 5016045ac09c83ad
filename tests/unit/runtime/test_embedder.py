"""Texts in, vectors out."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from makers import Clock, embedder

from samevec.errors import DeadlineExceededError, EmptyInputError, InputError, InputTooLongError, NonFiniteOutputError
from samevec.runtime.pooling import l2_normalize
from samevec.runtime.sessions.fake import FakeSession

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

TEXTS = ["b", "a longer text", "", "b", "Öl", "a longer text still"]


def test_vector_i_belongs_to_text_i_in_any_company() -> None:
    model = embedder()
    together = model.encode(TEXTS)
    assert together.dtype == np.float32
    assert together.shape == (6, 384)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-6)
    for i, text in enumerate(TEXTS):
        assert model.encode([text]).tobytes() == together[i].tobytes()
        assert model.encode([*TEXTS, text], batch_size=1)[-1].tobytes() == together[i].tobytes()
    assert together[0].tobytes() == together[3].tobytes()
    assert len(np.unique(together, axis=0)) == 5


def test_digests_are_of_the_rows_that_come_back() -> None:
    vectors, digests = embedder().encode(TEXTS, dimensions=256, return_digest=True)
    assert vectors.shape == (6, 256)
    assert digests == [f"sha256:{hashlib.sha256(row.astype('<f4').tobytes()).hexdigest()}" for row in vectors]
    assert digests[0] == digests[3]
    assert len(set(digests)) == 5


def test_it_says_what_it_is() -> None:
    model = embedder()
    assert (model.name, model.dimensions, model.max_tokens) == ("toy-qwen3-embedder", 384, 2048)


def test_dimensions_are_renormalised_unless_told_otherwise() -> None:
    model = embedder()
    raw = model.compute(model.tokenize(TEXTS))
    assert model.encode(TEXTS, dimensions=32).tobytes() == l2_normalize(raw[:, :32]).tobytes()
    cut = model.finish(raw, dimensions=32, renormalize=False)
    assert cut.tobytes() == np.ascontiguousarray(l2_normalize(raw)[:, :32]).tobytes()
    assert model.encode(TEXTS, dimensions=384).tobytes() == model.encode(TEXTS, dimensions=None).tobytes()
    assert model.encode(TEXTS, normalize=False).tobytes() == raw.tobytes()


@pytest.mark.parametrize(
    ("dimensions", "problem"),
    [
        (0, "0 given, 4 to 8 is possible"),
        (3, "3 given, 4 to 8 is possible"),
        (-1, "-1 given, 4 to 8 is possible"),
        (9, "9 given, 4 to 8 is possible"),
        (8.0, "8.0 is not a whole number"),
        (2.5, "2.5 is not a whole number"),
        ("8", "'8' is not a whole number"),
        (True, "True is not a whole number"),
    ],
)
def test_o05_bad_dimensions_are_refused_before_anything_runs(dimensions: Any, problem: str) -> None:
    session = FakeSession(8)
    with pytest.raises(InputError) as caught:
        embedder(session).encode(["x"], dimensions=dimensions)
    assert str(caught.value) == f"dimensions: {problem}"
    assert session.runs == []


@pytest.mark.parametrize("dimensions", [4, 5, 8, np.int64(4), None])
def test_good_dimensions_pass(dimensions: int | None) -> None:
    assert embedder(FakeSession(8)).encode(["x"], dimensions=dimensions).shape == (1, dimensions or 8)


def test_a_model_without_prefixes_gives_its_width_only() -> None:
    model = embedder(FakeSession(8))
    model = replace(model, entry=replace(model.entry, matryoshka_min_dimensions=None))
    assert model.encode(["x"], dimensions=8).shape == (1, 8)
    with pytest.raises(InputError, match=r"^dimensions: toy-qwen3-embedder gives 8 dimensions and nothing else$"):
        model.encode(["x"], dimensions=4)
    with pytest.raises(InputError, match=r"^dimensions: 8\.0 is not a whole number$"):
        model.encode(["x"], dimensions=8.0)  # type: ignore[call-overload]


def test_o25_a_prompt_is_put_before_each_text_once() -> None:
    model = embedder()
    prompt = model.entry.prompts["query"]
    assert model.tokenize(["x", "y"], prompt="query") == model.tokenize([prompt + "x", prompt + "y"])
    assert model.tokenize(["x"], prompt="document") == model.tokenize(["x"])
    assert model.tokenize(["x"], prompt="query") != model.tokenize(["x"])


@pytest.mark.parametrize("prompt", ["passage", "", "Query"])
def test_an_unknown_prompt_lists_the_known_ones(prompt: str) -> None:
    with pytest.raises(InputError) as caught:
        embedder().encode(["x"], prompt=prompt)
    assert str(caught.value) == (f"prompt: {prompt!r} is not a prompt of toy-qwen3-embedder (it has: document, query)")


def test_a_model_without_prompts_says_so() -> None:
    model = embedder()
    with pytest.raises(InputError, match=r"\(it has: none\)$"):
        replace(model, entry=replace(model.entry, prompts={})).encode(["x"], prompt="query")


def test_wrong_inputs_are_refused() -> None:
    model = embedder()
    with pytest.raises(EmptyInputError, match=r"^input: no texts given, at least one is needed$"):
        model.encode([])
    with pytest.raises(InputError, match=r"^input: one string given, a list of texts is needed$"):
        model.encode("text")
    with pytest.raises(InputError, match=r"^texts\[1\]: int given, text is needed$"):
        model.tokenize(["x", 1], field="texts")  # type: ignore[list-item]
    with pytest.raises(InputTooLongError, match=r"^input\[1\]: 4 tokens, the limit is 3;"):
        model.encode(["x", "xyz"], max_tokens=3, truncate=False)


def test_limits_of_the_call_reach_the_runs() -> None:
    clock = Clock()
    session = FakeSession(384, before_run=clock.passes(1.0))
    model = embedder(session, clock=clock, max_rows=2)
    model.encode(["aaaaaaaa", "bbb", "cc"], batch_size=8, max_tokens=5)
    assert session.runs == [(2, 8), (1, 4)]
    with pytest.raises(DeadlineExceededError):
        model.encode(["aaaaaaaa", "bbb", "cc"], deadline_s=0.5)
    assert len(session.runs) == 3
    model.compute(model.tokenize(["aaa", "bbb"]), token_budget=4)
    assert session.runs[3:] == [(1, 4), (1, 4)]


def test_one_microbatch_is_one_run() -> None:
    session = FakeSession(384)
    model = embedder(session)
    rows = model.tokenize(TEXTS)
    raw = model.run_microbatch(rows)
    assert session.runs == [(6, 20)]
    assert raw.tobytes() == model.compute(rows).tobytes()


def zero(ids: list[int]) -> NDArray[np.float32]:
    return np.zeros(8, dtype=np.float32)


@pytest.mark.parametrize("normalize", [True, False])
def test_a_zero_vector_never_leaves(normalize: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    session = FakeSession(8)
    right: Callable[[list[int]], NDArray[np.float32]] = session.row
    (bad,) = embedder().tokenize(["bad"])
    monkeypatch.setattr(session, "row", lambda ids: zero(ids) if tuple(ids) == bad.ids else right(ids))
    with pytest.raises(NonFiniteOutputError) as caught:
        embedder(session).encode(["fine", "bad", "fine too"], normalize=normalize)
    assert caught.value.indices == (1,)
