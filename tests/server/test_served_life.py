"""A server over held runs: small requests beside bulk ones, clients that leave, deaths, and the end."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest
from stand_ins import EMBEDDER, InProcess, alone, in_process, queued, text_ids, vectors_of, wait_until
from worker_bench import Call, Stage, StagedSession, served_stage, staged_embedder

from samevec.errors import SessionRunError
from samevec.runtime.collate import collate
from samevec.runtime.rows import TokenRow
from samevec.server import lifecycle as serve
from samevec.server.lifecycle import running_server
from samevec.server.settings import ServedModel, ServerSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

BULK = [f"{i:03} " * 200 for i in range(40)]  # 801 tokens each, so 5 a microbatch
DEADLY = text_ids("deadly")
ONE_TOKEN = collate([TokenRow((0,))], pad_token_id=0, pad_to_multiple=1)


@pytest.fixture
def stage() -> Stage:
    return served_stage()


@pytest.fixture
def two(stage: Stage) -> Iterator[InProcess]:
    """A server whose embedder has a thread for small requests and one for bulk."""
    with in_process(ServedModel(model=staged_embedder(stage, overlapping=True))) as server:
        yield server
        stage.release()


def kill(call: Call) -> None:
    if DEADLY in call.rows:
        raise SystemExit(1)


def test_o24_a_short_query_runs_while_bulk_work_is_held(two: InProcess, stage: Stage) -> None:
    async def run() -> None:
        stage.held = True
        async with two.client() as client:
            bulk = asyncio.create_task(client.post("/v1/embeddings", json={"input": BULK}))
            await asyncio.to_thread(stage.call, 0)
            query = asyncio.create_task(client.post("/v1/embeddings", json={"input": "q"}))
            call = await asyncio.to_thread(stage.call, 1)
            assert call.rows == [text_ids("q")]
            call.wake.set()
            assert np.array_equal(vectors_of(await query), alone(["q"]))
            assert not bulk.done()
            stage.release()
            assert np.array_equal(vectors_of(await bulk), alone(BULK))

    asyncio.run(run())


def test_a_client_that_leaves_ends_its_runs(stage: Stage) -> None:
    model = staged_embedder(stage, overlapping=True)
    stage.held = True
    with running_server([ServedModel(model=model)], ServerSettings(port=0)) as endpoints:
        client = http.client.HTTPConnection(str(urlsplit(endpoints.url).netloc), timeout=20)
        client.request("POST", "/v1/embeddings", json.dumps({"input": BULK}), {"content-type": "application/json"})
        held = stage.call(0)
        client.close()
        wait_until(lambda: held.cancelled)
        wait_until(lambda: queued(endpoints.url) == 0)
        assert stage.calls == [held]  # what had not begun never did
        stage.held = False
        answer = httpx.post(f"{endpoints.url}/v1/embeddings", json={"input": ["a", "b"]}, timeout=20)
        assert np.array_equal(vectors_of(answer), alone(["a", "b"]))


def test_a_deadline_ends_the_runs_it_leaves_unwanted(two: InProcess, stage: Stage) -> None:
    stage.held = True
    answer = two.embed({"input": BULK}, headers={"X-Request-Timeout-S": "0.05"})
    assert answer.status_code == 504
    wait_until(lambda: all(call.cancelled for call in stage.calls))
    stage.held = False
    assert two.embed({"input": "after"}).status_code == 200


def test_a_shared_run_goes_on_for_those_who_stay(two: InProcess, stage: Stage) -> None:
    async def run() -> None:
        stage.held = True
        async with two.client() as client:
            first = asyncio.create_task(client.post("/v1/embeddings", json={"input": "first"}))
            await asyncio.to_thread(stage.call, 0)
            others = [asyncio.create_task(client.post("/v1/embeddings", json={"input": text})) for text in ("b", "c")]
            while two.service.info()["queue"]["items"] < 3:
                await asyncio.sleep(0)
            stage.calls[0].wake.set()
            shared = await asyncio.to_thread(stage.call, 1)
            others[0].cancel()
            await asyncio.wait(others[:1])
            assert not shared.wake.is_set()
            stage.release()
            assert np.array_equal(vectors_of(await others[1]), alone(["c"]))
            assert len(shared.rows) == 2
            await first

    asyncio.run(run())


def test_death_is_503_until_the_restart_and_for_good_after_another(two: InProcess, stage: Stage) -> None:
    may_restart = threading.Event()

    def on_run(call: Call) -> None:
        if call.rows == [stage.canary]:
            assert may_restart.wait(20)
        kill(call)

    stage.on_run = on_run
    died = two.embed({"input": "deadly"})
    assert died.status_code == 503
    assert died.headers["retry-after"] == "1"
    ready = two.ask("GET", "/ready")
    reason = f"{EMBEDDER}: its worker died (SystemExit); it is being restarted"
    assert (ready.status_code, ready.json()["reasons"]) == (503, [reason])
    assert two.embed({"input": "a"}).status_code == 503
    may_restart.set()
    wait_until(lambda: two.ask("GET", "/ready").status_code == 200)
    assert np.array_equal(vectors_of(two.embed({"input": BULK})), alone(BULK))
    assert worker_info(two) == {"alive": True, "restarts": 1}
    assert two.embed({"input": "deadly"}).status_code == 503
    given_up = [f"{EMBEDDER}: its worker died (SystemExit); restart the server"]
    wait_until(lambda: two.ask("GET", "/ready").json()["reasons"] == given_up)
    assert two.embed({"input": "a"}).status_code == 503
    assert worker_info(two) == {"alive": False, "restarts": 1}


def worker_info(server: InProcess) -> dict[str, Any]:
    record = server.ask("GET", "/info").json()["models"][0]["worker"]
    assert record["interactive_beside_bulk"]
    return {name: record[name] for name in ("alive", "restarts")}


def test_retry_after_comes_from_the_measured_rate(stage: Stage) -> None:
    now = [0.0]
    settings = ServerSettings(max_queue_items=50)
    with in_process(
        ServedModel(model=staged_embedder(stage, overlapping=True)), settings=settings, clock=lambda: now[0]
    ) as server:

        def take_time(_: Call) -> None:
            now[0] += 0.01

        async def run() -> None:
            async with server.client() as client:
                stage.on_run = take_time
                for i in range(5):  # 100 tokens in 10 ms, one after another
                    await client.post("/v1/embeddings", json={"input": f"{i}" * 99})
                stage.held = True
                stage.on_run = lambda _: None
                bulk = asyncio.create_task(client.post("/v1/embeddings", json={"input": BULK}))
                await asyncio.to_thread(stage.call, 5)
                refused = await client.post("/v1/embeddings", json={"input": BULK[:20]})
                measured = server.service.info()["models"][0]["worker"]["tokens_per_s"]
                stage.release()
                await bulk
            assert measured == pytest.approx(10_000, rel=0.01)
            assert refused.status_code == 429
            assert refused.headers["retry-after"] == "4"  # 32,040 tokens at that rate, in whole seconds

        asyncio.run(run())


def test_memory_is_given_back_once_after_work(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[bool] = []
    monkeypatch.setattr(serve, "_LOOK_REST_S", 0.01)
    monkeypatch.setattr(serve, "give_back_memory", lambda: given.append(True))
    with running_server([ServedModel(model=staged_embedder(stage))], ServerSettings(port=0)) as endpoints:
        wait_until(lambda: len(given) == 1)  # what starting left
        stage.held = True
        with ThreadPoolExecutor() as clients:
            asked = clients.submit(httpx.post, f"{endpoints.url}/v1/embeddings", json={"input": "a"}, timeout=20)
            stage.call(0)
            threading.Event().wait(0.1)
            assert len(given) == 1
            stage.release()
            assert asked.result().status_code == 200
        wait_until(lambda: len(given) == 2)


def test_work_memory_is_given_back_at_rest_and_a_failure_is_only_logged(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    given: list[list[list[tuple[int, ...]]]] = []
    monkeypatch.setattr(serve, "_LOOK_REST_S", 0.01)
    monkeypatch.setattr(serve, "give_back_memory", lambda: given.append([call.rows for call in stage.calls]))
    monkeypatch.setattr(StagedSession, "release_memory", lambda self: self.run(ONE_TOKEN))
    model = staged_embedder(stage)
    with running_server([ServedModel(model=model)], ServerSettings(port=0)) as endpoints:
        wait_until(lambda: len(given) == 1)
        assert given == [[[(0,)]]]

        def fail(call: Call) -> None:
            if call.rows == given[0][0]:
                raise SessionRunError("no memory for that either")

        stage.on_run = fail
        for _ in range(2):
            assert httpx.post(f"{endpoints.url}/v1/embeddings", json={"input": "a"}, timeout=20).status_code == 200
        wait_until(lambda: len(given) == 2)
    assert "work memory could not be given back: no memory for that either" in caplog.text


def test_the_drain_lets_accepted_work_finish(stage: Stage) -> None:
    stage.held = True
    answers: list[httpx.Response] = []
    with ExitStack() as stack:
        model = staged_embedder(stage, overlapping=True)
        endpoints = stack.enter_context(running_server([ServedModel(model=model)], ServerSettings(port=0, drain_s=20)))

        def ask() -> None:
            answers.append(httpx.post(f"{endpoints.url}/v1/embeddings", json={"input": BULK}, timeout=30))

        client = threading.Thread(target=ask)
        client.start()
        stage.call(0)
        ending = threading.Thread(target=stack.close)
        ending.start()
        stage.release()
        client.join(20)
        ending.join(20)
        assert not ending.is_alive()
    assert np.array_equal(vectors_of(answers[0]), alone(BULK))


def test_runs_are_ended_when_the_drain_time_is_over(stage: Stage) -> None:
    stage.held = True
    answers: list[httpx.Response] = []
    with ExitStack() as stack:
        model = staged_embedder(stage, overlapping=True)
        settings = ServerSettings(port=0, drain_s=0.1)
        endpoints = stack.enter_context(running_server([ServedModel(model=model)], settings))

        def ask() -> None:
            answers.append(httpx.post(f"{endpoints.url}/v1/embeddings", json={"input": BULK}, timeout=30))

        client = threading.Thread(target=ask)
        client.start()
        stage.call(0)
        stack.close()
        client.join(20)
    assert answers[0].status_code == 503
    assert [call.cancelled for call in stage.calls] == [True]
