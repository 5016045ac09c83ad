"""A loaded PyTorch module in, ``model.onnx`` with external data out, by optimum."""

from __future__ import annotations

import logging
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

import onnx
from optimum.exporters.onnx import onnx_export_from_model

from samevec.artifact import DATA_NAME, GRAPH_NAME
from samevec.errors import ExportError
from samevec.export.architectures import get_architecture
from samevec.export.data_file import EXTERNAL_FROM_BYTES, OPSET, append_external

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from samevec.lock import LockedModel

__all__ = ["convert"]


def convert(module: Any, entry: LockedModel, *, form: str, directory: Path) -> Path:
    """Export a module as ``model.onnx`` and ``model.onnx.data`` in a directory; return the graph's path.

    The module is in fp32, evaluating, and unchanged afterwards; `form` is ``"plain"`` or ``"cuda"``. ExportError
    includes the exporter's message.
    """
    architecture = get_architecture(entry)
    scratch = directory / "optimum"
    config = architecture.make_config(module, form, entry)
    try:
        with _quiet_exporter():
            onnx_export_from_model(
                module,
                output=scratch,
                task=architecture.optimum_task,
                custom_onnx_configs={"model": config},
                opset=OPSET,
                # Optimum's validation turns mismatches into warnings; our sweep and gate decide.
                do_validation=False,
                no_post_process=True,
                device="cpu",
            )
    except OSError:
        raise  # a full disk is the machine's fault, not the graph's
    except Exception as error:
        raise ExportError(f"{entry.name}: optimum could not export the {form} graph: {error}") from error
    graph_path = _externalize(scratch / GRAPH_NAME, directory)
    for leftover in scratch.iterdir():
        leftover.unlink()
    scratch.rmdir()
    return graph_path


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Silence the exporter's warnings about traced branches, which the sweep of shapes tests."""
    names = ("optimum", "torch.onnx", "transformers")
    levels = {name: logging.getLogger(name).level for name in names}
    try:
        for name in names:
            logging.getLogger(name).setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def _externalize(source: Path, directory: Path) -> Path:
    """Move a graph into `directory`, large tensors in one data file; one of 2 GB or more is renamed, not rewritten."""
    target, data = directory / GRAPH_NAME, directory / DATA_NAME
    model = onnx.load(str(source), load_external_data=False)
    _constants_to_initializers(model)
    locations = {entry.value for t in model.graph.initializer for entry in t.external_data if entry.key == "location"}
    if len(locations) > 1:
        raise ExportError(f"the exporter wrote {len(locations)} data files, one is expected")
    if locations:
        (source.parent / locations.pop()).rename(data)
    with data.open("ab") as file:
        for tensor in model.graph.initializer:
            _point_to_data(tensor, file)
    target.write_bytes(model.SerializeToString())
    return target


def _point_to_data(tensor: onnx.TensorProto, file: BinaryIO) -> None:
    """Make a tensor refer to the data file; append its bytes if they are still inline and large."""
    for entry in tensor.external_data:
        if entry.key == "location":
            entry.value = DATA_NAME
    if len(tensor.raw_data) >= EXTERNAL_FROM_BYTES:
        append_external(tensor, tensor.raw_data, file)


def _constants_to_initializers(model: onnx.ModelProto) -> None:
    """Turn large Constant nodes (the rotary tables) into initializers, which can be external."""
    kept = []
    for node in model.graph.node:
        value = node.attribute[0].t if node.op_type == "Constant" and node.attribute[0].name == "value" else None
        if value is None or not (value.external_data or len(value.raw_data) >= EXTERNAL_FROM_BYTES):
            kept.append(node)
            continue
        value.name = node.output[0]
        model.graph.initializer.append(value)
    del model.graph.node[:]
    model.graph.node.extend(kept)
