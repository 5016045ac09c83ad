"""HTTP connections that must get on: uvicorn waits for ever for a request's head, and for an answer to be read."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

__all__ = ["TimeoutH11Protocol", "timeout_http"]


class TimeoutH11Protocol(H11Protocol):
    """uvicorn's protocol, which ends connections that are too slow: each holds a file, and an answer its memory.

    Parameters
    ----------
    client_timeout_s : float
        For the head of a request, from the connection's begin or from its own first byte, and for taking an answer. The
        body has the same time, see :func:`samevec.server.http.bodies.read_json`; a connection at rest has uvicorn's.
    **options
        uvicorn's own.
    """

    def __init__(self, *, client_timeout_s: float, **options: Any) -> None:
        super().__init__(**options)
        self._client_timeout_s = client_timeout_s
        self._head: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a first request."""
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of a head that has begun; a head that is whole has made a cycle."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        else:
            self._wait_for_head()

    def on_response_complete(self) -> None:
        """Wait until the answer is taken."""
        if self.transport.get_write_buffer_size():
            self.loop.call_later(self._client_timeout_s, self._end_if_unread, self.cycle)
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        if self._head is None:
            self._head = self.loop.call_later(self._client_timeout_s, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._head is not None:
            self._head.cancel()
        self._head = None

    def _end_if_unread(self, cycle: object) -> None:
        if cycle is self.cycle and self.transport.get_write_buffer_size():
            self.transport.abort()


def timeout_http(client_timeout_s: float) -> Callable[..., TimeoutH11Protocol]:
    """Return what makes a protocol of each connection, as uvicorn's ``http`` takes it."""
    return functools.partial(TimeoutH11Protocol, client_timeout_s=client_timeout_s)
