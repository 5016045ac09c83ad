"""The server as a process: endpoints, signals, exit codes."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from live_server import ROOT, live, refused
from stand_ins import EMBEDDER, RERANKER, FrameClient, Script, embedder, queued, wait_until

from samevec.errors import ConfigError, NotReadyError
from samevec.server.endpoints import bind_tcp, bind_unix
from samevec.server.lifecycle import read_api_keys, running_server
from samevec.server.settings import ServedModel, ServerSettings

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.server


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "home"
    made.mkdir()
    return made


def embed(url: str, text: str = "hello") -> httpx.Response:
    return httpx.post(f"{url}/v1/embeddings", json={"input": text}, timeout=20)


def is_open(path: Path) -> bool:
    try:
        with FrameClient(path):
            return True
    except OSError:
        return False


def mode(path: Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def test_ready_line_and_clean_end(home: Path) -> None:
    with live({"port": 0, "socket": str(home / "s.sock")}, home=home) as server:
        line = json.loads(server.ready)
        assert line["event"] == "ready"
        assert line["sockets"] == [str(home / "s.sock")]
        assert line["models"] == [EMBEDDER, RERANKER]
        assert embed(server.url).status_code == 200
        assert httpx.get(f"{server.url}/ready").status_code == 200
        assert server.stop() == 0
        assert list(home.iterdir()) == []
        assert server.process.stdout is not None
        assert server.process.stdout.read() == ""


def test_ready_line_in_words(home: Path) -> None:
    with live({"port": 0, "log_format": "text"}, home=home) as server:
        assert server.ready.startswith("samevec: ready at http://127.0.0.1:")
        assert server.ready.endswith(f"({EMBEDDER}, {RERANKER})\n")
        assert server.stop(signal.SIGINT) == 0


def test_sigterm_finishes_accepted_work(home: Path) -> None:
    with live({"port": 0, "drain_s": 60}, home=home, script={"delay_s": 1.0}) as server:
        answers: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: answers.append(embed(server.url)))
        thread.start()
        wait_until(lambda: queued(server.url) == 1)
        assert server.stop() == 0  # which waits for less than the drain time
        thread.join()
        assert answers[0].status_code == 200


def test_drain_time_is_kept(home: Path) -> None:
    with live({"port": 0, "drain_s": 0.5}, home=home, script={"delay_s": 90.0}) as server:
        answers: list[Any] = []

        def ask() -> None:
            try:
                answers.append(embed(server.url).status_code)
            except httpx.HTTPError as error:
                answers.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        wait_until(lambda: queued(server.url) == 1)
        assert server.stop() == 0  # which waits for less than the run
        thread.join()
        assert answers == [503]


def test_a_second_signal_ends_at_once(home: Path) -> None:
    settings = {"port": 0, "drain_s": 60, "socket": str(home / "s.sock")}
    with live(settings, home=home, script={"delay_s": 90.0}) as server:
        client = FrameClient(home / "s.sock")
        client.send(b'{"op": "embed", "texts": ["a"]}')
        wait_until(lambda: queued(server.url) == 1)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not is_open(home / "s.sock"))
        assert server.stop() == 128 + signal.SIGTERM
        client.sock.close()
        assert not (home / "s.sock").exists()


def test_uds_serves_http_to_its_owner_alone(home: Path) -> None:
    path = home / "http.sock"
    with live({"uds": str(path)}, home=home) as server:
        assert server.url == f"http+unix://{path}"
        assert mode(path) == 0o600
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client:
            assert client.post("http://samevec/v1/embeddings", json={"input": "a"}).status_code == 200
        assert server.stop() == 0
    assert not path.exists()


def test_o18a_a_socket_left_by_a_killed_server_is_replaced(home: Path) -> None:
    settings = {"port": 0, "socket": str(home / "s.sock"), "truememory": True}
    with live(settings, home=home) as server:
        assert server.stop(signal.SIGKILL) == -signal.SIGKILL
    assert (home / "s.sock").exists()
    assert (home / ".truememory" / "model.sock").exists()
    with live(settings, home=home) as server:
        for path in (home / "s.sock", home / ".truememory" / "model.sock"):
            with FrameClient(path) as client:
                assert client.ask({"op": "ping"})["ok"] is True
        assert (home / ".truememory" / "model_server.pid").read_text() == str(server.process.pid)
        assert server.stop() == 0


def test_o18b_a_second_copy_is_refused_and_the_first_unharmed(home: Path) -> None:
    path = home / "s.sock"
    with live({"port": 0, "socket": str(path), "truememory": True}, home=home) as server:
        code, message = refused({"port": 0, "socket": str(path)}, home=home)
        assert code == 3
        assert message == f"samevec: {path}: another process listens there; stop it or choose another path\n"
        code, message = refused({"port": 0, "truememory": True}, home=home)
        assert code == 3
        lock = home / ".truememory" / "model_server.lock"
        pid = server.process.pid
        assert message == f"samevec: {lock}: another model server holds the lock (pid {pid}); stop it first\n"
        for kept in (path, home / ".truememory" / "model.sock"):
            with FrameClient(kept) as client:
                assert client.ask({"op": "ping"})["ok"] is True
        assert server.stop() == 0


def test_o18c_foreign_files_are_left_alone(home: Path) -> None:
    path = home / "file"
    path.write_text("precious")
    code, message = refused({"port": 0, "socket": str(path)}, home=home)
    assert code == 2
    assert message == f"samevec: {path}: there is already something there, and it is no socket; it was left as it is\n"
    assert path.read_text() == "precious"
    link = home / "link"
    link.symlink_to(path)
    code, message = refused({"uds": str(link)}, home=home)
    assert code == 2
    assert "it is a symbolic link" in message
    assert link.is_symlink()
    folder = home / ".truememory"
    folder.mkdir()
    (folder / "model.sock").write_text("precious")
    assert refused({"port": 0, "truememory": True}, home=home)[0] == 2
    assert sorted(item.name for item in folder.iterdir()) == ["model.sock", "model_server.lock"]


def test_o18d_a_busy_port_is_refused_before_loading(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, message = refused({"port": port}, home=home)
        assert code == 3
        assert message == (  # and not that weights are being loaded
            f"samevec: 127.0.0.1:{port} is in use by another process; stop it or choose another --port\n"
        )


def test_o18d_the_port_is_free_again_after_a_restart(home: Path) -> None:
    with live({"port": 0}, home=home) as server:
        port = int(server.url.rpartition(":")[2])
        with httpx.Client() as client:
            client.post(f"{server.url}/v1/embeddings", json={"input": "a"})
            assert server.stop() == 0
    with live({"port": port}, home=home) as server:
        assert embed(server.url).status_code == 200


def test_o18e_a_path_that_is_too_long(home: Path) -> None:
    path = home / ("x" * 200)
    code, message = refused({"port": 0, "socket": str(path)}, home=home)
    assert code == 2
    assert f"{len(str(path))} bytes long, a socket's path may have 10" in message


def test_o18f_files_are_owner_only_from_the_first_instant(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    path = home / "s.sock"
    listen = socket.socket.listen

    def look(self: socket.socket, backlog: int) -> None:
        seen.append(mode(path))
        listen(self, backlog)

    monkeypatch.setattr(socket.socket, "listen", look)
    monkeypatch.setattr(os, "chmod", None)  # nothing mends a mode afterwards
    previous = os.umask(0)
    try:
        unix = bind_unix(path)
    finally:
        assert os.umask(previous) == 0
    unix.close()
    assert seen == [0o600]


def test_o18f_truememory_modes(home: Path) -> None:
    folder = home / ".truememory"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    with live({"port": 0, "truememory": True}, home=home) as server:
        assert mode(folder) == 0o700
        assert mode(folder / "model.sock") == 0o600
        assert server.stop() == 0
    assert [item.name for item in folder.iterdir()] == ["model_server.lock"]


def test_a_successors_files_are_not_removed(home: Path) -> None:
    path = home / "s.sock"
    first = bind_unix(path)
    path.unlink()
    second = bind_unix(path)
    first.close()
    assert path.exists()
    second.close()
    assert not path.exists()


def test_a_pid_file_of_another_is_not_removed(home: Path) -> None:
    with live({"port": 0, "truememory": True}, home=home) as server:
        pid_file = home / ".truememory" / "model_server.pid"
        pid_file.write_text("1")
        assert server.stop() == 0
        assert pid_file.read_text() == "1"


def test_tcp_addresses() -> None:
    with bind_tcp("localhost", 0) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(NotReadyError, match="is in use by another process"):
            bind_tcp("localhost", port)
    with pytest.raises(ConfigError, match=r"--host nowhere\.invalid"):
        bind_tcp("nowhere.invalid", 0)
    with pytest.raises(ConfigError):
        bind_tcp("192.0.2.1", 0)


def test_settings_are_checked() -> None:
    for wrong in ({"port": 65536}, {"max_queue_items": 0}, {"token_budget": 0}, {"drain_s": -1.0}):
        with pytest.raises(ConfigError):
            ServerSettings(**wrong)


def test_key_files(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    assert read_api_keys(None) == ()
    path.write_text("one\n\n two \n")
    assert read_api_keys(path) == ("one", "two")
    path.write_text("\n")
    with pytest.raises(ConfigError, match="holds no key"):
        read_api_keys(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_api_keys(tmp_path / "absent")


def test_a_model_that_cannot_compute_stops_the_start() -> None:
    with (
        pytest.raises(NotReadyError, match="its worker died"),
        running_server([ServedModel(model=embedder(Script(broken=True)))], ServerSettings(port=0)),
    ):
        pass


def test_the_server_room_imports_no_torch() -> None:
    heavy = "{'torch', 'transformers', 'optimum', 'sentence_transformers', 'onnx', 'onnxruntime'}"
    code = f"import samevec.server.lifecycle, sys; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
