"""``samevec lock update``: what it asks, what it writes, what it says."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest
from huggingface_hub import constants
from huggingface_hub.utils._http import reset_sessions
from stub_hub import REPO, REVISION, StubHub, entry_for, snapshot_files

from samevec.errors import LockValidationError, SourceError
from samevec.export.source.hub import Hub, HubFile
from samevec.export.source.lock_update import update_lock
from samevec.lock import Lock, dump_lock, load_lock, read_lock

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

OLD = "f" * 40
# What a hub lists besides: loading does not need it.
UNNEEDED = [
    HubFile(path=path, size_bytes=7, sha256="a" * 64)
    for path in ("README.md", "onnx/model.onnx", ".gitattributes", "pytorch_model.bin", "modeling_x.py")
]


@pytest.fixture(autouse=True)
def direct_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine's environment says of the hub and of proxies, ask the stub."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    reset_sessions()


@dataclass
class FakeHub:
    """A hub that lists what it is given."""

    files: Sequence[HubFile]
    hashed: list[str] = field(default_factory=list)

    def list_files(self, repo: str, revision: str) -> Sequence[HubFile]:
        assert (repo, revision) == (REPO, REVISION)
        return self.files

    def sha256(self, repo: str, revision: str, path: str) -> str:
        assert (repo, revision) == (REPO, REVISION)
        self.hashed.append(path)
        return hashlib.sha256(path.encode()).hexdigest()


def written(folder: Path, source: str = f"hf:{REPO}") -> tuple[Path, Lock]:
    """A lock with two product models and the tiny one at an old revision."""
    tiny = replace(entry_for(snapshot_files(), source=source), revision=OLD)
    lock = replace(load_lock(), models=(*load_lock().models, tiny))
    path = folder / "models.lock"
    path.write_text("# by hand\n" + dump_lock(lock))
    path.chmod(0o640)
    return path, lock


def test_new_bytes_are_pinned_and_every_other_fact_kept(tmp_path: Path) -> None:
    path, before = written(tmp_path)
    old = before.model("tiny")
    hub = FakeHub(
        [
            *UNNEEDED,
            HubFile(path="vocab.json", size_bytes=9, sha256=None),
            HubFile(path="2_Dense/model.safetensors", size_bytes=8, sha256="c" * 64),
            HubFile(path="config.json", size_bytes=23, sha256=None),
            HubFile(path="model.safetensors", size_bytes=5, sha256="b" * 64),
            HubFile(path="tokenizer.json", size_bytes=18, sha256=old.file("tokenizer.json").sha256),
            HubFile(
                path="modules.json",
                size_bytes=old.file("modules.json").size_bytes,
                sha256=old.file("modules.json").sha256,
            ),
        ]
    )
    changes = update_lock(path, "tiny", REVISION, hub=hub)
    sha256 = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("config.json", "vocab.json")}
    assert changes == [
        f"revision: {OLD} -> {REVISION}",
        f"model.safetensors: {old.files[0].sha256[:12]} (7000 bytes) -> bbbbbbbbbbbb (5 bytes)",
        f"config.json: {old.file('config.json').sha256[:12]} (23 bytes) -> {sha256['config.json'][:12]} (23 bytes)",
        f"1_Pooling/config.json: {old.file('1_Pooling/config.json').sha256[:12]} (32 bytes) -> not pinned",
        "2_Dense/model.safetensors: not pinned -> cccccccccccc (8 bytes)",
        f"vocab.json: not pinned -> {sha256['vocab.json'][:12]} (9 bytes)",
    ]
    assert hub.hashed == ["config.json", "vocab.json"]
    after = read_lock(path)
    assert after.models[:2] == before.models[:2]
    new = after.model("tiny")
    assert new == replace(old, revision=REVISION, files=new.files)
    assert [file.path for file in new.files] == [
        "model.safetensors",
        "config.json",
        "tokenizer.json",
        "modules.json",
        "2_Dense/model.safetensors",
        "vocab.json",
    ]
    assert path.stat().st_mode & 0o777 == 0o640
    assert path.read_text().startswith("# Written by `samevec lock update`; do not edit by hand.")
    assert [p.name for p in tmp_path.iterdir()] == ["models.lock"]


def test_nothing_new_leaves_the_file_alone(tmp_path: Path) -> None:
    path, lock = written(tmp_path)
    tiny = replace(lock.model("tiny"), revision=REVISION)
    path.write_text("# by hand\n" + dump_lock(replace(lock, models=(tiny,))))
    before = path.read_text()
    hub = FakeHub([HubFile(path=f.path, size_bytes=f.size_bytes, sha256=f.sha256) for f in tiny.files])
    assert update_lock(path, "tiny", REVISION, hub=hub) == []
    assert path.read_text() == before


@pytest.mark.parametrize(
    ("revision", "problem"),
    [
        ("main", "'main' is not a commit; branches and tags move, pin the 40 hex digits of a commit"),
        ("0123456", "'0123456' is a short revision; pin all 40 hex digits of the commit"),
    ],
)
def test_only_a_full_commit_is_taken(tmp_path: Path, revision: str, problem: str) -> None:
    path, _ = written(tmp_path)
    before = path.read_text()
    with pytest.raises(LockValidationError) as caught:
        update_lock(path, "tiny", revision, hub=FakeHub([]))
    assert str(caught.value) == f"{path}: models[4].revision: {problem}"
    assert path.read_text() == before


def test_a_revision_without_what_loading_needs_is_not_pinned(tmp_path: Path) -> None:
    path, _ = written(tmp_path)
    before = path.read_text()
    with pytest.raises(SourceError) as caught:
        update_lock(path, "tiny", REVISION, hub=FakeHub(UNNEEDED))
    assert str(caught.value) == (
        f"{REPO} at {REVISION[:12]}: has no config.json, no tokenizer.json, no safetensors weights; it cannot be pinned"
    )
    assert path.read_text() == before


def test_only_hub_sources_can_be_updated(tmp_path: Path) -> None:
    path, _ = written(tmp_path, source="toy:x")
    with pytest.raises(SourceError) as caught:
        update_lock(path, "tiny", REVISION, hub=FakeHub([]))
    assert str(caught.value) == "tiny: its source is toy:x, and only hf: sources can be asked for a revision"


def test_the_real_client_lists_and_hashes(tmp_path: Path) -> None:
    files = snapshot_files(b"other weights")
    path, lock = written(tmp_path)
    with StubHub({**files, "README.md": b"#"}) as stub:
        changes = update_lock(path, "tiny", REVISION, hub=Hub(stub.endpoint))
        assert stub.asked("GET", "model.safetensors") == [], "the hub knows the sha256 of what is kept with LFS"
    weights = hashlib.sha256(b"other weights").hexdigest()
    assert changes == [
        f"revision: {OLD} -> {REVISION}",
        f"model.safetensors: {lock.model('tiny').files[0].sha256[:12]} (7000 bytes) -> {weights[:12]} (13 bytes)",
    ]
    assert read_lock(path).model("tiny").files == entry_for(files).files


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        ((404, "RevisionNotFound"), "the hub has no such revision; check the revision"),
        ((404, "RepoNotFound"), "not on the hub, or private; log in with `hf auth login`"),
    ],
)
def test_what_the_hub_does_not_have_is_one_sentence(tmp_path: Path, error: tuple[int, str], sentence: str) -> None:
    path, _ = written(tmp_path)
    with StubHub({}, error=error) as stub, pytest.raises(SourceError) as caught:
        update_lock(path, "tiny", REVISION, hub=Hub(stub.endpoint))
    assert str(caught.value) == f"{REPO} at {REVISION[:12]}: {sentence}"


def test_a_hub_that_answers_with_another_commit_is_not_believed() -> None:
    with StubHub(snapshot_files(), revision="a" * 40) as stub, pytest.raises(SourceError) as caught:
        Hub(stub.endpoint).list_files(REPO, REVISION)
    assert str(caught.value) == f"{REPO}: asked for revision {REVISION}, the hub answered with {'a' * 40}"
