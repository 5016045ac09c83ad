"""Many clients of a server process on the exported toy pair: bits as alone in any company, and memory comes back."""

from __future__ import annotations

import asyncio
import sys
from itertools import islice
from typing import TYPE_CHECKING

import httpx
import pytest
from e2e_tools import EMBEDDER, RERANKER, serving

from benchmarks.load_clients import (
    Tally,
    ask_at_once,
    ask_in_turn,
    clients,
    known_answers,
    raise_open_files,
)
from benchmarks.memory import read_memory
from samevec.load import load_embedder, load_reranker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from e2e_tools import Live, ToyHome

    from benchmarks.load_clients import Channel, Known, Request

pytestmark = [
    pytest.mark.model,
    pytest.mark.server,
    pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of another process as Linux tells it"),
]

N_CLIENTS, N_REQUESTS, N_CONNECTIONS, N_BURST, MAX_QUEUE = 40, 5, 200, 1000, 60


def draw(known: Known, url: str, path: Path, n_clients: int, seed: int) -> list[tuple[Channel, Iterator[Request]]]:
    return list(clients(n_clients, known, url=url, socket_path=path, embedder=EMBEDDER, seed=seed))


async def connect(known: Known, url: str, path: Path, n_connections: int) -> Tally:
    """Let each of many connections, all open before, send one request in the same instant."""
    tally, drawn = Tally(), draw(known, url, path, n_connections, 1000)
    await ask_at_once([channel for channel, _ in drawn], [next(requests) for _, requests in drawn], tally)
    return tally


async def wave(known: Known, url: str, path: Path, seed: int) -> Tally:
    tally, drawn = Tally(), draw(known, url, path, N_CONNECTIONS, seed)
    await asyncio.gather(
        *(
            ask_in_turn(channel, islice(requests, N_REQUESTS), tally, patience_s=0.1)
            for channel, requests in drawn[:N_CLIENTS]
        )
    )
    await ask_at_once([channel for channel, _ in drawn], [next(requests) for _, requests in drawn], tally)
    return tally


async def private_bytes_at_rest(server: Live, *, looks: int) -> int:
    """The least of some readings while nothing is asked: what was freed is given back after a second or two."""
    while httpx.get(f"{server.url}/info").json()["queue"]["items"]:
        await asyncio.sleep(0.1)
    least = read_memory(server.process.pid).private_bytes
    for _ in range(looks):
        await asyncio.sleep(0.25)
        least = min(least, read_memory(server.process.pid).private_bytes)
    return least


def warm_up(url: str) -> None:
    """Have both models open the session that bulk microbatches share: it stays, and belongs to no wave."""
    texts = [f"{number} " * 400 for number in range(40)]
    with httpx.Client(base_url=url, timeout=60) as client:
        client.post("/v1/embeddings", json={"model": EMBEDDER, "input": texts}).raise_for_status()
        ranking = {"model": RERANKER, "query": "which?", "documents": texts}
        client.post("/v2/rerank", json=ranking).raise_for_status()


def test_many_clients(exported: ToyHome, tmp_path: Path) -> None:
    embed = load_embedder(EMBEDDER, home=exported.path, lock="toy")
    rerank = load_reranker(RERANKER, home=exported.path, lock="toy")
    known = known_answers(lambda text: embed.encode([text])[0], lambda *pair: rerank.score([pair])[0])
    path = tmp_path / "s.sock"
    raise_open_files(N_BURST + 200)
    where = ("--lock", "toy", "--home", exported.path, "--socket", path, "--max-queue", MAX_QUEUE)
    with serving(*where, folder=tmp_path, timeout_s=240) as server:
        warm_up(server.url)
        tallies, readings = [], []
        for seed in (0, 0, 0):
            tallies.append(asyncio.run(wave(known, server.url, path, seed)))
            readings.append(asyncio.run(private_bytes_at_rest(server, looks=14)))
        for tally in tallies:
            assert tally.faults == []
            assert tally.statuses[200] + tally.statuses[429] == tally.sent == N_CLIENTS * N_REQUESTS + N_CONNECTIONS
        assert readings[2] <= 1.05 * readings[0], readings
        for _ in range(2):
            burst = asyncio.run(connect(known, server.url, path, N_BURST))
            assert burst.faults == []
            assert burst.statuses[200] + burst.statuses[429] == N_BURST
            readings.append(asyncio.run(private_bytes_at_rest(server, looks=14)))
        assert readings[3] <= 1.3 * readings[2], readings  # Python's allocator keeps what 1,000 requests at once took
        assert readings[4] <= 1.05 * readings[3], readings
        assert server.stop() == 0
