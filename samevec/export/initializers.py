"""A written graph's initialisers, read back from its files one at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from samevec.artifact import DATA_NAME

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["Initializers"]

_TYPES: dict[int, type[np.generic]] = {
    onnx.TensorProto.FLOAT: np.float32,
    onnx.TensorProto.BFLOAT16: np.uint16,  # the bits
    onnx.TensorProto.INT64: np.int64,
    onnx.TensorProto.INT32: np.int32,
    onnx.TensorProto.BOOL: np.bool_,
}


class Initializers:
    """A graph's values by name; external ones are views of the mapped data file.

    ``names`` has the initialisers in the graph's order, then the constants of nodes under their output's name.
    """

    def __init__(self, graph_path: Path) -> None:
        model = onnx.load(str(graph_path), load_external_data=False)
        constants = [
            (node.output[0], attribute.t)
            for node in model.graph.node
            for attribute in node.attribute
            if node.op_type == "Constant" and attribute.name == "value"
        ]
        self._tensors = {tensor.name: tensor for tensor in model.graph.initializer} | dict(constants)
        data = graph_path.parent / DATA_NAME
        self._data = np.memmap(data, dtype=np.uint8, mode="r") if data.is_file() and data.stat().st_size else None
        self.names = list(self._tensors)

    def values(self, name: str) -> NDArray[Any]:
        """Return an initialiser; the bits of bfloat16 as uint16."""
        tensor = self._tensors[name]
        dtype = np.dtype(_TYPES.get(tensor.data_type, np.uint8))
        if not tensor.external_data or self._data is None:
            found: NDArray[Any] = (
                np.frombuffer(tensor.raw_data, dtype) if tensor.raw_data else onnx.numpy_helper.to_array(tensor)
            )
            return found.reshape(tuple(tensor.dims))
        place = {entry.key: int(entry.value) for entry in tensor.external_data if entry.key in ("offset", "length")}
        start = place.get("offset", 0)
        return self._data[start : start + place["length"]].view(dtype).reshape(tuple(tensor.dims))
