"""Artifacts: found by entry and profile, bound by digests, never half there."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from samevec.artifact import (
    MANIFEST_VERSION,
    Artifact,
    FileDigest,
    GraphInfo,
    Manifest,
    TokenizerInfo,
    artifact_directory_name,
    find_artifact,
    list_artifacts,
    read_artifact,
    verify_artifact,
)
from samevec.errors import ArtifactCorruptError, ArtifactMissingError
from samevec.lock import load_lock

if TYPE_CHECKING:
    from pathlib import Path

ENTRY = load_lock("toy").models[0]
CONTENTS = {
    "model.onnx": b"graph" * 100,
    "model.onnx.data": bytes(range(256)) * 5000,
    "reference.safetensors": b"reference",
    "tokenizer.json": b"{}",
}


def manifest(**changes: Any) -> Manifest:
    facts: dict[str, Any] = {
        "model": ENTRY.name,
        "task": "embed",
        "profile": "cpu",
        "lock_entry_digest": ENTRY.digest,
        "case_set_digest": "sha256:" + "0" * 64,
        "samevec_version": "0.1.0",
        "toolchain": {"onnx": "1.2.3"},
        "graph": GraphInfo(
            form="native",
            opset=17,
            inputs={"input_ids": "int64[rows,tokens]"},
            outputs={"embedding": "float32[rows,384]"},
            max_tokens=2048,
            width=384,
        ),
        "tokenizer": TokenizerInfo(pad_token_id=2, type_ids=False),
        "files": {
            name: FileDigest(size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
            for name, content in CONTENTS.items()
        },
    }
    return Manifest(**{**facts, **changes})


def write_artifact(home: Path, *, made_at_s: int = 1_000, **changes: Any) -> Artifact:
    record = manifest(**changes)
    directory = home / "artifacts" / artifact_directory_name(record)
    directory.mkdir(parents=True)
    for name, content in CONTENTS.items():
        (directory / name).write_bytes(content)
    (directory / "manifest.json").write_bytes(record.to_bytes())
    os.utime(directory / "manifest.json", (made_at_s, made_at_s))
    return read_artifact(directory)


def test_a_manifest_survives_being_written(tmp_path: Path) -> None:
    record = manifest()
    content = record.to_bytes()
    assert Manifest.from_bytes(content, path=tmp_path) == record
    assert Manifest.from_bytes(content, path=tmp_path).to_bytes() == content
    assert json.loads(content)["manifest_version"] == MANIFEST_VERSION
    assert json.loads(content)["files"]["model.onnx"]["size_bytes"] == 500


def test_the_digest_is_of_the_manifests_bytes_and_names_the_directory(tmp_path: Path) -> None:
    artifact = write_artifact(tmp_path)
    digest = hashlib.sha256((artifact.path / "manifest.json").read_bytes()).hexdigest()
    assert artifact.digest == f"sha256:{digest}"
    assert artifact.path.name == f"toy-qwen3-embedder--cpu--{digest[:16]}"
    assert artifact.size_bytes == sum(map(len, CONTENTS.values()))
    assert artifact.graph_path.read_bytes() == CONTENTS["model.onnx"]
    assert artifact.tokenizer_path.read_bytes() == CONTENTS["tokenizer.json"]
    assert artifact.reference_path.read_bytes() == CONTENTS["reference.safetensors"]
    assert artifact.receipts_path == artifact.path / "receipts"


@pytest.mark.parametrize(
    "changes",
    [
        {"lock_entry_digest": "sha256:" + "1" * 64},
        {"case_set_digest": "sha256:" + "1" * 64},
        {"samevec_version": "0.2.0"},
        {"toolchain": {"onnx": "1.2.4"}},
        {"tokenizer": TokenizerInfo(pad_token_id=3, type_ids=False)},
        {"files": {}},
    ],
)
def test_every_fact_moves_the_digest(changes: dict[str, Any], tmp_path: Path) -> None:
    assert Artifact(tmp_path, manifest(**changes)).digest != Artifact(tmp_path, manifest()).digest


def edited(edit: Any) -> bytes:
    record = json.loads(manifest().to_bytes())
    edit(record)
    return json.dumps(record).encode()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "not a readable manifest ("),
        (b"\xff\xfe", "not a readable manifest ("),
        (b"[]", "not a readable manifest ("),
        (b"3", "not a readable manifest ("),
        (b"{}", "not a readable manifest ('manifest_version')"),
        (edited(lambda r: r.update(manifest_version=2)), "manifest_version 2 is not 1"),
        (edited(lambda r: r.update(novelty=1)), "not a readable manifest ("),
        (edited(lambda r: r.pop("task")), "not a readable manifest ("),
        (edited(lambda r: r["graph"].update(novelty=1)), "not a readable manifest ("),
        (edited(lambda r: r["graph"].pop("width")), "not a readable manifest ("),
        (edited(lambda r: r.update(files=[])), "not a readable manifest ("),
        (edited(lambda r: r["files"]["model.onnx"].pop("sha256")), "not a readable manifest ("),
    ],
)
def test_a_damaged_manifest_is_refused_by_its_path(content: bytes, problem: str, tmp_path: Path) -> None:
    artifact = write_artifact(tmp_path)
    path = artifact.path / "manifest.json"
    path.write_bytes(content)
    with pytest.raises(ArtifactCorruptError) as caught:
        read_artifact(artifact.path)
    assert str(caught.value).startswith(f"{path}: {problem}")
    assert str(caught.value).endswith("; remove the directory and export again")
    assert list_artifacts(tmp_path) == []


def test_no_manifest_is_no_artifact(tmp_path: Path) -> None:
    with pytest.raises(ArtifactCorruptError, match=r"manifest\.json: cannot be read \(No such file or directory\)"):
        read_artifact(tmp_path)


def test_artifacts_are_listed_newest_first(tmp_path: Path) -> None:
    old = write_artifact(tmp_path, samevec_version="0.1.0", made_at_s=1_000)
    new = write_artifact(tmp_path, samevec_version="0.2.0", made_at_s=3_000)
    middle = write_artifact(tmp_path, samevec_version="0.3.0", made_at_s=2_000)
    assert list_artifacts(tmp_path) == [new, middle, old]
    assert find_artifact(tmp_path, ENTRY, "cpu") == new


def test_no_home_lists_nothing(tmp_path: Path) -> None:
    assert list_artifacts(tmp_path / "none") == []


def test_unfinished_and_foreign_directories_are_ignored(tmp_path: Path) -> None:
    artifact = write_artifact(tmp_path)
    beside = artifact.path.parent
    shutil.copytree(artifact.path, beside / f".{artifact.path.name}.tmp-1-ab")
    shutil.copytree(artifact.path, beside / "something else")
    (beside / "a--b--c").write_text("a file")
    (beside / "a--b--d").mkdir()
    assert list_artifacts(tmp_path) == [artifact]


def test_nothing_exported_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(ArtifactMissingError) as caught:
        find_artifact(tmp_path, ENTRY, "cpu")
    message = str(caught.value)
    assert message == f"{ENTRY.name} (cpu): nothing exported under {tmp_path}; run: {caught.value.fix}"
    assert caught.value.fix.startswith(f"samevec export --model {ENTRY.name} --profile cpu")


def test_another_model_or_profile_is_not_taken(tmp_path: Path) -> None:
    write_artifact(tmp_path, profile="cuda")
    write_artifact(tmp_path, model="other")
    with pytest.raises(ArtifactMissingError, match=r"\(cpu\): nothing exported under "):
        find_artifact(tmp_path, ENTRY, "cpu")
    assert find_artifact(tmp_path, ENTRY, "cuda").manifest.profile == "cuda"


def test_an_export_from_another_state_of_the_entry_is_not_taken(tmp_path: Path) -> None:
    write_artifact(tmp_path)
    changed = replace(ENTRY, max_tokens=ENTRY.max_tokens - 1)
    with pytest.raises(ArtifactMissingError, match=r"\(cpu\): the lock entry has changed since the export; run: "):
        find_artifact(tmp_path, changed, "cpu")
    write_artifact(tmp_path, lock_entry={**ENTRY.facts, "prompts": {}}, made_at_s=4_000)
    words = f"max_tokens {ENTRY.max_tokens} -> {changed.max_tokens}, prompts; run: "
    with pytest.raises(ArtifactMissingError, match=f": {words}"):
        find_artifact(tmp_path, changed, "cpu")
    old = write_artifact(tmp_path, lock_entry_digest=changed.digest, made_at_s=5_000)
    assert find_artifact(tmp_path, changed, "cpu") == old
    assert find_artifact(tmp_path, ENTRY, "cpu") != old


def test_an_untouched_artifact_is_verified(tmp_path: Path) -> None:
    artifact = write_artifact(tmp_path)
    verify_artifact(artifact)
    (artifact.path / "receipts").mkdir()
    (artifact.path / "receipts" / "x.json").write_text("{}")
    verify_artifact(artifact)


def test_one_changed_byte_is_noticed_though_size_and_time_are_the_same(tmp_path: Path) -> None:
    artifact = write_artifact(tmp_path)
    path = artifact.path / "model.onnx.data"
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[700_000] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    with pytest.raises(ArtifactCorruptError) as caught:
        verify_artifact(artifact)
    pinned = hashlib.sha256(CONTENTS["model.onnx.data"]).hexdigest()
    found = hashlib.sha256(content).hexdigest()
    assert str(caught.value) == (
        f"{path}: sha256 is {found}, the manifest says {pinned}; remove the directory and export again"
    )


def test_a_truncated_file_is_noticed(tmp_path: Path) -> None:
    artifact = write_artifact(tmp_path)
    path = artifact.path / "model.onnx.data"
    path.write_bytes(CONTENTS["model.onnx.data"][:640_000])
    with pytest.raises(ArtifactCorruptError) as caught:
        verify_artifact(artifact, fix="samevec export --model x")
    assert str(caught.value) == (f"{path}: 640000 bytes long, the manifest says 1280000; run: samevec export --model x")


@pytest.mark.parametrize("name", CONTENTS)
def test_a_missing_file_is_named(name: str, tmp_path: Path) -> None:
    artifact = write_artifact(tmp_path)
    (artifact.path / name).unlink()
    with pytest.raises(ArtifactCorruptError) as caught:
        verify_artifact(artifact)
    assert caught.value.path == artifact.path / name
    assert caught.value.problem == "cannot be read (No such file or directory)"


def test_the_first_problem_in_name_order_is_told(tmp_path: Path) -> None:
    artifact = write_artifact(tmp_path)
    for name in ("tokenizer.json", "model.onnx.data", "reference.safetensors"):
        (artifact.path / name).unlink()
    with pytest.raises(ArtifactCorruptError) as caught:
        verify_artifact(artifact)
    assert caught.value.path.name == "model.onnx.data"


def test_o21_a_linked_directory_and_linked_files_are_followed(tmp_path: Path) -> None:
    artifact = write_artifact(tmp_path / "real")
    home = tmp_path / "home"
    (home / "artifacts").mkdir(parents=True)
    link = home / "artifacts" / artifact.path.name
    link.symlink_to(artifact.path)
    (found,) = list_artifacts(home)
    assert found.path == link
    assert found.digest == artifact.digest
    verify_artifact(found)
    blob = tmp_path / "blob"
    (artifact.path / "model.onnx.data").rename(blob)
    (artifact.path / "model.onnx.data").symlink_to(blob)
    verify_artifact(found)
    blob.write_bytes(b"x" + CONTENTS["model.onnx.data"][1:])
    with pytest.raises(ArtifactCorruptError, match=r"model\.onnx\.data: sha256 is "):
        verify_artifact(found)
    blob.unlink()
    with pytest.raises(ArtifactCorruptError, match=r"model\.onnx\.data: cannot be read "):
        verify_artifact(found)


def test_o21_a_moved_home_is_the_same_artifact(tmp_path: Path) -> None:
    artifact = write_artifact(tmp_path / "before")
    shutil.move(tmp_path / "before", tmp_path / "später, woanders")
    found = find_artifact(tmp_path / "später, woanders", ENTRY, "cpu")
    assert found.digest == artifact.digest
    verify_artifact(found)
