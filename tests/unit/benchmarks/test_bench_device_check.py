"""The script for GPU machines: wheels in parts, what it says when steps fail, and rehearsals without a GPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import device_check
from benchmarks.device_check import BUDGET_S, REPOSITORY, Check, main, run_check
from benchmarks.device_children import MODULES, adopt_toolchain, missing_packages, mixed_items
from benchmarks.device_table import result_row, table_lines
from benchmarks.device_wheels import join_parts, unpack_wheels
from samevec.lock import dump_lock, load_lock, parse_lock

if TYPE_CHECKING:
    from collections.abc import Callable

sys.path.append(str(Path(__file__).parents[2] / "e2e"))
from pretend_gpu import write_wheel_parts


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


def test_a_folder_without_wheels_is_said(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="holds no wheel"):
        unpack_wheels(tmp_path, tmp_path)


def test_steps_that_fail_or_find_no_time_are_rows(tmp_path: Path) -> None:
    failed = check_in(tmp_path).step("fail", "-c", "import sys; print('{}'); sys.exit('no device')")
    assert (failed["outcome"], failed["output"], failed["stderr"]) == ("exit 1", {}, ["no device"])
    late = check_in(tmp_path, end_s=0.0).step("late", "-c", "raise AssertionError")
    assert late == {"step": "late", "outcome": "skipped", "reason": "out of time"}


def test_a_step_that_has_no_time_left_is_ended_with_all_it_started(tmp_path: Path) -> None:
    # The grandchild holds the pipes: the step comes back only because it is ended too.
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(3600)'])"
    step = check_in(tmp_path, end_s=0.2).step("endless", "-c", code)
    assert (step["step"], step["outcome"]) == ("endless", "out of time")


def test_the_time_is_under_eight_minutes() -> None:
    assert BUDGET_S <= 470


class Steps:
    """Stands in for the processes; keeps what was asked for."""

    def __init__(self, outcomes: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        monkeypatch.setattr(Check, "step", lambda check, name, *command: self.note(name))
        self.outcomes = outcomes

    def note(self, name: str) -> dict[str, Any]:
        self.names.append(name)
        return {"step": name, "outcome": "ok", "output": {"missing": []}} | self.outcomes.get(name, {})


def test_a_machine_that_lacks_packages_is_told_which_to_carry_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = {"modules": {"output": {"missing": ["onnxruntime-gpu", "orjson"]}}}
    steps = Steps(lacking, monkeypatch)
    record = run_check(check_in(tmp_path, models=("m",)))
    assert steps.names == ["modules"]
    assert record["results"][0]["parity"] == "not run: the machine is not fit, see above"
    assert table_lines(record)[-1] == "modules: missing (carry wheels of: onnxruntime-gpu, orjson)"


def test_what_was_seen_is_written_after_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps({"export m": {"outcome": "out of time"}, "measure torch m": {"outcome": "skipped"}}, monkeypatch)
    kept: list[list[str]] = []
    measured = dict(THEIRS, useful_tokens=1000)
    steps.outcomes["measure samevec m"] = {"output": measured}
    snapshots = tmp_path / "snapshots"
    snapshots.mkdir()
    (snapshots / "full.lock").touch()
    check = check_in(tmp_path, models=("m",), dry=False, snapshots=snapshots)
    record = run_check(check, lambda record: kept.append([step["step"] for step in record["steps"]]))
    assert steps.names == ["modules", "facts", "adopt toolchain", "export m", "measure samevec m", "measure torch m"]
    assert kept[:-1] == [steps.names[: i + 1] for i in range(len(steps.names))]
    assert record["results"][0]["parity"] == "not run: out of time"
    assert record["results"][0]["torch"] is None


def test_artifacts_that_are_there_are_proved_and_not_exported_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home" / "artifacts" / "m--cpu--0123").mkdir(parents=True)
    steps = Steps({}, monkeypatch)
    monkeypatch.setattr(device_check, "result_row", lambda *_: {})
    run_check(check_in(tmp_path, models=("m",)))
    assert steps.names[2] == "parity m"


def test_packages_are_named_by_what_brings_them() -> None:
    assert missing_packages(lambda module: True) == []
    assert missing_packages(lambda module: not module.startswith("o")) == [
        "onnx",
        "onnxruntime-gpu",
        "optimum",
        "optimum-onnx",
        "orjson",
    ]


def test_every_package_that_an_export_needs_is_looked_for() -> None:
    text = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    needed = set()
    for name in ("dependencies", "export"):
        block = re.search(rf"^{name} = \[(.*?)^\]", text, re.MULTILINE | re.DOTALL)
        assert block is not None
        needed |= set(re.findall(r'"([A-Za-z0-9-]+)', block.group(1)))
    serving = {"fastapi", "jinja2", "prometheus-client", "pydantic", "swagger-ui-bundle", "uvicorn"}
    assert needed - serving - {"onnxruntime"} == set(MODULES.values()) - {"onnxruntime-gpu"}


def test_the_process_itself_needs_nothing_but_python(tmp_path: Path) -> None:
    # -S: without site-packages; the steps then say what is missing.
    command = [sys.executable, "-S", "-m", "benchmarks.device_check", "--dry-run", "--output", str(tmp_path / "o.json")]
    started = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run([*command, "--budget-s", "0"], cwd=REPOSITORY, env=started, capture_output=True, check=False)
    assert done.returncode == 1, done.stderr
    record = json.loads((tmp_path / "o.json").read_text())
    assert {step["outcome"] for step in record["steps"]} == {"skipped"}


def test_full_models_need_files_to_build_them_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--output", str(tmp_path / "o.json")])
    assert "--files or --snapshots is needed, or --dry-run" in capsys.readouterr().err


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
    assert table_lines({"results": [], "steps": [gate | {"stderr": ["a", "no device"]}]})[-1].endswith("(no device)")


@pytest.fixture
def rehearse(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Run the script as it is run on a GPU machine, with the smaller toy."""
    pytest.importorskip("optimum", reason="needs the export extra")

    def run(*more: object) -> dict[str, Any]:
        output = tmp_path / "dry.json"
        command = [sys.executable, "-m", "benchmarks.device_check", "--dry-run", "--output", str(output)]
        where = ["--home", str(tmp_path / "home"), "--model", RERANKER, *map(str, more)]
        done = subprocess.run([*command, *where], cwd=REPOSITORY, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        record: dict[str, Any] = json.loads(output.read_text())
        assert "| passed | samevec |" in done.stdout
        return record

    return run


RERANKER = "toy-modernbert-reranker"
STEPS = ["modules", "facts", f"export {RERANKER}", f"measure samevec {RERANKER}", f"measure torch {RERANKER}"]


@pytest.mark.model
def test_a_rehearsal_on_the_cpu_runs_every_step(rehearse: Callable[..., dict[str, Any]]) -> None:
    record = rehearse()
    assert [step["step"] for step in record["steps"]] == STEPS
    assert record["dry_run"]
    [row] = record["results"]
    assert (row["parity"], row["samevec"]["provider"]) == ("passed", "CPUExecutionProvider")
    assert row["samevec"]["device_bytes"] is None
    assert row["speedup"] > 0
    assert record["elapsed_s"] < BUDGET_S


@pytest.mark.model
def test_a_carried_wheel_in_parts_is_what_exports_proves_and_computes(
    rehearse: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    # The wheel pretends to be onnxruntime-gpu on a machine with a GPU; the package for CPUs is installed here as well.
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    write_wheel_parts(wheels, n_parts=3)
    record = rehearse("--profile", "cuda", "--wheels", wheels)
    assert [step["step"] for step in record["steps"]] == STEPS
    facts = record["steps"][1]["output"]
    assert facts["onnxruntime"] == {"onnxruntime-gpu": "1.32.0"}
    assert facts["devices"] == ["Pretended GPU (compute 9.0)"]
    [row] = record["results"]
    assert (row["parity"], row["samevec"]["provider"]) == ("passed", "CUDAExecutionProvider")
    assert row["speedup"] > 0
