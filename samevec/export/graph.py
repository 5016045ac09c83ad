"""Checks on an exported graph, before it may be published: the contract by structure, PyTorch by value."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx

from samevec.artifact import GraphInfo
from samevec.export.architectures import get_architecture
from samevec.parity.sweep import Sweep
from samevec.parity.verdict import cell_failures

if TYPE_CHECKING:
    from pathlib import Path

    from samevec.lock import LockedModel, Tolerance
    from samevec.parity.reference.file import SweepReference
    from samevec.parity.sweep import SweepPlan
    from samevec.progress import Progress
    from samevec.runtime.embedder import Embedder
    from samevec.runtime.reranker import Reranker

__all__ = ["contract_problems", "describe_graph", "sweep_problems"]

_OUTPUT_NAMES = {"embed": "embedding", "rerank": "logits"}
_DTYPES = {onnx.TensorProto.INT64: "int64", onnx.TensorProto.FLOAT: "float32"}


def _describe(value: onnx.ValueInfoProto) -> str:
    tensor = value.type.tensor_type
    axes = [axis.dim_param or str(axis.dim_value) for axis in tensor.shape.dim]
    return f"{_DTYPES.get(tensor.elem_type, str(tensor.elem_type))}[{','.join(axes)}]"


def describe_graph(path: Path, entry: LockedModel, *, form: str, width: int) -> GraphInfo:
    """Return the manifest's record of a graph."""
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
    """Return every violation of the contract in a graph's structure.

    `width` is the components of an output row; only the form ``"native"`` may store weights as bfloat16.
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


def sweep_problems(
    model: Embedder | Reranker,
    reference: SweepReference,
    plan: SweepPlan,
    tolerance: Tolerance,
    *,
    bits_required: bool,
    progress: Progress,
) -> list[str]:
    """Compare a graph with PyTorch at many widths and row counts; return one line for each kind of shapes that differ.

    `model` is the graph, loaded as it will be served; `reference` has PyTorch's output for the plan's rows.
    """
    sweep = Sweep(model=model, plan=plan, reference=reference, tolerance=tolerance, bits_required=bits_required)
    return list(cell_failures(sweep.run(progress)))
