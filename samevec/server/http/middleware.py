"""The outermost layer of HTTP: an id for each request, and a record of what became of it."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING

from starlette.datastructures import MutableHeaders

from samevec.server.telemetry.records import CLIENT_GONE, RequestRecord, observed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from samevec.server.telemetry.records import Observer

__all__ = ["REQUEST_ID_HEADER", "RequestContextMiddleware", "error_kind"]

REQUEST_ID_HEADER = "x-request-id"
# What a client calls its request goes into logs as it is: nothing there may break a line or pretend to be another.
_PLAIN_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def error_kind(status: int) -> str | None:
    """Return the kind of an error of which nothing but the status is known; None for no error."""
    if status < 400:
        return None
    if status == CLIENT_GONE:
        return "client_gone"
    return "invalid_request_error" if status < 500 else "internal_error"


class RequestContextMiddleware:
    """Gives requests their id, and observers a record of each.

    Parameters
    ----------
    app : ASGI application
    observer : Observer
    clock : callable
        Seconds, monotonic; the service's.
    routes : collection of str
        Paths that may name a route in a record; all others are ``"other"``, so that a scan of paths makes one series.
    """

    def __init__(
        self, app: ASGIApp, *, observer: Observer, clock: Callable[[], float], routes: Collection[str]
    ) -> None:
        self._app = app
        self._observer = observer
        self._clock = clock
        self._routes = frozenset(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = self._record(scope)

        async def send_noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = record.request_id
            await send(message)

        with observed(record, self._observer, clock=self._clock):
            try:
                await self._app(scope, receive, send_noted)
            finally:
                record.status = record.status or 500
                record.error = record.error or error_kind(record.status)

    def _record(self, scope: Scope) -> RequestRecord:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        given, trace = headers.get(REQUEST_ID_HEADER, ""), headers.get("traceparent", "")
        path = scope["path"]
        return RequestRecord(
            route=path if path in self._routes else "other",
            request_id=given if _PLAIN_ID.fullmatch(given) else uuid.uuid4().hex,
            traceparent=trace if _TRACEPARENT.fullmatch(trace) else None,
        )
