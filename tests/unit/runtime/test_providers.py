"""Why a provider cannot be used, and which profile is taken instead: every refusal, from facts made up here."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from samevec.errors import ProviderUnavailableError, exit_code
from samevec.runtime import providers
from samevec.runtime.profiles import PROFILES, get_profile
from samevec.runtime.providers import (
    AUTO_ORDER,
    NvidiaDriver,
    ProfileState,
    ProviderFacts,
    choose_profile,
    device_name,
    load_cuda_libraries,
    provider_problem,
    require_provider,
)

CUDA, COREML = "CUDAExecutionProvider", "CoreMLExecutionProvider"
CPU_ONLY = ProviderFacts(packages={"onnxruntime": "1.32.0"}, available=("CPUExecutionProvider",))
H200 = NvidiaDriver(cuda="13.0", devices=("NVIDIA H200 (compute 9.0)",))
GPU = ProviderFacts(
    packages={"onnxruntime-gpu": "1.32.0"},
    available=(CUDA, "CPUExecutionProvider"),
    built_for_cuda="13.0",
    driver=H200,
    cuda_runtimes={"nvidia-cuda-runtime": "13.0.96"},
)
MISSING = "libcublasLt.so.13: cannot open shared object file: No such file or directory"
WRONG_LIBRARIES = (
    "wrong CUDA major version: the installed onnxruntime-gpu 1.32.0 is built for CUDA 13.0 and needs "
    "libcublasLt.so.13, but nvidia-cuda-runtime-cu12 12.8.90 is what is installed; install the libraries of CUDA 13"
)
BOTH_INSTALLED = (
    "onnxruntime and onnxruntime-gpu are both installed and overwrite each other's files, so that either may be what "
    "runs; run: pip uninstall -y onnxruntime onnxruntime-gpu && pip install 'samevec[gpu]'"
)

REFUSALS = {
    "nothing installed": (CUDA, ProviderFacts(), "onnxruntime is not installed; install it with: pip install 'samevec"),
    "missing library and device": (
        CUDA,
        CPU_ONLY,
        "the installed onnxruntime 1.32.0 was built without CUDA; and no NVIDIA device was found here; where there",
    ),
    "missing library": (
        CUDA,
        replace(CPU_ONLY, driver=H200),
        "the installed onnxruntime 1.32.0 was built without CUDA; where there is a device, run: pip uninstall",
    ),
    "no driver": (CUDA, replace(GPU, driver=NvidiaDriver()), "no NVIDIA device: the driver's library (libcuda) cannot"),
    "no device": (CUDA, replace(GPU, driver=NvidiaDriver(cuda="13.0")), "no NVIDIA device: the driver reports none"),
    "driver too old": (
        CUDA,
        replace(GPU, driver=replace(H200, cuda="12.8")),
        "wrong CUDA major version: the installed onnxruntime-gpu 1.32.0 is built for CUDA 13.0, this driver runs",
    ),
    "libraries of another CUDA": (
        CUDA,
        replace(GPU, load_message=MISSING, cuda_runtimes={"nvidia-cuda-runtime-cu12": "12.8.90"}),
        WRONG_LIBRARIES,
    ),
    "library not installed": (
        CUDA,
        replace(GPU, load_message=MISSING),
        "a library is missing: libcublasLt.so.13 (CUDA 13.0); pip install 'onnxruntime-gpu[cuda,cudnn]' brings it",
    ),
    "cuDNN not installed": (
        CUDA,
        replace(GPU, load_message="libcudnn.so.9: cannot open shared object file"),
        "a library is missing: libcudnn.so.9 (CUDA 13.0)",
    ),
    "library broken": (
        CUDA,
        replace(GPU, load_message="undefined symbol: x"),
        "the provider's library cannot be loaded: undefined symbol: x",
    ),
    "both packages": (
        CUDA,
        replace(GPU, packages={"onnxruntime": "1.32.0", "onnxruntime-gpu": "1.32.0"}),
        BOTH_INSTALLED,
    ),
    "not a Mac": (COREML, CPU_ONLY, "CoreML is part of macOS, and this is Linux; use another profile"),
    "a Mac without it": (
        COREML,
        replace(CPU_ONLY, system="Darwin"),
        "the installed onnxruntime 1.32.0 does not have it (it has CPUExecutionProvider)",
    ),
    "nonsense": ("Nonsense", CPU_ONLY, "the installed onnxruntime 1.32.0 does not have it"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_every_refusal_says_why_and_ends_with_3(name: str) -> None:
    provider, facts, words = REFUSALS[name]
    problem = provider_problem(provider, facts)
    assert problem is not None
    assert problem.startswith(words)
    with pytest.raises(ProviderUnavailableError) as caught:
        require_provider(replace(get_profile("cuda"), provider=provider), facts)
    assert str(caught.value) == f"{provider}: {problem}"
    assert exit_code(caught.value) == 3


def test_what_is_there_is_not_refused() -> None:
    assert provider_problem(CUDA, GPU) is None
    newer = replace(GPU, driver=replace(H200, cuda="14.1"))  # drivers run what was built for older ones
    assert provider_problem(CUDA, newer) is None
    mac = replace(CPU_ONLY, system="Darwin", available=(COREML, "CPUExecutionProvider"))
    assert provider_problem(COREML, mac) is None
    assert provider_problem("CPUExecutionProvider", CPU_ONLY) is None
    # Two packages do not stop the CPU: both have it.
    assert provider_problem("CPUExecutionProvider", replace(CPU_ONLY, packages={"a": "1", "b": "1"})) is None


def test_this_machine_is_asked_only_for_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses() -> ProviderFacts:
        raise AssertionError("asked")

    monkeypatch.setattr(providers, "read_facts", refuses)
    require_provider(get_profile("cpu"))
    with pytest.raises(AssertionError, match="asked"):
        require_provider(get_profile("cuda"))


def test_asking_the_machine_loads_no_torch() -> None:
    code = (
        "import sys; from samevec.runtime.providers import read_facts; f = read_facts();"
        "assert 'CPUExecutionProvider' in f.available and f.packages, f;"
        "print([m for m in ('torch', 'transformers', 'onnx') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_installed_cuda_libraries_are_loaded_never_torchs(capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[object] = []

    def preload(**options: object) -> None:
        asked.append(options)
        print("noise")

    load_cuda_libraries(SimpleNamespace(preload_dlls=preload))
    load_cuda_libraries(SimpleNamespace())  # an older one has no such function
    assert asked == [{"directory": ""}]
    assert capsys.readouterr().out == ""


def test_receipts_name_what_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "_nvidia_driver", lambda: H200)
    assert device_name(CUDA) == "NVIDIA H200 (compute 9.0), driver CUDA 13.0"
    monkeypatch.setattr(providers, "_nvidia_driver", NvidiaDriver)
    assert device_name(CUDA) == "no NVIDIA device"
    monkeypatch.setattr(providers, "cpu_name", lambda: "Apple M4")
    monkeypatch.setattr("platform.mac_ver", lambda: ("26.1", ("", "", ""), "arm64"))
    assert device_name(COREML) == "Apple M4, macOS 26.1"
    assert device_name("CPUExecutionProvider") == "Apple M4"


def state(profile: str, problem: str | None = None, **gates: str) -> ProfileState:
    return ProfileState(profile=profile, problem=problem, gates=gates)


def test_the_best_that_is_here_and_proved_is_chosen() -> None:
    best = choose_profile([state("cuda", e="passed", r="passed"), state("cpu", e="passed")], allowed=("passed",))
    assert best.profile == "cuda"
    assert best.words == "profile cuda, the best there is"


def test_a_better_one_is_passed_over_with_its_reason() -> None:
    states = [
        state("cuda", e="passed", r="stale"),
        state("coreml", "not a Mac"),
        state("cpu", e="passed", r="passed"),
        state("cpu-compact", e="passed", r="passed"),
    ]
    choice = choose_profile(states, allowed=("passed",))
    assert choice.words == "profile cpu (not cuda: r stale; coreml: not a Mac)"
    assert choose_profile(states, allowed=("passed", "stale")).profile == "cuda"


def test_where_none_will_do_every_reason_is_given() -> None:
    choice = choose_profile([state("cuda", "no device"), state("cpu", e="failed")], allowed=("passed",))
    assert choice.profile is None
    assert choice.words == "no profile will do: cuda: no device; cpu: e failed"


def test_every_profile_has_a_place_in_the_order() -> None:
    assert sorted(AUTO_ORDER) == sorted(PROFILES)
