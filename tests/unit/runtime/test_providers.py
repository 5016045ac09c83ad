"""Why a provider cannot be used, and which profile is taken instead: every refusal, from facts made up here."""

from __future__ import annotations

import ctypes
import importlib.metadata
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from samevec.errors import ProviderUnavailableError, exit_code
from samevec.runtime.providers import detect as providers
from samevec.runtime.providers.detect import (
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
from samevec.runtime.providers.profiles import PROFILES, get_profile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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
        "import sys; from samevec.runtime.providers.detect import read_facts; f = read_facts();"
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


@pytest.fixture
def _unread() -> Iterator[None]:
    """Let the machine be read anew, before and after."""

    def forget() -> None:
        providers.read_facts.cache_clear()
        providers._nvidia_driver.cache_clear()

    forget()
    yield
    forget()


class FakeDriver:
    """The functions of libcuda that are called."""

    def __init__(self, *, version: int = 13000, init: int = 0, names: tuple[bytes, ...] = (b"NVIDIA H200",)) -> None:
        self._version, self._init, self._names = version, init, names

    def cuDriverGetVersion(self, out: Any) -> int:
        out._obj.value = self._version
        return 0

    def cuInit(self, _flags: int) -> int:
        return self._init

    def cuDeviceGetCount(self, out: Any) -> int:
        out._obj.value = len(self._names)
        return 0

    def cuDeviceGet(self, out: Any, ordinal: int) -> int:
        out._obj.value = ordinal
        return 0

    def cuDeviceGetName(self, out: Any, _size: int, device: Any) -> int:
        out.value = self._names[device.value]
        return 0

    def cuDeviceGetAttribute(self, out: Any, attribute: int, _device: Any) -> int:
        out._obj.value = {75: 9, 76: 0}[attribute]
        return 0


def raising(words: str) -> Any:
    def load(*_arguments: Any, **_options: Any) -> None:
        raise OSError(words)

    return load


@pytest.mark.usefixtures("_unread")
def test_the_driver_is_asked_for_its_cuda_and_every_device(monkeypatch: pytest.MonkeyPatch) -> None:
    two = FakeDriver(version=12080, names=(b"NVIDIA H200", b"NVIDIA L4"))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: two)
    devices = ("NVIDIA H200 (compute 9.0)", "NVIDIA L4 (compute 9.0)")
    assert providers._nvidia_driver() == NvidiaDriver(cuda="12.8", devices=devices)


@pytest.mark.usefixtures("_unread")
@pytest.mark.parametrize("driver", [FakeDriver(init=100), FakeDriver(names=())])
def test_a_driver_without_a_device_is_told_from_no_driver(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    assert providers._nvidia_driver() == NvidiaDriver(cuda="13.0")
    providers._nvidia_driver.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", raising("libcuda.so.1: cannot open shared object file"))
    assert providers._nvidia_driver() == NvidiaDriver()


def gpu_module(folder: Path) -> SimpleNamespace:
    """Stands for the module onnxruntime of a package for GPUs."""
    (folder / "capi").mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "capi" / "libonnxruntime_providers_cuda.so").touch()
    return SimpleNamespace(
        __file__=str(folder / "__init__.py"),
        cuda_version="13.0",
        get_available_providers=lambda: [CUDA, "CPUExecutionProvider"],
    )


@pytest.mark.usefixtures("_unread")
def test_the_loader_is_asked_only_where_there_is_a_device_and_its_words_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", gpu_module(tmp_path / "onnxruntime"))
    monkeypatch.setattr(sys, "platform", "linux")

    def load(name: str, **_options: Any) -> Any:
        if name != "libcuda.so.1":
            raise OSError(MISSING)
        return driver

    monkeypatch.setattr(ctypes, "CDLL", load)
    driver = FakeDriver()
    facts = providers.read_facts()
    assert (facts.load_message, facts.built_for_cuda) == (MISSING, "13.0")
    assert facts.driver.devices == ("NVIDIA H200 (compute 9.0)",)
    providers.read_facts.cache_clear()
    providers._nvidia_driver.cache_clear()
    driver = FakeDriver(names=())
    assert providers.read_facts().load_message == ""


@pytest.mark.usefixtures("_unread")
def test_only_packages_that_lie_where_the_module_was_loaded_from_are_in_each_others_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unpacked onnxruntime-gpu before an installed onnxruntime on the search path overwrites nothing."""
    places = {"onnxruntime": tmp_path / "installed", "onnxruntime-gpu": tmp_path / "carried"}
    module = gpu_module(places["onnxruntime-gpu"] / "onnxruntime")
    monkeypatch.setitem(sys.modules, "onnxruntime", module)
    monkeypatch.setattr(providers, "_installed_versions", lambda names: dict.fromkeys(places, "1.31.1"))
    monkeypatch.setattr(
        importlib.metadata,
        "distribution",
        lambda name: SimpleNamespace(locate_file=lambda path: places[name] / path),
    )
    assert providers.read_facts().packages == {"onnxruntime-gpu": "1.31.1"}
    providers.read_facts.cache_clear()
    places["onnxruntime"] = places["onnxruntime-gpu"]
    facts = providers.read_facts()
    assert sorted(facts.packages) == ["onnxruntime", "onnxruntime-gpu"]
    assert "are both installed" in str(provider_problem(CUDA, facts))
    providers.read_facts.cache_clear()
    places.update(dict.fromkeys(places, tmp_path / "elsewhere"))  # then nothing is known, and both are named
    assert sorted(providers.read_facts().packages) == ["onnxruntime", "onnxruntime-gpu"]


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
        state("portable", e="passed", r="passed"),
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
