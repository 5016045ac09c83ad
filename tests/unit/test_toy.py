"""The toy pair: same bytes everywhere, pinned by toy.lock, built without the export extras."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors import safe_open
from tokenizers import Tokenizer

from samevec.digest import sha256_file
from samevec.errors import SourceMissingError
from samevec.export.toy import synthetic
from samevec.export.toy.checkpoint import TOY_EMBEDDER, TOY_RERANKER, build_toy, byte_ids
from samevec.export.toy.lock import content_revision, dump_toy_lock, toy_lock
from samevec.export.toy.synthetic import TensorSpec, write_tensors
from samevec.lock import load_lock, lock_path

if TYPE_CHECKING:
    from pathlib import Path

NAMES = (TOY_EMBEDDER, TOY_RERANKER)


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("toys")
    for name in NAMES:
        build_toy(name, directory / name)
    return directory


def read_json(path: Path) -> Any:
    return json.loads(path.read_bytes())


def digests(directory: Path) -> dict[str, str]:
    return {p.relative_to(directory).as_posix(): sha256_file(p) for p in directory.rglob("*") if p.is_file()}


@pytest.mark.parametrize("name", NAMES)
def test_two_builds_are_the_bytes_toy_lock_pins(name: str, toys: Path, tmp_path: Path) -> None:
    build_toy(name, tmp_path)
    pinned = {file.path: file.sha256 for file in load_lock("toy").model(name).files}
    assert digests(tmp_path) == digests(toys / name) == pinned


def test_packaged_lock_is_the_one_the_script_writes(tmp_path: Path) -> None:
    rebuilt = toy_lock(tmp_path, toolchain=load_lock(None).toolchain)
    assert rebuilt == load_lock("toy")
    assert dump_toy_lock(rebuilt) == lock_path("toy").read_text(encoding="utf-8")


def test_revision_names_the_content(toys: Path) -> None:
    for entry in load_lock("toy").models:
        assert entry.revision == content_revision(reversed(entry.files))
        assert entry.source == f"toy:{entry.name}"


def test_an_unknown_toy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceMissingError, match="toy-bert: not found; the package builds only toy-qwen3-embedder and"):
        build_toy("toy-bert", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_building_needs_no_torch(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from samevec.export.toy.checkpoint import build_toy;"
        f"build_toy({TOY_EMBEDDER!r}, Path(sys.argv[1]));"
        "print([m for m in ('torch', 'transformers', 'sentence_transformers') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(("name", "dtype", "n_tensors"), [(TOY_EMBEDDER, "BF16", 35), (TOY_RERANKER, "F32", 36)])
def test_weights_are_read_by_the_reference_reader(name: str, dtype: str, n_tensors: int, toys: Path) -> None:
    path = toys / name / "model.safetensors"
    # Some tests zero a block of 1 MiB in it.
    assert path.stat().st_size > 1_500_000
    with safe_open(path, framework="numpy") as file:
        assert file.metadata() == {"format": "pt"}
        assert len(file.keys()) == n_tensors
        assert {file.get_slice(key).get_dtype() for key in file.keys()} == {dtype}  # noqa: SIM118 - no mapping


def test_float32_weights_do_not_survive_a_narrower_type(toys: Path) -> None:
    with safe_open(toys / TOY_RERANKER / "model.safetensors", framework="numpy") as file:
        weight = file.get_tensor("model.layers.0.mlp.Wi.weight")
        assert "model.layers.0.attn_norm.weight" not in file.keys()  # noqa: SIM118 - no mapping
    assert np.isfinite(weight).all()
    assert (weight.astype(np.float16).astype(np.float32) != weight).mean() > 0.5


def test_norm_weights_are_near_one_and_differ(toys: Path) -> None:
    with safe_open(toys / TOY_RERANKER / "model.safetensors", framework="numpy") as file:
        norm = file.get_tensor("model.final_norm.weight")
    assert norm.min() >= 0.75
    assert norm.max() < 1.25
    assert norm.std() > 0.1


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
def test_written_bytes_do_not_depend_on_the_chunk(dtype: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    specs = [
        TensorSpec(name="a", shape=(17, 5), dtype=dtype, exponent=-3),
        TensorSpec(name="b", shape=(100,), dtype=dtype, exponent=-2, centre=1.0),
    ]
    whole = write_tensors(tmp_path / "whole", specs, seed=7)
    monkeypatch.setattr(synthetic, "_CHUNK_VALUES", 64)
    parts: list[int] = []
    assert write_tensors(tmp_path / "parts", specs, seed=7, on_bytes=parts.append) == whole
    assert whole == ((tmp_path / "parts").stat().st_size, sha256_file(tmp_path / "parts"))
    assert sum(parts) == whole[0]
    assert write_tensors(tmp_path / "other", specs, seed=8)[1] != whole[1]


def test_bfloat16_values_are_the_integers_they_were_made_from(tmp_path: Path) -> None:
    spec = TensorSpec(name="w", shape=(4096,), dtype="BF16", exponent=-4)
    write_tensors(tmp_path / "w", [spec], seed=3)
    raw = (tmp_path / "w").read_bytes()[-spec.size_bytes :]
    values = (np.frombuffer(raw, dtype="<u2").astype(np.uint32) << 16).view(np.float32)
    scaled = values * 2.0**11
    assert np.array_equal(scaled, np.round(scaled))
    assert (scaled.min(), scaled.max()) == (-128, 127)
    words = np.random.PCG64(3).random_raw(512)
    assert np.array_equal(scaled, np.asarray(words, dtype="<u8").view(np.int8))


def tokenizer(toys: Path, name: str) -> Tokenizer:
    found = Tokenizer.from_file(str(toys / name / "tokenizer.json"))
    found.no_padding()
    found.no_truncation()
    return found


def test_golden_ids(toys: Path) -> None:
    lock = load_lock("toy")
    embedder, reranker = lock.model(TOY_EMBEDDER), lock.model(TOY_RERANKER)
    for item in embedder.golden.tokens:
        prompt = "" if item.prompt is None else embedder.prompts[item.prompt]
        assert tokenizer(toys, TOY_EMBEDDER).encode(prompt + item.text).ids == list(item.ids)
    for pair in reranker.golden.pairs:
        encoding = tokenizer(toys, TOY_RERANKER).encode(pair.query, pair.document)
        assert encoding.ids == list(pair.ids or ())
        assert set(encoding.type_ids) == {0}


def test_byte_ids_are_the_tokenizers_own(toys: Path) -> None:
    text = "".join(map(chr, [*range(0x250), *range(0x3040, 0x3060), 0x1F642]))
    assert set(byte_ids("".join(map(chr, range(128))))) == {*range(94), *range(188, 222)}
    assert tokenizer(toys, TOY_EMBEDDER).encode(text, add_special_tokens=False).ids == byte_ids(text)
    assert tokenizer(toys, TOY_RERANKER).encode(text, add_special_tokens=False).ids == byte_ids(text)


def test_the_end_token_survives_a_cut(toys: Path) -> None:
    embedder = tokenizer(toys, TOY_EMBEDDER)
    embedder.enable_truncation(5)
    assert embedder.encode("abcdefgh").ids == [*byte_ids("abcd"), 256]


def test_the_real_trap_is_kept(toys: Path) -> None:
    as_published = Tokenizer.from_file(str(toys / TOY_RERANKER / "tokenizer.json"))
    assert len(as_published.encode("a", "b")) == 64
    assert len(as_published.encode("a" * 100, "b" * 100)) == 64


def test_prompts_in_the_files_are_those_in_the_lock(toys: Path) -> None:
    published = read_json(toys / TOY_EMBEDDER / "config_sentence_transformers.json")
    assert published["prompts"] == load_lock("toy").model(TOY_EMBEDDER).prompts
