"""Metrics and records by themselves: what is counted, what labels may hold, what a scrape says."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from samevec.server.telemetry.metrics import Metrics, receipt_age_s
from samevec.server.telemetry.records import (
    BatchRecord,
    Observers,
    Phase,
    RequestRecord,
    current_record,
    note_error,
    observed,
)

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


def facts() -> dict[str, Any]:
    worker = {"alive": True, "restarts": 1, "tokens_per_s": 123.4, "token_budget": 4096}
    return {
        "version": "0.1.0",
        "versions": {"onnxruntime": "1.32.0", "numpy": "2.3"},
        "ready": True,
        "queue": {"items": 3, "tokens": 44, "bytes": 555},
        "models": [
            {
                "name": "m",
                "task": "embed",
                "profile": "cpu",
                "backend": "onnx",
                "provider": "CPUExecutionProvider",
                "state": "unloaded",
                "receipt": {"state": "passed", "created_at": "2026-11-30T11:00:00Z"},
                "worker": worker,
            }
        ],
    }


def metrics() -> Metrics:
    return Metrics(facts, memory=lambda: (1000, 2000), now=lambda: NOW)


def samples(scraped: Metrics) -> dict[str, float]:
    """Every sample, its labels in the name, as Prometheus's own reader understands the text."""
    found = {}
    for family in text_string_to_metric_families(scraped.render().decode()):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def test_a_request_is_counted_once_with_its_parts() -> None:
    scraped = metrics()
    phases = [Phase("tokenise", 0, 0.002), Phase("queue", 0.002, 0.5), Phase("run", 0.5, 3)]
    scraped.request_ended(
        RequestRecord(
            route="/v1/embeddings",
            start_s=0,
            end_s=3.25,
            status=200,
            model="m",
            items=4,
            tokens=50,
            cut_items=1,
            cut_tokens=9,
            phases=phases,
        )
    )
    found = samples(scraped)
    assert found["samevec_requests_total{route=/v1/embeddings,status=200}"] == 1
    assert found["samevec_request_seconds_sum{route=/v1/embeddings}"] == 3.25
    assert found["samevec_request_seconds_bucket{le=2.5,route=/v1/embeddings}"] == 0
    assert found["samevec_request_seconds_bucket{le=5.0,route=/v1/embeddings}"] == 1
    assert found["samevec_tokenise_seconds_sum{model=m}"] == 0.002
    assert found["samevec_queue_seconds_sum{model=m}"] == 0.498
    assert found["samevec_run_seconds_sum{model=m}"] == 2.5
    counts = [found[f"samevec_{name}_total{{model=m}}"] for name in ("items", "tokens", "truncated_items")]
    assert counts == [4, 50, 1]
    assert found["samevec_truncated_tokens_total{model=m}"] == 9
    assert not any(name.startswith("samevec_errors_total") for name in found)


def test_errors_are_counted_by_kind_and_their_items_are_not() -> None:
    scraped = metrics()
    for _ in range(2):
        scraped.request_ended(RequestRecord(route="/embed", status=429, error="overloaded", model="m", items=7))
    scraped.request_ended(RequestRecord(route="other", status=404, error="invalid_request_error"))
    found = samples(scraped)
    assert found["samevec_errors_total{kind=overloaded}"] == 2
    assert found["samevec_errors_total{kind=invalid_request_error}"] == 1
    assert not any(name.startswith("samevec_items_total") for name in found)
    assert found["samevec_requests_total{route=/embed,status=429}"] == 2
    assert found["samevec_requests_total{route=other,status=404}"] == 1


def test_microbatches() -> None:
    scraped = metrics()
    scraped.batch_ended(BatchRecord(model="m", rows=8, useful_tokens=70, padded_tokens=96, seconds=0.25))
    scraped.batch_ended(BatchRecord(model="m", rows=1, useful_tokens=5, padded_tokens=8, seconds=0.5))
    found = samples(scraped)
    assert found["samevec_microbatch_rows_bucket{le=4.0,model=m}"] == 1
    assert found["samevec_microbatch_rows_sum{model=m}"] == 9
    assert found["samevec_microbatch_seconds_sum{model=m}"] == 0.75
    assert found["samevec_useful_tokens_total{model=m}"] == 75
    assert found["samevec_padded_tokens_total{model=m}"] == 104


def test_gauges_of_the_present() -> None:
    found = samples(metrics())
    expected: dict[str, float] = {
        "samevec_build_info{numpy=2.3,onnxruntime=1.32.0,version=0.1.0}": 1,
        "samevec_ready": 1,
        "samevec_queue_items": 3,
        "samevec_queue_tokens": 44,
        "samevec_queue_bytes": 555,
        "samevec_memory_private_bytes": 1000,
        "samevec_memory_resident_bytes": 2000,
        "samevec_model_info{backend=onnx,model=m,profile=cpu,provider=CPUExecutionProvider,task=embed}": 1,
        "samevec_receipt_state{model=m,state=passed}": 1,
        "samevec_receipt_state{model=m,state=stale}": 0,
        "samevec_receipt_age_seconds{model=m}": 3600,
        "samevec_worker_alive{model=m}": 1,
        "samevec_worker_restarts{model=m}": 1,
        "samevec_tokens_per_second{model=m}": 123.4,
        "samevec_model_loaded{model=m}": 0,
    }
    assert {name: found.get(name) for name in expected} == expected


def test_nothing_is_shared_between_two_and_no_series_is_there_twice() -> None:
    one, other = metrics(), metrics()
    one.request_ended(RequestRecord(route="/embed", status=200))
    assert not any(name.startswith("samevec_requests_total") for name in samples(other))
    text = one.render().decode()
    assert "_created" not in text
    names = re.findall(r"^# TYPE (\S+)", text, flags=re.MULTILINE)
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("written", "age_s"),
    [("2026-11-30T11:59:00+00:00", 60), ("2026-11-30T11:59:00", 60), ("2027-01-01T00:00:00Z", 0), ("", None)],
)
def test_the_age_of_a_receipt(written: str, age_s: float | None) -> None:
    assert receipt_age_s(written, NOW) == age_s


class Heard:
    def __init__(self) -> None:
        self.requests: list[RequestRecord] = []

    def request_ended(self, record: RequestRecord) -> None:
        self.requests.append(record)

    def batch_ended(self, record: BatchRecord) -> None:
        raise AssertionError(record)


def test_a_record_is_handed_over_whatever_happens() -> None:
    heard, times = Heard(), iter((10.0, 12.5))

    def fail() -> None:
        with observed(RequestRecord(route="/embed"), Observers([heard]), clock=lambda: next(times)):
            current_record().items = 3
            note_error("overloaded")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    (record,) = heard.requests
    assert (record.items, record.error, record.seconds) == (3, "overloaded", 2.5)
    assert current_record() is not record  # outside nothing is kept
    note_error("lost")
    assert current_record().error is None
