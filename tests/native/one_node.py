"""Graphs of one native operator, and what they give."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

from samevec.native.library import find_library

if TYPE_CHECKING:
    from collections.abc import Sequence

    from definition import Floats, Ints
    from numpy.typing import NDArray

TYPES = {
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "float16": TensorProto.FLOAT16,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
}
OUTPUTS = {
    "Offsets": [TensorProto.INT32],
    "Unpad": [TensorProto.INT64],
    "Positions": [TensorProto.INT64],
    "AddRmsNorm": [TensorProto.FLOAT, TensorProto.FLOAT],
    "AddLayerNorm": [TensorProto.FLOAT, TensorProto.FLOAT],
}


class Weight(NamedTuple):
    """An input that is part of the graph."""

    values: NDArray[Any]


class Bf16(NamedTuple):
    """A weight in bfloat16, given as bits."""

    bits: NDArray[np.uint16]


Argument = Any
"""An array that is fed, a ``Weight``, a ``Bf16``, or None for an input that is absent."""


class Node:
    """A session of one operator; its arguments are those of every run unless a run is given others.

    ``flushes`` has ONNX Runtime's threads take denormals for zeros.
    """

    def __init__(
        self, op: str, *arguments: Argument, threads: int = 1, flushes: bool = False, **attributes: Any
    ) -> None:
        self.fed: dict[str, NDArray[Any]] = {}
        names, weights, inputs = [], [], []
        for i, argument in enumerate(arguments):
            name = "" if argument is None else f"input{i}"
            names.append(name)
            if isinstance(argument, Weight):
                kind = TYPES[argument.values.dtype.name]
                weights.append(
                    helper.make_tensor(name, kind, argument.values.shape, argument.values.tobytes(), raw=True)
                )
            elif isinstance(argument, Bf16):
                bits = argument.bits
                weights.append(helper.make_tensor(name, TensorProto.BFLOAT16, bits.shape, bits.tobytes(), raw=True))
            elif argument is not None:
                self.fed[name] = argument
                inputs.append(helper.make_tensor_value_info(name, TYPES[argument.dtype.name], None))
        kinds = OUTPUTS.get(op, [TensorProto.FLOAT])
        outputs = [helper.make_tensor_value_info(f"output{i}", kind, None) for i, kind in enumerate(kinds)]
        node = helper.make_node(op, names, [o.name for o in outputs], domain="samevec", **attributes)
        graph = helper.make_graph([node], "one", inputs, outputs, weights)
        imports = [helper.make_opsetid("", 18), helper.make_opsetid("samevec", 1)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=10)
        options = onnxruntime.SessionOptions()
        options.register_custom_ops_library(str(find_library()))
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = threads
        options.log_severity_level = 4
        options.add_session_config_entry("session.set_denormal_as_zero", str(int(flushes)))
        self.session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )

    def runs(self, *inputs: NDArray[Any]) -> list[NDArray[Any]]:
        """All outputs; ``inputs`` take the place of the first fed arguments."""
        fed = self.fed | dict(zip(self.fed, inputs, strict=False))
        outputs: list[NDArray[Any]] = self.session.run(None, fed)
        return outputs

    def __call__(self, *inputs: NDArray[Any]) -> NDArray[Any]:
        return self.runs(*inputs)[0]


def run(op: str, *arguments: Argument, threads: int = 1, **attributes: Any) -> NDArray[Any]:
    """The first output of one run."""
    return Node(op, *arguments, threads=threads, **attributes)()


def differences(found: NDArray[Any], expected: NDArray[Any]) -> str:
    """What differs in bits, one NaN being as good as another; empty if nothing."""
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        return f"{found.dtype}{list(found.shape)} instead of {expected.dtype}{list(expected.shape)}"
    integer = f"u{found.dtype.itemsize}"
    bits, expected_bits = np.ascontiguousarray(found).view(integer), np.ascontiguousarray(expected).view(integer)
    unlike = bits != expected_bits
    if found.dtype.kind == "f":
        unlike &= ~(np.isnan(found) & np.isnan(expected))
    where = np.argwhere(unlike)
    shown = [f"{i}: {found[tuple(i)]!r} instead of {expected[tuple(i)]!r}" for i in where[:5].tolist()]
    return f"{len(where)} of {found.size} values differ: " + "; ".join(shown) if shown else ""


def assert_same(found: NDArray[Any], expected: NDArray[Any] | Sequence[float]) -> None:
    unlike = differences(found, np.asarray(expected, found.dtype))
    assert not unlike, unlike


def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(find_library()))
    library.samevec_unit_norm.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
    library.samevec_sigmoid.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
    library.samevec_instruction_set.restype = ctypes.c_char_p
    library.samevec_unit_norm.restype = library.samevec_sigmoid.restype = None
    return library


def instruction_set() -> str:
    name: bytes = _library().samevec_instruction_set()
    return name.decode()


def unit_norm(x: Floats) -> Floats:
    y = np.empty_like(x)
    _library().samevec_unit_norm(x.ctypes.data, *x.shape, y.ctypes.data)
    return y


def sigmoid(x: Floats) -> NDArray[np.float64]:
    y = np.empty(x.shape, np.float64)
    _library().samevec_sigmoid(x.ctypes.data, x.size, y.ctypes.data)
    return y


def ends_of(lengths: Sequence[int]) -> Ints:
    return np.cumsum([0, *lengths]).astype(np.int32)
