"""The probe repeated while serving: what it counts, whom it refuses, and what it leaves alone."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from stand_ins import EMBEDDER, Script, embedder, in_process, reranker, text_ids

from samevec.errors import ConfigError, NotReadyError
from samevec.lock import load_lock
from samevec.parity.probe import Probe, ProbeCall
from samevec.runtime.sessions.reloadable import Reloadable
from samevec.server.settings import ServedModel, ServerSettings

if TYPE_CHECKING:
    from stand_ins import InProcess

    from samevec.runtime.engine import Engine

TEXTS = ("a", "longer than that")
REPEATED = ServerSettings(reprobe_s=60)


def probe_of(*texts: str) -> Probe:
    """Ask for texts together, and expect what the fake model gives."""
    call = ProbeCall(
        cases=tuple(range(len(texts))),
        items=texts,
        expected=embedder().encode(texts, normalize=False),
        raw=True,
    )
    return Probe(library=(), server=((call,),), tolerance=load_lock("toy").tolerance)


def spoil(probe: Probe) -> None:
    """Have the probe expect something else."""
    probe.server[0][0].expected[1, 0] += 1


@dataclass
class StopsAfter:
    """Waiting that takes no time, and ends the loop at last."""

    n_waits: int
    waited_s: float = 0.0

    async def __call__(self, seconds: float) -> None:
        if not self.n_waits:
            raise StopLoopError
        self.n_waits -= 1
        self.waited_s += seconds


class StopLoopError(Exception):
    """The waiting is over."""


def repeat(server: InProcess, n_probes: int, every_s: float = 60.0) -> float:
    wait = StopsAfter(n_probes)
    with pytest.raises(StopLoopError):
        asyncio.run(server.service.reprobing.repeat(every_s, wait=wait))
    return wait.waited_s


def counted(server: InProcess) -> dict[str, int]:
    lines = server.ask("GET", "/metrics").text.splitlines()
    words = [line.split() for line in lines if line.startswith(f'samevec_probes_total{{model="{EMBEDDER}"')]
    return {name.split('outcome="')[1].rstrip('"}'): int(float(value)) for name, value in words}


def test_a_probe_that_fails_ends_the_service_of_its_model_alone(caplog: pytest.LogCaptureFixture) -> None:
    probe = probe_of(*TEXTS)
    served = ServedModel(model=embedder(), probe=probe)
    with in_process(served, ServedModel(model=reranker()), settings=REPEATED) as server:
        assert repeat(server, 3) == 180
        assert counted(server) == {"passed": 3, "failed": 0, "error": 0}
        assert server.ask("GET", "/ready").status_code == 200
        spoil(probe)
        with caplog.at_level(logging.ERROR):
            repeat(server, 3)
        (reason,) = [record.getMessage() for record in caplog.records]
        assert reason.startswith(f"{EMBEDDER}: a repeated probe differs from the reference: ")
        assert reason.endswith("; it is not served any more, restart the server")
        assert counted(server) == {"passed": 3, "failed": 1, "error": 0}
        ready = server.ask("GET", "/ready")
        assert (ready.status_code, ready.json()["reasons"]) == (503, [reason])
        for path, body in (("/v1/embeddings", {"input": "a"}), ("/embed", {"inputs": "a"})):
            refused = server.post(path, body)
            assert refused.status_code == 503
            assert reason in refused.text
        assert server.rerank({"query": "a", "documents": ["b"]}).status_code == 200


def test_what_was_computed_while_the_probe_failed_is_not_sent() -> None:
    with in_process(ServedModel(model=embedder(), probe=probe_of(*TEXTS))) as server:

        async def meet() -> int:
            async with server.client() as client:
                asked = asyncio.ensure_future(client.post("/v1/embeddings", json={"input": "a"}))
                while not server.service.info()["queue"]["items"]:
                    await asyncio.sleep(0)
                server.service.reprobing.failures[EMBEDDER] = "its probe failed"
                return (await asked).status_code

        assert asyncio.run(meet()) == 503


def test_values_that_are_not_finite_are_a_failure_and_other_errors_are_not() -> None:
    script = Script()
    model = embedder(script)
    script.poison.clear()
    script.nan.clear()
    probe = probe_of(*TEXTS)
    with in_process(ServedModel(model=model, probe=probe), settings=REPEATED) as server:
        script.poison.add(text_ids(TEXTS[1]))
        repeat(server, 2)
        assert counted(server) == {"passed": 0, "failed": 0, "error": 2}
        assert server.ask("GET", "/ready").status_code == 200
        script.poison.clear()
        repeat(server, 1)
        assert counted(server) == {"passed": 1, "failed": 0, "error": 2}
        script.nan.add(text_ids(TEXTS[1]))
        repeat(server, 2)
        assert counted(server) == {"passed": 1, "failed": 1, "error": 2}
        assert "a repeated probe came to nothing" in server.ask("GET", "/ready").json()["reasons"][0]


def test_a_server_does_not_start_with_a_probe_that_differs() -> None:
    probe = probe_of(*TEXTS)
    spoil(probe)
    refusal = (
        rf"^{EMBEDDER}: the start-up probe through the server differs from the reference: .*; run: samevec parity$"
    )
    with pytest.raises(NotReadyError, match=refusal), in_process(ServedModel(model=embedder(), probe=probe)):
        pytest.fail("it started")


def test_the_probe_is_one_small_microbatch() -> None:
    script = Script()
    with in_process(ServedModel(model=embedder(script), probe=probe_of(*TEXTS)), settings=REPEATED) as server:
        repeat(server, 1)
        assert script.shapes() == [(2, max(len(text_ids(text)) for text in TEXTS))] * 2  # one at the start


def test_an_unloaded_model_is_not_loaded_and_a_probe_does_not_keep_one() -> None:
    now_s = [0.0]
    opened: list[Engine] = []
    first = embedder()

    def reopen() -> Engine:
        opened.append(embedder().engine)
        return opened[-1]

    reloadable = Reloadable(first.engine, reopen)
    model = dataclasses.replace(first, engine=reloadable.engine)
    served = ServedModel(model=model, reloadable=reloadable, probe=probe_of(*TEXTS))
    with in_process(served, settings=ServerSettings(idle_unload_s=60, reprobe_s=60), clock=lambda: now_s[0]) as server:
        now_s[0] = 60
        repeat(server, 1)
        assert counted(server)["passed"] == 1
        assert server.service.unload_idle() == [EMBEDDER]
        repeat(server, 1)
        assert counted(server)["passed"] == 1
        assert not opened
        assert server.embed({"input": "a"}).status_code == 200
        repeat(server, 1)
        assert counted(server)["passed"] == 2


def test_no_probe_after_the_start_without_the_flag() -> None:
    script = Script()
    with in_process(ServedModel(model=embedder(script), probe=probe_of(*TEXTS))) as server:
        asyncio.run(server.service.reprobing.repeat(0.0, wait=StopsAfter(0)))
        assert len(script.shapes()) == 1
        assert "samevec_probes_total{" not in server.ask("GET", "/metrics").text


def test_a_negative_interval_is_refused() -> None:
    with pytest.raises(ConfigError, match="reprobe_s -1: a number of seconds"):
        ServerSettings(reprobe_s=-1)
