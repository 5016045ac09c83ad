"""Every weight, bit for bit: what is exchanged, renamed, left out or added is found by name (faults A1 and A3)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest

pytest.importorskip("torch", reason="needs the export extra")

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel

from samevec.errors import WeightsDifferError
from samevec.export.initializers import Initializers
from samevec.export.native import open_checkpoint, write_native_graph
from samevec.export.toy.checkpoint import TOY_EMBEDDER, build_toy
from samevec.export.weights import (
    module_problems,
    native_records,
    require_records,
    traced_records,
    weights_table,
)
from samevec.lock import load_lock
from samevec.progress import SilentProgress

if TYPE_CHECKING:
    from pathlib import Path

    from samevec.export.native import Weight

pytestmark = pytest.mark.model
ENTRY = load_lock("toy").model(TOY_EMBEDDER)
TABLE = "embed_tokens.weight"


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    build_toy(TOY_EMBEDDER, folder)
    return folder


def module_of(folder: Path) -> Any:
    return AutoModel.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture
def written(snapshot: Path, tmp_path: Path) -> tuple[Path, list[Weight]]:
    return write_native_graph(snapshot, AutoConfig.from_pretrained(snapshot), ENTRY, tmp_path, SilentProgress())


def problems_of(snapshot: Path, path: Path, weights: list[Weight]) -> list[str]:
    with open_checkpoint(snapshot, ENTRY) as checkpoint:
        return native_records(checkpoint, path, weights)[1]


def test_a_native_graph_holds_every_tensor_of_the_checkpoint_once(
    snapshot: Path, written: tuple[Path, list[Weight]]
) -> None:
    path, weights = written
    with open_checkpoint(snapshot, ENTRY) as checkpoint:
        records, problems = native_records(checkpoint, path, weights)
        assert problems == []
        assert sorted(record.tensor for record in records if record.tensor) == sorted(checkpoint.names)
    table = json.loads(weights_table(records))
    assert table["columns"] == ["tensor", "initializer", "transformation", "sha256"]
    assert [TABLE, TABLE, "as stored"] in [row[:3] for row in table["rows"]]


def exchange_rows(path: Path, name: str) -> None:
    """Exchange two rows of a weight in the data file, such as words that no case reads."""
    tensor = next(
        tensor for tensor in onnx.load(str(path), load_external_data=False).graph.initializer if tensor.name == name
    )
    place = {entry.key: entry.value for entry in tensor.external_data}
    data = np.memmap(path.parent / place["location"], dtype=np.uint8, mode="r+")
    rows = data[int(place["offset"]) :][: int(place["length"])].reshape(tensor.dims[0], -1)
    rows[[200, 201]] = rows[[201, 200]]
    data.flush()


def test_a1_two_rows_of_the_token_table_exchanged_are_found(snapshot: Path, written: tuple[Path, list[Weight]]) -> None:
    path, weights = written
    exchange_rows(path, TABLE)
    found = problems_of(snapshot, path, weights)
    assert found == [f"{TABLE}: {TABLE} has other values in the graph than in the checkpoint"]
    with pytest.raises(WeightsDifferError, match=f"{TOY_EMBEDDER}: the weights are not the checkpoint's: {TABLE}"):
        require_records(TOY_EMBEDDER, [], found)


@pytest.mark.parametrize("part", ["layers.1.self_attn.qkv.weight", "layers.2.mlp.down_proj.weight", "rotary.sin"])
def test_a1_one_changed_bit_of_any_initialiser_is_found(
    snapshot: Path, written: tuple[Path, list[Weight]], part: str
) -> None:
    path, weights = written
    tensor = next(t for t in onnx.load(str(path), load_external_data=False).graph.initializer if t.name == part)
    offset = next(int(entry.value) for entry in tensor.external_data if entry.key == "offset")
    data = np.memmap(path.parent / "model.onnx.data", dtype=np.uint8, mode="r+")
    data[offset + 4] ^= 1
    data.flush()
    found = problems_of(snapshot, path, weights)
    assert len(found) == 1
    assert found[0].startswith(f"{part}: ")


def test_a1_an_initialiser_without_a_source_and_a_tensor_without_a_place_are_found(
    snapshot: Path, written: tuple[Path, list[Weight]]
) -> None:
    path, weights = written
    left_out = next(weight for weight in weights if weight.name == "norm.weight")
    found = problems_of(snapshot, path, [weight for weight in weights if weight is not left_out])
    assert found == ["norm.weight: an initialiser without a source", "norm.weight: has no place in the graph"]


def test_a3_a_renamed_tensor_is_refused_and_not_filled_at_random(snapshot: Path, tmp_path: Path) -> None:
    for file in snapshot.glob("*.*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["layers.1.mlp.up_projection.weight"] = tensors.pop("layers.1.mlp.up_proj.weight")
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with open_checkpoint(tmp_path, ENTRY) as checkpoint:
        found = module_problems(module_of(tmp_path), checkpoint)
    assert found == [
        "layers.1.mlp.up_proj.weight: the checkpoint has no such tensor, PyTorch filled it",
        "layers.1.mlp.up_projection.weight: nothing reads this tensor of the checkpoint",
    ]


def test_a3_values_that_pytorch_changed_are_found(snapshot: Path) -> None:
    module = module_of(snapshot)
    with open_checkpoint(snapshot, ENTRY) as checkpoint:
        assert module_problems(module, checkpoint) == []
        with torch.no_grad():
            module.norm.weight[3] += 2**-20
        assert module_problems(module, checkpoint) == ["norm.weight: PyTorch's values are not the checkpoint's"]


@pytest.mark.parametrize("form", ["plain", "cuda"])
def test_a1_a_traced_graph_is_matched_by_the_same_digests(snapshot: Path, tmp_path: Path, form: str) -> None:
    pytest.importorskip("optimum.exporters.onnx", reason="needs the export extra")
    from samevec.export.convert import convert  # noqa: PLC0415

    module = module_of(snapshot)
    path = convert(module, ENTRY, form=form, directory=tmp_path)
    native = tmp_path / "native"
    native.mkdir()
    other, weights = write_native_graph(snapshot, module.config, ENTRY, native, SilentProgress())
    with open_checkpoint(snapshot, ENTRY) as checkpoint:
        records, problems = traced_records(module, checkpoint, path)
        assert problems == []
        expected = {record.tensor: record.digest for record in native_records(checkpoint, other, weights)[0]}
        del expected[""]
        assert {record.tensor: record.digest for record in records if record.tensor} == expected
        table = next(record.initializer for record in records if record.tensor == TABLE)
        exchange_rows(path, table)
        _, problems = traced_records(module, checkpoint, path)
    assert sorted(problems) == sorted(
        [f"{TABLE}: has no place in the graph", f"{table}: an initialiser without a source"]
    )


def test_initialisers_are_read_from_graph_and_data_file(written: tuple[Path, list[Weight]]) -> None:
    path, weights = written
    initializers = Initializers(path)
    assert set(initializers.names) == {weight.name for weight in weights}
    assert initializers.values(TABLE).dtype == np.uint16
    assert initializers.values("norm.weight").dtype == np.float32
