"""Which execution providers this machine really has, why one is missing, and which one to take.

Loads no model and no torch. What is read from the machine is one record, so that every refusal can be tested without
the hardware.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.metadata
import platform
import re
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samevec.errors import NativeLibraryError, ProviderUnavailableError
from samevec.machine import cpu_name
from samevec.native import library

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from samevec.runtime.providers.profiles import Profile

__all__ = [
    "AUTO_ORDER",
    "Choice",
    "NvidiaDriver",
    "ProfileState",
    "ProviderFacts",
    "choose_profile",
    "device_name",
    "load_cuda_libraries",
    "profile_problem",
    "provider_problem",
    "read_facts",
    "require_provider",
]

#: What ``--profile auto`` tries, best first.
AUTO_ORDER = ("cuda", "coreml", "cpu", "portable")

_CPU, _CUDA, _COREML = "CPUExecutionProvider", "CUDAExecutionProvider", "CoreMLExecutionProvider"

# Distributions that all install the one module "onnxruntime"; the last one installed wins, file by file.
_PACKAGES = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml", "onnxruntime-silicon")

_COMPUTE_CAPABILITY_MAJOR, _COMPUTE_CAPABILITY_MINOR = 75, 76  # of cuda.h's CUdevice_attribute


@dataclass(frozen=True, kw_only=True, slots=True)
class NvidiaDriver:
    """What NVIDIA's driver says.

    Attributes
    ----------
    cuda : str
        The newest CUDA it runs, such as ``"13.0"``; empty where there is no driver.
    devices : tuple of str
        Such as ``"NVIDIA H200 (compute 9.0)"``.
    """

    cuda: str = ""
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ProviderFacts:
    """What decides whether a provider can be used.

    Attributes
    ----------
    system : str
        ``platform.system()``.
    packages : mapping of str to str
        Distributions installed where the module onnxruntime was loaded from, with their versions.
    available : tuple of str
        Providers the module says it has.
    built_for_cuda : str
        CUDA version the module was built for; empty where for none.
    driver : NvidiaDriver
    load_message : str
        What the system's loader said of the CUDA provider's library; empty where it loads or was not tried.
    cuda_runtimes : mapping of str to str
        Installed distributions of the CUDA runtime, with their versions.
    """

    system: str = "Linux"
    packages: Mapping[str, str] = field(default_factory=dict)
    available: tuple[str, ...] = ()
    built_for_cuda: str = ""
    driver: NvidiaDriver = field(default_factory=NvidiaDriver)
    load_message: str = ""
    cuda_runtimes: Mapping[str, str] = field(default_factory=dict)


def provider_problem(provider: str, facts: ProviderFacts) -> str | None:
    """Return why a provider cannot be used, with what to do; None when nothing speaks against it.

    Parameters
    ----------
    provider : str
        ONNX Runtime's name of it.
    facts : ProviderFacts
    """
    if not facts.packages and not facts.available:
        return f"onnxruntime is not installed; install it with: pip install 'samevec[{_extra(provider)}]'"
    if provider != _CPU and len(facts.packages) > 1:
        return _conflict(provider, facts)
    if provider == _CUDA:
        return _cuda_problem(facts)
    if provider in facts.available:
        return None
    if provider == _COREML and facts.system != "Darwin":
        return f"CoreML is part of macOS, and this is {facts.system}; use another profile"
    return f"{_installed(facts)} does not have it (it has {', '.join(facts.available)})"


def profile_problem(profile: Profile, facts: ProviderFacts) -> str | None:
    """Return why a profile cannot be used, as :func:`provider_problem` does; without the native library, that."""
    problem = provider_problem(profile.provider, facts)
    if problem is None and profile.is_native:
        try:
            library.load_library()
        except NativeLibraryError as error:
            return str(error)
    return problem


def _extra(provider: str) -> str:
    return "gpu" if provider == _CUDA else "cpu"


def _installed(facts: ProviderFacts) -> str:
    names = [f"{name} {version}" for name, version in sorted(facts.packages.items())]
    return "the installed " + (" and ".join(names) or "onnxruntime")


def _conflict(provider: str, facts: ProviderFacts) -> str:
    names = sorted(facts.packages)
    return (
        f"{' and '.join(names)} are both installed and overwrite each other's files, so that either may be what runs;"
        f" run: pip uninstall -y {' '.join(names)} && pip install 'samevec[{_extra(provider)}]'"
    )


def _cuda_problem(facts: ProviderFacts) -> str | None:
    if _CUDA not in facts.available:
        device = "" if facts.driver.devices else "; and no NVIDIA device was found here"
        return (
            f"{_installed(facts)} was built without CUDA{device}; where there is a device, run:"
            f" pip uninstall -y {' '.join(sorted(facts.packages))} && pip install 'samevec[gpu]'"
        )
    if not facts.driver.cuda:
        return "no NVIDIA device: the driver's library (libcuda) cannot be loaded; start containers with the GPU"
    if not facts.driver.devices:
        return "no NVIDIA device: the driver reports none; see nvidia-smi and CUDA_VISIBLE_DEVICES"
    built, driver = _major(facts.built_for_cuda), _major(facts.driver.cuda)
    if built and driver and driver < built:
        return (
            f"wrong CUDA major version: {_installed(facts)} is built for CUDA {facts.built_for_cuda}, this driver runs"
            f" CUDA {facts.driver.cuda} at most; update the driver, or install onnxruntime-gpu built for CUDA {driver}"
        )
    return _library_problem(facts, built)


def _library_problem(facts: ProviderFacts, built: int | None) -> str | None:
    if not facts.load_message:
        return None
    others = [f"{n} {v}" for n, v in sorted(facts.cuda_runtimes.items()) if built and _major(v) != built]
    missing = re.search(r"lib(?:cu|nv)\w+\.so\.\d+|\bcu\w+_?\d+\.dll", facts.load_message)
    if missing and others:
        return (
            f"wrong CUDA major version: {_installed(facts)} is built for CUDA {facts.built_for_cuda} and needs"
            f" {missing.group()}, but {', '.join(others)} is what is installed; install the libraries of CUDA {built}"
        )
    if missing:
        wanted = f" (CUDA {facts.built_for_cuda})" if facts.built_for_cuda else ""
        return f"a library is missing: {missing.group()}{wanted}; pip install 'onnxruntime-gpu[cuda,cudnn]' brings it"
    return f"the provider's library cannot be loaded: {facts.load_message}"


def _major(version: str) -> int | None:
    digits = version.partition(".")[0]
    return int(digits) if digits.isdecimal() else None


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileState:
    """What is known of a profile before one is chosen.

    Attributes
    ----------
    profile : str
    problem : str or None
        Why its provider cannot be used.
    gates : mapping of str to str
        Of each model: ``"passed"``, ``"failed"``, ``"stale"``, ``"missing"`` or ``"not exported"``.
    """

    profile: str
    problem: str | None
    gates: Mapping[str, str]

    def shortcoming(self, allowed: Sequence[str]) -> str | None:
        """Return why it is not chosen; None when every model's gate is one of those allowed."""
        if self.problem is not None:
            return self.problem
        short = [f"{model} {gate}" for model, gate in self.gates.items() if gate not in allowed]
        return ", ".join(short) or None


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What ``--profile auto`` came to.

    Attributes
    ----------
    profile : str or None
        None when none will do.
    passed_over : mapping of str to str
        Better ones, and why each was not taken.
    """

    profile: str | None
    passed_over: Mapping[str, str]

    @property
    def words(self) -> str:
        """What was chosen and why, in one line."""
        reasons = "; ".join(f"{name}: {reason}" for name, reason in self.passed_over.items())
        if self.profile is None:
            return f"no profile will do: {reasons}"
        return f"profile {self.profile}" + (f" (not {reasons})" if reasons else ", the best there is")


def choose_profile(states: Sequence[ProfileState], *, allowed: Sequence[str]) -> Choice:
    """Return the first profile that is present and whose models' gates are all as they should be.

    Parameters
    ----------
    states : sequence of ProfileState
        Best first.
    allowed : sequence of str
        Gate states that will do: ``("passed",)`` to serve.
    """
    passed_over: dict[str, str] = {}
    for state in states:
        reason = state.shortcoming(allowed)
        if reason is None:
            return Choice(profile=state.profile, passed_over=passed_over)
        passed_over[state.profile] = reason
    return Choice(profile=None, passed_over=passed_over)


def require_provider(profile: Profile, facts: ProviderFacts | None = None) -> Profile:
    """Return a profile, or refuse it when its provider or the native library is not to be had here.

    Parameters
    ----------
    profile : Profile
    facts : ProviderFacts, optional
        Read from the machine when not given; for CPU profiles nothing is read, since every ONNX Runtime has that one.

    Raises
    ------
    NativeLibraryError, ProviderUnavailableError
        With the reason.
    """
    if profile.is_native:
        library.load_library()
    if facts is None and profile.provider == _CPU:
        return profile
    problem = provider_problem(profile.provider, read_facts() if facts is None else facts)
    if problem is not None:
        raise ProviderUnavailableError(profile.provider, problem)
    return profile


@functools.cache
def read_facts() -> ProviderFacts:
    """Read what this machine and this Python installation have; once a process."""
    packages = _installed_versions(_PACKAGES)
    try:
        ort: Any = importlib.import_module("onnxruntime")
    except ImportError:
        return ProviderFacts(system=platform.system(), packages=packages)
    available, driver = tuple(ort.get_available_providers()), _nvidia_driver()
    return ProviderFacts(
        system=platform.system(),
        packages=_installed_with(ort, packages),
        available=available,
        built_for_cuda=str(getattr(ort, "cuda_version", "") or ""),
        driver=driver,
        load_message=_provider_load_message(ort) if _CUDA in available and driver.devices else "",
        cuda_runtimes=_cuda_runtimes(),
    )


def _installed_versions(names: Sequence[str]) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _installed_with(ort: Any, packages: dict[str, str]) -> dict[str, str]:
    """Return those packages whose files lie where the module was loaded from; all of them where none can be told.

    One that lies elsewhere, further down the search path, overwrites nothing.
    """
    loaded = Path(ort.__file__).resolve().parent
    found = {}
    for name, version in packages.items():
        root = importlib.metadata.distribution(name).locate_file("onnxruntime")
        if Path(str(root)).resolve() == loaded:
            found[name] = version
    return found or packages


def _cuda_runtimes() -> dict[str, str]:
    names = ("nvidia-cuda-runtime", *(f"nvidia-cuda-runtime-cu{major}" for major in (11, 12, 13)))
    return _installed_versions(names)


def load_cuda_libraries(ort: Any) -> None:
    """Load CUDA and cuDNN from the installed ``nvidia-*`` packages, where the system's own search does not find them.

    References
    ----------
    onnxruntime 1.32 ``onnxruntime.preload_dlls``; it prints what it misses, which :func:`provider_problem` says better.
    """
    preload = getattr(ort, "preload_dlls", None)
    if preload is None:
        return
    with redirect_stdout(StringIO()):
        preload(directory="")  # the packages and the system; never torch's folder, which may be of another CUDA


def _provider_load_message(ort: Any) -> str:
    """Return what the loader says when it is asked for the CUDA provider, as ONNX Runtime will ask it."""
    folder = Path(ort.__file__).parent / "capi"
    names = ("libonnxruntime_providers_shared.so", "libonnxruntime_providers_cuda.so")
    load_cuda_libraries(ort)
    try:
        for name in names:
            if (folder / name).exists():
                ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        return str(error)
    return ""


@functools.cache
def _nvidia_driver() -> NvidiaDriver:
    """Ask NVIDIA's driver for its devices, without CUDA's runtime and without torch (CUDA driver API, ``cuda.h``)."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return NvidiaDriver()
    version, count = ctypes.c_int(0), ctypes.c_int(0)
    library.cuDriverGetVersion(ctypes.byref(version))
    cuda = f"{version.value // 1000}.{version.value % 1000 // 10}"
    if library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(count)):
        return NvidiaDriver(cuda=cuda)
    return NvidiaDriver(cuda=cuda, devices=tuple(_nvidia_device(library, i) for i in range(count.value)))


def _nvidia_device(library: Any, ordinal: int) -> str:
    device, name = ctypes.c_int(0), ctypes.create_string_buffer(256)
    library.cuDeviceGet(ctypes.byref(device), ordinal)
    library.cuDeviceGetName(name, len(name), device)
    numbers = []
    for attribute in (_COMPUTE_CAPABILITY_MAJOR, _COMPUTE_CAPABILITY_MINOR):
        value = ctypes.c_int(0)
        library.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        numbers.append(str(value.value))
    return f"{name.value.decode(errors='replace')} (compute {'.'.join(numbers)})"


def device_name(provider: str) -> str:
    """Return what computes under a provider, as receipts state it.

    Parameters
    ----------
    provider : str

    Returns
    -------
    str
        The GPU with its compute capability and the driver's CUDA version; on a Mac the processor and macOS, of which
        CoreML is a part; otherwise the processor.
    """
    if provider == _CUDA:
        driver = _nvidia_driver()
        return f"{driver.devices[0]}, driver CUDA {driver.cuda}" if driver.devices else "no NVIDIA device"
    if provider == _COREML:
        return f"{cpu_name()}, macOS {platform.mac_ver()[0] or 'none'}"
    return cpu_name()
