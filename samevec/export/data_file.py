"""The file beside a graph that holds its large tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO

from onnx.external_data_helper import set_external_data

from samevec.artifact import DATA_NAME

if TYPE_CHECKING:
    import onnx

__all__ = ["ALIGNMENT_BYTES", "EXTERNAL_FROM_BYTES", "OPSET", "append_external"]

#: Of the default ONNX domain: optimum's default, and what every architecture here was measured with.
OPSET = 18
#: Smaller tensors (shapes, scalars, norms of a few hundred components) stay in the graph.
EXTERNAL_FROM_BYTES = 1024
#: Weights start at page boundaries, so that a mapping of the file can be used as it is.
ALIGNMENT_BYTES = 4096


def append_external(tensor: onnx.TensorProto, content: Any, file: BinaryIO) -> None:
    """Move a tensor's bytes to the end of an open data file, with a reference to them in the tensor."""
    file.write(b"\0" * (-file.tell() % ALIGNMENT_BYTES))
    tensor.raw_data = b""  # what the next line asks for
    set_external_data(tensor, DATA_NAME, offset=file.tell(), length=memoryview(content).nbytes)
    tensor.ClearField("raw_data")
    file.write(content)
