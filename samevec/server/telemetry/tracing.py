"""OpenTelemetry traces, when asked for: a span a request, in it tokenise, queue and run. Needs the extra ``otel``."""

from __future__ import annotations

import importlib
import time
from typing import TYPE_CHECKING, Any

from samevec._version import __version__
from samevec.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from samevec.server.telemetry.records import BatchRecord, RequestRecord

__all__ = ["Traces", "otlp_traces", "require_otel", "traceparent_context"]

_MODULES = ("sdk.resources", "sdk.trace", "sdk.trace.export", "exporter.otlp.proto.http.trace_exporter")


class Traces:
    """Writes spans once a request has ended; an observer of records.

    Parameters
    ----------
    tracer : opentelemetry.trace.Tracer
    context_of : callable
        Makes a parent context of a W3C ``traceparent``; given None, an empty one.
    end : callable
        Sends what waits and ends; called once, at the end of the process.
    clock : callable
        Seconds, monotonic; the service's.
    wall_ns : callable
        Nanoseconds since the epoch.
    """

    def __init__(
        self,
        tracer: Any,
        *,
        context_of: Callable[[str | None], Any],
        end: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._tracer = tracer
        self._context_of = context_of
        self._set_span = importlib.import_module("opentelemetry.trace").set_span_in_context
        self.end = end
        self._offset_ns = wall_ns() - int(clock() * 1e9)

    def request_ended(self, record: RequestRecord) -> None:
        """Write the request's span and those of its phases, with the times they had."""
        span = self._tracer.start_span(
            f"samevec {record.route}",
            context=self._context_of(record.traceparent),
            start_time=self._at_ns(record.start_s),
            attributes=_attributes(record),
        )
        inside = self._set_span(span)
        for phase in record.phases:
            part = self._tracer.start_span(phase.name, context=inside, start_time=self._at_ns(phase.start_s))
            part.end(end_time=self._at_ns(phase.end_s))
        span.end(end_time=self._at_ns(record.end_s))

    def batch_ended(self, record: BatchRecord) -> None:
        """Write nothing: a microbatch belongs to several requests."""

    def _at_ns(self, clock_s: float) -> int:
        return self._offset_ns + int(clock_s * 1e9)


def _attributes(record: RequestRecord) -> dict[str, str | int]:
    known: dict[str, str | int | None] = {
        "http.route": record.route,
        "http.response.status_code": record.status,
        "error.type": record.error,
        "samevec.request_id": record.request_id or None,
        "samevec.model": record.model,
        "samevec.items": record.items,
        "samevec.tokens": record.tokens,
        "samevec.cut_items": record.cut_items,
    }
    return {name: value for name, value in known.items() if value is not None}


def otlp_traces(endpoint: str, *, clock: Callable[[], float] = time.monotonic) -> Traces:
    """Return traces that go to a collector over HTTP, in batches, from a thread of the exporter's own.

    Parameters
    ----------
    endpoint : str
        Such as ``http://127.0.0.1:4318/v1/traces``.
    clock : callable
        The service's.

    Raises
    ------
    ConfigError
        The extra is not installed.
    """
    resources, sdk, export, otlp = require_otel()
    provider = sdk.TracerProvider(
        resource=resources.Resource.create({"service.name": "samevec", "service.version": __version__}),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(export.BatchSpanProcessor(otlp.OTLPSpanExporter(endpoint=endpoint)))
    return Traces(
        provider.get_tracer("samevec", __version__), context_of=traceparent_context, end=provider.shutdown, clock=clock
    )


def require_otel() -> list[Any]:
    """Return the modules that send traces.

    Raises
    ------
    ConfigError
        The extra is not installed.
    """
    try:
        return [importlib.import_module(f"opentelemetry.{name}") for name in _MODULES]
    except ImportError as error:
        raise ConfigError("--otlp-endpoint needs: pip install 'samevec[otel]'") from error


def traceparent_context(traceparent: str | None) -> Any:
    """Return the OpenTelemetry context that a W3C ``traceparent`` stands for."""
    context = importlib.import_module("opentelemetry.context").Context()
    if traceparent is None:
        return context
    propagation = importlib.import_module("opentelemetry.trace.propagation.tracecontext")
    return propagation.TraceContextTextMapPropagator().extract({"traceparent": traceparent}, context=context)
