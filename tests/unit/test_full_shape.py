"""The full-shape builder: tables checked against the real checkpoints without writing gigabytes."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from samevec.digest import sha256_file
from samevec.export.toy.synthetic import _header
from samevec.lock import LockedFile, LockedModel, load_lock, read_lock
from samevec.settings import default_snapshots

if TYPE_CHECKING:
    from types import ModuleType

REPO = Path(__file__).resolve().parents[2]
QWEN3, RERANKER = "qwen3-embedding-0.6b", "gte-reranker-modernbert-base"
CROSS_ENCODER = "ms-marco-minilm-l6-v2"


@pytest.fixture(scope="module")
def full_shape() -> ModuleType:
    spec = importlib.util.spec_from_file_location("full_shape", REPO / "benchmarks" / "full_shape.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def real_files() -> Path:
    directory = default_snapshots() or REPO.parent / "shared" / "models"
    if not (directory / QWEN3 / "config.json").is_file():
        pytest.skip("the real configuration files are neither in $SAMEVEC_SNAPSHOTS nor in ../shared/models")
    return directory


@pytest.mark.parametrize(
    ("name", "n_tensors", "n_parameters", "dtype"),
    [(QWEN3, 310, 595_776_512, "BF16"), (RERANKER, 138, 149_605_633, "F32")],
)
def test_table_is_the_real_checkpoints(
    name: str, n_tensors: int, n_parameters: int, dtype: str, full_shape: ModuleType, real_files: Path
) -> None:
    entry = load_lock(None).model(name)
    specs = full_shape.tensor_table(entry, json.loads((real_files / name / "config.json").read_bytes()))
    assert len({spec.name for spec in specs}) == len(specs) == n_tensors
    assert sum(spec.n_values for spec in specs) == n_parameters
    assert {spec.dtype for spec in specs} == {dtype}
    # The names and shapes stand in the header, so the same file size is strong evidence for all of them.
    size_bytes = len(_header(specs)) + sum(spec.size_bytes for spec in specs)
    assert size_bytes == entry.file("model.safetensors").size_bytes


def test_table_of_the_cross_encoder_is_the_real_checkpoints(full_shape: ModuleType, real_files: Path) -> None:
    entry = load_lock(None).model(CROSS_ENCODER)
    folder = full_shape._files_of(entry, real_files)
    specs = full_shape.tensor_table(entry, json.loads((folder / "config.json").read_bytes()))
    floats = [spec for spec in specs if spec.dtype == "F32"]
    assert (len(floats), sum(spec.n_values for spec in floats)) == (105, 22_713_601)
    assert [spec.name for spec in specs if spec.dtype != "F32"] == ["bert.embeddings.position_ids"]
    size_bytes = len(_header(specs)) + sum(spec.size_bytes for spec in specs)
    # FACTS.json: safetensors of today pads the header, which makes the same file 6 bytes longer.
    assert size_bytes == entry.file("model.safetensors").size_bytes + 6


def test_a_model_without_a_table_is_refused(full_shape: ModuleType) -> None:
    with pytest.raises(SystemExit, match=r"all-minilm-l6-v2: no table of random weights for bert with task embed"):
        full_shape.tensor_table(load_lock(None).model("all-minilm-l6-v2"), {})


def test_facts_agree_where_they_are_there(real_files: Path) -> None:
    facts = real_files / "FACTS.json"
    if not facts.is_file():
        pytest.skip("FACTS.json is not beside the real configuration files")
    weights = {model["repo"]: model["weights"] for model in json.loads(facts.read_bytes())["models"]}
    found = [
        weights[f"{owner}/{name}"] for owner, name in (("Qwen", "Qwen3-Embedding-0.6B"), ("Alibaba-NLP", RERANKER))
    ]
    assert [(item["tensors"], item["parameters"]) for item in found] == [(310, 595_776_512), (138, 149_605_633)]


TINY: dict[str, Any] = {
    "head_dim": 4,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "num_key_value_heads": 1,
    "vocab_size": 32,
}


@pytest.fixture
def tiny_entry(tmp_path: Path) -> LockedModel:
    entry = load_lock(None).model(QWEN3)
    folder = tmp_path / "files" / QWEN3
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(TINY))
    (folder / "tokenizer.json").write_text("{}")
    pinned = tuple(
        LockedFile(path=path.name, size_bytes=path.stat().st_size, sha256=sha256_file(path))
        for path in sorted(folder.iterdir())
    )
    return replace(entry, files=(entry.file("model.safetensors"), *pinned))


def test_a_snapshot_and_its_entry(full_shape: ModuleType, tiny_entry: LockedModel, tmp_path: Path) -> None:
    source, target, again = tmp_path / "files" / QWEN3, tmp_path / "out", tmp_path / "again"
    built = full_shape.build_snapshot(tiny_entry, source, target, seed=1)
    assert built == full_shape.build_snapshot(tiny_entry, source, again, seed=1)
    assert built != full_shape.build_snapshot(tiny_entry, source, again, seed=2)
    assert {file.path: sha256_file(target / file.path) for file in built.files} == {
        file.path: file.sha256 for file in built.files
    }
    assert built.source == f"local:{QWEN3}"
    assert built.revision != tiny_entry.revision
    assert built.golden.tokens == tiny_entry.golden.tokens
    assert built.golden.cosines is None
    assert sorted(path.name for path in target.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    lock = tmp_path / "full.lock"
    lock.write_text(full_shape._dump([built]), encoding="utf-8")
    assert read_lock(lock).models == (built,)


def test_files_that_are_not_the_real_ones_are_refused(
    full_shape: ModuleType, tiny_entry: LockedModel, tmp_path: Path
) -> None:
    source = tmp_path / "files" / QWEN3
    (source / "tokenizer.json").write_text("{} ")
    with pytest.raises(SystemExit, match=r"tokenizer\.json: not the file models\.lock pins"):
        full_shape.build_snapshot(tiny_entry, source, tmp_path / "out", seed=1)
    (source / "tokenizer.json").unlink()
    with pytest.raises(SystemExit, match=r"tokenizer\.json: not found; --files needs"):
        full_shape.build_snapshot(tiny_entry, source, tmp_path / "out", seed=1)
