"""Artifacts: directories that hold one exported model under one profile, bound together by digests.

::

    HOME/artifacts/<model>--<profile>--<16 hex of the artifact digest>/
        model.onnx  model.onnx.data  tokenizer.json  reference.safetensors
        weights.json       where each tensor of the checkpoint stands in the graph
        answers.json       native graphs: the bits of every built-in case
        trace.onnx         native graphs: the same graph with every node's output
        manifest.json      digests of everything else
        receipts/          results of parity on this machine
"""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from samevec.digest import canonical_json, sha256_file
from samevec.errors import ArtifactCorruptError, ArtifactMissingError
from samevec.hints import Commands

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from samevec.lock import LockedModel

__all__ = [
    "ANSWERS_NAME",
    "DATA_NAME",
    "GRAPH_NAME",
    "MANIFEST_NAME",
    "MANIFEST_VERSION",
    "REFERENCE_NAME",
    "TOKENIZER_NAME",
    "TRACE_NAME",
    "WEIGHTS_NAME",
    "Artifact",
    "FileDigest",
    "GraphInfo",
    "Manifest",
    "TokenizerInfo",
    "artifact_directory_name",
    "find_artifact",
    "list_artifacts",
    "read_artifact",
    "verify_artifact",
]

MANIFEST_VERSION = 1
MANIFEST_NAME = "manifest.json"
GRAPH_NAME = "model.onnx"
DATA_NAME = "model.onnx.data"
TOKENIZER_NAME = "tokenizer.json"
REFERENCE_NAME = "reference.safetensors"
ANSWERS_NAME = "answers.json"
TRACE_NAME = "trace.onnx"
WEIGHTS_NAME = "weights.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class FileDigest:
    """Size and sha256 (64 hex) of one file."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphInfo:
    """What the graph promises."""

    form: str  # "native", "plain" or "cuda"
    opset: int  # of the default ONNX domain
    inputs: Mapping[str, str]  # name to dtype[axis,axis]
    outputs: Mapping[str, str]
    max_tokens: int  # the longest row the graph can take
    width: int  # components of a raw output row


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerInfo:
    """The tokenizer's settings that ``tokenizer.json`` does not hold."""

    pad_token_id: int
    type_ids: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """The record in ``manifest.json``; its bytes' digest is the artifact's digest.

    ``arithmetic`` (the library's number) and ``answers`` (digest of :class:`samevec.parity.answers.Answers`) are set
    for native graphs alone. ``lock_entry_digest`` is the digest of ``lock_entry``.
    """

    model: str
    task: str
    profile: str
    lock_entry_digest: str
    case_set_digest: str
    samevec_version: str
    toolchain: Mapping[str, str]
    graph: GraphInfo
    tokenizer: TokenizerInfo
    files: Mapping[str, FileDigest]
    arithmetic: int | None = None
    answers: str | None = None
    lock_entry: Mapping[str, Any] | None = None

    def to_bytes(self) -> bytes:
        """Return the canonical bytes of ``manifest.json``."""
        record: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        if self.lock_entry is None:
            del record["lock_entry"]
        record["graph"] = {name: getattr(self.graph, name) for name in self.graph.__slots__}
        record["tokenizer"] = {name: getattr(self.tokenizer, name) for name in self.tokenizer.__slots__}
        record["files"] = {p: {"size_bytes": f.size_bytes, "sha256": f.sha256} for p, f in self.files.items()}
        return canonical_json({"manifest_version": MANIFEST_VERSION, **record})

    @classmethod
    def from_bytes(cls, content: bytes, *, path: Path) -> Manifest:
        """Read ``manifest.json``; ArtifactCorruptError if it is not JSON, of another version, or has other keys."""
        try:
            record = json.loads(content)
            version = record.pop("manifest_version")
            if version != MANIFEST_VERSION:
                raise ArtifactCorruptError(path, f"manifest_version {version} is not {MANIFEST_VERSION}")
            record["graph"] = GraphInfo(**record["graph"])
            record["tokenizer"] = TokenizerInfo(**record["tokenizer"])
            record["files"] = {p: FileDigest(**f) for p, f in record["files"].items()}
            return cls(**record)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ArtifactCorruptError(path, f"not a readable manifest ({error})") from error


@dataclass(frozen=True, slots=True)
class Artifact:
    """An artifact's directory with its manifest; no other file has been read."""

    path: Path
    manifest: Manifest

    @property
    def digest(self) -> str:
        """``sha256:...`` of the manifest, and so of everything it binds."""
        return "sha256:" + hashlib.sha256(self.manifest.to_bytes()).hexdigest()

    @property
    def graph_path(self) -> Path:
        """The ONNX graph; its external data lies beside it."""
        return self.path / GRAPH_NAME

    @property
    def tokenizer_path(self) -> Path:
        """The pinned tokenizer."""
        return self.path / TOKENIZER_NAME

    @property
    def reference_path(self) -> Path:
        """PyTorch's output for the built-in cases."""
        return self.path / REFERENCE_NAME

    @property
    def answers_path(self) -> Path:
        """The bits of the built-in cases; only a native graph has them."""
        return self.path / ANSWERS_NAME

    @property
    def trace_path(self) -> Path:
        """The graph with every node's output; only a native graph has it."""
        return self.path / TRACE_NAME

    @property
    def receipts_path(self) -> Path:
        """The folder of parity's receipts."""
        return self.path / "receipts"

    @property
    def size_bytes(self) -> int:
        """Bytes of all files the manifest names."""
        return sum(file.size_bytes for file in self.manifest.files.values())


def artifact_directory_name(manifest: Manifest) -> str:
    """Return the directory name of an artifact, from its content."""
    digest = hashlib.sha256(manifest.to_bytes()).hexdigest()
    return f"{manifest.model}--{manifest.profile}--{digest[:16]}"


def read_artifact(path: Path) -> Artifact:
    """Read the manifest of an artifact directory; raise :class:`ArtifactCorruptError` if it has no readable one."""
    manifest_path = path / MANIFEST_NAME
    try:
        content = manifest_path.read_bytes()
    except OSError as error:
        raise ArtifactCorruptError(manifest_path, f"cannot be read ({error.strerror})") from error
    return Artifact(path, Manifest.from_bytes(content, path=manifest_path))


def list_artifacts(home: Path) -> list[Artifact]:
    """Return every artifact with a readable manifest under a home, newest first."""
    found: list[tuple[int, str, Artifact]] = []
    for path in (home / "artifacts").glob("*--*--*"):
        if path.name.startswith("."):
            continue
        try:
            artifact = read_artifact(path)
            found.append((-(path / MANIFEST_NAME).stat().st_mtime_ns, path.name, artifact))
        except (ArtifactCorruptError, OSError):
            continue
    return [artifact for _, _, artifact in sorted(found, key=lambda item: item[:2])]


def find_artifact(home: Path, entry: LockedModel, profile: str, *, commands: Commands | None = None) -> Artifact:
    """Return the newest artifact made from a lock entry under a profile.

    Parameters
    ----------
    commands : Commands, optional
        Writes the command in the error; one that names only the home when not given.

    Raises
    ------
    ArtifactMissingError
        None was exported, or only from another state of the lock entry.
    """
    candidates = [a for a in list_artifacts(home) if (a.manifest.model, a.manifest.profile) == (entry.name, profile)]
    for artifact in candidates:
        if artifact.manifest.lock_entry_digest == entry.digest:
            return artifact
    reason = _entry_changes(candidates[0].manifest, entry) if candidates else f"nothing exported under {home}"
    fix = (commands or Commands(home=home)).export(entry.name, profile, source=entry.source)
    raise ArtifactMissingError(entry.name, profile, reason=reason, fix=fix)


def _entry_changes(manifest: Manifest, entry: LockedModel) -> str:
    """Return the differences between the exported entry and today's; long values by their name alone."""
    old, new = manifest.lock_entry or {}, entry.facts
    changed = [name for name in dict.fromkeys((*old, *new)) if old.get(name) != new.get(name)] if old else []
    words = [
        f"{name} {old.get(name, 'unset')} -> {new.get(name, 'unset')}"
        if all(isinstance(one.get(name, ""), (str, int)) for one in (old, new))
        else name
        for name in changed
    ]
    return "the lock entry has changed since the export" + (f": {', '.join(words)}" if words else "")


def verify_artifact(artifact: Artifact, *, fix: str | None = None) -> None:
    """Recompute every digest of an artifact from all its bytes.

    ArtifactCorruptError names the first file, by name, that is missing or changed, and `fix`, the command to run.
    """
    names = sorted(artifact.manifest.files)
    # hashlib releases the interpreter lock: files are hashed side by side.
    with ThreadPoolExecutor(max_workers=4) as pool:
        for name, problem in zip(names, pool.map(lambda name: _file_problem(artifact, name), names), strict=True):
            if problem is not None:
                raise ArtifactCorruptError(artifact.path / name, problem, fix=fix)


def _file_problem(artifact: Artifact, name: str) -> str | None:
    path, pinned = artifact.path / name, artifact.manifest.files[name]
    try:
        size_bytes = path.stat().st_size
        if size_bytes != pinned.size_bytes:
            return f"{size_bytes} bytes long, the manifest says {pinned.size_bytes}"
        found = sha256_file(path)
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if found != pinned.sha256:
        return f"sha256 is {found}, the manifest says {pinned.sha256}"
    return None
