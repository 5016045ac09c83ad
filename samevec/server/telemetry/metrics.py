"""Prometheus metrics: counters fed by records, gauges read when asked. Labels are names of routes and models only."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from prometheus_client.metrics_core import Metric

    from samevec.server.telemetry.records import BatchRecord, RequestRecord

__all__ = ["METRICS_MEDIA_TYPE", "RECEIPT_STATES", "Metrics", "receipt_age_s"]

# The time at which a series began would double the number of series.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]

METRICS_MEDIA_TYPE = CONTENT_TYPE_PLAIN_0_0_4
RECEIPT_STATES = ("passed", "failed", "stale", "missing", "reference")

# A short query takes milliseconds, a bulk request minutes.
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_PROBES_WORDS = "Repetitions of the start-up probe; a model that failed one is not served any more."
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128)


def receipt_age_s(created_at: str, now: datetime) -> float | None:
    """Return the seconds since a receipt was written; None when its time cannot be read.

    Parameters
    ----------
    created_at : str
        ISO 8601; without an offset it is UTC.
    now : datetime
        With its time zone.
    """
    try:
        written = datetime.fromisoformat(created_at)
    except ValueError:
        return None
    if written.tzinfo is None:
        written = written.replace(tzinfo=UTC)
    return max(0.0, (now - written).total_seconds())


class Metrics:
    """What the server has done and holds now, in a registry of its own; an observer of records.

    Parameters
    ----------
    facts : callable
        Returns what ``/info`` tells; asked at every scrape.
    memory : callable
        Returns the process's private and resident bytes.
    now : callable
        The time, for the age of receipts.
    """

    def __init__(
        self,
        facts: Callable[[], Mapping[str, Any]],
        *,
        memory: Callable[[], tuple[int, int]],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Present(facts, memory, now))
        self._counts = _Counts(self._registry)

    def request_ended(self, record: RequestRecord) -> None:
        """Count a request."""
        counts, model = self._counts, record.model
        counts.requests.labels(record.route, str(record.status)).inc()
        counts.request_s.labels(record.route).observe(record.seconds)
        if record.error is not None:
            counts.errors.labels(record.error).inc()
        if model is None:
            return
        for phase in record.phases:
            counts.phases[phase.name].labels(model).observe(phase.seconds)
        if record.error is None:
            counts.items.labels(model).inc(record.items)
            counts.tokens.labels(model).inc(record.tokens)
            counts.cut_items.labels(model).inc(record.cut_items)
            counts.cut_tokens.labels(model).inc(record.cut_tokens)

    def batch_ended(self, record: BatchRecord) -> None:
        """Count a microbatch."""
        counts, model = self._counts, record.model
        counts.batch_s.labels(model).observe(record.seconds)
        counts.batch_rows.labels(model).observe(record.rows)
        counts.useful.labels(model).inc(record.useful_tokens)
        counts.padded.labels(model).inc(record.padded_tokens)

    def render(self) -> bytes:
        """Return everything in Prometheus's text format."""
        return generate_latest(self._registry)


class _Counts:
    """What is counted as it happens."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.requests = self._counter("requests", "Requests answered.", "route", "status")
        self.errors = self._counter("errors", "Requests that ended in an error.", "kind")
        self.items = self._counter("items", "Texts and pairs of requests that were answered.", "model")
        self.tokens = self._counter("tokens", "Tokens of those items, padding not counted.", "model")
        self.cut_items = self._counter("truncated_items", "Items that were cut.", "model")
        self.cut_tokens = self._counter("truncated_tokens", "Tokens that cut items lost.", "model")
        self.request_s = self._histogram("request_seconds", "From request to answer.", "route")
        self.phases = {
            "tokenise": self._histogram("tokenise_seconds", "Making tokens of a request.", "model"),
            "load": self._histogram("load_seconds", "Loading a model again that was unloaded.", "model"),
            "queue": self._histogram("queue_seconds", "From tokens to the first run with a row of it.", "model"),
            "run": self._histogram("run_seconds", "From that run's begin to the last row of the request.", "model"),
        }
        self.batch_s = self._histogram("microbatch_seconds", "One microbatch.", "model")
        self.batch_rows = self._histogram("microbatch_rows", "Rows of a microbatch.", "model", bounds=_ROWS)
        self.useful = self._counter("useful_tokens", "Tokens of the rows of microbatches.", "model")
        self.padded = self._counter("padded_tokens", "The same with padding: what was computed.", "model")

    def _counter(self, name: str, words: str, *labels: str) -> Counter:
        return Counter(f"samevec_{name}", words, labels, registry=self._registry)

    def _histogram(self, name: str, words: str, label: str, bounds: Sequence[float] = _SECONDS) -> Histogram:
        return Histogram(f"samevec_{name}", words, (label,), buckets=bounds, registry=self._registry)


class _Present(Collector):
    """Gauges of the present, read from the facts of ``/info`` when they are asked for."""

    def __init__(
        self,
        facts: Callable[[], Mapping[str, Any]],
        memory: Callable[[], tuple[int, int]],
        now: Callable[[], datetime],
    ) -> None:
        self._facts = facts
        self._memory = memory
        self._now = now

    def describe(self) -> list[Metric]:
        """Name nothing beforehand: the registry would otherwise collect once to find out."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Give every gauge."""
        facts = self._facts()
        yield _gauge("build_info", "Version of samevec and of what computes.", {"version": facts["version"]} | {
            name.replace("-", "_"): version for name, version in facts["versions"].items()
        })  # fmt: skip
        yield _gauge("ready", "Whether requests are served.", value=facts["ready"])
        yield _gauge("queue_items", "Texts and pairs accepted and not finished.", value=facts["queue"]["items"])
        yield _gauge("queue_tokens", "Their tokens, as far as known.", value=facts["queue"]["tokens"])
        yield _gauge("queue_bytes", "Bytes of the bodies they came in.", value=facts["queue"]["bytes"])
        private, resident = self._memory()
        yield _gauge("memory_private_bytes", "Memory that is this process's alone; no file pages.", value=private)
        yield _gauge("memory_resident_bytes", "Memory in use, pages of mapped files included.", value=resident)
        yield from self._models(facts["models"])

    def _models(self, models: list[Mapping[str, Any]]) -> Iterator[Metric]:
        about = _family("model_info", "What is served, and by what.", "model", "task", "profile", "backend", "provider")
        state = _family("receipt_state", "1 for the state of the model's parity receipt.", "model", "state")
        age = _family("receipt_age_seconds", "Since the receipt was written.", "model")
        alive = _family("worker_alive", "Whether its threads compute.", "model")
        restarts = _family("worker_restarts", "How often its threads were started again.", "model")
        rate = _family("tokens_per_second", "Measured lately, idle time not counted.", "model")
        probes = CounterMetricFamily("samevec_probes", _PROBES_WORDS, labels=("model", "outcome"))
        loaded = _family("model_loaded", "0 while it is unloaded for want of requests.", "model")
        now = self._now()
        for model in models:
            name, receipt, worker = model["name"], model["receipt"], model["worker"]
            about.add_metric([name, model["task"], model["profile"], model["backend"], model["provider"]], 1)
            for one in RECEIPT_STATES:
                state.add_metric([name, one], one == receipt["state"])
            age_s = receipt_age_s(receipt["created_at"] or "", now)
            if age_s is not None:
                age.add_metric([name], age_s)
            alive.add_metric([name], worker["alive"])
            restarts.add_metric([name], worker["restarts"])
            rate.add_metric([name], worker["tokens_per_s"])
            for outcome, n in model.get("probes", {}).items():
                probes.add_metric([name, outcome], n)
            loaded.add_metric([name], model.get("state", "loaded") == "loaded")
        yield from (about, state, age, alive, restarts, rate, loaded, probes)


def _family(name: str, words: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"samevec_{name}", words, labels=labels)


def _gauge(name: str, words: str, labels: Mapping[str, str] | None = None, *, value: float = 1) -> Metric:
    family = _family(name, words, *(labels or {}))
    family.add_metric(list((labels or {}).values()), value)
    return family
