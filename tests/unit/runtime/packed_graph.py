"""A small graph with matrices of every kind that is packed, and its packed form."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from samevec.runtime.profiles import get_profile
from samevec.runtime.session import onnxruntime_version, save_optimized

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["CPU", "needs_comparing", "write_graph", "write_packed"]

CPU = get_profile("cpu")
#: The one pinned for Python 3.11 and later compares; the last one for 3.10 is not known to.
needs_comparing = pytest.mark.skipif(
    tuple(map(int, onnxruntime_version().split(".")[:2])) < (1, 32), reason="this onnxruntime is not known to compare"
)
_SHAPES = {"table": (50, 64), "w0": (64, 48), "w1": (48, 32), "w2": (32, 40), "w3": (40, 72)}


def write_graph(directory: Path) -> Path:
    """Write ids to vectors through two MatMuls and two Gemms, one of them transposed, weights beside the graph."""
    directory.mkdir(parents=True, exist_ok=True)
    chance = np.random.default_rng(0)
    weights = {name: chance.standard_normal(shape).astype(np.float32) for name, shape in _SHAPES.items()}
    weights["w3"] = np.ascontiguousarray(weights["w3"].T)
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["found"]),
        helper.make_node("MatMul", ["found", "w0"], ["a"]),
        helper.make_node("MatMul", ["a", "w1"], ["b"]),
        helper.make_node("Gemm", ["b", "w2"], ["c"]),
        helper.make_node("Gemm", ["c", "w3"], ["embedding"], transB=1),
    ]
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["rows"])
    output = helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["rows", 72])
    constants = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "packed", [ids], [output], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    path = directory / "model.onnx"
    onnx.save(model, str(path), save_as_external_data=True, location="model.onnx.data", size_threshold=64)
    return path


def write_packed(directory: Path) -> Path:
    """Return a directory with the packed graph and its data, without a record."""
    packed = directory / "packed"
    packed.mkdir()
    save_optimized(write_graph(directory / "graph"), packed / "model.onnx", CPU)
    return packed
