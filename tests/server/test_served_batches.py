"""Sizes, order and contents through the library, HTTP and the socket protocol, with one thread and with two."""

from __future__ import annotations

import base64
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import httpx
import numpy as np
import pytest
from stand_ins import EMBEDDER, FrameClient, alone, embedder, in_process, reranker, vectors_of
from worker_bench import Stage, served_stage, staged_embedder

from samevec.errors import EmptyInputError
from samevec.server.lifecycle import running_server
from samevec.server.settings import ServedModel, ServerSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    Ask = Callable[[list[str], int | None], NDArray[np.float32]]

INPUTS = {
    "one": ["alone"],
    "mixed lengths": [f"{n}" * n for n in (3, 40, 1, 200, 0, 7, 7, 90, 2, 500, 33, 64)],
    "duplicates": ["twice", "", "once", "twice", "", "x" * 300, "twice"] * 3,
    "bulk": [f"{i:03} " * (1 + i * 7 % 50) for i in range(60)],
}


@contextmanager
def asked(protocol: str, path: Path, *, overlapping: bool, max_rows: int) -> Iterator[tuple[Stage, Ask]]:
    """Give a stage, and what asks the model on it for vectors: the library or a server."""
    stage = served_stage()
    model = staged_embedder(stage, overlapping=overlapping, max_rows=max_rows)
    if protocol == "library":
        yield stage, lambda texts, size: model.encode(texts, batch_size=size)
        return

    def over_http(texts: list[str], size: int | None) -> NDArray[np.float32]:
        return vectors_of(
            httpx.post(f"{endpoints.url}/v1/embeddings", json={"input": texts, "batch_size": size}, timeout=30)
        )

    def over_socket(texts: list[str], size: int | None) -> NDArray[np.float32]:
        request = {"op": "embed", "texts": texts, "tier": EMBEDDER} | ({} if size is None else {"batch_size": size})
        with FrameClient(path) as client:
            record = client.ask(request)["vectors"]
        return np.frombuffer(base64.b64decode(record["__ndarray__"]), dtype="<f4").reshape(record["shape"])

    with running_server([ServedModel(model=model)], ServerSettings(port=0, socket=path)) as endpoints:
        yield stage, {"http": over_http, "socket": over_socket}[protocol]


@pytest.fixture(params=["library", "http", "socket"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("overlapping", [False, True])
def test_five_at_eight_under_a_limit_of_two(protocol: str, overlapping: bool, tmp_path: Path) -> None:
    texts = ["aaaa", "b", "ccccc", "dd", "eee"]
    with asked(protocol, tmp_path / "s", overlapping=overlapping, max_rows=2) as (stage, ask):
        assert np.array_equal(ask(texts, 8), alone(texts))
        assert [len(call.rows) for call in stage.calls] == [2, 2, 1]


@pytest.mark.parametrize("overlapping", [False, True])
def test_requested_batch_size_one_is_one_row_a_run(protocol: str, overlapping: bool, tmp_path: Path) -> None:
    texts = INPUTS["duplicates"] + INPUTS["mixed lengths"]
    with asked(protocol, tmp_path / "s", overlapping=overlapping, max_rows=32) as (stage, ask):
        assert np.array_equal(ask(texts, 1), alone(texts))
        assert [len(call.rows) for call in stage.calls] == [1] * len(set(texts))


@pytest.mark.parametrize("overlapping", [False, True])
def test_order_and_contents_are_the_same_everywhere(protocol: str, overlapping: bool, tmp_path: Path) -> None:
    with asked(protocol, tmp_path / "s", overlapping=overlapping, max_rows=8) as (stage, ask):
        for texts in INPUTS.values():
            own = alone(texts)
            for size in (None, 1, 3, 8, 1000):
                before = len(stage.calls)
                assert np.array_equal(ask(texts, size), own)
                assert max(len(call.rows) for call in stage.calls[before:]) <= min(size or 8, 8)


def test_nothing_is_refused_everywhere(tmp_path: Path) -> None:
    with pytest.raises(EmptyInputError):
        embedder().encode([])
    with running_server([ServedModel(model=embedder())], ServerSettings(port=0, socket=tmp_path / "s")) as endpoints:
        assert httpx.post(f"{endpoints.url}/v1/embeddings", json={"input": []}, timeout=30).status_code == 400
        with FrameClient(tmp_path / "s") as client:
            answer = client.ask({"op": "embed", "texts": [], "tier": EMBEDDER})
    assert answer["ok"] is False or answer["vectors"]["shape"][0] == 0


@pytest.mark.parametrize(("override", "budgets"), [(None, [4096, 300]), (512, [512, 512])])
def test_each_models_budget_is_its_engines_unless_the_server_has_one(override: int | None, budgets: list[int]) -> None:
    second = reranker()
    second = replace(second, engine=replace(second.engine, token_budget=300))
    served = [ServedModel(model=embedder()), ServedModel(model=second)]
    with in_process(*served, settings=ServerSettings(token_budget=override)) as server:
        records = [model["worker"] for model in server.ask("GET", "/info").json()["models"]]
    assert [record["token_budget"] for record in records] == budgets
