"""A device that is none: ONNX Runtime says it has CUDA or CoreML, keeps what it is given, and computes on the CPU.

``pretended`` gives what to put into the loaded module, for tests in one process. ``write_site`` writes a folder for
``PYTHONPATH`` in which the package onnxruntime-gpu seems to be installed, for tests with processes of their own; those
read the settings from the environment.
"""

from __future__ import annotations

import ctypes
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

CUDA, COREML, CPU = "CUDAExecutionProvider", "CoreMLExecutionProvider", "CPUExecutionProvider"

#: As ONNX Runtime words it for a bounded arena that is full; RuntimeException is its class.
ARENA_IS_FULL = (
    "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running MatMul node. "
    "Name:'/layers.0/MatMul' Status Message: \n/onnxruntime_src/onnxruntime/core/framework/bfc_arena.cc:376 void* "
    "onnxruntime::BFCArena::AllocateRawInternal(size_t, bool, onnxruntime::Stream*) "
    "Available memory of 19968 is smaller than requested bytes of 1572864"
)


@dataclass
class Opened:
    """What a session was opened with, and what it bound; not the session, which must be free to go.

    Attributes
    ----------
    asked : tuple
        Provider and its options.
    input_shape, output_shape : tuple
        Of the first ones; names where an axis is free.
    bound : list of (str, str)
        Every output that a run bound, and where it was to come out.
    """

    asked: tuple[str, dict[str, str]]
    input_shape: tuple[Any, ...]
    output_shape: tuple[Any, ...]
    bound: list[tuple[str, str]] = field(default_factory=list)


class Driver:
    """``libcuda.so.1`` as far as it is asked.

    Settings: ``PRETEND_DRIVER``, the newest CUDA it runs, such as 13.0; ``PRETEND_DEVICES``, how many there are.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = settings

    def cuDriverGetVersion(self, version: Any) -> int:
        major, minor = self._settings.get("PRETEND_DRIVER", "13.0").split(".")
        version._obj.value = int(major) * 1000 + int(minor) * 10
        return 0

    def cuInit(self, _flags: int) -> int:
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = int(self._settings.get("PRETEND_DEVICES", "1"))
        return 0

    def cuDeviceGet(self, device: Any, ordinal: int) -> int:
        device._obj.value = ordinal
        return 0

    def cuDeviceGetName(self, name: Any, _size: int, _device: Any) -> int:
        name.value = b"Pretended GPU"
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, _device: Any) -> int:
        value._obj.value = {75: 9, 76: 0}[attribute]
        return 0


def pretended_cdll(settings: Mapping[str, str]) -> Any:
    """Return ``ctypes.CDLL`` on a machine with NVIDIA's driver, unless ``PRETEND_DRIVER`` is empty.

    ``PRETEND_MISSING`` is what the loader says when it is asked for the CUDA provider.
    """

    class PretendedCDLL(ctypes.CDLL):
        def __new__(cls, name: Any = None, *more: Any, **named: Any) -> Any:
            if name == "libcuda.so.1":
                if not settings.get("PRETEND_DRIVER", "13.0"):
                    raise OSError("libcuda.so.1: cannot open shared object file: No such file or directory")
                return Driver(settings)
            if str(name).endswith("libonnxruntime_providers_cuda.so"):
                if settings.get("PRETEND_MISSING"):
                    raise OSError(settings["PRETEND_MISSING"])
                return Driver(settings)  # loaded, and never looked at
            return super().__new__(cls)

    return PretendedCDLL


def pretended(ort: Any, settings: Mapping[str, str]) -> dict[str, Any]:
    """Return what to put into the module onnxruntime.

    Settings, looked at whenever they matter: ``PRETEND_PROVIDER``, what it has beside the CPU; ``PRETEND_ROWS``, how
    many rows its memory holds; ``PRETEND_ASTRAY``, operators left to the CPU, with blanks between them;
    ``PRETEND_JITTER``, how much a value moves with every row beside it.
    """
    errors = ort.capi.onnxruntime_pybind11_state

    class Binding(ort.IOBinding):  # type: ignore[misc]
        def __init__(self, session: Any, note: Opened) -> None:
            super().__init__(session)
            self.n_rows = 0
            self._note = note

        def bind_cpu_input(self, name: str, array: Any) -> None:
            self.n_rows = array.shape[0]
            super().bind_cpu_input(name, array)

        def bind_output(self, name: str, device: str = "cpu", **more: Any) -> None:
            self._note.bound.append((name, device))
            super().bind_output(name, device, **more)

        def copy_outputs_to_cpu(self) -> list[Any]:
            jitter = np.float32(settings.get("PRETEND_JITTER", "0"))
            return [array + jitter * np.float32(self.n_rows) for array in super().copy_outputs_to_cpu()]

    class InferenceSession(ort.InferenceSession):  # type: ignore[misc]
        made: ClassVar[list[Opened]] = []

        def __init__(self, path: Any, sess_options: Any = None, providers: Any = None, **more: Any) -> None:
            first = providers[0] if providers else CPU
            self.asked = first if isinstance(first, tuple) else (first, {})
            super().__init__(path, sess_options, providers=[CPU], **more)
            first_input, first_output = self.get_inputs()[0], self.get_outputs()[0]
            self.note = Opened(self.asked, tuple(first_input.shape), tuple(first_output.shape))
            self.made.append(self.note)

        def get_providers(self) -> list[str]:
            return list(dict.fromkeys([self.asked[0], CPU]))

        def get_provider_options(self) -> dict[str, dict[str, str]]:
            return {self.asked[0]: self.asked[1]}

        def get_provider_graph_assignment_info(self) -> list[Any]:
            astray = settings.get("PRETEND_ASTRAY", "").split()
            nodes = [node for part in super().get_provider_graph_assignment_info() for node in part.get_nodes()]
            return [_Part(CPU if node.op_type in astray else self.asked[0], node) for node in nodes]

        def io_binding(self) -> Binding:
            return Binding(self, self.note)

        def run_with_iobinding(self, iobinding: Any, run_options: Any = None) -> None:
            self._require_memory(iobinding.n_rows)
            super().run_with_iobinding(iobinding, run_options)

        def run(self, names: Any, feed: Any, run_options: Any = None) -> Any:
            self._require_memory(len(next(iter(feed.values()))))
            return super().run(names, feed, run_options)

        def _require_memory(self, n_rows: int) -> None:
            most = settings.get("PRETEND_ROWS", "")
            if self.asked[0] != CPU and most and n_rows > int(most):
                raise errors.RuntimeException(ARENA_IS_FULL)

    return {
        "InferenceSession": InferenceSession,
        "get_available_providers": lambda: [settings.get("PRETEND_PROVIDER", CUDA), CPU],
        "cuda_version": "13.0",
    }


class _Part:
    """A part of the graph with one node, as ONNX Runtime records assignments."""

    def __init__(self, provider: str, node: Any) -> None:
        self.ep_name = provider
        self._node = node

    def get_nodes(self) -> list[Any]:
        return [self._node]


_SHIM = """
import ctypes, importlib.util, os, sys
from pathlib import Path
own = Path(__file__).resolve().parent
real = next(
    folder for folder in (Path(entry) / "onnxruntime" for entry in sys.path)
    if (folder / "__init__.py").is_file() and folder.resolve() != own
)
__path__ = [str(real)]
exec(compile((real / "__init__.py").read_text(encoding="utf-8"), str(real / "__init__.py"), "exec"))
spec = importlib.util.spec_from_file_location("pretend_gpu", own / "pretend_gpu.py")
pretend_gpu = importlib.util.module_from_spec(spec)
sys.modules["pretend_gpu"] = pretend_gpu
spec.loader.exec_module(pretend_gpu)
globals().update(pretend_gpu.pretended(sys.modules[__name__], os.environ))
ctypes.CDLL = pretend_gpu.pretended_cdll(os.environ)
"""


def _files(distribution: str) -> dict[str, str]:
    folder = f"{distribution.replace('-', '_')}-1.32.0.dist-info"
    return {
        "onnxruntime/__init__.py": _SHIM,
        "onnxruntime/pretend_gpu.py": Path(__file__).read_text(encoding="utf-8"),
        "onnxruntime/capi/libonnxruntime_providers_cuda.so": "",  # only ever asked for by its name
        f"{folder}/METADATA": f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.32.0\n",
    }


def write_site(folder: Path, *distributions: str) -> Path:
    """Write a folder in which distributions that give the module onnxruntime seem to be installed."""
    for distribution in distributions or ("onnxruntime-gpu",):
        for name, text in _files(distribution).items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return folder


def write_wheel_parts(folder: Path, *, n_parts: int) -> None:
    """Write the same as a wheel of onnxruntime-gpu that was cut into parts."""
    whole = folder.parent / "whole.whl"
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in _files("onnxruntime-gpu").items():
            archive.writestr(name, text)
    content = whole.read_bytes()
    size = -(-len(content) // n_parts)
    for i in range(n_parts):
        part = folder / f"onnxruntime_gpu-1.32.0.whl.part-{chr(ord('a') + i)}"
        part.write_bytes(content[i * size : (i + 1) * size])
    whole.unlink()
