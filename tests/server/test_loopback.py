"""TrueMemory's transport on Windows, served and asked here: loopback TCP, a token first, port and token in files."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from live_server import live, refused
from stand_ins import EMBEDDER, RERANKER, Script, alone, embedder, queued, reranker, scores_alone, wait_until

from samevec import client
from samevec.client import EmbeddingProxy, LoopbackAddress, RerankerProxy
from samevec.server.endpoints import Endpoints, bind_tcp
from samevec.server.lifecycle import running_server
from samevec.server.settings import ServedModel, ServerSettings
from samevec.server.socket.loopback import TOKEN_BYTES, LoopbackEndpoint, bind_loopback, publish_loopback
from samevec.server.socket.truememory import reserve_truememory

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.server

TEXTS = ["The capital of China is Beijing.", "", "short"]
PING = struct.pack(">I", 13) + b'{"op":"ping"}'


@contextmanager
def served(
    home: Path, monkeypatch: pytest.MonkeyPatch, script: Script | None = None
) -> Iterator[tuple[str, Endpoints]]:
    """A server in this process whose HOME is a test's folder."""
    monkeypatch.setenv("HOME", str(home))
    models = [ServedModel(model=embedder(script)), ServedModel(model=reranker())]
    settings = ServerSettings(port=0, truememory_tcp=True, client_timeout_s=1.0)
    with running_server(models, settings) as endpoints:
        yield endpoints.url, endpoints


def connect(endpoints: Endpoints) -> tuple[socket.socket, bytes]:
    """A connection that has sent nothing yet, and the token."""
    (there,) = endpoints.loopback
    made = socket.create_connection(("127.0.0.1", there.port), timeout=20)
    return made, there.token


def receive(connection: socket.socket) -> dict[str, object]:
    with connection.makefile("rb") as answers:
        (n_bytes,) = struct.unpack(">I", answers.read(4))
        answer: dict[str, object] = json.loads(answers.read(n_bytes))
        return answer


def files(home: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.lstat().st_mode) for path in (home / ".truememory").iterdir()}


def test_files_are_the_owners_and_gone_after_a_clean_end(tmp_path: Path) -> None:
    with live({"port": 0, "truememory_tcp": True}, home=tmp_path) as server:
        assert files(tmp_path) == {
            "model_server.lock": 0o600,
            "model_server.pid": 0o666,  # no secret; the umask here is 0
            "model_server.port": 0o600,
            "model_server.token": 0o600,
        }
        there = LoopbackAddress.from_folder(tmp_path / ".truememory")
        assert json.loads(server.ready)["sockets"] == [f"127.0.0.1:{there.port}"]
        assert client.ping(there)
        assert (tmp_path / ".truememory" / "model_server.pid").read_text() == str(server.process.pid)
        assert server.stop() == 0
    assert list(files(tmp_path)) == ["model_server.lock"]


def test_our_proxies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path, monkeypatch):
        there = LoopbackAddress.from_folder(tmp_path / ".truememory")
        assert np.array_equal(EmbeddingProxy(EMBEDDER, address=there).encode(TEXTS), alone(TEXTS))
        scores = RerankerProxy(RERANKER, address=there).predict([("q", text) for text in TEXTS])
        assert np.array_equal(scores, scores_alone("q", TEXTS))


# As in test_clients.py, on the branch it takes on Windows: the module asks for the platform once, when imported.
TRUEMEMORY_ON_WINDOWS = """
import importlib.util, json, subprocess, sys, types
subprocess.Popen = None  # it starts its own server when it finds none: never in a test
package = types.ModuleType("truememory")
package.__path__ = list(importlib.util.find_spec("truememory").submodule_search_locations)
sys.modules["truememory"] = package
from truememory import _platform
_platform._USE_UNIX = False
from truememory import model_client
assert model_client._USE_UNIX is False
assert not model_client.SOCK_PATH.exists()
texts = json.load(sys.stdin)
json.dump({
    "in_use": model_client.use_model_server(),
    "ensured": model_client.ensure_server_running(),
    "ping": model_client.ping(),
    "vectors": model_client.EmbeddingProxy(tier="base").encode(texts, timeout=30).tolist(),
    "scores": model_client.RerankerProxy().predict([["q", text] for text in texts]).tolist(),
}, sys.stdout)
"""


@pytest.mark.skipif(importlib.util.find_spec("truememory") is None, reason="truememory is not installed")
def test_truememorys_own_client_on_its_windows_branch(tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), "TRUEMEMORY_NO_MODEL_SERVER": ""}
    with live({"port": 0, "truememory_tcp": True}, home=tmp_path) as server:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", TRUEMEMORY_ON_WINDOWS],
            input=json.dumps(TEXTS),
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert server.stop() == 0
    result = json.loads(done.stdout)
    assert (result["in_use"], result["ensured"], result["ping"]) == (True, True, True)
    assert np.array_equal(np.array(result["vectors"], dtype=np.float32), alone(TEXTS)[:, :256])
    assert np.array_equal(np.array(result["scores"], dtype=np.float32), scores_alone("q", TEXTS))


def test_who_has_no_token_is_told_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path, monkeypatch) as (_, endpoints):
        for wrong in (bytes(TOKEN_BYTES), os.urandom(TOKEN_BYTES), PING * 3):
            connection, _ = connect(endpoints)
            with connection:
                connection.sendall(wrong + PING)
                assert reads_to_the_end(connection) == b""
        for sent in (b"", b"half of a token"):  # and then nothing more: closed in time
            connection, _ = connect(endpoints)
            with connection:
                connection.sendall(sent)
                assert reads_to_the_end(connection) == b""
        connection, token = connect(endpoints)
        with connection:
            for byte in token + PING:
                connection.sendall(bytes([byte]))
            assert receive(connection)["ok"] is True


def reads_to_the_end(connection: socket.socket) -> bytes:
    """Everything that comes until the server closes; a reset is an end as well."""
    received = b""
    try:
        while chunk := connection.recv(1 << 16):
            received += chunk
    except ConnectionError:
        pass
    return received


def test_a_connection_takes_requests_in_advance_and_half_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path, monkeypatch) as (_, endpoints):
        connection, token = connect(endpoints)
        with connection:
            connection.sendall(token + PING * 5)
            connection.shutdown(socket.SHUT_WR)
            with connection.makefile("rb") as answers:
                for _ in range(5):
                    (n_bytes,) = struct.unpack(">I", answers.read(4))
                    assert json.loads(answers.read(n_bytes)) == {"ok": True, "protocol": 1}
                assert answers.read() == b""


def test_a_reset_connection_takes_its_work_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(gate=threading.Event())
    assert script.gate is not None
    with served(tmp_path, monkeypatch, script) as (url, endpoints):
        connection, token = connect(endpoints)
        body = json.dumps({"op": "embed", "texts": ["a", "b"], "tier": "base"}).encode()
        connection.sendall(token + struct.pack(">I", len(body)) + body)
        assert script.entered.wait(20)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
        wait_until(lambda: queued(url) == 0)
        script.gate.set()


def test_files_left_by_a_killed_server_are_replaced(tmp_path: Path) -> None:
    settings = {"port": 0, "truememory_tcp": True}
    with live(settings, home=tmp_path) as server:
        first = LoopbackAddress.from_folder(tmp_path / ".truememory")
        assert server.stop(signal.SIGKILL) == -signal.SIGKILL
    assert "model_server.token" in files(tmp_path)
    with live(settings, home=tmp_path) as server:
        second = LoopbackAddress.from_folder(tmp_path / ".truememory")
        assert second.token != first.token
        assert client.ping(second)
        code, message = refused(settings, home=tmp_path)
        assert (code, "another model server holds the lock" in message) == (3, True)
        code, message = refused({"port": 0, "truememory": True}, home=tmp_path)  # one place, whichever transport
        assert code == 3
        assert client.ping(second)
        assert server.stop() == 0


def test_a_successors_files_are_not_removed(tmp_path: Path) -> None:
    first, second = bind_loopback(), bind_loopback()
    with first.sock, second.sock:
        remove_first = publish_loopback(first, tmp_path)
        remove_second = publish_loopback(second, tmp_path)
        remove_first()
        assert LoopbackAddress.from_folder(tmp_path) == LoopbackAddress(second.port, second.token)
        remove_second()
        assert list(tmp_path.iterdir()) == []


def test_the_token_is_private_from_its_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    replace = Path.replace

    def look(self: Path, target: Path) -> Path:
        seen.append(stat.S_IMODE(self.lstat().st_mode))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", look)
    monkeypatch.setattr(os, "chmod", None)  # nothing mends a mode afterwards
    previous = os.umask(0)
    try:
        with bind_tcp("127.0.0.1", 0) as sock:
            publish_loopback(LoopbackEndpoint(sock, bytes(TOKEN_BYTES)), tmp_path)
    finally:
        os.umask(previous)
    assert seen == [0o600, 0o600]


def test_reserving_takes_no_unix_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with bind_tcp("127.0.0.1", 0) as http, Endpoints(http, "http://127.0.0.1:1") as endpoints:
        reserve_truememory(endpoints, tcp=True)
        assert (len(endpoints.loopback), endpoints.frames, endpoints.paths) == (1, [], [])
        assert LoopbackAddress.from_folder(tmp_path / ".truememory").port == endpoints.loopback[0].port
    assert list(files(tmp_path)) == ["model_server.lock"]
