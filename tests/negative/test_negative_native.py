"""Native graphs with one thing wrong, each refused by the cell that its test names.

Numbers after ``by`` as in ``test_negative_graphs``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from negative_tools import EMBEDDER, RERANKER, require_refused
from onnx import helper

from samevec.progress import SilentProgress
from samevec.runtime.providers.profiles import get_profile
from samevec.runtime.sessions.onnx import OnnxSession

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from negative_tools import Toy

    from samevec.parity.verdict import Verdict

    Edit = Callable[[onnx.ModelProto, Path], None]

pytest_plugins = ("negative_fixtures",)
pytestmark = pytest.mark.model

CPU = get_profile("cpu")
RAW = {EMBEDDER: "raw", RERANKER: "logits"}


def judged(toy: Toy, folder: Path, edit: Edit) -> Verdict:
    native: Any = importlib.import_module("samevec.export.native")
    path, _ = native.write_native_graph(toy.snapshot, toy.torch.module.config, toy.entry, folder, SilentProgress())
    model = onnx.load(str(path), load_external_data=False)
    edit(model, folder / "model.onnx.data")
    path.write_bytes(model.SerializeToString())
    return toy.judge(toy.model(OnnxSession(path, CPU, n_threads=1), pad_to_multiple=1), profile=CPU)


def unchanged(_model: onnx.ModelProto, _data: Path) -> None:
    """Edit nothing."""


def operator(right: str, wrong: str) -> Edit:
    """Put an operator in the place of another."""

    def edit(model: onnx.ModelProto, _data: Path) -> None:
        found = [node for node in model.graph.node if node.op_type == right]
        assert found
        for node in found:
            node.op_type = wrong

    return edit


def attention(name: str, right: int, wrong: int) -> Edit:
    """Set an attribute of attention where it has the right value."""

    def edit(model: onnx.ModelProto, _data: Path) -> None:
        attributes = [a for node in model.graph.node if node.op_type == "Attention" for a in node.attribute]
        found = [attribute for attribute in attributes if attribute.name == name and attribute.i == right]
        assert found
        for attribute in found:
            attribute.i = wrong

    return edit


def tables_swapped(model: onnx.ModelProto, _data: Path) -> None:
    """Give cosines for sines and the other way round."""
    for node in model.graph.node:
        if node.op_type == "Attention":
            node.input[2], node.input[3] = node.input[3], node.input[2]


def local_tables_everywhere(model: onnx.ModelProto, _data: Path) -> None:
    """Give global layers the positions of local ones."""
    for node in model.graph.node:
        if node.op_type == "Attention":
            node.input[2], node.input[3] = "rotary.local.cos", "rotary.local.sin"


def activated_twice(model: onnx.ModelProto, _data: Path) -> None:
    """Activate inside the graph what the runtime activates again."""
    model.graph.node[-1].output[0] = "wrong_logits"
    model.graph.node.append(helper.make_node("Sigmoid", ["wrong_logits"], ["logits"]))


def one_page_zeroed(model: onnx.ModelProto, data: Path) -> None:
    """Zero 4 KiB in the middle of the panels in the middle."""
    panels = [tensor for tensor in model.graph.initializer if tensor.external_data and len(tensor.dims) == 3]
    place = {entry.key: entry.value for entry in panels[len(panels) // 2].external_data}
    content = np.memmap(data, np.uint8, "r+")
    start = int(place["offset"]) + int(place["length"]) // 2
    assert content[start : start + 4096].any()
    content[start : start + 4096] = 0
    content.flush()


@pytest.mark.parametrize("name", [EMBEDDER, RERANKER])
def test_the_graph_itself_passes_bits_included(name: str, toys: dict[str, Toy], tmp_path: Path) -> None:
    assert judged(toys[name], tmp_path, unchanged).failures == ()


EDITS: dict[str, tuple[str, Edit, float]] = {
    "first token": (EMBEDDER, operator("LastToken", "FirstToken"), 500),
    "mean": (EMBEDDER, operator("LastToken", "MeanPool"), 500),
    "first token in the head": (RERANKER, operator("MeanPool", "FirstToken"), 100),
    "no causal order": (EMBEDDER, attention("causal", 1, 0), 500),
    "causal order": (RERANKER, attention("causal", 0, 1), 100),
    "window of 63": (RERANKER, attention("window", 64, 63), 7),
    "window of 65": (RERANKER, attention("window", 64, 65), 7),
    "no window": (RERANKER, attention("window", 64, -1), 7),
    "another gate": (EMBEDDER, operator("SwiGlu", "GeGlu"), 50),
    "cosines for sines": (EMBEDDER, tables_swapped, 500),
    "local positions": (RERANKER, local_tables_everywhere, 7),
    "two sigmoids": (RERANKER, activated_twice, 500),
    "a zeroed page of bfloat16": (EMBEDDER, one_page_zeroed, 100),
    "a zeroed page of float32": (RERANKER, one_page_zeroed, 9),
}


@pytest.mark.parametrize("mistake", EDITS)
def test_a_mistake_is_refused(mistake: str, toys: dict[str, Toy], tmp_path: Path) -> None:
    name, edit, by = EDITS[mistake]
    require_refused(judged(toys[name], tmp_path, edit), f"{RAW[name]}/alone", by=by)
