"""A native graph with every node's output, which finds the operator that computes other bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
from onnx import TensorProto, helper

from samevec.artifact import TRACE_NAME

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["write_trace"]

_TYPES = {"Offsets": TensorProto.INT32, "Unpad": TensorProto.INT64, "Positions": TensorProto.INT64}


def write_trace(graph_path: Path) -> list[tuple[str, str]]:
    """Write ``trace.onnx`` beside a native graph, sharing its data; return output and operator of each traced node.

    Rows of a bfloat16 table are left out: numpy has no such type, and their widening follows.
    """
    model = onnx.load(str(graph_path), load_external_data=False)
    bfloat16 = {t.name for t in model.graph.initializer if t.data_type == TensorProto.BFLOAT16}
    traced: list[tuple[str, str]] = []
    known = {value.name for value in model.graph.output}
    for node in model.graph.node:
        if node.op_type == "Gather" and node.input[0] in bfloat16:
            continue
        for output in node.output:
            traced.append((output, node.op_type))
            if output not in known:
                kind = _TYPES.get(node.op_type, TensorProto.FLOAT)
                model.graph.output.append(helper.make_tensor_value_info(output, kind, None))
    (graph_path.parent / TRACE_NAME).write_bytes(model.SerializeToString(deterministic=True))
    return traced
