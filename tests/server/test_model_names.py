"""The names clients call models by: the lock's, the hub's in any case, and one the hub has given up since."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import numpy as np
import pytest
from stand_ins import EMBEDDER, RERANKER, FrameClient, embedder, in_process, reranker, tokenizer

from samevec.errors import InputError
from samevec.lock import load_lock
from samevec.runtime.engine import Engine
from samevec.runtime.reranker import Reranker
from samevec.runtime.sessions.fake import FakeSession
from samevec.server.lifecycle import running_server
from samevec.server.settings import ServedModel, ServerSettings
from samevec.server.socket.truememory import EmbedTarget, resolve_reranker, resolve_tier

SMALL = "ms-marco-minilm-l6-v2"
#: What TrueMemory 0.7.6.2 asks for, and what the same repository is called today.
FORMER, CURRENT = "cross-encoder/ms-marco-MiniLM-L-6-v2", "cross-encoder/ms-marco-MiniLM-L6-v2"
SPELLINGS = (FORMER, CURRENT, SMALL, FORMER.lower(), CURRENT.upper(), "MS-MARCO-MiniLM-L6-v2")


def small_reranker() -> ServedModel:
    """The packaged lock's entry, over a session that gives other numbers than the toy reranker's does."""
    engine = Engine(session=FakeSession(1), width=1, max_rows=8)
    return ServedModel(
        model=Reranker(entry=load_lock().model(SMALL), tokenizer=tokenizer(RERANKER), engine=engine),
    )


@pytest.fixture(scope="module")
def models() -> list[ServedModel]:
    return [ServedModel(model=embedder()), ServedModel(model=reranker()), small_reranker()]


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_reranker_by_any_of_its_names(models: list[ServedModel], name: str) -> None:
    assert resolve_reranker(name, models[1:]) == SMALL
    with in_process(*models) as server:
        for route in ("/v1/rerank", "/v2/rerank", "/rerank"):
            answer = server.post(route, {"model": name, "query": "q", "documents": ["d"]})
            assert answer.status_code == 200, answer.text
            expected = models[2].model.score([("q", "d")])[0]  # type: ignore[union-attr]
            assert np.float32(answer.json()["results"][0]["relevance_score"]) == expected


def test_no_name_and_truememorys_other_one_mean_the_larger_reranker(models: list[ServedModel]) -> None:
    for name in (None, "Alibaba-NLP/gte-reranker-modernbert-base", "alibaba-nlp/GTE-reranker-modernbert-base"):
        assert resolve_reranker(name, models[:0:-1]) == RERANKER


def test_a_reranker_that_is_not_served_is_no_other(models: list[ServedModel]) -> None:
    with pytest.raises(InputError, match=f"^model_name: '{FORMER}' is not served here .rerankers: {RERANKER}"):
        resolve_reranker(FORMER, models[1:2])
    with pytest.raises(InputError, match="is not served here"):
        resolve_reranker("Alibaba-NLP/gte-reranker-modernbert-base", models[2:])
    with pytest.raises(InputError, match="is not served here"):
        resolve_reranker("ms-marco-MiniLM-L-12-v2", models[1:])


def test_an_embedder_by_any_case_is_full_width(models: list[ServedModel]) -> None:
    assert resolve_tier(EMBEDDER.upper(), models[:1]) == EmbedTarget(EMBEDDER, None)
    assert resolve_tier("base", models[:1]) == EmbedTarget(EMBEDDER, 256)
    with in_process(*models) as server:
        assert server.embed({"model": EMBEDDER.title(), "input": "a"}).json()["model"] == EMBEDDER
        wrong = server.embed({"model": FORMER, "input": "a"})
        assert wrong.status_code == 404
        assert "is served, but not for this task" in wrong.json()["error"]["message"]


def test_the_socket_takes_truememorys_spelling(models: list[ServedModel], tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with running_server(models, ServerSettings(port=0, socket=path)), FrameClient(path) as client:
        asked = [client.ask({"op": "rerank", "pairs": [["q", "d"]], "model_name": name}) for name in (FORMER, CURRENT)]
        assert asked[0]["ok"] is True
        assert asked[0] == asked[1]
        assert client.ask({"op": "rerank", "pairs": [["q", "d"]]})["scores"] != asked[0]["scores"]


@pytest.mark.skipif(importlib.util.find_spec("truememory") is None, reason="truememory is not installed")
def test_truememorys_own_default_is_the_former_name() -> None:
    spec = importlib.util.find_spec("truememory")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    source = Path(next(iter(spec.submodule_search_locations))) / "reranker.py"
    constants = [node.value for node in ast.walk(ast.parse(source.read_text())) if isinstance(node, ast.Constant)]
    assert FORMER in constants
