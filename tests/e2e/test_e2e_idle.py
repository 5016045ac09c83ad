"""``--idle-unload-s`` with really exported models: mapped weights let go, and the same bits after loading again."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import numpy as np
import pytest
from e2e_tools import EMBEDDER, LOCK, RERANKER, rewrite_receipt, serving

from samevec import load_embedder, load_reranker
from samevec.cli.serve import ServePlan, load_served
from samevec.hints import Commands
from samevec.progress import SilentProgress
from samevec.server.http.app import create_app
from samevec.server.service import Service
from samevec.server.settings import ServerSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from e2e_tools import ToyHome
    from numpy.typing import NDArray

pytestmark = [pytest.mark.model, pytest.mark.server]

TEXTS = ["The ferry leaves at seven.", "", "short", "a b c d e f g h " * 40]


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def mapped_bytes(folder: Path, pid: int | str = "self") -> int:
    """Bytes of this folder's files in a process's address space."""
    total = 0
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if str(folder) in line:
            start, _, end = line.split()[0].partition("-")
            total += int(end, 16) - int(start, 16)
    return total


def vectors_of(answer: httpx.Response) -> NDArray[np.float32]:
    assert answer.status_code == 200, answer.text
    return np.array([item["embedding"] for item in answer.json()["data"]], dtype=np.float32)


def scores_of(answer: httpx.Response) -> list[np.float32]:
    assert answer.status_code == 200, answer.text
    ranked = sorted(answer.json()["results"], key=lambda item: item["index"])
    return [np.float32(item["relevance_score"]) for item in ranked]


def plan_of(home: Path) -> ServePlan:
    entries = tuple(LOCK.model(name) for name in (EMBEDDER, RERANKER))
    settings = ServerSettings(idle_unload_s=60)
    return ServePlan(lock=LOCK, entries=entries, home=home, commands=Commands(lock="toy", home=home), settings=settings)


def asker(service: Service) -> Callable[..., httpx.Response]:
    app = create_app(service)

    def ask(method: str, path: str, **options: object) -> httpx.Response:
        async def run() -> httpx.Response:
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as client:
                return await client.request(method, path, **options)  # type: ignore[arg-type]

        return asyncio.run(run())

    return ask


def test_weights_are_let_go_and_the_next_request_gets_the_same_bits(home: Path) -> None:
    plan, clock = plan_of(home), Clock()
    served = [load_served(entry, plan, SilentProgress()) for entry in plan.entries]
    service = Service(served, ServerSettings(idle_unload_s=60), clock=clock)
    asyncio.run(service.start())
    ask = asker(service)

    def answers() -> tuple[bytes, list[np.float32]]:
        vectors = vectors_of(ask("POST", "/v1/embeddings", json={"input": TEXTS}))
        return vectors.tobytes(), scores_of(ask("POST", "/v1/rerank", json={"query": "when", "documents": TEXTS}))

    try:
        before = answers()
        loaded_bytes = mapped_bytes(home)
        assert loaded_bytes > 1 << 20
        for cycle in (1, 2):
            clock.now_s += 60
            assert service.unload_idle() == [EMBEDDER, RERANKER]
            assert mapped_bytes(home) == 0
            assert ask("GET", "/ready").json()["models"] == {EMBEDDER: "unloaded", RERANKER: "unloaded"}
            assert [model["state"] for model in ask("GET", "/info").json()["models"]] == ["unloaded"] * 2
            assert mapped_bytes(home) == 0  # nothing that only looks loads them
            assert answers() == before
            assert mapped_bytes(home) == loaded_bytes
            counted = f'samevec_load_seconds_count{{model="{EMBEDDER}"}} {cycle}.0'
            assert counted in ask("GET", "/metrics").text
    finally:
        service.stop()


def test_a_receipt_that_went_stale_while_unloaded_is_refused(home: Path) -> None:
    plan, clock = plan_of(home), Clock()
    service = Service(
        [load_served(plan.entries[0], plan, SilentProgress())], ServerSettings(idle_unload_s=60), clock=clock
    )
    asyncio.run(service.start())
    ask = asker(service)
    try:
        clock.now_s += 60
        assert service.unload_idle() == [EMBEDDER]
        rewrite_receipt(home, EMBEDDER, onnxruntime_version="0.0.1")
        refused = ask("POST", "/v1/embeddings", json={"input": "a"})
        assert refused.status_code == 503
        assert "stale: onnxruntime 0.0.1 -> " in refused.json()["error"]["message"]
        assert ask("GET", "/ready").status_code == 503
        assert mapped_bytes(home) == 0
    finally:
        service.stop()


def test_the_flag_unloads_by_the_clock(exported: ToyHome, tmp_path: Path) -> None:
    embedder = load_embedder(EMBEDDER, home=exported.path, lock="toy")
    reranker = load_reranker(RERANKER, home=exported.path, lock="toy")
    where = ("--lock", "toy", "--home", exported.path, "--idle-unload-s", "0.2")
    with serving(*where, folder=tmp_path) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        for _ in range(3):
            # However long it takes; the watchdog of `serving` ends a server that never unloads.
            while set(client.get("/ready").json()["models"].values()) != {"unloaded"}:
                os.sched_yield()
            assert mapped_bytes(exported.path, server.process.pid) == 0
            vectors = vectors_of(client.post("/v1/embeddings", json={"model": EMBEDDER, "input": TEXTS}))
            assert vectors.tobytes() == embedder.encode(TEXTS).tobytes()
            body = {"model": RERANKER, "query": "when", "documents": TEXTS}
            own = reranker.score([("when", text) for text in TEXTS])
            assert scores_of(client.post("/v1/rerank", json=body)) == own.tolist()
        assert server.stop() == 0
