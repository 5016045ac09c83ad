"""A graph of the native library's operators, built node by node; large weights are written at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from onnx import TensorProto, helper

from samevec.errors import ExportError
from samevec.export.data_file import EXTERNAL_FROM_BYTES, OPSET, append_external
from samevec.export.native.checkpoint import widen
from samevec.export.native.panels import PANEL_COLUMNS, pack
from samevec.export.native.rotary import rotary_tables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx
    from numpy.typing import NDArray

    from samevec.export.native.checkpoint import Checkpoint, Stored
    from samevec.lock import LockedModel
    from samevec.progress import Progress

__all__ = ["DOMAIN", "GraphBuilder", "Weight", "require_covered"]

#: Of the library's operators, and its version.
DOMAIN, DOMAIN_VERSION = "samevec", 1
# Of the file format: the oldest that has opset 18, which every ONNX Runtime since 1.14 reads.
_IR_VERSION = 8
_MOST_HEAD, _MOST_GROUP = 128, 32


@dataclass(frozen=True, slots=True)
class Weight:
    """The origin of an initialiser of the graph.

    The transformation is ``"as stored"``, ``"widened"`` to float32, ``"panels"``, ``"concatenated"``, ``"concatenated
    panels"``, ``"computed: rotary table"`` or ``"constant"``.
    """

    name: str
    transformation: str
    sources: tuple[str, ...]  # tensors of the checkpoint, in the order they were put together
    table: tuple[float, int, int, int] | None = None  # rotary: base, head size, positions, 0 cosines or 1 sines
    value: int | None = None  # of a constant


class GraphBuilder:
    """Collects nodes, and weights by the names of the checkpoint's parameters.

    `file` is the empty ``model.onnx.data``, which gets every large initialiser; ``weights`` has one item for each
    initialiser, in file order.
    """

    def __init__(self, checkpoint: Checkpoint, file: BinaryIO, progress: Progress) -> None:
        self.weights: list[Weight] = []
        self.progress = progress
        self._checkpoint = checkpoint
        self._file = file
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, TensorProto] = {}

    def node(
        self, op_type: str, *inputs: str, name: str, n_outputs: int = 1, domain: str = DOMAIN, **given: Any
    ) -> Any:
        """Add a node with attributes; return the name of its output, or of each output.

        An empty input name leaves that input out. The first output has the node's name, others add ``.1`` and so on.
        """
        outputs = [name, *(f"{name}.{i}" for i in range(1, n_outputs))]
        self._nodes.append(helper.make_node(op_type, list(inputs), outputs, name=name, domain=domain, **given))
        return outputs if n_outputs > 1 else name

    def unpadded(self) -> tuple[str, str]:
        """Return the offsets of texts and their ids without padding, as every graph begins."""
        offsets = self.node("Offsets", "attention_mask", name="offsets")
        return offsets, self.node("Unpad", "input_ids", offsets, name="ids")

    def gather(self, parameter: str, indices: str, *, name: str) -> str:
        """Return rows of a table, in float32."""
        stored = self._checkpoint.tensor(parameter)
        table = self._store(parameter, stored.values, "widened" if stored.widened else "as stored", [stored])
        if not stored.is_bfloat16:
            return str(self.node("Gather", table, indices, name=name, domain="", axis=0))
        rows = self.node("Gather", table, indices, name=f"{name}.bfloat16", domain="", axis=0)
        return str(self.node("Cast", rows, name=name, domain="", to=TensorProto.FLOAT))

    def add(self, x: str, y: str, *, name: str) -> str:
        """Return a sum."""
        return str(self.node("Add", x, y, name=name, domain=""))

    def constant(self, name: str, value: int) -> str:
        """Return an integer."""
        return self._store(name, np.array(value, np.int64), "constant", [], value=value)

    def vector(self, parameter: str) -> str:
        """Return a norm's weight or a bias in float32."""
        stored = widen(self._checkpoint.tensor(parameter))
        return self._store(parameter, stored.values, "widened" if stored.widened else "as stored", [stored])

    def product(self, x: str, *layers: str, name: str) -> str:
        """Return the product of `x` with linear layers, their columns one after another, biases included."""
        parts = _of_one_type([self._checkpoint.tensor(f"{layer}.weight") for layer in layers])
        values = [part.values for part in parts]
        n_columns = sum(len(part) for part in values)
        panels = pack(values[0] if len(values) == 1 else np.concatenate(values))
        how = "panels" if len(parts) == 1 else "concatenated panels"
        operator = "MatMulBf16" if parts[0].is_bfloat16 else "MatMulF32"
        inputs = [x, self._store(f"{name}.weight", panels, how, parts)]
        if any(f"{layer}.bias" in self._checkpoint for layer in layers):
            inputs.append(self._bias(layers, f"{name}.bias"))
        return str(self.node(operator, *inputs, name=name, columns=n_columns))

    def _bias(self, layers: Sequence[str], name: str) -> str:
        if len(layers) == 1:
            return self.vector(f"{layers[0]}.bias")
        parts = [widen(self._checkpoint.tensor(f"{layer}.bias")) for layer in layers]
        return self._store(name, np.concatenate([part.values for part in parts]), "concatenated", parts)

    def rms_norm(self, x: str, parameter: str, *, epsilon: float) -> str:
        """Return the norm of `x`."""
        weight = self.vector(f"{parameter}.weight")
        return str(self.node("RmsNorm", x, weight, name=parameter, epsilon=epsilon))

    def add_rms_norm(self, x: str, residual: str, parameter: str, *, epsilon: float) -> tuple[str, str]:
        """Return the norm of a sum, and the sum."""
        weight = self.vector(f"{parameter}.weight")
        normed, total = self.node("AddRmsNorm", x, residual, weight, name=parameter, n_outputs=2, epsilon=epsilon)
        return normed, total

    def layer_norm(self, x: str, parameter: str, *, epsilon: float) -> str:
        """Return the norm of `x`, with a bias where the checkpoint has one."""
        return str(self.node("LayerNorm", x, *self._norm_weights(parameter), name=parameter, epsilon=epsilon))

    def add_layer_norm(self, x: str, residual: str, parameter: str, *, epsilon: float) -> tuple[str, str]:
        """Return the norm of a sum, and the sum."""
        weights = self._norm_weights(parameter)
        normed, total = self.node("AddLayerNorm", x, residual, *weights, name=parameter, n_outputs=2, epsilon=epsilon)
        return normed, total

    def _norm_weights(self, parameter: str) -> list[str]:
        names = [f"{parameter}.weight", f"{parameter}.bias"]
        return [self.vector(name) for name in names if name.endswith(".weight") or name in self._checkpoint]

    def rotary(self, name: str, *, theta: float, head_dim: int, n_positions: int) -> tuple[str, str]:
        """Return tables of cosines and sines; the same ones for the same name."""
        names = f"{name}.cos", f"{name}.sin"
        if names[0] not in self._initializers:
            for i, table in enumerate(rotary_tables(theta, head_dim, n_positions)):
                recipe = (theta, head_dim, n_positions, i)
                self._store(names[i], table, "computed: rotary table", [], table=recipe)
        return names

    def _store(self, name: str, values: NDArray[Any], how: str, sources: Sequence[Stored], **recipe: Any) -> str:
        if name in self._initializers:
            return name
        types = {"uint16": TensorProto.BFLOAT16, "float32": TensorProto.FLOAT, "int64": TensorProto.INT64}
        tensor = TensorProto(name=name, data_type=types[values.dtype.name], dims=values.shape)
        values = np.ascontiguousarray(values)
        if values.nbytes < EXTERNAL_FROM_BYTES:
            tensor.raw_data = values.tobytes()
        else:
            append_external(tensor, values.data, self._file)
        self._initializers[name] = tensor
        self.weights.append(Weight(name, how, tuple(source.source for source in sources), **recipe))
        return name

    def model(self, inputs: Sequence[str], output: str, *, name: str, width: int) -> onnx.ModelProto:
        """Return the finished model: int64 inputs, rows x tokens; a float32 output, rows x width, called `name`."""
        self.node("Identity", output, name=name, domain="")
        graph = helper.make_graph(
            self._nodes,
            "samevec",
            [helper.make_tensor_value_info(part, TensorProto.INT64, ["rows", "tokens"]) for part in inputs],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", width])],
            initializer=list(self._initializers.values()),
        )
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, DOMAIN_VERSION)]
        return helper.make_model(graph, opset_imports=opsets, producer_name="samevec", ir_version=_IR_VERSION)


def _of_one_type(parts: list[Stored]) -> list[Stored]:
    return parts if len({part.is_bfloat16 for part in parts}) == 1 else [widen(part) for part in parts]


def require_covered(
    entry: LockedModel, conditions: Mapping[str, bool], *, head_dim: int, group: int, widths: Mapping[str, int]
) -> None:
    """Refuse a checkpoint that the operators do not compute, with an ExportError that names everything not covered.

    `conditions` has features that are not covered, and whether the checkpoint is free of them; `group` is the query
    heads to a key head; `widths` must be multiples of 32.
    """
    refused = [words for words, is_free in conditions.items() if not is_free]
    if head_dim % PANEL_COLUMNS or not 0 < head_dim <= _MOST_HEAD:
        refused.append(f"heads of {head_dim} components (multiples of 32 up to {_MOST_HEAD} are)")
    if not 0 < group <= _MOST_GROUP:
        refused.append(f"{group} query heads to a key head (up to {_MOST_GROUP} are)")
    refused += [f"{name} {width} (multiples of 32 are)" for name, width in widths.items() if width % PANEL_COLUMNS]
    if refused:
        raise ExportError(
            f"{entry.name}: samevec's own operators do not cover {'; '.join(refused)}; "
            "export it with --profile portable"
        )
