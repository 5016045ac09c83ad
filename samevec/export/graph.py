"""Checks on an exported graph, before it may be published: the contract by structure, PyTorch by value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import torch

from samevec.artifact import GraphInfo
from samevec.export.architectures import get_architecture
from samevec.parity.compare import compare
from samevec.runtime.collate import collate
from samevec.runtime.rows import TokenRow

if TYPE_CHECKING:
    from pathlib import Path

    from samevec.lock import LockedModel, Tolerance
    from samevec.progress import Progress
    from samevec.runtime.sessions.base import Session

__all__ = ["SWEEP_ROWS", "SWEEP_TOKENS", "contract_problems", "describe_graph", "sweep_problems", "sweep_shapes"]

#: Shapes other than the traced one (2 x 16): an axis baked in as a constant shows at the first of them (CASES O23).
SWEEP_ROWS = (1, 2, 3, 7, 33)
SWEEP_TOKENS = (1, 2, 8, 17, 127, 129, 300)

_OUTPUT_NAMES = {"embed": "embedding", "rerank": "logits"}
_DTYPES = {onnx.TensorProto.INT64: "int64", onnx.TensorProto.FLOAT: "float32"}


def _describe(value: onnx.ValueInfoProto) -> str:
    tensor = value.type.tensor_type
    axes = [axis.dim_param or str(axis.dim_value) for axis in tensor.shape.dim]
    return f"{_DTYPES.get(tensor.elem_type, str(tensor.elem_type))}[{','.join(axes)}]"


def describe_graph(path: Path, entry: LockedModel, *, form: str, width: int) -> GraphInfo:
    """Return what the manifest says of a graph."""
    model = onnx.load(str(path), load_external_data=False)
    opset = next(item.version for item in model.opset_import if item.domain in ("", "ai.onnx"))
    return GraphInfo(
        form=form,
        opset=opset,
        inputs={value.name: _describe(value) for value in model.graph.input},
        outputs={value.name: _describe(value) for value in model.graph.output},
        max_tokens=entry.max_tokens,
        width=width,
    )


def contract_problems(path: Path, entry: LockedModel, *, width: int, form: str) -> list[str]:
    """Check a graph against the contract by structure.

    Parameters
    ----------
    path : Path
        ``model.onnx``.
    entry : LockedModel
    width : int
        Components of an output row.
    form : str
        ``"native"`` may store weights as bfloat16; it computes in float32 all the same.

    Returns
    -------
    list of str
        Every violation; empty when the contract holds.
    """
    model = onnx.load(str(path), load_external_data=False)
    problems = []
    expected_inputs = dict.fromkeys(get_architecture(entry).input_names, "int64[rows,tokens]")
    found_inputs = {value.name: _describe(value) for value in model.graph.input}
    if found_inputs != expected_inputs:
        problems.append(f"inputs are {found_inputs}, the contract is {expected_inputs}")
    outputs = list(model.graph.output)
    name = _OUTPUT_NAMES[entry.task]
    if [value.name for value in outputs] != [name]:
        problems.append(f"outputs are {[value.name for value in outputs]}, the contract is ['{name}']")
    else:
        problems += _output_problems(outputs[0], width)
    foreign = {onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16}
    if form != "native":
        foreign.add(onnx.TensorProto.BFLOAT16)
    problems += [
        f"weight {tensor.name} is stored as type {tensor.data_type}, float32 is expected"
        for tensor in model.graph.initializer
        if tensor.data_type in foreign
    ]
    return problems


def _output_problems(value: onnx.ValueInfoProto, width: int) -> list[str]:
    tensor = value.type.tensor_type
    axes = list(tensor.shape.dim)
    problems = []
    if tensor.elem_type != onnx.TensorProto.FLOAT:
        problems.append(f"output {value.name} has type {tensor.elem_type}, float32 is the contract")
    # The exporter may name the second axis instead of stating it; the sweep then checks the real width.
    if len(axes) != 2 or not axes[0].dim_param or axes[1].dim_value not in (0, width):
        problems.append(f"output {value.name} is {_describe(value)}, the contract is float32[rows,{width}]")
    return problems


def sweep_shapes(max_tokens: int) -> list[tuple[int, int]]:
    """Return the (rows, tokens) shapes a graph is compared at, longest last."""
    return [(n_rows, n_tokens) for n_tokens in SWEEP_TOKENS if n_tokens <= max_tokens for n_rows in SWEEP_ROWS]


def sweep_problems(
    session: Session,
    module: Any,
    entry: LockedModel,
    tolerance: Tolerance,
    *,
    pad_to_multiple: int,
    progress: Progress,
) -> list[str]:
    """Compare a graph with the unpatched PyTorch module at many shapes, by value.

    Parameters
    ----------
    session : Session
        The graph, loaded as it will be served.
    module : transformers.PreTrainedModel
    entry : LockedModel
    tolerance : Tolerance
    pad_to_multiple : int
        As the profile pads.
    progress : Progress

    Returns
    -------
    list of str
        One line a shape that differs.
    """
    architecture = get_architecture(entry)
    shapes = sweep_shapes(entry.max_tokens)
    n_type_ids = int(module.config.type_vocab_size) if "token_type_ids" in architecture.input_names else 0
    probes = _Probes(n_ids=int(module.config.vocab_size), n_type_ids=n_type_ids)
    problems = []
    with progress.step("compare shapes", total=len(shapes), unit="shapes") as advance:
        for n_rows, n_tokens in shapes:
            rows = probes.draw(n_rows, n_tokens)
            feed = collate(rows, pad_token_id=0, pad_to_multiple=1).as_feed(architecture.input_names)
            tensors = {name: torch.from_numpy(array) for name, array in feed.items()}
            with torch.inference_mode():
                expected = architecture.reference_rows(module, tensors, entry.pooling).numpy()
            found = session.run(collate(rows, pad_token_id=0, pad_to_multiple=pad_to_multiple))
            outcome = compare(expected, found, tolerance)
            if not outcome.passed:
                problems.append(f"{n_rows} x {n_tokens} tokens: {outcome.words}")
            advance(1)
    return problems


@dataclass(frozen=True, kw_only=True, slots=True)
class _Probes:
    """Rows of random ids, and of random segment ids where a model reads them."""

    n_ids: int
    n_type_ids: int
    stream: np.random.Generator = field(default_factory=lambda: np.random.Generator(np.random.PCG64(20240607)))

    def draw(self, n_rows: int, n_tokens: int) -> list[TokenRow]:
        """Return rows, the first as long as asked and the others ragged below it."""
        lengths = [n_tokens, *self.stream.integers(1, n_tokens + 1, n_rows - 1).tolist()]
        return [TokenRow(self._draw(self.n_ids, n), self._draw(self.n_type_ids, n) or None) for n in lengths]

    def _draw(self, below: int, n: int) -> tuple[int, ...]:
        return tuple(self.stream.integers(0, below, n).tolist()) if below else ()
