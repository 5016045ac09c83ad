"""Weights packed once for this processor and mapped from a file, instead of packed into private memory at every load.

ONNX Runtime's CPU provider rewrites each weight matrix into the layout its kernels read. By default that copy is
private: 1.7 GB for a 0.6 B embedder in fp32. Saved beside the graph it becomes file pages, shared by processes and
dropped under pressure, and a session keeps about 50 MB of its own. The bits are those of the session that packs in
memory. The file is made by the machine that serves, for its processor and its ONNX Runtime:

::

    <artifact>/machine/<key>/
        model.onnx  model.onnx.data     the optimised graph, with packed and unpacked weights
        packed.json                     what it was made from, and what its files must hash to
"""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from samevec.artifact import GRAPH_NAME
from samevec.digest import canonical_json, chunked_sha256, digest_json
from samevec.runtime.session import save_optimized
from samevec.unfinished import put_in_place, unfinished_directory

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from samevec.progress import Progress
    from samevec.runtime.profiles import Profile

__all__ = ["PackedGraph", "file_marks", "find_packed", "make_packed", "packed_key", "packed_problem"]

RECORD_NAME = "packed.json"
RECORD_VERSION = 1


@dataclass(frozen=True, slots=True)
class PackedGraph:
    """A graph packed for this machine.

    Attributes
    ----------
    path : Path
        Its directory.
    files : dict of str to str
        File name to ``chunked-sha256:...``.
    source : dict of str to list of int
        What the artifact's own graph files looked like when they were packed, see :func:`file_marks`.
    """

    path: Path
    files: dict[str, str]
    source: dict[str, list[int]]

    @property
    def graph_path(self) -> Path:
        """The graph to load."""
        return self.path / GRAPH_NAME

    @property
    def digest(self) -> str:
        """``sha256:...`` of the file digests, as receipts bind it."""
        return digest_json(self.files)


def packed_key(*, artifact_digest: str, profile: Profile, onnxruntime_version: str, device: str) -> str:
    """Return the directory name of a packed graph: 16 hex digits of everything its content depends on."""
    record = {
        "version": RECORD_VERSION,
        "artifact": artifact_digest,
        "options": profile.session_options(),
        "onnxruntime": onnxruntime_version,
        "device": device,
    }
    return digest_json(record).removeprefix("sha256:")[:16]


def find_packed(directories: Sequence[Path], key: str) -> PackedGraph | None:
    """Return the packed graph of a key, its files not yet verified; None where it was never made.

    Parameters
    ----------
    directories : sequence of Path
        Where packed graphs may lie.
    key : str
    """
    for directory in directories:
        try:
            record = json.loads((directory / key / RECORD_NAME).read_bytes())
            if record["version"] == RECORD_VERSION:
                return PackedGraph(directory / key, dict(record["files"]), dict(record["source"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # absent or unfinished: made again by whoever runs the gate
    return None


def file_marks(directory: Path) -> dict[str, list[int]]:
    """Return size, inode, and times of content and of status change (ns) of an artifact's graph files.

    The status change time moves with every write and cannot be set back by a program, so equal marks mean the same
    bytes. A session on the packed graph never reads these files; the marks save hashing them at every start.
    """
    marks = {}
    for name in (GRAPH_NAME, f"{GRAPH_NAME}.data"):
        try:
            status = (directory / name).stat()
        except OSError:
            continue
        marks[name] = [status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns]
    return marks


def packed_problem(packed: PackedGraph) -> str | None:
    """Recompute the digests of a packed graph's files.

    Returns
    -------
    str or None
        What is wrong, in words; None when every file is as it was written.
    """
    for name, expected in packed.files.items():
        path = packed.path / name
        try:
            found = chunked_sha256(path)
        except OSError as error:
            return f"{path} cannot be read ({error.strerror})"
        if found != expected:
            return f"{path} has changed since it was packed"
    return None


def make_packed(
    graph_path: Path, directories: Sequence[Path], key: str, profile: Profile, *, progress: Progress
) -> PackedGraph:
    """Pack a graph's weights for this machine and keep the result under a key.

    Parameters
    ----------
    graph_path : Path
        The artifact's verified graph.
    directories : sequence of Path
        The first that can be written to is used.
    key : str
    profile : Profile
    progress : Progress

    Returns
    -------
    PackedGraph

    Raises
    ------
    SessionLoadError
        ONNX Runtime cannot load or save the graph.
    OSError
        The disk is full, or no directory can be written to.
    """
    parent = _first_writable(directories)
    with unfinished_directory(parent) as staging:
        with progress.step("pack weights for this processor"):
            save_optimized(graph_path, staging / GRAPH_NAME, profile)
        with progress.step("digest packed weights"):
            files = {path.name: chunked_sha256(path) for path in sorted(staging.iterdir())}
        source = file_marks(graph_path.parent)
        record: dict[str, Any] = {"version": RECORD_VERSION, "files": files, "source": source}
        (staging / RECORD_NAME).write_bytes(canonical_json(record))
        put_in_place(staging, parent / key, is_intact=_is_intact)
    _remove_other_keys(parent, key)
    # Another process may have made the same key meanwhile; its files are as good.
    return find_packed([parent], key) or PackedGraph(parent / key, files, source)


def _is_intact(directory: Path) -> bool:
    found = find_packed([directory.parent], directory.name)
    return found is not None and packed_problem(found) is None


def _first_writable(directories: Sequence[Path]) -> Path:
    problem: OSError | None = None
    for directory in directories:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=directory):
                return directory
        except OSError as error:
            problem = error
    raise problem or OSError("no directory to keep packed weights in")


def _remove_other_keys(parent: Path, key: str) -> None:
    """Remove packed graphs of other processors or ONNX Runtime versions: gigabytes that this machine will not read.

    A process that still has one mapped keeps its pages; an artifact copied back to the other machine packs again.
    """
    for other in parent.iterdir():
        if other.name != key and not other.name.startswith("."):
            shutil.rmtree(other, ignore_errors=True)
