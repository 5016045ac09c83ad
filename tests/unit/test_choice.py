"""Which profile a command runs: named ones are checked, auto takes the best that is here and proved."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from samevec.cli import profile_choice as choice_module
from samevec.cli.profile_choice import resolve_profile
from samevec.errors import (
    ArtifactMissingError,
    ConfigError,
    NativeLibraryError,
    NotReadyError,
    ProviderUnavailableError,
    exit_code,
)
from samevec.lock import load_lock
from samevec.native import library
from samevec.parity.receipt import GateState
from samevec.runtime.providers.detect import NvidiaDriver, ProviderFacts

if TYPE_CHECKING:
    from samevec.cli.profile_choice import Purpose
    from samevec.lock import LockedModel
    from samevec.runtime.providers.profiles import Profile

ENTRIES = load_lock("toy").models
CPU_ONLY = ProviderFacts(packages={"onnxruntime": "1.32.0"}, available=("CPUExecutionProvider",))
GPU = ProviderFacts(
    packages={"onnxruntime-gpu": "1.32.0"},
    available=("CUDAExecutionProvider", "CPUExecutionProvider"),
    built_for_cuda="13.0",
    driver=NvidiaDriver(cuda="13.0", devices=("NVIDIA H200 (compute 9.0)",)),
)


def resolve(requested: str, home: Path, facts: ProviderFacts, purpose: Purpose = "serve") -> tuple[str, list[str]]:
    said: list[str] = []
    found = resolve_profile(requested, ENTRIES, home=home, purpose=purpose, say=said.append, facts=facts)
    return found, said


@pytest.fixture
def gates(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], str]:
    """States by (profile, model); what is not named was not exported."""
    states: dict[tuple[str, str], str] = {}

    def find(entry: LockedModel, profile: Profile, *, home: Path) -> tuple[str, str]:
        key = (profile.name, entry.name)
        if key not in states:
            raise ArtifactMissingError(key[1], profile.name, reason="not exported", fix="samevec export")
        return key

    def state_of(located: tuple[str, str]) -> GateState:
        return GateState(state=states[located], receipt=None, changes=())  # type: ignore[arg-type]

    monkeypatch.setattr(choice_module, "locate", find)
    monkeypatch.setattr(choice_module, "state_of", state_of)
    return states


def fill(gates: dict[tuple[str, str], str], profile: str, state: str) -> None:
    gates.update({(profile, entry.name): state for entry in ENTRIES})


@pytest.mark.parametrize(
    ("requested", "reason"),
    [
        (
            "cuda",
            "CUDAExecutionProvider: the installed onnxruntime 1.32.0 was built without CUDA; and no NVIDIA device",
        ),
        ("coreml", "CoreMLExecutionProvider: CoreML is part of macOS, and this is Linux"),
        ("nonsense", "nonsense: there is no such profile; choose one of: auto, coreml, cpu, cuda, portable"),
    ],
)
def test_a_profile_that_cannot_run_is_refused_with_3(requested: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ProviderUnavailableError) as caught:
        resolve(requested, tmp_path, CPU_ONLY)
    assert str(caught.value).startswith(reason)
    assert exit_code(caught.value) == 3


def test_a_named_profile_that_can_run_is_taken_whatever_its_gate(tmp_path: Path) -> None:
    assert resolve("portable", tmp_path, CPU_ONLY) == ("portable", [])
    assert resolve("cuda", tmp_path, GPU) == ("cuda", [])


def test_a_profile_that_is_gone_names_what_took_its_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cpu-compact is gone: cpu is as small now"):
        resolve("cpu-compact", tmp_path, CPU_ONLY)


def test_without_the_native_library_cpu_is_refused_and_auto_takes_portable(
    tmp_path: Path, gates: dict[tuple[str, str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise NativeLibraryError(Path("libsamevec.so"), "there is no such file")

    monkeypatch.setattr(library, "load_library", missing)
    with pytest.raises(NativeLibraryError, match=r"there is no such file; build it .*--profile portable") as caught:
        resolve("cpu", tmp_path, CPU_ONLY)
    assert exit_code(caught.value) == 3
    fill(gates, "cpu", "passed")
    fill(gates, "portable", "passed")
    name, said = resolve("auto", tmp_path, CPU_ONLY)
    assert name == "portable"
    assert "there is no such file" in said[0]


def test_auto_serves_the_best_with_passed_receipts_and_says_so(
    tmp_path: Path, gates: dict[tuple[str, str], str]
) -> None:
    fill(gates, "cuda", "passed")
    fill(gates, "cpu", "passed")
    name, said = resolve("auto", tmp_path, GPU)
    assert (name, said) == ("cuda", ["samevec: profile cuda, the best there is"])
    gates["cuda", ENTRIES[0].name] = "stale"
    name, said = resolve("auto", tmp_path, GPU)
    assert name == "cpu"
    assert said[0].startswith(
        f"samevec: profile cpu (not cuda: {ENTRIES[0].name} stale; coreml: CoreML is part of macOS"
    )
    assert resolve("auto", tmp_path, GPU, "prove and serve")[0] == "cuda"
    assert resolve("auto", tmp_path, CPU_ONLY)[0] == "cpu"


def test_auto_never_serves_what_failed(tmp_path: Path, gates: dict[tuple[str, str], str]) -> None:
    fill(gates, "cpu", "failed")
    for purpose in ("serve", "prove and serve"):
        with pytest.raises(NotReadyError, match=f"no profile will do: cuda: .*cpu: {ENTRIES[0].name} failed") as caught:
            resolve("auto", tmp_path, CPU_ONLY, purpose)
        assert exit_code(caught.value) == 3


def test_auto_proves_what_is_exported_and_exports_what_can_run(
    tmp_path: Path, gates: dict[tuple[str, str], str]
) -> None:
    fill(gates, "portable", "missing")
    assert resolve("auto", tmp_path, GPU, "parity")[0] == "portable"
    assert resolve("auto", tmp_path, GPU, "export")[0] == "cuda"
    assert resolve("auto", tmp_path, CPU_ONLY, "export")[0] == "cpu"
