"""A small graph of standard operators with its weights beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["write_graph"]

_SHAPES = {"table": (50, 64), "w0": (64, 48), "w1": (48, 32), "w2": (32, 40), "w3": (72, 40)}


def write_graph(directory: Path) -> Path:
    """Write ids to vectors through two MatMuls and two Gemms, one of them transposed."""
    directory.mkdir(parents=True, exist_ok=True)
    chance = np.random.default_rng(0)
    weights = {name: chance.standard_normal(shape).astype(np.float32) for name, shape in _SHAPES.items()}
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
    graph = helper.make_graph(nodes, "small", [ids], [output], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    path = directory / "model.onnx"
    onnx.save(model, str(path), save_as_external_data=True, location="model.onnx.data", size_threshold=64)
    return path
