"""cpu-compact: the bits of float32 weights, half their bytes, and never many of them in memory at once."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from samevec.export.compact import CHUNK_BYTES, compact, is_bfloat16_exact
from samevec.export.convert import DATA_NAME
from samevec.export.graph import unpacked_thread_limit
from samevec.runtime.collate import collate
from samevec.runtime.profiles import get_profile
from samevec.runtime.rows import TokenRow
from samevec.runtime.session import OnnxSession

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

VOCABULARY, MEMORY_PROBE = 64, Path(__file__).parent / "compact_memory.py"
MEGABYTE = 1 << 20


def bfloat16_values(shape: tuple[int, ...], *, seed: int = 0) -> NDArray[np.float32]:
    values: NDArray[np.float32] = (np.random.default_rng(seed).standard_normal(shape) / np.sqrt(shape[0])).astype(
        np.float32
    )
    values.view(np.uint32)[...] &= np.uint32(0xFFFF0000)
    return values


def chain_graph(folder: Path, widths: Sequence[int], *, exact: bool = True) -> Path:
    """A table of 64 ids, then a chain of products, then the first token: weights in a file of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {"table": bfloat16_values((VOCABULARY, widths[0]))}
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["states_0"], axis=0)]
    for i, shape in enumerate(itertools.pairwise(widths)):
        values = bfloat16_values(shape, seed=i + 1)
        weights[f"weight_{i}"] = values if exact else values + np.float32(1e-6)
        nodes.append(helper.make_node("MatMul", [f"states_{i}", f"weight_{i}"], [f"states_{i + 1}"]))
    nodes.append(helper.make_node("Gather", [f"states_{len(widths) - 1}", "zero"], ["embedding"], axis=1))
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["rows", "tokens"])],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["rows", widths[-1]])],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()]
        + [helper.make_tensor("zero", TensorProto.INT64, [], [0])],
    )
    path = folder / "model.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save_model(model, str(path), save_as_external_data=True, location=DATA_NAME, size_threshold=1024)
    return path


def run(path: Path, profile_name: str, rows: list[TokenRow], n_threads: int = 2) -> NDArray[np.float32]:
    session = OnnxSession(path, get_profile(profile_name), n_threads=n_threads)
    return session.run(collate(rows, pad_token_id=0, pad_to_multiple=4))


def some_rows(lengths: Sequence[int]) -> list[TokenRow]:
    stream = np.random.default_rng(5)
    return [TokenRow(tuple(stream.integers(0, VOCABULARY, n).tolist())) for n in lengths]


# The second weight is 3.7 MB in float32, so it is cut; 1,000 columns are no multiple of a kernel's width.
WIDTHS = (96, 960, 1000, 640)


def test_bits_are_those_of_float32_weights_that_are_not_packed(tmp_path: Path) -> None:
    plain, small = chain_graph(tmp_path / "plain", WIDTHS), chain_graph(tmp_path / "small", WIDTHS)
    assert compact(small) == len(WIDTHS)  # the table, and every product
    for lengths in ([4], [1, 9, 30], [17] * 8, [200]):
        rows = some_rows(lengths)
        assert run(small, "cpu-compact", rows).tobytes() == run(plain, "cpu-compact", rows).tobytes()


def test_the_weights_take_half_the_bytes(tmp_path: Path) -> None:
    path = chain_graph(tmp_path, WIDTHS)
    before = (tmp_path / DATA_NAME).stat().st_size
    compact(path)
    assert (tmp_path / DATA_NAME).stat().st_size == pytest.approx(before / 2, rel=0.01)


def test_weights_that_are_no_bfloat16_stay_as_they_are(tmp_path: Path) -> None:
    path = chain_graph(tmp_path, (64, 64), exact=False)
    graph, data = path.read_bytes(), (tmp_path / DATA_NAME).read_bytes()
    assert compact(path) == 1  # the table is exact, and only it is rewritten
    rows = some_rows([5])
    found = run(path, "cpu-compact", rows)
    path.write_bytes(graph)
    (tmp_path / DATA_NAME).write_bytes(data)
    assert found.tobytes() == run(path, "cpu-compact", rows).tobytes()


def test_a_graph_without_any_is_not_touched(tmp_path: Path) -> None:
    path = chain_graph(tmp_path, (64, 64), exact=False)
    model = onnx.load(str(path))
    table = next(tensor for tensor in model.graph.initializer if tensor.name == "table")
    table.CopyFrom(onnx.numpy_helper.from_array(bfloat16_values((VOCABULARY, 64)) + np.float32(1e-6), "table"))
    onnx.save_model(model, str(path), save_as_external_data=True, location=DATA_NAME, size_threshold=1024)
    before = path.read_bytes(), (tmp_path / DATA_NAME).read_bytes()
    assert compact(path) == 0
    assert (path.read_bytes(), (tmp_path / DATA_NAME).read_bytes()) == before
    assert [item.name for item in tmp_path.iterdir() if item.name not in ("model.onnx", DATA_NAME)] == []


@pytest.mark.parametrize("shape", [(1024, 2048), (3072, 1024), (4096, 320), (64, 48)])
def test_chunks_hold_all_columns_and_keep_bits_up_to_four_threads(tmp_path: Path, shape: tuple[int, int]) -> None:
    path = chain_graph(tmp_path, (8, *shape))
    compact(path)
    model = onnx.load(str(path), load_external_data=False)
    widths = [t.dims[1] for t in model.graph.initializer if t.data_type == TensorProto.BFLOAT16 and len(t.dims) == 2]
    chunks = widths[-sum(name.startswith("states_2_weight_") for name in (t.name for t in model.graph.initializer)) :]
    assert sum(chunks) == shape[1]
    assert all(4 * shape[0] * width <= 4 * CHUNK_BYTES for width in chunks)
    if shape[1] >= 1024:
        assert unpacked_thread_limit(model) in (None, 4)


def test_a_value_is_exact_when_its_lower_half_is_zero() -> None:
    assert is_bfloat16_exact(np.array([1.0, -0.0, 3.140625, np.inf], dtype=np.float32))
    assert not is_bfloat16_exact(np.array([1.0, 3.1415927], dtype=np.float32))


def take_products_out_of_their_ifs(path: Path) -> None:
    """Leave the casts depending on nothing but stored weights."""
    model = onnx.load(str(path), load_external_data=False)
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        branch = next((item.g for item in node.attribute if item.name == "then_branch"), None)
        nodes += [node] if branch is None else branch.node
        if branch is not None:
            nodes[-1].output[0] = node.output[0]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)
    path.write_bytes(model.SerializeToString())


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
@pytest.mark.parametrize("mode", ["as served", "folded"])
def test_neither_load_nor_run_holds_many_weights_in_float32(tmp_path: Path, mode: str) -> None:
    # 16 weights of 8 MB in float32: 128 MB if they are all cast, as ONNX Runtime does where nothing holds it back.
    path = chain_graph(tmp_path, (1024, 2048) * 8 + (1024,))
    compact(path)
    if mode == "folded":
        take_products_out_of_their_ifs(path)
    command, environment = (
        [sys.executable, str(MEMORY_PROBE), str(path), mode],
        {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | environment)
    told = json.loads(done.stdout)
    grown_bytes = told["peak_bytes"] - told["before_bytes"]
    assert (grown_bytes < 40 * MEGABYTE) is (mode == "as served"), f"{grown_bytes / MEGABYTE:.0f} MB"
