"""Graphs of the native library's operators, built from a checkpoint's tensors: the same bytes on every machine.

Nothing is traced, and only rotary tables are computed, so neither torch's arithmetic nor optimum shapes the file.
native/DEFINITION.md defines the operators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from samevec.artifact import DATA_NAME, GRAPH_NAME
from samevec.errors import ExportError
from samevec.export.native import bert, modernbert, qwen3
from samevec.export.native.checkpoint import Checkpoint
from samevec.export.native.graph import GraphBuilder, Weight

if TYPE_CHECKING:
    from pathlib import Path

    from samevec.lock import LockedModel
    from samevec.progress import Progress

__all__ = ["Weight", "open_checkpoint", "write_native_graph"]

# By the lock's words for architecture and task: what builds the graph, and the base model's prefix.
_BUILDERS = {
    ("qwen3", "embed"): (qwen3.embedder, qwen3.PREFIX),
    ("modernbert", "rerank"): (modernbert.reranker, modernbert.PREFIX),
    ("bert", "embed"): (bert.embedder, bert.PREFIX),
    ("bert", "rerank"): (bert.reranker, bert.PREFIX),
}


def open_checkpoint(snapshot: Path, entry: LockedModel) -> Checkpoint:
    """Return a snapshot's tensors, not yet read, as a context manager; ExportError if a file cannot be read."""
    _, prefix = _BUILDERS.get((entry.architecture, entry.task), (None, ""))
    paths = [snapshot / file.path for file in entry.files if file.path.endswith(".safetensors")]
    return Checkpoint(paths, prefix=prefix)


def write_native_graph(
    snapshot: Path, config: Any, entry: LockedModel, directory: Path, progress: Progress
) -> tuple[Path, list[Weight]]:
    """Write ``model.onnx`` and ``model.onnx.data`` in the native library's operators from a verified snapshot.

    `config` is the checkpoint's, with transformers' own defaults. Returns the graph, and the origin of each
    initialiser.

    Raises
    ------
    ExportError
        The architecture has no native graph, its configuration needs other operators, or the checkpoint lacks a tensor.
    """
    if (entry.architecture, entry.task) not in _BUILDERS:
        raise ExportError(
            f"{entry.name}: architecture {entry.architecture!r} with task {entry.task} has no native graph; "
            "export it with --profile portable"
        )
    build, _ = _BUILDERS[entry.architecture, entry.task]
    with open_checkpoint(snapshot, entry) as checkpoint, (directory / DATA_NAME).open("wb") as file:
        graph = GraphBuilder(checkpoint, file, progress)
        model = build(graph, config, entry)
    path = directory / GRAPH_NAME
    path.write_bytes(model.SerializeToString(deterministic=True))
    return path, graph.weights
