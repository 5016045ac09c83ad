"""Putting a model together."""

from __future__ import annotations

import pytest
from makers import toy_tokenizer_path

from samevec.errors import InputError
from samevec.export.toy.checkpoint import TOY_EMBEDDER, TOY_RERANKER
from samevec.lock import load_lock
from samevec.opening import build_model
from samevec.runtime.embedder import Embedder
from samevec.runtime.reranker import Reranker
from samevec.runtime.sessions.fake import FakeSession


def test_the_task_decides_the_kind_and_the_default_limits() -> None:
    lock = load_lock("toy")
    model = build_model(
        lock.model(TOY_EMBEDDER), FakeSession(384), tokenizer_path=toy_tokenizer_path(TOY_EMBEDDER), pad_token_id=2
    )
    assert isinstance(model, Embedder)
    engine = model.engine
    assert (engine.width, engine.token_budget, engine.max_rows, engine.pad_token_id) == (384, 4096, 32, 2)
    assert model.encode(["x"]).shape == (1, 384)
    other = build_model(
        lock.model(TOY_RERANKER), FakeSession(1), tokenizer_path=toy_tokenizer_path(TOY_RERANKER), pad_token_id=2
    )
    assert isinstance(other, Reranker)
    assert (other.engine.width, other.engine.token_budget, other.engine.max_rows) == (1, 4096, 64)
    assert other.score([("a", "b")]).shape == (1,)


def test_given_limits_are_kept() -> None:
    entry = load_lock("toy").model(TOY_EMBEDDER)
    model = build_model(
        entry,
        FakeSession(8),
        tokenizer_path=toy_tokenizer_path(TOY_EMBEDDER),
        pad_token_id=0,
        pad_to_multiple=4,
        width=8,
        token_budget=99,
        max_rows=3,
    )
    engine = model.engine
    assert (engine.width, engine.token_budget, engine.max_rows, engine.pad_to_multiple) == (8, 99, 3, 4)


def test_a_budget_of_nothing_is_refused() -> None:
    entry = load_lock("toy").model(TOY_EMBEDDER)
    path = toy_tokenizer_path(TOY_EMBEDDER)
    with pytest.raises(InputError, match=r"^token_budget: 0 given, at least 1 is needed$"):
        build_model(entry, FakeSession(8), tokenizer_path=path, pad_token_id=0, token_budget=0)
