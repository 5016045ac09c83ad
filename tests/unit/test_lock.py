"""Locks: what they hold, and what is refused with which words."""

from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from samevec.errors import LockError, LockValidationError, LockVersionError
from samevec.lock import Golden, GoldenPair, LockedFile, dump_lock, load_lock, lock_path, parse_lock, read_lock

ROOT = Path(__file__).resolve().parents[2]
FACTS = ROOT.parent / "shared" / "models" / "FACTS.json"
SOURCE_RULE = "models[0].source: must be hf:OWNER/NAME, toy:NAME or local:NAME, found "
ENDINGS_RULE = "only .safetensors, .json, .txt, .model, .jinja files are loaded, never pickles or code; found "


def shipped() -> dict[str, Any]:
    """The shipped lock as a document to break."""
    return copy.deepcopy(load_lock().to_dict())


def refused(document: dict[str, Any]) -> str:
    """The message with which a document is refused."""
    with pytest.raises(LockValidationError) as caught:
        parse_lock(tomli_w.dumps(document), origin="x.lock")
    error = caught.value
    assert str(error) == f"x.lock: {error.path}: {error.problem}"
    return str(error).removeprefix("x.lock: ")


def put(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Set (or with ... delete) what stands at a path such as models.1.files.3.sha256."""
    *parents, last = path.split(".")
    node: Any = document
    for part in parents:
        node = node[int(part)] if part.isdigit() else node[part]
    if value is ...:
        del node[int(last) if last.isdigit() else last]
    else:
        node[int(last) if last.isdigit() else last] = value
    return document


def test_the_shipped_lock_pins_the_two_product_models() -> None:
    lock = load_lock()
    assert lock.names[:2] == ("qwen3-embedding-0.6b", "gte-reranker-modernbert-base")
    assert lock.default_models == lock.models[:2]
    assert (lock.tolerance.atol, lock.tolerance.rtol) == (1e-4, 1e-3)
    assert lock.toolchain.versions["transformers"] == "4.57.6"
    embedder, reranker = lock.default_models
    assert (embedder.task, embedder.dimensions, embedder.matryoshka_min_dimensions) == ("embed", 1024, 32)
    assert (embedder.pooling, embedder.normalize, embedder.max_tokens) == ("last_token", True, 32768)
    assert (reranker.task, reranker.activation, reranker.max_tokens) == ("rerank", "sigmoid", 8192)
    assert reranker.dimensions is None
    assert not reranker.normalize
    query = hashlib.sha256(embedder.prompts["query"].encode()).hexdigest()
    assert query == "9fab7feb99edb69f560d85cf1bb849dd556c37f383d0336574f78f1303e90740"
    assert embedder.prompts["document"] == ""
    assert embedder.file("config.json").size_bytes == 727


def test_the_shipped_lock_pins_a_small_tier_for_those_who_name_it() -> None:
    lock = load_lock()
    assert lock.names[2:] == ("all-minilm-l6-v2", "ms-marco-minilm-l6-v2")
    embedder, reranker = lock.models[2:]
    assert (embedder.pooling, embedder.normalize, embedder.max_tokens) == ("mean", True, 256)
    assert (embedder.dimensions, embedder.matryoshka_min_dimensions, embedder.prompts) == (384, None, {})
    assert (reranker.pooling, reranker.activation, reranker.max_tokens) == ("cls", "identity", 512)
    assert embedder.optional
    assert reranker.optional


@pytest.mark.skipif(not FACTS.is_file(), reason="shared/models/FACTS.json is not beside this checkout")
def test_the_shipped_lock_agrees_with_the_facts() -> None:
    facts = {"hf:" + model["repo"]: model for model in json.loads(FACTS.read_text())["models"]}
    for entry in load_lock().models:
        known = facts[entry.source]
        assert entry.revision == known["revision"]
        hashes = {file["path"]: (file["size"], file["sha256"]) for file in known["files"]}
        assert {file.path: hashes[file.path] for file in entry.files} == {
            file.path: (file.size_bytes, file.sha256) for file in entry.files
        }
        by_name = FACTS.parent / entry.name
        small = by_name if by_name.is_dir() else FACTS.parent / entry.source.rpartition("/")[2]
        for file in entry.files:
            if not file.path.endswith(".safetensors"):
                assert hashlib.sha256((small / file.path).read_bytes()).hexdigest() == file.sha256


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("colour", "red", "colour: unknown key; known here are lock_version, models, tolerance, toolchain"),
        ("lock_version", ..., "lock_version: is missing"),
        ("tolerance", ..., "tolerance: is missing"),
        ("tolerance", 3, "tolerance: must be a table, found 3"),
        ("tolerance.atol", 1e-3, "tolerance.atol: is frozen at 0.0001, found 0.001"),
        ("tolerance.rtol", 1e-4, "tolerance.rtol: is frozen at 0.001, found 0.0001"),
        ("tolerance.rtol", float("nan"), "tolerance.rtol: must be a finite number, found nan"),
        ("tolerance.rtol", True, "tolerance.rtol: must be a finite number, found True"),
        ("tolerance.x", 1, "tolerance.x: unknown key; known here are atol, rtol"),
        ("toolchain.torch", ..., "toolchain.torch: is missing"),
        ("toolchain.torch", ">=2", "toolchain.torch: must be one exact version such as 1.2.3, found '>=2'"),
        ("toolchain.numpy", 2, "toolchain.numpy: must be a string, found 2"),
        ("models", [], "models: must be an array of at least one item, found an empty array"),
        ("models.1.name", ..., "models[1].name: is missing"),
        (
            "models.1.name",
            "../x",
            "models[1].name: must be lower-case letters and digits with single . _ - between them, found '../x'",
        ),
        (
            "models.1.name",
            "a--b",
            "models[1].name: must be lower-case letters and digits with single . _ - between them, found 'a--b'",
        ),
        ("models.1.name", "qwen3-embedding-0.6b", "models[1].name: is the same as models[0].name"),
        ("models.0.task", "chat", "models[0].task: must be one of embed, rerank, found 'chat'"),
        ("models.0.source", "Qwen/x", SOURCE_RULE + "'Qwen/x'"),
        (
            "models.0.source",
            "hf:../../x",
            SOURCE_RULE + "'hf:../../x'",
        ),
        (
            "models.0.revision",
            "main",
            "models[0].revision: 'main' is not a commit; branches and tags move, pin the 40 hex digits of a commit",
        ),
        (
            "models.0.revision",
            "97b0c61",
            "models[0].revision: '97b0c61' is a short revision; pin all 40 hex digits of the commit",
        ),
        ("models.0.revision", "A" * 40, f"models[0].revision: '{'A' * 40}' must be written in lower case"),
        ("models.0.revision", "", "models[0].revision: must not be empty"),
        ("models.0.license", 5, "models[0].license: must be a string, found 5"),
        (
            "models.0.architecture",
            "llama",
            "models[0].architecture: must be one of qwen3, modernbert, bert, found 'llama'",
        ),
        (
            "models.2.architecture",
            "base",
            "models[2].architecture: must be one of qwen3, modernbert, bert, found 'base'",
        ),
        (
            "models.2.pooling",
            "last_token",
            "models[2].pooling: bert with task embed pools by mean or cls, found 'last_token'",
        ),
        ("models.3.pooling", "mean", "models[3].pooling: bert with task rerank pools by cls, found 'mean'"),
        ("models.2.optional", 1, "models[2].optional: must be true or false, found 1"),
        ("models.1.architecture", "qwen3", "models[1].architecture: qwen3 cannot rerank"),
        (
            "models.0.pooling",
            "mean",
            "models[0].pooling: qwen3 with task embed pools by last_token, found 'mean'",
        ),
        (
            "models.1.pooling",
            "last_token",
            "models[1].pooling: modernbert with task rerank pools by mean or cls, found 'last_token'",
        ),
        ("models.0.normalize", ..., "models[0].normalize: is missing"),
        ("models.0.normalize", 1, "models[0].normalize: must be true or false, found 1"),
        ("models.1.normalize", True, "models[1].normalize: must be false: a reranker gives scores, not vectors"),
        ("models.0.dimensions", ..., "models[0].dimensions: is missing"),
        ("models.0.dimensions", 0, "models[0].dimensions: must be an integer of at least 1, found 0"),
        ("models.0.dimensions", True, "models[0].dimensions: must be an integer of at least 1, found True"),
        ("models.1.dimensions", 5, "models[1].dimensions: only an embedder has it"),
        (
            "models.0.matryoshka_min_dimensions",
            2048,
            "models[0].matryoshka_min_dimensions: 2048 is more than dimensions, 1024",
        ),
        ("models.0.max_tokens", 1.5, "models[0].max_tokens: must be an integer of at least 1, found 1.5"),
        ("models.0.activation", "sigmoid", "models[0].activation: only a reranker has one"),
        ("models.1.activation", ..., "models[1].activation: is missing"),
        ("models.1.activation", "softmax", "models[1].activation: must be one of sigmoid, identity, found 'softmax'"),
        ("models.1.prompts", {"query": "x"}, "models[1].prompts: only an embedder has it"),
        ("models.0.prompts.query", 3, "models[0].prompts.query: must be a string, found 3"),
        ("models.0.golden.tokens.0.prompt", "q", "models[0].golden.tokens[0].prompt: 'q' is not among the prompts"),
        (
            "models.0.golden.tokens.1.ids.2",
            -1,
            "models[0].golden.tokens[1].ids[2]: must be a token id (an integer from 0), found -1",
        ),
        (
            "models.0.golden.cosines.values.1.0",
            1.5,
            "models[0].golden.cosines.values[1][0]: must be a cosine from -1 to 1, found 1.5",
        ),
        ("models.0.golden.cosines.values.1", [0.5], "models[0].golden.cosines.values: must be 2 rows of 2 numbers"),
        ("models.0.golden.cosines.values.1", 0.5, "models[0].golden.cosines.values[1]: must be an array, found 0.5"),
        ("models.1.golden.pairs.0.score", 1.5, "models[1].golden.pairs[0].score: a sigmoid gives 0 to 1, found 1.5"),
        ("models.1.golden.tokens", [{"text": "x", "ids": [1]}], "models[1].golden.tokens: only an embedder has them"),
        (
            "models.0.golden.pairs",
            [{"query": "a", "document": "b", "logit": 1.0, "score": 0.5}],
            "models[0].golden.pairs: only a reranker has them",
        ),
        (
            "models.1.files.3.sha256",
            "abc",
            "models[1].files[3].sha256: must be 64 lower-case hex digits, found 'abc'",
        ),
        (
            "models.1.files.3.digest",
            "abc",
            "models[1].files[3].digest: unknown key; known here are path, sha256, size",
        ),
        ("models.1.files.0.size", -5, "models[1].files[0].size: must be an integer of at least 1, found -5"),
        ("models.1.files.1.path", "config.json", "models[1].files[2].path: is the same as models[1].files[1].path"),
        ("models.1.files.1.path", "Config.JSON", "models[1].files[1].path: " + ENDINGS_RULE + "'Config.JSON'"),
        ("models.1.files.2", ..., "models[1].files: config.json is missing"),
        ("models.1.files.0", ..., "models[1].files: no .safetensors weights among them"),
    ],
)
def test_what_is_wrong_is_refused_by_its_path(path: str, value: Any, message: str) -> None:
    assert refused(put(shipped(), path, value)) == message


@pytest.mark.parametrize(
    "path",
    [
        "/etc/x.json",
        "../x.json",
        "a/../b.json",
        "a\\b.json",
        "C:/x.json",
        "a//b.json",
        ".cache/x.json",
        "./x.json",
        "a/",
        "é.json",
        "a\n.json",
    ],
)
def test_no_path_leaves_the_snapshot_folder(path: str) -> None:
    assert refused(put(shipped(), "models.0.files.0.path", path)) == (
        "models[0].files[0].path: must be relative, made of letters, digits and . _ - with / between its parts,"
        f" no part beginning with a dot, found {path!r}"
    )


@pytest.mark.parametrize("path", ["pytorch_model.bin", "modeling_x.py", "model.pt", "model.onnx", "weights", "x.pkl"])
def test_no_pickle_and_no_code_can_be_pinned(path: str) -> None:
    assert refused(put(shipped(), "models.0.files.0.path", path)) == (
        f"models[0].files[0].path: {ENDINGS_RULE}{path!r}"
    )


@pytest.mark.parametrize("version", [2, 0, "1", 1.0, True])
def test_another_lock_version_is_refused_before_its_unknown_keys(version: object) -> None:
    with pytest.raises(LockVersionError) as caught:
        parse_lock(tomli_w.dumps({"lock_version": version, "novelty": 1}), origin="x.lock")
    assert str(caught.value) == (
        f"x.lock: lock_version: {version!r} is not supported, this samevec reads 1; install the matching samevec"
    )


def test_long_values_are_cut_in_messages() -> None:
    message = refused(put(shipped(), "models.0.files.0.sha256", "f" * 1000))
    assert message == f"models[0].files[0].sha256: must be 64 lower-case hex digits, found '{'f' * 56}..."


def test_bad_toml_names_line_and_column() -> None:
    with pytest.raises(LockError, match=r"^x\.lock: not TOML: .*line 1, column 5") as caught:
        parse_lock("a = = 1", origin="x.lock")
    assert type(caught.value) is LockError


def test_a_file_that_cannot_be_read_is_a_lock_error(tmp_path: Path) -> None:
    with pytest.raises(LockError) as caught:
        load_lock(tmp_path / "none.lock")
    assert str(caught.value) == f"{tmp_path / 'none.lock'}: cannot be read: No such file or directory"
    with pytest.raises(LockError) as caught:
        read_lock(tmp_path, origin="here")
    assert str(caught.value) == "here: cannot be read: Is a directory"
    bad = tmp_path / "bad.lock"
    bad.write_bytes(b"a = \xff")
    with pytest.raises(LockError) as caught:
        load_lock(str(bad))
    assert str(caught.value) == f"{bad}: not TOML: not UTF-8 at byte 4"


def test_unknown_names_list_the_known_ones() -> None:
    lock = load_lock()
    with pytest.raises(LockError) as caught:
        lock.model("bge")
    assert str(caught.value) == (
        "models.lock: no model named 'bge'; it pins qwen3-embedding-0.6b, gte-reranker-modernbert-base, "
        "all-minilm-l6-v2, ms-marco-minilm-l6-v2"
    )
    with pytest.raises(
        LockError, match=r"^gte-reranker-modernbert-base pins no file 'x'; it pins model\.safetensors, "
    ):
        lock.models[1].file("x")


def test_toy_names_the_packaged_toy_lock() -> None:
    assert lock_path("toy") == ROOT / "samevec" / "toy.lock"
    assert lock_path(Path("toy")) == Path("toy")
    assert lock_path("some/where.lock") == Path("some/where.lock")


def test_the_digest_depends_on_every_fact_of_the_entry() -> None:
    for model in load_lock().models:
        seen = {model.digest}
        facts = [field for field in fields(model) if field.name != "answers"]  # what comes out, not what goes in
        for field in facts:
            seen.add(replace(model, **{field.name: changed(field.name, getattr(model, field.name))}).digest)
        assert len(seen) == len(facts) + 1
        assert all(digest.startswith("sha256:") and len(digest) == 71 for digest in seen)


def changed(name: str, value: Any) -> Any:
    """Another value of a field."""
    if name == "files":
        first: LockedFile = value[0]
        return (replace(first, size_bytes=first.size_bytes + 1), *value[1:])
    if name == "golden":
        return Golden(pairs=(GoldenPair(query="a", document="b", logit=0.0, score=0.5),))
    if name == "prompts":
        return {**value, "other": "x"}
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    return "changed" if value is None else value + "x"


def test_dumping_keeps_everything_and_says_what_wrote_it() -> None:
    lock = load_lock()
    text = dump_lock(lock)
    assert parse_lock(text) == lock
    assert text.splitlines()[0] == (
        "# Written by `samevec lock update`; do not edit by hand. `samevec lock check` validates it."
    )
    assert "ids = [785, 6722, 315, 5616, 374, 26549, 13, 151643]\n" in text


def test_a_lock_of_optional_models_only_is_refused() -> None:
    document = shipped()
    document["models"] = document["models"][2:]
    assert refused(document) == "models: are all optional; commands that name none would have none"


def test_an_entry_that_is_not_optional_has_the_digest_it_always_had() -> None:
    entry = load_lock().models[0]
    assert "optional" not in entry.to_dict()
    assert replace(entry, optional=True).digest != entry.digest
