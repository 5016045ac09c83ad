"""Nothing leaves the machine, and nothing is written outside of SAMEVEC_HOME: real processes, watched from outside."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from e2e_tools import EMBEDDER, RERANKER, environment
from quiet_room import Visit, visit, way_in

from samevec.runtime.sessions.onnx import onnxruntime_version

if TYPE_CHECKING:
    from pathlib import Path

    from e2e_tools import ToyHome

pytestmark = [pytest.mark.model, pytest.mark.server]

#: Longest wait for the question of onnxruntime left to itself; 1.32 asks after 9 s.
LIMIT_S = 30.0

BARE = "import sys, time, onnxruntime; time.sleep(float(sys.argv[1]))"

LIBRARY = f"""
import sys, time, samevec
samevec.load_embedder("{EMBEDDER}", lock="toy").encode(["short"])
time.sleep(float(sys.argv[1]))
"""

SERVE = f"""
import json, subprocess, sys, time, urllib.request
command = [sys.executable, "-m", "samevec", "serve", "--lock", "toy", "--port", "0"]
server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
url = server.stdout.readline().split(" at ", 1)[1].split()[0].rstrip(",")
def ask(route, **body):
    request = urllib.request.Request(url + route, json.dumps(body).encode())
    request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 200
ask("/v1/embeddings", model="{EMBEDDER}", input=["short"])
ask("/v1/rerank", model="{RERANKER}", query="short", documents=["a", "b"])
time.sleep(float(sys.argv[1]))
server.terminate()
sys.exit(server.wait(60))
"""


@dataclass(frozen=True)
class Seen:
    """A visit, and every file and folder that lies in HOME, TMPDIR and the working folder after it."""

    visit: Visit
    written: list[str]


@dataclass(frozen=True)
class Watch:
    """Runs a script with nothing in HOME and TMPDIR."""

    folder: Path
    way: list[str] | None

    def run(self, name: str, script: str, *, hold_s: float, home: Path, choice: str | None = None) -> Seen:
        room, user = self.folder / name / "room", self.folder / name / "user"
        for folder in (room, user / "home", user / "tmp", user / "work"):
            folder.mkdir(parents=True)
        environ = environment(user / "home") | {"TMPDIR": str(user / "tmp"), "SAMEVEC_HOME": str(home)}
        del environ["ORT_DISABLE_TELEMETRY"]  # this process has it from samevec: what is watched must do without
        environ.pop("CI", None)  # with it ONNX Runtime is silent by itself
        environ |= {} if choice is None else {"ORT_DISABLE_TELEMETRY": choice}
        command = [sys.executable, "-c", script, str(hold_s)]
        done = visit(self.way, command, folder=room, cwd=user / "work", environ=environ, limit_s=hold_s + 120)
        return Seen(done, sorted(path.relative_to(user).as_posix() for path in user.glob("*/**/*")))


@pytest.fixture(scope="module")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Watch:
    folder = tmp_path_factory.mktemp("watch")
    return Watch(folder, way_in(folder))


@pytest.fixture(scope="module")
def bare(watch: Watch) -> Seen:
    """Onnxruntime left to itself: the control, without which seeing nothing would mean nothing."""
    hold_s = 0.0 if watch.way is None else LIMIT_S
    return watch.run("bare", BARE, hold_s=hold_s, home=watch.folder / "none")


@pytest.fixture(scope="module")
def silent(watch: Watch, bare: Seen, exported: ToyHome) -> dict[str, Seen]:
    """The server and the library at once, held for longer than onnxruntime needs until it asks."""
    hold_s = bare.visit.after_s + 3 if bare.visit.asked else 0.0
    with ThreadPoolExecutor() as pool:
        scripts = {"serve": SERVE, "library": LIBRARY}
        runs = {
            name: pool.submit(watch.run, name, script, hold_s=hold_s, home=exported.path)
            for name, script in scripts.items()
        }
        return {name: run.result() for name, run in runs.items()}


def require_room(watch: Watch) -> None:
    if watch.way is None:
        pytest.skip("no network and mount namespaces here (Linux, unshare, and the permission are needed)")


def require_talk(bare: Seen) -> None:
    if not bare.written:
        pytest.skip(f"onnxruntime {onnxruntime_version()} writes nothing by itself here")


def test_onnxruntime_left_to_itself_writes_files(bare: Seen) -> None:
    require_talk(bare)
    assert any(path.startswith("home/.cache/Microsoft/") for path in bare.written)
    assert "tmp/.ses" in bare.written


def test_onnxruntime_left_to_itself_asks_for_a_collector(watch: Watch, bare: Seen) -> None:
    require_room(watch)
    require_talk(bare)
    assert [name.endswith(".microsoft.com") for name in bare.visit.asked] == [True], bare.visit


@pytest.mark.parametrize("name", ["serve", "library"])
def test_nothing_is_written_outside_of_the_home(name: str, silent: dict[str, Seen]) -> None:
    assert silent[name].visit.code == 0, silent[name].visit.err
    assert silent[name].written == []


@pytest.mark.parametrize("name", ["serve", "library"])
def test_no_name_is_asked_for(name: str, watch: Watch, silent: dict[str, Seen]) -> None:
    require_room(watch)
    assert silent[name].visit.code == 0, silent[name].visit.err
    assert silent[name].visit.asked == []


def test_the_users_own_choice_stands(watch: Watch, bare: Seen) -> None:
    require_talk(bare)
    chosen = watch.run("chosen", f"import samevec\n{BARE}", hold_s=0, home=watch.folder / "none", choice="0")
    assert chosen.visit.code == 0, chosen.visit.err
    assert "tmp/.ses" in chosen.written
