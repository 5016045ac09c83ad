"""Many clients at once, counted: every answer right, every refusal with its time, nothing lost (also test_e2e_load)."""

from __future__ import annotations

import asyncio
import dataclasses
import resource
import threading
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import pytest
from live_server import live
from stand_ins import EMBEDDER, Script, alone, embedder, reranker, scores_alone

from benchmarks.load_clients import (
    Tally,
    ask_at_once,
    ask_in_turn,
    clients,
    known_answers,
    raise_open_files,
)
from samevec.server.lifecycle import running_server
from samevec.server.settings import ServedModel, ServerSettings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.load_clients import Known

pytestmark = pytest.mark.server

N_CLIENTS, N_REQUESTS, N_CONNECTIONS = 40, 10, 200
FEW_FILES = 150
KINDS = {
    *("/v1/embeddings base64", "/v1/embeddings float", "/embed", "socket embed"),
    *("/v1/rerank", "/v2/rerank", "/rerank jina", "/rerank tei", "socket rerank"),
}


@pytest.fixture(scope="module")
def known() -> Known:
    return known_answers(lambda text: alone([text])[0], lambda query, document: scores_alone(query, [document])[0])


async def wave(known: Known, *, url: str, path: Path, seed: int = 0) -> Tally:
    """Some requests of each of many clients, then many connections at once."""
    tally = Tally()
    await asyncio.gather(
        *(
            ask_in_turn(channel, islice(requests, N_REQUESTS), tally, patience_s=0.05)
            for channel, requests in clients(N_CLIENTS, known, url=url, socket_path=path, embedder=EMBEDDER, seed=seed)
        )
    )
    channels, requests = zip(
        *clients(N_CONNECTIONS, known, url=url, socket_path=path, embedder=EMBEDDER, seed=seed + 1000), strict=True
    )
    await ask_at_once(channels, [next(one) for one in requests], tally)
    return tally


@contextmanager
def few_open_files(n_files: int) -> Iterator[None]:
    """Let processes that start in a block have few files until they ask for more."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (n_files, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_many_clients_of_a_server_process(tmp_path: Path, known: Known) -> None:
    path = tmp_path / "s.sock"
    settings = {"port": 0, "socket": str(path), "max_queue_items": 60}
    with few_open_files(FEW_FILES):
        server_of = live(settings, home=tmp_path, script={"delay_s": 0.001})
        server = server_of.__enter__()
    try:
        raise_open_files(N_CONNECTIONS + 100)
        tally = asyncio.run(wave(known, url=server.url, path=path))
        assert tally.faults == []
        assert tally.sent == N_CLIENTS * N_REQUESTS + N_CONNECTIONS
        assert tally.statuses[200] + tally.statuses[429] == tally.sent
        assert set(tally.kinds) == KINDS
        assert server.stop() == 0
        assert server.process.stderr is not None
        assert server.process.stderr.read() == "loading weights\n"
    finally:
        server_of.__exit__(None, None, None)


def test_whoever_is_refused_is_told_when_to_come_again_and_then_served(tmp_path: Path, known: Known) -> None:
    path, gate, max_items = tmp_path / "s.sock", threading.Event(), 30
    models = [ServedModel(model=embedder(Script(gate=gate))), ServedModel(model=reranker(Script(gate=gate)))]
    settings = ServerSettings(port=0, socket=path, max_queue_items=max_items)
    with running_server(models, settings) as endpoints:
        drawn = list(clients(N_CONNECTIONS, known, url=endpoints.url, socket_path=path, embedder=EMBEDDER, seed=7))
        channels, requests = [channel for channel, _ in drawn], [next(one) for _, one in drawn]

        async def run() -> tuple[Tally, Tally]:
            first, again = Tally(), Tally()
            asking = asyncio.create_task(ask_at_once(channels, requests, first))
            while first.statuses[429] < N_CONNECTIONS - max_items and not asking.done():  # an item each at least
                await asyncio.sleep(0.01)
            assert first.statuses[200] == 0
            gate.set()
            await asking
            for channel, request in zip(channels, requests, strict=True):
                await again.ask(channel, request)
                channel.close()
            return first, again

        first, again = asyncio.run(run())
    assert first.faults == again.faults == []
    assert first.statuses[200] >= 1
    assert first.statuses[200] + first.statuses[429] == N_CONNECTIONS
    assert again.statuses == {200: N_CONNECTIONS}


def test_a_wrong_bit_is_seen(tmp_path: Path, known: Known) -> None:
    path, one_up = tmp_path / "s.sock", np.float32(np.inf)
    off = dataclasses.replace(
        known, vectors=np.nextafter(known.vectors, one_up), scores=np.nextafter(known.scores, one_up)
    )
    with running_server(
        [ServedModel(model=embedder()), ServedModel(model=reranker())], ServerSettings(port=0, socket=path)
    ) as endpoints:
        tally = asyncio.run(wave(off, url=endpoints.url, path=path))
    assert tally.statuses == {200: tally.sent}
    assert len(tally.faults) == tally.sent
