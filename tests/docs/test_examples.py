"""The scripts of examples/ on the toy pair, as a reader would run them; the gate's script makes what the others use."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"

pytestmark = [pytest.mark.model, pytest.mark.server]


def run(*words: object, environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in words],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("examples")


@pytest.fixture(scope="module")
def environment(folder: Path) -> dict[str, str]:
    """This interpreter's samevec on PATH, a home of its own, the toy lock, and no other setting."""
    command = folder / "bin" / "samevec"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m samevec "$@"\n')
    command.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SAMEVEC_")}
    return kept | {
        "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "SAMEVEC_HOME": str(folder / "home"),
        "SAMEVEC_LOCK": "toy",
    }


@pytest.fixture(scope="module")
def gate(environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("optimum.exporters.onnx", reason="needs the export extra")
    return run("bash", EXAMPLES / "gate_in_ci.sh", "report.json", environment=environment, folder=folder)


def test_the_gate_exports_on_an_empty_home_and_passes(gate: subprocess.CompletedProcess[str], folder: Path) -> None:
    assert gate.returncode == 0, gate.stderr
    verdicts = json.loads((folder / "report.json").read_bytes())
    assert [verdict["passed"] for verdict in verdicts] == [True, True]


@pytest.mark.usefixtures("gate")
def test_the_gate_does_not_export_what_is_there(environment: dict[str, str], folder: Path) -> None:
    before = sorted(path.stat().st_mtime_ns for path in folder.glob("home/artifacts/*/manifest.json"))
    one = {**environment, "SAMEVEC_MODEL": "toy-qwen3-embedder"}  # half the time
    done = run("bash", EXAMPLES / "gate_in_ci.sh", "again.json", environment=one, folder=folder)
    assert done.returncode == 0, done.stderr
    assert [verdict["passed"] for verdict in json.loads((folder / "again.json").read_bytes())] == [True]
    assert sorted(path.stat().st_mtime_ns for path in folder.glob("home/artifacts/*/manifest.json")) == before


@pytest.mark.usefixtures("gate")
def test_the_gate_stops_at_a_bad_lock(environment: dict[str, str], folder: Path) -> None:
    (folder / "bad.lock").write_text("lock_version = 1\n")
    done = run(
        "bash", EXAMPLES / "gate_in_ci.sh", environment={**environment, "SAMEVEC_LOCK": "bad.lock"}, folder=folder
    )
    assert done.returncode == 2
    assert not (folder / "parity.json").exists()


@pytest.mark.usefixtures("gate")
def test_the_library_example_ranks(environment: dict[str, str], folder: Path) -> None:
    done = run(sys.executable, EXAMPLES / "library.py", "--lock", "toy", environment=environment, folder=folder)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == [
        "cosines (toy-qwen3-embedder):",
        "scores (toy-modernbert-reranker), best first:",
    ]
    assert len(lines) == 2 + 3 + 2


@pytest.mark.usefixtures("gate")
def test_the_cache_example_computes_each_text_once(environment: dict[str, str], folder: Path) -> None:
    command = (sys.executable, EXAMPLES / "vector_cache.py", "vectors.db", "--lock", "toy")
    runs = [run(*command, environment=environment, folder=folder) for _ in range(2)]
    assert [done.returncode for done in runs] == [0, 0], runs[0].stderr + runs[1].stderr
    first, second = (done.stdout.splitlines() for done in runs)
    assert first[0] == "3 vectors of 256 numbers, 2 computed"
    assert second == ["3 vectors of 256 numbers, 0 computed", first[1]]
    with contextlib.closing(sqlite3.connect(folder / "vectors.db")) as table, table:
        table.execute("UPDATE vectors SET vector = zeroblob(1024)")
    spoilt = run(*command, environment=environment, folder=folder)
    assert spoilt.returncode == 1
    assert "its vector has changed since it was stored" in spoilt.stderr


def test_the_library_example_tells_what_to_run_first(environment: dict[str, str], folder: Path) -> None:
    empty = {**environment, "SAMEVEC_HOME": str(folder / "empty")}
    done = run(sys.executable, EXAMPLES / "library.py", "--lock", "toy", environment=empty, folder=folder)
    assert done.returncode == 1
    assert "run: samevec export" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("gate")
def test_the_client_example_embeds(environment: dict[str, str], folder: Path) -> None:
    pytest.importorskip("openai", reason="needs the dev extra")
    command = ["samevec", "serve", "--port", "0", "--log-format", "json"]
    with subprocess.Popen(command, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            ready = json.loads(server.stdout.readline())
            done = run(
                sys.executable,
                EXAMPLES / "openai_client.py",
                "--url",
                ready["url"],
                environment=environment,
                folder=folder,
            )
        finally:
            server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:3] == [
        "served: toy-qwen3-embedder, toy-modernbert-reranker",
        "item 0: 256 numbers, norm 1.000000",
        "item 1: 256 numbers, norm 1.000000",
    ]
