"""HTTP connections that must get on: uvicorn waits for ever for a request's head, and for an answer to be read."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from samevec.server.http.pace import Pace

__all__ = ["LINGER_BYTES", "LINGER_S", "TimedHttp", "timed_http"]

#: A client that is still writing reads our answer only after that, and the bytes that nobody reads would reset the
#: connection and take the answer with them: for so long, and so much, is read and thrown away after an answer.
LINGER_S = 3.0
LINGER_BYTES = 64 << 20


class TimedHttp(H11Protocol):
    """uvicorn's protocol, which ends connections that are too slow: each holds a file, and an answer its memory.

    Parameters
    ----------
    client_timeout_s : float
        For the head of a request, from the connection's begin or from its own first byte, and for taking an answer. The
        body has the same time, see :func:`samevec.server.http.bodies.read_json`; a connection at rest has uvicorn's.
    pace : Pace
        Says when requests begin.
    **options
        uvicorn's own.
    """

    def __init__(self, *, client_timeout_s: float, pace: Pace, **options: Any) -> None:
        super().__init__(**options)
        self._client_timeout_s = client_timeout_s
        self._pace = pace
        self._not_begun = bytearray()
        self._head: asyncio.TimerHandle | None = None
        self._ending: _Ending | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a first request."""
        super().connection_made(transport)
        self._ending = _Ending(transport, self.conn, self.loop)
        self.transport = cast("asyncio.Transport", self._ending)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Take more of a request, or begin one when it is its turn."""
        if self._ending is not None and self._ending.discards(data):
            return
        if self._not_begun:
            self._not_begun += data
        elif self.cycle is not None and not self.cycle.response_complete:
            self._take(data)
        else:
            self._not_begun += data
            self._pace.begin(self._begin)
            if self._not_begun:
                self._unset_keepalive_if_required()
                self.flow.pause_reading()

    def _begin(self) -> None:
        data, self._not_begun = bytes(self._not_begun), bytearray()
        self.flow.resume_reading()
        if not self.transport.is_closing():
            self._take(data)

    def _take(self, data: bytes) -> None:
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


class _Ending:
    """A transport that, closed while a request is still coming, ends its own side at most and lets the rest come."""

    def __init__(self, transport: asyncio.Transport, conn: h11.Connection, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._conn = conn
        self._loop = loop
        self._left_bytes: int | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._left_bytes is not None or self._transport.is_closing()

    def close(self) -> None:
        is_coming = self._conn.their_state in (h11.SEND_BODY, h11.ERROR)
        if not is_coming or self.is_closing():
            self._transport.close()
            return
        self._left_bytes = LINGER_BYTES
        if self._transport.can_write_eof():  # TLS cannot: the answer says itself where it ends
            self._transport.write_eof()
        self._transport.resume_reading()
        self._loop.call_later(LINGER_S, self._transport.close)

    def discards(self, data: bytes) -> bool:
        """Whether only the end of what comes is waited for; then closes when it does not come."""
        if self._left_bytes is None:
            return False
        self._left_bytes -= len(data)
        if self._left_bytes < 0:
            self._transport.close()
        return True


def timed_http(client_timeout_s: float, pace: Pace) -> Callable[..., TimedHttp]:
    """Return what makes a protocol of each connection, as uvicorn's ``http`` takes it."""
    return functools.partial(TimedHttp, client_timeout_s=client_timeout_s, pace=pace)
