"""HTTP clients that dawdle lose their connection; those for whom there is no file left wait for theirs."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx
import orjson
import pytest
from live_server import live
from stand_ins import embedder

from samevec.server.http.connections import TimeoutH11Protocol
from samevec.server.lifecycle import running_server
from samevec.server.settings import ServedModel, ServerSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.server

HEALTH = b"GET /health HTTP/1.1\r\nhost: here\r\n\r\n"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_server([ServedModel(model=embedder())], ServerSettings(port=0, client_timeout_s=0.5)) as endpoints:
        yield endpoints.url


@contextlib.contextmanager
def connected(url: str, *, receive_bytes: int | None = None) -> Iterator[socket.socket]:
    address = urlsplit(url)
    with socket.socket() as sock:
        if receive_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        sock.settimeout(20)
        sock.connect((address.hostname, address.port))
        yield sock


def read_to_the_end(sock: socket.socket) -> bytes:
    """Everything until the server hangs up; a reset ends it too."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while part := sock.recv(1 << 16):
            received += part
    return received


def is_over(sock: socket.socket) -> bool:
    """Send a byte; say whether the server has hung up, which a reset tells when the byte came too late for it."""
    try:
        sock.sendall(b"x")
        return sock.recv(1) == b""
    except (BrokenPipeError, ConnectionResetError):
        return True


def answer(sock: socket.socket) -> bytes:
    received = b""
    while not received.endswith(b"}"):
        part = sock.recv(1 << 16)
        assert part
        received += part
    return received


@pytest.mark.parametrize("sent", [b"", HEALTH[:20]])
def test_a_head_that_does_not_come(url: str, sent: bytes) -> None:
    with connected(url) as sock:
        sock.sendall(sent)
        assert read_to_the_end(sock) == b""


def test_a_second_head_that_does_not_come_whole(url: str) -> None:
    with connected(url) as sock:
        sock.sendall(HEALTH)
        assert answer(sock).startswith(b"HTTP/1.1 200")
        sock.sendall(HEALTH[:20])
        assert read_to_the_end(sock) == b""


def test_a_head_byte_by_byte_wins_no_time(url: str) -> None:
    with connected(url) as sock:
        sock.settimeout(0.05)
        for _ in range(400):  # 20 s
            with contextlib.suppress(TimeoutError):
                assert is_over(sock)
                break
        else:
            pytest.fail("still connected")


HEAD = b"POST /v1/embeddings HTTP/1.1\r\nhost: here\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"


def write_on(sock: socket.socket) -> None:
    for _ in range(4000):
        sock.sendall(b" " * (1 << 14))
        threading.Event().wait(0.001)


def test_who_never_ends_a_refused_body_loses_the_connection(url: str) -> None:
    with connected(url) as sock:
        sock.sendall(HEAD % (1 << 40))
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            write_on(sock)
    assert httpx.get(f"{url}/health").status_code == 200


def test_an_answer_that_is_not_taken(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    end_if_unread = TimeoutH11Protocol._end_if_unread

    def end(connection: TimeoutH11Protocol, cycle: object) -> None:
        end_if_unread(connection, cycle)
        if connection.transport.is_closing():
            ended.set()

    monkeypatch.setattr(TimeoutH11Protocol, "_end_if_unread", end)
    body = orjson.dumps({"input": [f"{i}" for i in range(4000)]})
    whole_bytes = len(httpx.post(f"{url}/v1/embeddings", content=body, timeout=60).content)
    assert not ended.is_set()
    head = b"POST /v1/embeddings HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    with connected(url, receive_bytes=4096) as sock:
        sock.sendall(head % len(body) + body)
        assert ended.wait(20)
        assert 0 < len(read_to_the_end(sock)) < whole_bytes
    assert httpx.get(f"{url}/health").status_code == 200


@pytest.mark.skipif(sys.platform != "linux", reason="sets a limit of another process")
def test_connections_beyond_the_limit_of_open_files_wait(tmp_path: Path) -> None:

    with live({"port": 0}, home=tmp_path) as server, contextlib.ExitStack() as stack:
        pid = server.process.pid
        n_files = len(list(Path(f"/proc/{pid}/fd").iterdir())) + 10
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (n_files, n_files))
        waiting = [stack.enter_context(connected(server.url)) for _ in range(30)]
        for sock in waiting:
            sock.sendall(HEALTH)
        for sock in waiting:
            assert answer(sock).startswith(b"HTTP/1.1 200")
            sock.close()
        assert server.stop() == 0
        assert server.process.stderr is not None
        began, *lines = server.process.stderr
    assert began == "loading weights\n"
    assert 1 <= len(lines) < 5
    assert {json.loads(line)["message"] for line in lines} == {
        "Too many open files: new connections wait until others end; ulimit -n bounds them"
    }
