"""Protocol 1, which TrueMemory's client speaks: frames of a 4-byte big-endian length and UTF-8 JSON, both ways."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import select
import struct
import uuid
from typing import TYPE_CHECKING, Any

import orjson

from samevec.errors import OverloadedError, SamevecError
from samevec.server.endpoints import BACKLOG
from samevec.server.error_map import error_headers, error_status, public_message
from samevec.server.hang_up import run_unless_gone
from samevec.server.http.bodies import encode_array
from samevec.server.socket.frames import EmbedFrame, PingFrame, RerankFrame, parse_frame
from samevec.server.telemetry.records import CLIENT_GONE, RequestRecord, observed

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from samevec.server.queue.admission import Received
    from samevec.server.requests import EmbedRequest, RerankRequest
    from samevec.server.service import Service

__all__ = ["MAX_FRAME_BYTES", "PROTOCOL_VERSION", "FrameServer", "array_record"]

_log = logging.getLogger(__name__)

PROTOCOL_VERSION = 1
#: Bytes of JSON in one frame, either way; the client refuses more.
MAX_FRAME_BYTES = 10 << 20
_HEADER = struct.Struct(">I")

# A connection may rest between requests as long as a person thinks; a frame once begun must come in client_timeout_s.
_IDLE_TIMEOUT_S = 600.0
# How often a computing request looks whether its client is still there.
_HANGUP_INTERVAL_S = 0.2
_CHUNK_BYTES = 1 << 16

# Routes of the requests in records.
_ROUTES = {PingFrame: "socket/ping", EmbedFrame: "socket/embed", RerankFrame: "socket/rerank"}


class _FrameError(Exception):
    """A frame that cannot be read; the connection ends when what follows cannot be found."""

    def __init__(self, message: str, *, fatal: bool) -> None:
        self.fatal = fatal
        super().__init__(message)


def array_record(array: NDArray[Any]) -> dict[str, Any]:
    """Return an array as protocol 1 writes it: base64 of little-endian float32, dtype and shape."""
    return {"__ndarray__": encode_array(array), "dtype": "float32", "shape": list(array.shape)}


class FrameServer:
    """Serves the framed protocol at any number of listening sockets.

    Parameters
    ----------
    service : Service
    client_timeout_s : float
        How long a client may take to send one frame, or to take one answer.
    """

    def __init__(self, service: Service, *, client_timeout_s: float) -> None:
        self._service = service
        self._client_timeout_s = client_timeout_s
        self._servers: list[asyncio.AbstractServer] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._idle: set[asyncio.Task[None]] = set()

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Begin to accept at sockets that listen already."""
        for sock in sockets:
            self._servers.append(await asyncio.start_server(self._on_connection, sock=sock, backlog=BACKLOG))

    def stop_accepting(self) -> None:
        """Refuse new connections, and close those that ask nothing."""
        for server in self._servers:
            server.close()
        for task in list(self._idle):
            task.cancel()

    async def stop(self, *, timeout_s: float) -> None:
        """Stop accepting, let requests that have begun finish for a while, then end all connections."""
        self.stop_accepting()
        if self._connections:
            await asyncio.wait(self._connections, timeout=timeout_s)
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - asyncio runs this callback as a task
        self._connections.add(task)
        try:
            await self._serve(task, reader, writer)
        except asyncio.CancelledError:
            pass  # shutting down
        except (OSError, asyncio.IncompleteReadError) as error:
            _log.debug("a socket client went away: %r", error)
        except Exception:
            _log.exception("unforeseen error on a socket connection")
        finally:
            self._connections.discard(task)
            self._idle.discard(task)
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _serve(
        self, task: asyncio.Task[None], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer the requests of one connection, one after another."""
        go_on = True
        while go_on and not self._service.is_draining:
            self._idle.add(task)
            first = await asyncio.wait_for(reader.read(1), _IDLE_TIMEOUT_S)
            self._idle.discard(task)
            if not first:
                return
            go_on = await self._serve_one(first, reader, writer)

    async def _serve_one(self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Read one frame, of which a byte has come, and answer it; return whether another can follow."""
        with self._service.receive() as received:
            return await self._serve_frame(first, reader, writer, received)

    async def _serve_frame(
        self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, received: Received
    ) -> bool:
        try:
            body = await asyncio.wait_for(_read_frame(first, reader, received), self._client_timeout_s)
            request = _parse_json(body)
        except OverloadedError as error:
            request = error  # answered and accounted for as other requests are
        except _FrameError as error:
            await self._write(writer, _error_record("invalid_request_error", str(error)))
            return not error.fatal
        except (TimeoutError, asyncio.IncompleteReadError):
            await self._write(
                writer, _error_record("invalid_request_error", "the frame did not come whole, or in time")
            )
            return False
        answer = await self._answer(request, writer)
        if answer is None:
            return False
        await self._write(writer, answer)
        return True

    async def _write(self, writer: asyncio.StreamWriter, record: dict[str, Any]) -> None:
        frame = orjson.dumps({**record, "protocol": PROTOCOL_VERSION})
        if len(frame) > MAX_FRAME_BYTES:
            message = (
                f"the answer has {len(frame)} bytes, a frame may have {MAX_FRAME_BYTES}; send fewer items at a time"
            )
            frame = orjson.dumps({**_error_record("invalid_request_error", message), "protocol": PROTOCOL_VERSION})
        writer.write(_HEADER.pack(len(frame)) + frame)
        try:
            await asyncio.wait_for(writer.drain(), self._client_timeout_s)
        except TimeoutError:
            writer.transport.abort()  # it does not read: nothing flushes what is left
            raise

    async def _answer(self, body: Any, writer: asyncio.StreamWriter) -> dict[str, Any] | None:
        """Return the answer to one request, or None when the client has gone."""
        record = RequestRecord(route="socket/other", request_id=uuid.uuid4().hex)
        with observed(record, self._service.observer, clock=self._service.clock):
            try:
                answer = await self._compute(body, writer, record)
            except Exception as error:
                if not isinstance(error, SamevecError):
                    _log.exception("unforeseen error in a socket request")
                record.status, record.error = error_status(error)
                retry_after = error_headers(error).get("retry-after")
                refusal = _error_record(record.error, public_message(error))
                return refusal if retry_after is None else {**refusal, "retry_after_s": int(retry_after)}
            record.status, record.error = (200, None) if answer is not None else (CLIENT_GONE, "client_gone")
            return answer

    async def _compute(self, body: Any, writer: asyncio.StreamWriter, record: RequestRecord) -> dict[str, Any] | None:
        if isinstance(body, OverloadedError):
            raise body
        frame = parse_frame(body, max_items=self._service.settings.max_batch_items)
        record.route = _ROUTES[type(frame)]
        if isinstance(frame, PingFrame):
            return {"ok": True}
        if isinstance(frame, EmbedFrame):
            return await run_unless_gone(self._embed(frame.request(self._service)), _wait_hung_up(writer))
        return await run_unless_gone(self._rerank(frame.request(self._service)), _wait_hung_up(writer))

    async def _embed(self, request: EmbedRequest) -> dict[str, Any]:
        embedded = await self._service.embed(request)
        return {"ok": True, "vectors": array_record(embedded.vectors)}

    async def _rerank(self, request: RerankRequest) -> dict[str, Any]:
        scored = await self._service.rerank(request)
        return {"ok": True, "scores": array_record(scored.scores)}


async def _read_frame(first: bytes, reader: asyncio.StreamReader, received: Received) -> bytearray:
    """Read a frame whose first byte has come. Nothing is set aside for a body before its length is known to be fair."""
    (n_bytes,) = _HEADER.unpack(first + await reader.readexactly(_HEADER.size - 1))
    if n_bytes > MAX_FRAME_BYTES:
        raise _FrameError(f"the frame has {n_bytes} bytes, {MAX_FRAME_BYTES} are allowed", fatal=True)
    if n_bytes == 0:
        raise _FrameError("the frame is empty", fatal=False)
    return await _read_body(n_bytes, reader, received)


async def _read_body(n_bytes: int, reader: asyncio.StreamReader, received: Received) -> bytearray:
    """Read N bytes; those of a frame that is refused are read too, since the next one comes after them."""
    body, left_bytes = bytearray(), n_bytes
    refusal: OverloadedError | None = None
    while left_bytes:
        chunk = await reader.read(min(left_bytes, _CHUNK_BYTES))
        if not chunk:
            raise asyncio.IncompleteReadError(b"", n_bytes)
        left_bytes -= len(chunk)
        if refusal is None:
            try:
                received.add(len(chunk))
                body += chunk
            except OverloadedError as error:
                refusal = error
                body.clear()
    if refusal is not None:
        raise refusal
    return body


def _parse_json(body: bytearray) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise _FrameError(f"the frame is not UTF-8 JSON: {error}", fatal=False) from error


def _error_record(kind: str, message: str) -> dict[str, Any]:
    return {"ok": False, "error": message, "type": kind}


async def _wait_hung_up(writer: asyncio.StreamWriter) -> None:
    """Wait until both directions are closed. End of input alone is not it: a client may only have finished writing."""
    poll = select.poll()
    poll.register(writer.get_extra_info("socket").fileno(), 0)
    while not writer.transport.is_closing():
        await asyncio.sleep(_HANGUP_INTERVAL_S)
        if any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(0)):
            return
