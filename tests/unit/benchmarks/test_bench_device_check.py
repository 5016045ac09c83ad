"""The script for GPU machines: wheels in parts, what it says when steps fail, and a rehearsal on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.device_check import (
    REPOSITORY,
    Check,
    adopt_toolchain,
    join_parts,
    mixed_items,
    result_row,
    table_lines,
    unpack_wheels,
)
from samevec.lock import dump_lock, load_lock, parse_lock

if TYPE_CHECKING:
    from pathlib import Path


def write_wheel(folder: Path, name: str, *, n_parts: int = 1) -> None:
    wheel = folder / f"{name}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{name}/__init__.py", f"NAME = {name!r}\n" + "#" * 5000)
        archive.writestr(f"{name}-1.dist-info/METADATA", f"Name: {name}\nVersion: 1\n")
    if n_parts > 1:
        content = wheel.read_bytes()
        size = -(-len(content) // n_parts)
        for i in range(n_parts):
            (folder / f"{name}.whl.part-a{'abcdef'[i]}").write_bytes(content[i * size : (i + 1) * size])
        wheel.unlink()


def check_in(folder: Path, **changed: Any) -> Check:
    base = Check(
        profile="cpu",
        device="cpu",
        models=(),
        dry=True,
        home=folder / "home",
        scratch=folder,
        snapshots=None,
        files=None,
        site=None,
        end_s=600.0,
        clock=lambda: 0.0,
    )
    return replace(base, **changed)


def test_whole_and_cut_wheels_are_unpacked_for_the_processes_started_here(tmp_path: Path) -> None:
    source, scratch = tmp_path / "wheels", tmp_path / "scratch"
    source.mkdir()
    scratch.mkdir()
    write_wheel(source, "whole_one")
    write_wheel(source, "cut_one", n_parts=4)
    assert [wheel.name for wheel in join_parts(source, scratch)] == ["whole_one.whl", "cut_one.whl"]
    site = unpack_wheels(source, scratch)
    code = (
        "import cut_one, whole_one, importlib.metadata as m; print('\"' + cut_one.NAME + m.version('whole_one') + '\"')"
    )
    assert check_in(tmp_path, site=site).step("import", "-c", code)["output"] == "cut_one1"


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    write_wheel(tmp_path, "cut_one", n_parts=3)
    (tmp_path / "cut_one.whl.part-ac").unlink()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with pytest.raises(SystemExit, match=r"cut_one\.whl: not a whole wheel"):
        unpack_wheels(tmp_path, scratch)


def test_steps_that_fail_or_find_no_time_are_rows(tmp_path: Path) -> None:
    failed = check_in(tmp_path).step("fail", "-c", "import sys; print('{}'); sys.exit('no device')")
    assert (failed["outcome"], failed["output"], failed["stderr"]) == ("exit 1", {}, ["no device"])
    late = check_in(tmp_path, end_s=0.0).step("late", "-c", "raise AssertionError")
    assert late == {"step": "late", "outcome": "skipped", "reason": "out of time"}


def test_the_processes_started_here_have_no_settings_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAMEVEC_LOCK", "/nowhere")
    assert "SAMEVEC_LOCK" not in check_in(tmp_path).environment


def test_the_machines_toolchain_is_adopted_and_said() -> None:
    lock = load_lock("toy")
    installed = dict(lock.toolchain.versions) | {"torch": "9.9.0", "optimum": "missing"}
    adopted, changes = adopt_toolchain(lock, installed)
    assert changes == [f"torch 9.9.0 instead of {lock.toolchain.versions['torch']}"]
    assert adopted.toolchain.versions["torch"] == "9.9.0"
    assert adopted.toolchain.versions["optimum"] == lock.toolchain.versions["optimum"]
    assert adopted.tolerance == lock.tolerance
    assert parse_lock(dump_lock(adopted), origin="device.lock") == adopted


def test_a_hundred_mixed_items() -> None:
    for task in ("embed", "rerank"):
        items = mixed_items(task, few=False)
        assert len(items) == len(set(items)) == 100
        assert len(mixed_items(task, few=True)) == 8


OK = {"step": "export m", "outcome": "ok"}
OURS = {"pass_s": 0.5, "query_s": 0.01, "useful_tokens": 1000, "device_bytes": 3_000_000_000}
THEIRS = {"pass_s": 0.9, "query_s": 0.02, "device_bytes": None}


def test_figures_are_put_side_by_side() -> None:
    row = result_row("m", OK, {"samevec": OURS, "torch": THEIRS})
    assert (row["parity"], row["speedup"]) == ("passed", 1.8)
    assert (row["samevec"]["useful_tokens_per_s"], row["torch"]["useful_tokens_per_s"]) == (2000.0, 1111.1)
    lines = table_lines({"results": [row], "steps": [OK]})
    assert lines[2:] == [
        "| m | passed | samevec | 2,000 | 10.0 | 3,000 | 1.80 |",
        "| m |  | torch | 1,111 | 20.0 |  |  |",
    ]


@pytest.mark.parametrize(
    ("outcome", "words"), [("exit 1", "failed"), ("exit 3", "not run: exit 3"), ("skipped", "not run: skipped")]
)
def test_what_was_not_measured_is_not_made_up(outcome: str, words: str) -> None:
    gate = {"step": "export m", "outcome": outcome}
    row = result_row("m", gate, {"samevec": None, "torch": THEIRS})
    assert (row["parity"], row["samevec"], row["torch"], row["speedup"]) == (words, None, None, None)
    lines = table_lines({"results": [row], "steps": [gate]})
    assert lines[2] == f"| m | {words} | samevec | not measured |  |  |  |"
    assert lines[-1] == f"export m: {outcome}"


@pytest.mark.model
def test_a_rehearsal_on_the_cpu_runs_every_step(tmp_path: Path) -> None:
    pytest.importorskip("optimum", reason="needs the export extra")
    output = tmp_path / "dry.json"
    command = [sys.executable, "-m", "benchmarks.device_check", "--dry-run", "--output", str(output)]
    more = ["--home", str(tmp_path / "home"), "--model", "toy-modernbert-reranker"]
    done = subprocess.run([*command, *more], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(output.read_text())
    assert [step["step"] for step in record["steps"]] == [
        "facts",
        "export toy-modernbert-reranker",
        "measure samevec toy-modernbert-reranker",
        "measure torch toy-modernbert-reranker",
    ]
    assert record["dry_run"]
    assert record["results"][0]["parity"] == "passed"
    assert record["results"][0]["samevec"]["provider"] == "CPUExecutionProvider"
    assert record["results"][0]["samevec"]["device_bytes"] is None
    assert record["results"][0]["speedup"] > 0
