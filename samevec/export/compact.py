"""Weights stored as the checkpoint stores them: bfloat16 on disk and in file pages, float32 only while they are used.

The checkpoint of the embedder is bfloat16, so storing bfloat16 loses nothing: each value is the upper half of its
float32 bits. Every matrix product is cut into column chunks whose float32 copy stays in the processor's cache, and each
chunk is cast inside an ``If`` on the size of the activation: a true data dependency. Without it ONNX Runtime casts all
weights before the first product and holds them (hundreds of megabytes), or folds the casts at load and holds them for
ever, which is why the profile also switches constant folding off.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.external_data_helper import set_external_data

from samevec.artifact import DATA_NAME
from samevec.export.data_file import ALIGNMENT_BYTES

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["CHUNK_BYTES", "compact", "is_bfloat16_exact"]

#: float32 bytes of one column chunk: what two threads hold in second-level caches of 1 MB each. A query of 16 tokens
#: took 123 ms so, 139 with 3 MB, 152 with 12 MB, alternating in one process; from packed float32 pages it takes 80.
CHUNK_BYTES = 3 << 19
# A chunk is no narrower: cut among more than four threads, parts of 64 columns or fewer would sum in another order (see
# samevec.export.graph.unpacked_thread_limit).
_MIN_COLUMNS = 320
# Columns are cut at multiples of the widest kernel of ONNX Runtime's matrix product, so that a chunk's columns are
# computed as the uncut product computes them: the bits are equal.
_COLUMN_MULTIPLE = 16
_ZERO = "samevec_zero"


def is_bfloat16_exact(values: NDArray[np.float32]) -> bool:
    """Return whether every value is a bfloat16: the lower half of its float32 bits is zero."""
    return not bool((np.ascontiguousarray(values).view(np.uint32) & np.uint32(0xFFFF)).any())


def compact(graph_path: Path) -> int:
    """Rewrite a graph and its data file in place.

    Parameters
    ----------
    graph_path : Path
        ``model.onnx`` with float32 weights in ``model.onnx.data``.

    Returns
    -------
    int
        How many weights are stored as bfloat16 now; 0 leaves the graph as it was, since its checkpoint is not bfloat16.
    """
    rewriter = _Rewriter(graph_path)
    return rewriter.rewrite()


class _Rewriter:
    """One pass over a graph; holds the new nodes and the new data file while it runs."""

    def __init__(self, graph_path: Path) -> None:
        self._path = graph_path
        self._model = onnx.load(str(graph_path), load_external_data=False)
        self._data = np.memmap(graph_path.parent / DATA_NAME, dtype=np.uint8, mode="r")
        self._weights = {
            tensor.name: tensor
            for tensor in self._model.graph.initializer
            if tensor.external_data and tensor.data_type == TensorProto.FLOAT and len(tensor.dims) == 2
        }
        self._nodes: list[onnx.NodeProto] = []
        self._stored: dict[str, TensorProto] = {}
        self._replaced: set[str] = set()

    def rewrite(self) -> int:
        """Replace graph and data file, see :func:`compact`."""
        target = self._path.parent / f"{DATA_NAME}.compact"
        with target.open("wb") as file:
            for node in self._model.graph.node:
                self._rewrite_node(node, file)
            if not self._replaced:
                target.unlink()
                return 0
            self._keep_others(file)
        del self._model.graph.node[:]
        self._model.graph.node.extend(self._nodes)
        del self._model.graph.initializer[:]
        self._model.graph.initializer.extend(self._stored.values())
        self._path.write_bytes(self._model.SerializeToString())
        target.replace(self._path.parent / DATA_NAME)
        return len(self._replaced)

    def _rewrite_node(self, node: onnx.NodeProto, file: BinaryIO) -> None:
        weight = {"MatMul": 1, "Gather": 0}.get(node.op_type)
        name = "" if weight is None else node.input[weight]
        values = self._values(name) if name in self._weights else None
        if values is None or not is_bfloat16_exact(values):
            self._nodes.append(node)
            return
        self._replaced.add(name)
        if node.op_type == "Gather":
            self._gather(node, values, file)
        else:
            self._product(node, values, file)

    def _gather(self, node: onnx.NodeProto, values: NDArray[np.float32], file: BinaryIO) -> None:
        stored, rows = f"{node.input[0]}_bfloat16", f"{node.output[0]}_bfloat16"
        self._store(stored, _upper_halves(values), TensorProto.BFLOAT16, file)
        self._nodes += [
            helper.make_node("Gather", [stored, node.input[1]], [rows], axis=0),
            helper.make_node("Cast", [rows], [node.output[0]], to=TensorProto.FLOAT),
        ]

    def _product(self, node: onnx.NodeProto, values: NDArray[np.float32], file: BinaryIO) -> None:
        activation, output = node.input[0], node.output[0]
        some = f"{output}_some"
        self._nodes += [
            helper.make_node("Size", [activation], [f"{output}_size"]),
            helper.make_node("Greater", [f"{output}_size", _ZERO], [some]),
        ]
        parts = []
        for i, columns in enumerate(_column_chunks(*values.shape)):
            stored, part = f"{output}_weight_{i}", f"{output}_part_{i}"
            self._store(stored, _upper_halves(values[:, columns]), TensorProto.BFLOAT16, file)
            self._nodes.append(_guarded_product(some, activation, stored, part))
            parts.append(part)
        self._nodes.append(helper.make_node("Concat", parts, [output], axis=-1))

    def _keep_others(self, file: BinaryIO) -> None:
        zero = helper.make_tensor(_ZERO, TensorProto.INT64, [], [0])
        self._stored[_ZERO] = zero
        for tensor in self._model.graph.initializer:
            if tensor.name in self._replaced:
                continue
            if not tensor.external_data:
                self._stored[tensor.name] = tensor
                continue
            self._store(tensor.name, self._bytes(tensor), tensor.data_type, file, shape=tuple(tensor.dims))

    def _bytes(self, tensor: TensorProto) -> NDArray[np.uint8]:
        place = {entry.key: entry.value for entry in tensor.external_data}
        offset, length = int(place.get("offset", 0)), int(place["length"])
        return self._data[offset : offset + length]

    def _values(self, name: str) -> NDArray[np.float32]:
        tensor = self._weights[name]
        return self._bytes(tensor).view(np.float32).reshape(tuple(tensor.dims))

    def _store(
        self, name: str, values: NDArray[Any], dtype: int, file: BinaryIO, *, shape: tuple[int, ...] | None = None
    ) -> None:
        if name in self._stored:
            return  # a table gathered from twice
        file.write(b"\0" * (-file.tell() % ALIGNMENT_BYTES))
        tensor = TensorProto(name=name, data_type=dtype, dims=shape or values.shape)
        content = np.ascontiguousarray(values).tobytes()
        tensor.raw_data = b""
        set_external_data(tensor, DATA_NAME, offset=file.tell(), length=len(content))
        tensor.ClearField("raw_data")
        file.write(content)
        self._stored[name] = tensor


def _upper_halves(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    return (np.ascontiguousarray(values).view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def _column_chunks(n_rows: int, n_columns: int) -> list[slice]:
    """Return about equal column ranges of about :data:`CHUNK_BYTES` in float32, none narrower than need be."""
    wanted = -(-4 * n_rows * n_columns // CHUNK_BYTES)
    n_blocks = -(-n_columns // _COLUMN_MULTIPLE)
    n_chunks = max(1, min(wanted, n_columns // _MIN_COLUMNS))
    edges = [min(n_blocks * i // n_chunks * _COLUMN_MULTIPLE, n_columns) for i in range(n_chunks + 1)]
    return [slice(start, end) for start, end in itertools.pairwise(edges)]


def _guarded_product(some: str, activation: str, weight: str, output: str) -> onnx.NodeProto:
    """Return ``If(the activation has elements) then activation @ float32(weight)``.

    It always has elements; the condition only makes the cast depend on something that is known when the run is there.
    """
    cast, product, unused = f"{output}_float32", f"{output}_then", f"{output}_else"
    then_branch = helper.make_graph(
        [
            helper.make_node("Cast", [weight], [cast], to=TensorProto.FLOAT),
            helper.make_node("MatMul", [activation, cast], [product]),
        ],
        f"{output}_then_branch",
        [],
        [helper.make_tensor_value_info(product, TensorProto.FLOAT, None)],
    )
    else_branch = helper.make_graph(
        [helper.make_node("Identity", [activation], [unused])],
        f"{output}_else_branch",
        [],
        [helper.make_tensor_value_info(unused, TensorProto.FLOAT, None)],
    )
    return helper.make_node("If", [some], [output], then_branch=then_branch, else_branch=else_branch)
