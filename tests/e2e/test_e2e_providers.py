"""Profiles this machine cannot run, asked for by their users: exit 3 and the reason, before anything is loaded."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest
from e2e_tools import Done, samevec

from samevec.runtime.providers import provider_problem, read_facts

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
    "nonsense": "samevec: nonsense: there is no such profile; choose one of: auto, coreml, cpu, cpu-compact, cuda",
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("profile", REASONS)
def test_a_profile_that_is_not_here_exits_3_with_the_reason(
    profile: str, command: str, cli: Callable[..., Done], tmp_path: Path
) -> None:
    provider = REASONS[profile].split(": ")[1]
    if profile != "nonsense" and provider_problem(provider, read_facts()) is None:
        pytest.skip(f"{provider} is to be had here")
    done = cli(*COMMANDS[command], "--profile", profile, "--home", tmp_path)
    assert done.code == 3
    assert len(done.complaints) == 1
    assert done.complaints[0].startswith(REASONS[profile])
    assert len(done.complaints[0]) > len(REASONS["cuda"])
    assert not list(tmp_path.iterdir())


def test_a_refusal_loads_neither_torch_nor_a_model(tmp_path: Path) -> None:
    if provider_problem("CUDAExecutionProvider", read_facts()) is None:
        pytest.skip("CUDA is to be had here")
    done = samevec("serve", "--port", "0", "--lock", "toy", "--profile", "cuda", "--home", tmp_path, folder=tmp_path)
    assert (done.code, done.out) == (3, "")
    assert sys.platform != "linux" or "was built without CUDA" in done.err or "no NVIDIA device" in done.err


def test_auto_says_what_is_missing(cli: Callable[..., Done], tmp_path: Path) -> None:
    done = cli("serve", "--port", "0", "--lock", "toy", "--profile", "auto", "--home", tmp_path)
    assert done.code == 3
    assert done.complaints[0].startswith("samevec: no profile will do: cuda: ")
    assert "cpu: toy-qwen3-embedder not exported, toy-modernbert-reranker not exported" in done.complaints[0]


def test_status_tells_of_profiles_that_cannot_run_here(cli: Callable[..., Done], tmp_path: Path) -> None:
    done = cli("status", "--lock", "toy", "--profile", "cuda", "--home", tmp_path, "--json")
    assert done.code == 0
    assert {report["gate"] for report in json.loads(done.out)} == {"not exported"}
