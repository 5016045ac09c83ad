"""Profiles this machine cannot run, asked for by their users: exit 3 and the reason, before anything is loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from e2e_tools import Done, environment
from pretend_gpu import write_site

from samevec.runtime.providers.detect import provider_problem, read_facts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

COMMANDS = {
    "serve": ("serve", "--port", "0", "--lock", "toy"),
    "parity": ("parity", "--lock", "toy"),
    "export": ("export", "--lock", "toy"),
}
REASONS = {
    "cuda": "samevec: CUDAExecutionProvider: ",
    "coreml": "samevec: CoreMLExecutionProvider: ",
    "nonsense": "samevec: nonsense: there is no such profile; choose one of: auto, coreml, cpu, cuda, portable",
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("profile", REASONS)
def test_a_profile_that_is_not_here_exits_3_with_the_reason(
    profile: str, command: str, cli: Callable[..., Done], tmp_path: Path
) -> None:
    provider = REASONS[profile].split(": ")[1]
    if profile != "nonsense" and provider_problem(provider, read_facts()) is None:
        pytest.skip(f"{provider} is to be had here")
    home = tmp_path / "home"
    done = cli(*COMMANDS[command], "--profile", profile, "--home", home)
    assert done.code == 3
    assert len(done.complaints) == 1
    assert done.complaints[0].startswith(REASONS[profile])
    assert len(done.complaints[0]) > len(REASONS["cuda"])
    assert not home.exists()


#: Ends like ``-m samevec``, and tells what it took: seconds of processor time, and which of these were imported.
TELLING = """
import json, sys, time
from samevec.cli.main import main
code = main(sys.argv[1:])
heavy = [name for name in ("torch", "transformers", "onnx", "sentence_transformers") if name in sys.modules]
print(json.dumps({"cpu_s": time.process_time(), "heavy": heavy}))
sys.exit(code)
"""
#: Processor time of a refusal; 0.8 s were measured.
MOST_CPU_S = 5.0


def refused(profile: str, folder: Path, site: Path | None = None, **machine: str) -> str:
    """Serve in a process of its own; return what it says, once it has ended with 3 in time and with nothing loaded."""
    started = {**environment(folder), **machine}
    if site is not None:
        started["PYTHONPATH"] = os.pathsep.join([str(site), started["PYTHONPATH"]])
    home = folder / "home"
    arguments = ["serve", "--port", "0", "--lock", "toy", "--profile", profile, "--home", str(home)]
    command = [sys.executable, "-c", TELLING, *arguments]
    done = subprocess.run(command, cwd=folder, env=started, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    told = json.loads(done.stdout)
    assert told["heavy"] == []
    assert told["cpu_s"] < MOST_CPU_S
    assert not home.exists()
    return next(line for line in done.stderr.splitlines() if line.startswith("samevec: "))


@pytest.mark.parametrize("profile", REASONS)
def test_a_refusal_takes_under_five_seconds_and_loads_no_model(profile: str, tmp_path: Path) -> None:
    provider = REASONS[profile].split(": ")[1]
    if profile != "nonsense" and provider_problem(provider, read_facts()) is None:
        pytest.skip(f"{provider} is to be had here")
    assert refused(profile, tmp_path).startswith(REASONS[profile])


MISSING = "libcublasLt.so.13: cannot open shared object file: No such file or directory"
TOO_OLD = (
    "wrong CUDA major version: the installed onnxruntime-gpu 1.32.0 is built for CUDA 13.0, this driver runs CUDA 12.8"
)
MACHINES = {
    "no driver": ({"PRETEND_DRIVER": ""}, "no NVIDIA device: the driver's library (libcuda) cannot be loaded"),
    "no device": ({"PRETEND_DEVICES": "0"}, "no NVIDIA device: the driver reports none"),
    "wrong CUDA": ({"PRETEND_DRIVER": "12.8"}, TOO_OLD),
    "missing library": ({"PRETEND_MISSING": MISSING}, "a library is missing: libcublasLt.so.13 (CUDA 13.0)"),
}


@pytest.mark.skipif(sys.platform != "linux", reason="the pretended driver is Linux's")
@pytest.mark.parametrize("machine", MACHINES)
def test_a_package_for_gpus_on_a_machine_that_is_not_fit_for_it(machine: str, tmp_path: Path) -> None:
    settings, words = MACHINES[machine]
    site = write_site(tmp_path / "site")
    assert refused("cuda", tmp_path, site, **settings).startswith(f"samevec: CUDAExecutionProvider: {words}")


@pytest.mark.skipif(sys.platform != "linux", reason="the pretended driver is Linux's")
def test_both_packages_in_one_place(tmp_path: Path) -> None:
    site = write_site(tmp_path / "site", "onnxruntime", "onnxruntime-gpu")
    words = refused("cuda", tmp_path, site)
    assert words.startswith(
        "samevec: CUDAExecutionProvider: onnxruntime and onnxruntime-gpu are both installed and overwrite each other's"
    )
    assert "run: pip uninstall -y onnxruntime onnxruntime-gpu && pip install 'samevec[gpu]'" in words


@pytest.mark.skipif(sys.platform != "linux", reason="the pretended driver is Linux's")
def test_with_a_device_the_next_thing_missing_is_the_export(tmp_path: Path) -> None:
    # So the refusals above are those of the machine they describe, and not of the pretence.
    assert "nothing exported under" in refused("cuda", tmp_path, write_site(tmp_path / "site"))


def test_auto_says_what_is_missing(cli: Callable[..., Done], tmp_path: Path) -> None:
    done = cli("serve", "--port", "0", "--lock", "toy", "--profile", "auto", "--home", tmp_path)
    assert done.code == 3
    assert done.complaints[0].startswith("samevec: no profile will do: cuda: ")
    assert "cpu: toy-qwen3-embedder not exported, toy-modernbert-reranker not exported" in done.complaints[0]


def test_status_tells_of_profiles_that_cannot_run_here(cli: Callable[..., Done], tmp_path: Path) -> None:
    done = cli("status", "--lock", "toy", "--profile", "cuda", "--home", tmp_path, "--json")
    assert done.code == 0
    assert {report["gate"] for report in json.loads(done.out)} == {"not exported"}
