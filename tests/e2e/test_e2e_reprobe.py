"""``--reprobe`` with really exported models: a session that begins to give other bits is found out and refused."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from unittest import mock

import httpx
import numpy as np
import pytest
from e2e_tools import EMBEDDER, LOCK, RERANKER, TOYS, serving

from samevec import gate, load_embedder, opening
from samevec.cli.serve import ServePlan, load_served
from samevec.errors import ParityFailedError
from samevec.hints import Commands
from samevec.progress import SilentProgress
from samevec.runtime.embedder import Embedder
from samevec.runtime.sessions.base import Session
from samevec.server.http.app import create_app
from samevec.server.service import Service
from samevec.server.settings import ServerSettings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from e2e_tools import ToyHome
    from numpy.typing import NDArray

    from samevec.runtime.collate import Features
    from samevec.runtime.rows import TokenRow
    from samevec.server.settings import ServedModel

pytestmark = [pytest.mark.model, pytest.mark.server]


@dataclass
class FailingCore(Session):
    """A session whose first output is one unit in the last place too great, once told to be."""

    inner: Session
    is_wrong: bool = False

    @property
    def provider(self) -> str:
        return self.inner.provider

    def run(self, features: Features, **how: Any) -> NDArray[np.float32]:
        raw = self.inner.run(features, **how)
        if self.is_wrong:
            raw[:, 0] = np.nextafter(raw[:, 0], np.float32(np.inf))
        return raw


def with_core(served: ServedModel) -> tuple[ServedModel, FailingCore]:
    engine = served.model.engine
    core = FailingCore(engine.session)
    return replace(served, model=replace(served.model, engine=replace(engine, session=core))), core


async def look(service: Service, core: FailingCore) -> None:
    transport = httpx.ASGITransport(app=create_app(service))
    async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as client:
        await service.reprobing.probe_all()
        assert (await client.get("/ready")).status_code == 200
        core.is_wrong = True
        await service.reprobing.probe_all()
        ready = await client.get("/ready")
        assert ready.status_code == 503
        (reason,) = ready.json()["reasons"]
        assert reason.startswith(f"{EMBEDDER}: a repeated probe has other bits than at export, in case ")
        refused = await client.post("/v1/embeddings", json={"input": "a"})
        assert (refused.status_code, refused.json()["error"]["message"]) == (503, reason)
        ranked = await client.post("/v1/rerank", json={"query": "a", "documents": ["b"]})
        assert ranked.status_code == 200
        metrics = (await client.get("/metrics")).text
        for name, outcome, n in ((EMBEDDER, "passed", 1), (EMBEDDER, "failed", 1), (RERANKER, "passed", 2)):
            assert f'samevec_probes_total{{model="{name}",outcome="{outcome}"}} {n}.0' in metrics


def test_a_core_that_begins_to_give_other_bits_is_found_out(exported: ToyHome) -> None:
    home, entries = exported.path, tuple(map(LOCK.model, TOYS))
    commands = Commands(lock="toy", home=home)
    plan = ServePlan(lock=LOCK, entries=entries, home=home, commands=commands, settings=ServerSettings(reprobe_s=60))
    embedder, core = with_core(load_served(entries[0], plan, SilentProgress()))
    service = Service([embedder, load_served(entries[1], plan, SilentProgress())], ServerSettings(reprobe_s=60))

    async def run() -> None:
        await service.start()
        await look(service, core)

    try:
        asyncio.run(run())
    finally:
        service.stop()


def test_reference_and_answers_are_read_once(exported: ToyHome, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    for module, name in ((gate, "read_reference"), (opening, "read_answers")):
        reads.append(mock.Mock(wraps=getattr(module, name)))
        monkeypatch.setattr(module, name, reads[-1])
    home, entry = exported.path, LOCK.model(EMBEDDER)
    commands = Commands(lock="toy", home=home)
    plan = ServePlan(lock=LOCK, entries=(entry,), home=home, commands=commands, settings=ServerSettings(reprobe_s=60))
    assert load_served(entry, plan, SilentProgress()).probe is not None
    assert [read.call_count for read in reads] == [1, 1]


def test_a6_a_prompt_with_a_space_more_is_not_served(exported: ToyHome, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenize = Embedder.tokenize

    def spaced(self: Embedder, texts: Sequence[str], *, prompt: str | None = None, **options: Any) -> list[TokenRow]:
        return tokenize(self, [" " * (prompt is not None) + text for text in texts], prompt=prompt, **options)

    monkeypatch.setattr(Embedder, "tokenize", spaced)
    with pytest.raises(ParityFailedError, match=r"the start-up probe differs from the reference: .* prompt query"):
        load_embedder(EMBEDDER, home=exported.path, lock="toy")


def test_the_flag_repeats_the_probe(exported: ToyHome, tmp_path: Path) -> None:
    where = ("--lock", "toy", "--home", exported.path, "--reprobe", "0.05")
    none_yet = [f'samevec_probes_total{{model="{name}",outcome="passed"}} 0.0' for name in TOYS]
    with serving(*where, folder=tmp_path) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        # However long it takes; the watchdog of `serving` ends a server that never probes.
        while any(line in client.get("/metrics").text for line in none_yet):
            os.sched_yield()
        assert client.get("/ready").status_code == 200
        assert server.stop() == 0
