"""Sizes, order and contents through the library, HTTP and the socket protocol, at several numbers of workers."""

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

    from samevec.runtime.embedder import Embedder
    from samevec.runtime.reranker import Reranker

    Ask = Callable[[list[str], int | None], NDArray[np.float32]]

STAFFS = [(1, False), (1, True), (2, True), (4, True)]
INPUTS = {
    "one": ["alone"],
    "mixed lengths": [f"{n}" * n for n in (3, 40, 1, 200, 0, 7, 7, 90, 2, 500, 33, 64)],
    "duplicates": ["twice", "", "once", "twice", "", "x" * 300, "twice"] * 3,
    "bulk": [f"{i:03} " * (1 + i * 7 % 50) for i in range(60)],
}


@contextmanager
def asked(protocol: str, path: Path, *, staff: tuple[int, bool], max_rows: int) -> Iterator[tuple[Stage, Ask]]:
    """Give a stage, and what asks the model on it for vectors: the library or a server."""
    stage = served_stage()
    model = staged_embedder(stage, workers=staff[0], overlapping=staff[1], max_rows=max_rows)
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


@pytest.mark.parametrize("staff", STAFFS)
def test_five_at_eight_under_a_limit_of_two(protocol: str, staff: tuple[int, bool], tmp_path: Path) -> None:
    texts = ["aaaa", "b", "ccccc", "dd", "eee"]
    with asked(protocol, tmp_path / "s", staff=staff, max_rows=2) as (stage, ask):
        assert np.array_equal(ask(texts, 8), alone(texts))
        sizes = [len(call.rows) for call in stage.calls]
        # The library may run them side by side, where the order in which they begin is open.
        assert sizes == [2, 2, 1] if protocol != "library" else sorted(sizes) == [1, 2, 2]


@pytest.mark.parametrize("staff", STAFFS)
def test_requested_batch_size_one_is_one_row_a_run(protocol: str, staff: tuple[int, bool], tmp_path: Path) -> None:
    texts = INPUTS["duplicates"] + INPUTS["mixed lengths"]
    with asked(protocol, tmp_path / "s", staff=staff, max_rows=32) as (stage, ask):
        assert np.array_equal(ask(texts, 1), alone(texts))
        assert [len(call.rows) for call in stage.calls] == [1] * len(set(texts))


@pytest.mark.parametrize("staff", STAFFS)
def test_order_and_contents_are_the_same_everywhere(protocol: str, staff: tuple[int, bool], tmp_path: Path) -> None:
    with asked(protocol, tmp_path / "s", staff=staff, max_rows=8) as (stage, ask):
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


@pytest.mark.parametrize(
    ("workers", "override", "budgets"),
    [
        ((1,), None, [4096]),
        ((2,), None, [4096]),
        ((4,), None, [2048]),
        ((8,), None, [1024]),
        ((16,), None, [1024]),
        ((1, 1), None, [4096, 4096]),
        ((2, 2), None, [2048, 2048]),
        ((0, 4), None, [4096, 1638]),  # a provider that runs one batch at a time keeps all it has
        ((2, 2), 512, [512, 512]),
        ((1,), 100_000, [100_000]),
    ],
)
def test_runners_share_the_budget_of_the_process(
    workers: tuple[int, ...], override: int | None, budgets: list[int]
) -> None:
    engines = [staged_embedder(served_stage(), workers=n or 1, overlapping=n > 0).engine for n in workers]
    models: list[Embedder | Reranker] = [embedder(), reranker()]
    served = [ServedModel(model=replace(model, engine=engine)) for model, engine in zip(models, engines, strict=False)]
    with in_process(*served, settings=ServerSettings(token_budget=override)) as server:
        records = [model["worker"] for model in server.ask("GET", "/info").json()["models"]]
    assert [record["token_budget"] for record in records] == budgets
    assert [record["runners"] for record in records] == [n or 1 for n in workers]
