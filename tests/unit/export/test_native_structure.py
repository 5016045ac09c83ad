"""Native graphs by structure: what stands in the file, and what is refused. Values are in tests/model."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from samevec.errors import ExportError
from samevec.export.toy.checkpoint import TOY_EMBEDDER, TOY_RERANKER, build_toy
from samevec.export.toy.synthetic import bert_tensors, write_tensors
from samevec.lock import load_lock
from samevec.progress import SilentProgress

transformers = pytest.importorskip("transformers", reason="needs the export extra")
onnx = pytest.importorskip("onnx", reason="needs the export extra")

from samevec.export.native import write_native_graph  # noqa: E402  needs torch
from samevec.export.native.panels import unpack  # noqa: E402  the same

if TYPE_CHECKING:
    from pathlib import Path

    from samevec.export.native import Weight
    from samevec.lock import LockedModel

BERT = {
    "vocab_size": 512,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 160,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
}


def toy(name: str, folder: Path) -> tuple[LockedModel, Any]:
    build_toy(name, folder)
    return load_lock("toy").model(name), transformers.AutoConfig.from_pretrained(folder)


def bert(name: str, folder: Path, **changes: Any) -> tuple[LockedModel, Any]:
    folder.mkdir(exist_ok=True)
    config = transformers.BertConfig(**BERT, num_labels=1, **changes)
    write_tensors(folder / "model.safetensors", bert_tensors(config.to_dict()), seed=7)
    return load_lock().model(name), config


def write(entry: LockedModel, config: Any, folder: Path, to: str = "graph") -> tuple[Path, list[Weight]]:
    target = folder.parent / to
    target.mkdir()
    return write_native_graph(folder, config, entry, target, SilentProgress())


def loaded(path: Path) -> Any:
    onnx.checker.check_model(str(path))
    return onnx.load(str(path), load_external_data=False)


@pytest.mark.parametrize("name", [TOY_EMBEDDER, TOY_RERANKER, "all-minilm-l6-v2", "ms-marco-minilm-l6-v2"])
def test_bytes_are_the_same_every_time_and_large_weights_lie_on_pages(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "snapshot"
    entry, config = toy(name, folder) if name.startswith("toy") else bert(name, folder)
    first, weights = write(entry, config, folder)
    second, _ = write(entry, config, folder, "again")
    for file in ("model.onnx", "model.onnx.data"):
        assert (first.parent / file).read_bytes() == (second.parent / file).read_bytes()
    graph = loaded(first).graph
    assert [tensor.name for tensor in graph.initializer] == [weight.name for weight in weights]
    for tensor in graph.initializer:
        place = {item.key: item.value for item in tensor.external_data}
        if place:
            assert int(place["offset"]) % 4096 == 0
        else:
            assert len(tensor.raw_data) < 1024
    assert {node.domain for node in graph.node} == {"", "samevec"}


def test_a_qwen3_graph_computes_its_top_layer_for_one_token_a_text(tmp_path: Path) -> None:
    entry, config = toy(TOY_EMBEDDER, tmp_path / "snapshot")
    path, weights = write(entry, config, tmp_path / "snapshot")
    graph = loaded(path).graph
    counts = Counter(node.op_type for node in graph.node)
    assert counts["Attention"] == config.num_hidden_layers
    assert counts["LastToken"] == 2
    assert counts["MatMulBf16"] == 4 * config.num_hidden_layers
    assert "MatMulF32" not in counts
    (output,) = graph.output
    assert [axis.dim_param or axis.dim_value for axis in output.type.tensor_type.shape.dim] == ["rows", 384]
    by_name = {weight.name: weight for weight in weights}
    qkv = by_name["layers.1.self_attn.qkv.weight"]
    assert qkv.transformation == "concatenated panels"
    assert qkv.sources == tuple(f"layers.1.self_attn.{part}_proj.weight" for part in "qkv")
    assert by_name["embed_tokens.weight"].transformation == "as stored"
    assert by_name["norm.weight"].transformation == "widened"
    assert by_name["rotary.cos"].transformation == "computed: rotary table"


def test_panels_hold_the_checkpoints_bits(tmp_path: Path) -> None:
    from samevec.export.native.checkpoint import Checkpoint  # noqa: PLC0415  needs torch

    entry, config = toy(TOY_EMBEDDER, tmp_path / "snapshot")
    path, weights = write(entry, config, tmp_path / "snapshot")
    data = np.memmap(path.parent / "model.onnx.data", np.uint8, "r")
    tensors = {tensor.name: tensor for tensor in loaded(path).graph.initializer}
    with Checkpoint([tmp_path / "snapshot" / "model.safetensors"]) as checkpoint:
        for weight in (weight for weight in weights if "panels" in weight.transformation):
            parts = [checkpoint.tensor(source).values for source in weight.sources]
            tensor = tensors[weight.name]
            place = {item.key: int(item.value) for item in tensor.external_data if item.key != "location"}
            stored = data[place["offset"] : place["offset"] + place["length"]].view(np.uint16)
            expected = np.concatenate(parts)
            assert np.array_equal(unpack(stored.reshape(tuple(tensor.dims)), len(expected)), expected)


def test_modernbert_layers_are_local_and_global_in_turn(tmp_path: Path) -> None:
    entry, config = toy(TOY_RERANKER, tmp_path / "snapshot")
    path, _ = write(entry, config, tmp_path / "snapshot")
    windows, tables = [], []
    for node in loaded(path).graph.node:
        if node.op_type == "Attention":
            windows.append(next(a.i for a in node.attribute if a.name == "window"))
            tables.append(node.input[2])
    assert windows == [-1, 64, 64, -1, 64]
    assert tables == [f"rotary.{'global' if window == -1 else 'local'}.cos" for window in windows]


@pytest.mark.parametrize(
    ("pooling", "operator", "n"), [("mean", "MeanPool", 1), ("cls", "FirstToken", 2)], ids=["mean", "cls"]
)
def test_a_bert_embedder_pools_as_the_lock_says(pooling: Any, operator: str, n: int, tmp_path: Path) -> None:
    entry, config = bert("all-minilm-l6-v2", tmp_path / "snapshot")
    path, _ = write(replace(entry, pooling=pooling), config, tmp_path / "snapshot")
    graph = loaded(path).graph
    assert Counter(node.op_type for node in graph.node)[operator] == n
    assert [value.name for value in graph.input] == ["input_ids", "attention_mask"]


def test_a_bert_cross_encoder_reads_segments(tmp_path: Path) -> None:
    entry, config = bert("ms-marco-minilm-l6-v2", tmp_path / "snapshot")
    path, weights = write(entry, config, tmp_path / "snapshot")
    graph = loaded(path).graph
    assert [value.name for value in graph.input] == ["input_ids", "attention_mask", "token_type_ids"]
    assert [value.name for value in graph.output] == ["logits"]
    assert {weight.transformation for weight in weights} == {
        "as stored",
        "panels",
        "concatenated",
        "concatenated panels",
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_act": "relu"}, "hidden_act 'relu'"),
        ({"position_embedding_type": "relative_key"}, "positions that are 'relative_key'"),
        ({"is_decoder": True}, "decoders"),
        ({"num_attention_heads": 4}, "heads of 16 components"),
        ({"intermediate_size": 100}, "intermediate_size 100"),
        ({"max_position_embeddings": 100}, "256 tokens with 100 positions"),
    ],
)
def test_a_bert_that_the_operators_do_not_cover_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    entry, config = bert("all-minilm-l6-v2", tmp_path / "snapshot")
    for name, value in changes.items():
        setattr(config, name, value)
    with pytest.raises(ExportError, match=words) as refusal:
        write(entry, config, tmp_path / "snapshot")
    assert "--profile portable" in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        (TOY_EMBEDDER, {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling"),
        (TOY_EMBEDDER, {"layer_types": ["sliding_attention"] * 3}, "a sliding window"),
        (TOY_EMBEDDER, {"head_dim": 160}, "heads of 160 components"),
        (TOY_EMBEDDER, {"num_attention_heads": 66}, "33 query heads to a key head"),
        (TOY_RERANKER, {"hidden_activation": "silu"}, "hidden_activation 'silu'"),
        (TOY_RERANKER, {"classifier_activation": "relu"}, "classifier_activation 'relu'"),
    ],
)
def test_a_toy_that_the_operators_do_not_cover_is_refused(
    name: str, changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    entry, config = toy(name, tmp_path / "snapshot")
    for key, value in changes.items():
        setattr(config, key, value)
    with pytest.raises(ExportError, match=words):
        write(entry, config, tmp_path / "snapshot")


def test_another_architecture_has_no_native_graph(tmp_path: Path) -> None:
    entry, config = toy(TOY_EMBEDDER, tmp_path / "snapshot")
    with pytest.raises(ExportError, match="has no native graph"):
        write(replace(entry, architecture="llama"), config, tmp_path / "snapshot")
