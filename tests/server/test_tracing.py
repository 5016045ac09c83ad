"""OpenTelemetry spans: names, times, parents, and that no text is in them; with the SDK's in-memory exporter."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from stand_ins import in_process

from samevec.errors import ConfigError
from samevec.server.telemetry.records import Phase, RequestRecord
from samevec.server.telemetry.tracing import Traces, otlp_traces, traceparent_context

memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
sdk = importlib.import_module("opentelemetry.sdk.trace")
export = importlib.import_module("opentelemetry.sdk.trace.export")


def traces() -> tuple[Traces, Any]:
    kept = memory.InMemorySpanExporter()
    provider = sdk.TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(export.SimpleSpanProcessor(kept))
    return (
        Traces(
            provider.get_tracer("t"),
            context_of=traceparent_context,
            clock=lambda: 100.0,
            wall_ns=lambda: 5_000_000_000_000,
        ),
        kept,
    )


def test_spans_have_the_times_and_parents_of_the_request() -> None:
    written, kept = traces()
    written.request_ended(
        RequestRecord(
            route="/embed",
            request_id="r1",
            traceparent=f"00-{'a' * 32}-{'b' * 16}-01",
            start_s=101.0,
            end_s=104.0,
            status=200,
            model="m",
            items=2,
            tokens=9,
            phases=[Phase("tokenise", 101.5, 102.0), Phase("queue", 102.0, 103.0), Phase("run", 103.0, 103.5)],
        )
    )
    spans = {span.name: span for span in kept.get_finished_spans()}
    assert list(spans) == ["tokenise", "queue", "run", "samevec /embed"]
    request = spans["samevec /embed"]
    assert (request.start_time, request.end_time) == (5_001_000_000_000, 5_004_000_000_000)
    assert format(request.context.trace_id, "032x") == "a" * 32
    assert format(request.parent.span_id, "016x") == "b" * 16
    for name in ("tokenise", "queue", "run"):
        assert spans[name].parent.span_id == request.context.span_id
    assert spans["queue"].end_time - spans["queue"].start_time == 1_000_000_000
    assert dict(request.attributes) == {
        "http.route": "/embed",
        "http.response.status_code": 200,
        "samevec.request_id": "r1",
        "samevec.model": "m",
        "samevec.items": 2,
        "samevec.tokens": 9,
        "samevec.cut_items": 0,
    }


def test_a_served_request_is_traced_without_its_text() -> None:
    written, kept = traces()
    with in_process() as server:
        server.service.observe(written)
        parent = f"00-{'1' * 32}-{'2' * 16}-01"
        assert server.embed({"input": "private words"}, headers={"traceparent": parent}).status_code == 200
        assert server.embed({"input": "private words"}, headers={"traceparent": "private words"}).status_code == 200
    first, second = (span for span in kept.get_finished_spans() if span.name == "samevec /v1/embeddings")
    assert format(first.context.trace_id, "032x") == "1" * 32
    assert second.parent is None
    assert [span.name for span in kept.get_finished_spans()][:4] == ["tokenise", "queue", "run", first.name]
    assert "private" not in "".join(span.to_json() for span in kept.get_finished_spans())


def test_without_the_extra_the_flag_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("samevec.server.telemetry.tracing.importlib.import_module", absent)
    with pytest.raises(ConfigError, match=r"--otlp-endpoint needs: pip install 'samevec\[otel\]'"):
        otlp_traces("http://127.0.0.1:9/v1/traces")


def test_a_collector_that_is_not_there_costs_nothing_but_its_spans() -> None:
    sending = otlp_traces("http://127.0.0.1:9/v1/traces")
    sending.end()
