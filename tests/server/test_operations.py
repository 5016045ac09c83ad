"""What operators see of a served model: metrics, the page, keys, other origins, unloading; and what they do not see."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import logging
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from stand_ins import (
    EMBEDDER,
    NAN,
    RERANKER,
    InProcess,
    Script,
    alone,
    embedder,
    in_process,
    reranker,
    vectors_of,
    wait_until,
)

from samevec.errors import ConfigError, StaleReceiptError
from samevec.runtime.sessions.reloadable import Reloadable
from samevec.server.settings import ServedModel, ServerSettings
from samevec.server.telemetry.log import RequestLog

if TYPE_CHECKING:
    from samevec.runtime.engine import Engine
    from samevec.server.telemetry.records import BatchRecord, RequestRecord

SECRET = "a text that nobody may read in a log"


def scrape(server: InProcess, **options: Any) -> dict[str, float]:
    answer = server.ask("GET", "/metrics", **options)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


class Heard:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.requests: list[RequestRecord] = []
        self.batches: list[BatchRecord] = []

    def request_ended(self, record: RequestRecord) -> None:
        self.requests.append(record)

    def batch_ended(self, record: BatchRecord) -> None:
        self.batches.append(record)


def test_a_scrape_after_real_requests() -> None:
    with in_process() as server:
        assert server.embed({"input": ["abc", "d" * 3000]}).status_code == 200
        assert server.rerank({"query": "q", "documents": ["d"]}).status_code == 200
        assert server.embed({"input": NAN}).status_code == 500
        assert server.ask("GET", "/nowhere/%0a").status_code == 404
        assert server.ask("GET", "/embed").status_code == 405
        found = scrape(server)
    assert found["samevec_requests_total{route=/v1/embeddings,status=200}"] == 1
    assert found["samevec_requests_total{route=/v1/embeddings,status=500}"] == 1
    assert found["samevec_requests_total{route=other,status=404}"] == 1
    assert found["samevec_requests_total{route=/embed,status=405}"] == 1
    assert found["samevec_errors_total{kind=non_finite_output}"] == 1
    assert found["samevec_errors_total{kind=invalid_request_error}"] == 2
    assert found[f"samevec_items_total{{model={EMBEDDER}}}"] == 2
    assert found[f"samevec_tokens_total{{model={EMBEDDER}}}"] == 4 + 2048
    assert found[f"samevec_truncated_items_total{{model={EMBEDDER}}}"] == 1
    assert found[f"samevec_truncated_tokens_total{{model={EMBEDDER}}}"] == 3001 - 2048
    for phase in ("tokenise", "queue", "run"):
        assert found[f"samevec_{phase}_seconds_count{{model={RERANKER}}}"] == 1
    assert found[f"samevec_microbatch_rows_sum{{model={RERANKER}}}"] == 1
    assert found["samevec_queue_items{}"] == 0
    assert found[f"samevec_receipt_state{{model={EMBEDDER},state=passed}}"] == 1
    assert found["samevec_memory_private_bytes{}"] > 1e6


def test_the_record_of_one_request() -> None:
    heard = Heard()
    with in_process() as server:
        server.service.observe(heard)
        answer = server.embed({"input": ["ab", "abcdef"]}, headers={"x-request-id": "mine-1"})
        assert answer.headers["x-request-id"] == "mine-1"
        generated = server.ask("GET", "/health", headers={"x-request-id": "two\twords"}).headers["x-request-id"]
        wait_until(lambda: bool(heard.batches))
    first, second = heard.requests
    assert (first.route, first.request_id, first.status, first.error) == ("/v1/embeddings", "mine-1", 200, None)
    assert (first.model, first.items, first.tokens, first.cut_items) == (EMBEDDER, 2, 3 + 7, 0)
    assert [phase.name for phase in first.phases] == ["tokenise", "queue", "run"]
    assert all(a.end_s <= b.start_s for a, b in zip(first.phases, first.phases[1:], strict=False))
    assert first.start_s <= first.phases[0].start_s
    assert first.phases[-1].end_s <= first.end_s
    assert second.request_id == generated
    assert len(generated) == 32
    (batch,) = heard.batches  # padded to a multiple of 4
    assert (batch.model, batch.rows, batch.useful_tokens, batch.padded_tokens) == (EMBEDDER, 2, 10, 16)


def test_a_client_that_left_and_one_that_was_refused() -> None:
    heard, script = Heard(), Script(gate=threading.Event())
    settings = ServerSettings(max_queue_items=1)
    with in_process(ServedModel(model=embedder(script)), settings=settings) as server:
        server.service.observe(heard)

        async def meet() -> None:
            async with server.client() as client:
                waiting = asyncio.ensure_future(
                    client.post("/v1/embeddings", json={"input": "a"}, headers={"x-request-timeout-s": "2"})
                )
                while not script.entered.is_set():
                    await asyncio.sleep(0.01)
                assert (await client.post("/v1/embeddings", json={"input": "b"})).status_code == 429
                assert (await waiting).status_code == 504

        asyncio.run(meet())
        assert script.gate is not None
        script.gate.set()
    assert [(one.status, one.error) for one in heard.requests] == [(429, "overloaded"), (504, "deadline_exceeded")]
    assert [phase.name for phase in heard.requests[1].phases] == ["tokenise", "queue", "run"]


def test_info_tells_what_a_receipt_is_bound_to() -> None:
    bound = {"onnxruntime_version": "1.32.0", "session_options": {"graph": "all"}}
    with in_process(ServedModel(model=embedder(), bound_to=bound)) as server:
        assert server.ask("GET", "/info").json()["models"][0]["receipt"]["bound_to"] == bound


def test_with_keys_info_and_metrics_need_one() -> None:
    with in_process(api_keys=["key-1", "kä:y-2"]) as server:
        for path in ("/metrics", "/info"):
            assert server.ask("GET", path).status_code == 401
            assert server.ask("GET", path, headers={"authorization": "Bearer key-1"}).status_code == 200
            assert server.ask("GET", path, headers={"authorization": "Bearer key-"}).status_code == 401
            # A browser adds a password to every request by itself: it is no key.
            basic = base64.b64encode(b"any:key-1").decode()
            assert server.ask("GET", path, headers={"authorization": f"Basic {basic}"}).status_code == 401
        second = "Bearer kä:y-2".encode()
        assert server.ask("GET", "/info", headers={b"authorization": second}).status_code == 200
        assert server.ask("GET", "/info").headers["www-authenticate"] == "Bearer"
        found = scrape(server, headers={"authorization": "Bearer key-1"})
        assert found["samevec_errors_total{kind=authentication_error}"] == 7


def test_keys_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(given: bytes, key: bytes) -> bool:
        compared.append((given, key))
        return given == key

    monkeypatch.setattr("samevec.server.http.app.hmac.compare_digest", compare)
    with in_process(api_keys=["first", "second"]) as server:
        server.ask("GET", "/info", headers={"authorization": "Bearer first"})
    assert compared == [(b"first", b"first"), (b"first", b"second")]  # every key, also after a match


def preflight(server: InProcess, origin: str) -> Any:
    headers = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    return server.ask("OPTIONS", "/v1/embeddings", headers=headers)


def test_other_origins_only_where_they_are_named() -> None:
    origin = "https://example.org"
    with in_process() as server:
        assert preflight(server, origin).status_code == 405
        answer = server.embed({"input": "a"}, headers={"origin": origin})
        assert not any(name.startswith("access-control") for name in answer.headers)
    settings = ServerSettings(cors_origins=(origin,))
    with in_process(settings=settings, api_keys=["k"]) as server:
        assert preflight(server, origin).headers["access-control-allow-origin"] == origin
        assert "access-control-allow-origin" not in preflight(server, "https://example.com").headers
        headers = {"origin": origin, "authorization": "Bearer k"}
        answer = server.embed({"input": "a"}, headers=headers)
        assert answer.headers["access-control-allow-origin"] == origin
        exposed = answer.headers["access-control-expose-headers"].split(", ")
        assert {"x-samevec-truncated", "x-samevec-digest"} < set(exposed)
        assert server.embed({"input": "a"}, headers={"origin": origin}).status_code == 401


@pytest.mark.parametrize("origin", ["example.org", "https://example.org/", "https://a b", "null", ""])
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(ConfigError, match="--cors-origin"):
        ServerSettings(cors_origins=(origin,))


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Reopening:
    """A served model that may be unloaded, and what its reopening does."""

    def __init__(self) -> None:
        self.n_opened = 0
        self.error: Exception | None = None
        first = embedder()
        reloadable = Reloadable(first.engine, self._open)
        self.served = ServedModel(model=dataclasses.replace(first, engine=reloadable.engine), reloadable=reloadable)

    def _open(self) -> Engine:
        self.n_opened += 1
        if self.error is not None:
            raise self.error
        return embedder().engine


def test_an_idle_model_is_unloaded_and_the_next_request_pays() -> None:
    model, clock, heard = Reopening(), Clock(), Heard()
    other = ServedModel(model=reranker())
    with in_process(model.served, other, settings=ServerSettings(idle_unload_s=60), clock=clock) as server:
        server.service.observe(heard)
        clock.now_s += 59
        assert server.service.unload_idle() == []
        clock.now_s += 1
        assert server.service.unload_idle() == [EMBEDDER]
        ready = server.ask("GET", "/ready")
        assert ready.status_code == 200
        assert ready.json()["models"] == {EMBEDDER: "unloaded", RERANKER: "loaded"}
        assert scrape(server)[f"samevec_model_loaded{{model={EMBEDDER}}}"] == 0
        assert server.ask("GET", "/info").json()["models"][0]["state"] == "unloaded"
        assert model.n_opened == 0  # nothing that only looks loads it
        assert np.array_equal(vectors_of(server.embed({"input": "abc"})), alone(["abc"]))
        assert model.n_opened == 1
        assert server.ask("GET", "/info").json()["models"][0]["state"] == "loaded"
        assert np.array_equal(vectors_of(server.embed({"input": "abc"})), alone(["abc"]))
        assert model.n_opened == 1
        computed = [one for one in heard.requests if one.model is not None]
        assert [[phase.name for phase in one.phases] for one in computed] == [
            ["tokenise", "load", "queue", "run"],
            ["tokenise", "queue", "run"],
        ]
        assert scrape(server)[f"samevec_load_seconds_count{{model={EMBEDDER}}}"] == 1


def test_a_gate_that_closed_meanwhile_refuses_and_opens_again() -> None:
    model, clock = Reopening(), Clock()
    with in_process(model.served, settings=ServerSettings(idle_unload_s=1), clock=clock) as server:
        clock.now_s += 2
        server.service.unload_idle()
        model.error = StaleReceiptError("m: stale", changes=["onnxruntime 1 -> 2"], fix="samevec parity")
        refused = server.embed({"input": "abc"})
        assert refused.status_code == 503
        assert refused.json()["error"]["message"] == "m: stale; run: samevec parity"
        ready = server.ask("GET", "/ready")
        reason = f"{EMBEDDER}: could not be loaded again: m: stale; run: samevec parity"
        assert (ready.status_code, ready.json()["reasons"]) == (503, [reason])
        model.error = None  # proved again
        assert server.embed({"input": "abc"}).status_code == 200
        assert server.ask("GET", "/ready").status_code == 200


def test_a_model_is_not_unloaded_under_a_request() -> None:
    script, clock = Script(gate=threading.Event()), Clock()
    first = embedder(script)
    reloadable = Reloadable(first.engine, lambda: embedder().engine)
    served = ServedModel(model=dataclasses.replace(first, engine=reloadable.engine), reloadable=reloadable)
    with in_process(served, settings=ServerSettings(idle_unload_s=1), clock=clock) as server:

        async def meet() -> None:
            async with server.client() as client:
                waiting = asyncio.ensure_future(client.post("/v1/embeddings", json={"input": "a"}))
                while not script.entered.is_set():
                    await asyncio.sleep(0.01)
                clock.now_s += 100
                assert server.service.unload_idle() == []
                assert script.gate is not None
                script.gate.set()
                assert (await waiting).status_code == 200
                assert server.service.unload_idle() == []
                clock.now_s += 1
                assert server.service.unload_idle() == [EMBEDDER]

        asyncio.run(meet())


def test_no_line_of_the_log_and_no_metric_holds_what_was_sent(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with in_process() as server:
        server.service.observe(RequestLog("all"))
        for body in ({"input": SECRET}, {"input": [SECRET, NAN]}, {"input": SECRET, SECRET: 1}, {"model": SECRET}):
            server.embed(body)
        server.ask("GET", f"/{SECRET}", headers={"x-request-id": SECRET})
        told = server.ask("GET", "/metrics").text + server.ask("GET", "/").text
    assert len([record for record in caplog.records if record.name == "samevec.requests"]) == 7
    written = "\n".join(str(vars(record)) for record in caplog.records if record.name.startswith("samevec"))
    assert "items=2" in written
    assert SECRET not in written
    assert SECRET not in told
