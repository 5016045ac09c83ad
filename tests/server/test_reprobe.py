"""The probe repeated while serving: what it counts, whom it refuses, and what it leaves alone."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest
from stand_ins import EMBEDDER, NAN, RERANKER, Script, embedder, in_process, reranker, text_ids

from samevec.errors import ConfigError
from samevec.runtime.rows import TokenRow
from samevec.runtime.sessions.reloadable import Reloadable
from samevec.server.settings import ServedModel, ServerSettings

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from stand_ins import InProcess

    from samevec.runtime.engine import Engine

ROWS = (TokenRow(text_ids("a")), TokenRow(text_ids("longer than that")))


@dataclass
class BitProbe:
    """Compares bits with those of a first run."""

    rows: tuple[TokenRow, ...] = ROWS
    expected: NDArray[np.float32] | None = None

    def problem(self, raw: NDArray[np.float32]) -> str | None:
        if self.expected is None:
            self.expected = raw.copy()
        return None if raw.tobytes() == self.expected.tobytes() else "has other bits"


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
    probe = BitProbe()
    served = ServedModel(model=embedder(), probe=probe)
    with in_process(served, ServedModel(model=reranker())) as server:
        assert repeat(server, 3) == 180
        assert counted(server) == {"passed": 3, "failed": 0, "error": 0}
        assert server.ask("GET", "/ready").status_code == 200
        assert probe.expected is not None
        probe.expected[1, 0] = np.nextafter(probe.expected[1, 0], np.float32(9))
        with caplog.at_level(logging.ERROR):
            repeat(server, 3)
        reason = f"{EMBEDDER}: a repeated probe has other bits; it is not served any more, restart the server"
        assert [record.getMessage() for record in caplog.records] == [reason]
        assert counted(server) == {"passed": 3, "failed": 1, "error": 0}
        ready = server.ask("GET", "/ready")
        assert (ready.status_code, ready.json()["reasons"]) == (503, [reason])
        for path, body in (("/v1/embeddings", {"input": "a"}), ("/embed", {"inputs": "a"})):
            refused = server.post(path, body)
            assert refused.status_code == 503
            assert reason in refused.text
        assert server.rerank({"query": "a", "documents": ["b"]}).status_code == 200


def test_what_was_computed_while_the_probe_failed_is_not_sent() -> None:
    with in_process(ServedModel(model=embedder(), probe=BitProbe())) as server:

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
    poisoned = ServedModel(model=embedder(script), probe=BitProbe(rows=(ROWS[0], TokenRow(text_ids("poison")))))
    with in_process(poisoned) as server:
        repeat(server, 2)
        assert counted(server) == {"passed": 0, "failed": 0, "error": 2}
        assert server.ask("GET", "/ready").status_code == 200
        script.poison.clear()
        repeat(server, 1)
        assert counted(server) == {"passed": 1, "failed": 0, "error": 2}
    unhealthy = ServedModel(model=embedder(), probe=BitProbe(rows=(ROWS[0], TokenRow(text_ids(NAN)))))
    with in_process(unhealthy) as server:
        repeat(server, 2)
        assert counted(server) == {"passed": 0, "failed": 1, "error": 0}
        assert "a repeated probe came to nothing" in server.ask("GET", "/ready").json()["reasons"][0]


def test_the_probe_is_one_small_microbatch() -> None:
    script = Script()
    with in_process(ServedModel(model=embedder(script), probe=BitProbe())) as server:
        repeat(server, 1)
        assert script.shapes() == [(2, max(row.n_tokens for row in ROWS))]


def test_an_unloaded_model_is_not_loaded_and_a_probe_does_not_keep_one() -> None:
    now_s = [0.0]
    opened: list[Engine] = []
    first = embedder()

    def reopen() -> Engine:
        opened.append(embedder().engine)
        return opened[-1]

    reloadable = Reloadable(first.engine, reopen)
    model = dataclasses.replace(first, engine=reloadable.engine)
    served = ServedModel(model=model, reloadable=reloadable, probe=BitProbe())
    with in_process(served, settings=ServerSettings(idle_unload_s=60), clock=lambda: now_s[0]) as server:
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


def test_no_probe_without_the_flag() -> None:
    with in_process(ServedModel(model=embedder(), probe=BitProbe()), ServedModel(model=reranker())) as server:
        asyncio.run(server.service.reprobing.repeat(0.0, wait=StopsAfter(0)))
        assert counted(server) == {"passed": 0, "failed": 0, "error": 0}
        assert f'samevec_probes_total{{model="{RERANKER}"' not in server.ask("GET", "/metrics").text


def test_a_negative_interval_is_refused() -> None:
    with pytest.raises(ConfigError, match="reprobe_s -1: a number of seconds"):
        ServerSettings(reprobe_s=-1)
