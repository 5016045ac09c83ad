"""Weights packed once for this processor and mapped from a file, instead of packed into private memory at every load.

ONNX Runtime's CPU provider rewrites each weight matrix into the layout its kernels read. By default that copy is
private: 1.7 GB for a 0.6 B embedder in fp32. Saved beside the graph it becomes file pages, shared by processes and
dropped under pressure, and a session keeps about 50 MB of its own. The bits are those of the session that packs in
memory. The file is made by the machine that serves, for its processor and its ONNX Runtime:

::

    <artifact>/machine/<key>/
        model.onnx  model.onnx.data     the optimised graph, with packed and unpacked weights
        packed.json                     what it was made from, and what its files must hash to

At every start the unpacked weights are hashed, and ONNX Runtime compares the packed ones with what it packs from them
(``samevec.runtime.packed_file``). Where it does not, the packed ones are hashed too.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from samevec.artifact import GRAPH_NAME
from samevec.digest import ChunkedDigest, canonical_json, chunked_sha256, digest_json
from samevec.errors import ArtifactCorruptError, SessionLoadError
from samevec.machine import allowed_cpus
from samevec.runtime.packed_file import packed_blobs, refuses_changed_blobs
from samevec.runtime.session import OnnxSession, save_optimized
from samevec.unfinished import put_in_place, unfinished_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from samevec.progress import Progress
    from samevec.runtime.profiles import Profile

__all__ = ["PackedCheck", "PackedGraph", "file_marks", "find_packed", "make_packed", "open_checked", "packed_key"]

RECORD_NAME = "packed.json"
RECORD_VERSION = 2
DATA_NAME = f"{GRAPH_NAME}.data"

_Opened = TypeVar("_Opened")


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
    compared : list of (int, int)
        Start and length of what is not hashed in the data file: buffers that ONNX Runtime compares at every load with
        what it packs from hashed bytes. The data file's digest depends on these places.
    """

    path: Path
    files: dict[str, str]
    source: dict[str, list[int]]
    compared: list[tuple[int, int]]

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
                compared = [(int(start), int(length)) for start, length in record["compared"]]
                return PackedGraph(directory / key, dict(record["files"]), dict(record["source"]), compared)
        except (OSError, ValueError, KeyError, TypeError):
            continue  # absent or unfinished: made again by whoever runs the gate
    return None


def file_marks(directory: Path) -> dict[str, list[int]]:
    """Return size, inode, and times of content and of status change (ns) of an artifact's graph files.

    The status change time moves with every write and cannot be set back by a program, so equal marks mean the same
    bytes. A session on the packed graph never reads these files; the marks save hashing them at every start.
    """
    marks = {}
    for name in (GRAPH_NAME, DATA_NAME):
        try:
            status = (directory / name).stat()
        except OSError:
            continue
        marks[name] = [status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns]
    return marks


class PackedCheck:
    """Recomputes the digests of a packed graph's files, the large one by threads while it is loaded.

    The graph itself is hashed on entering, before any loader parses it.

    Parameters
    ----------
    packed : PackedGraph
    """

    def __init__(self, packed: PackedGraph) -> None:
        self._packed = packed
        self._marks = file_marks(packed.path)
        self._data: ChunkedDigest | None = None
        self._problem: str | None = None

    def __enter__(self) -> PackedCheck:
        for name in self._packed.files:
            path = self._packed.path / name
            try:
                if name == DATA_NAME:
                    self._data = ChunkedDigest(path, skip=self._packed.compared)
                elif chunked_sha256(path) != self._packed.files[name]:
                    self._problem = f"{path} has changed since it was packed"
            except OSError as error:
                self._problem = f"{path} cannot be read ({error.strerror})"
            except ValueError:  # it is shorter than the places to skip
                self._problem = f"{path} has changed since it was packed"
        if self._data is not None and self._problem is None:
            # One processor is left to whoever loads meanwhile.
            self._data.begin(max(1, min(4, allowed_cpus() - 1)))
        return self

    def __exit__(self, *_: object) -> None:
        if self._data is not None:
            self._data.give_up()

    @property
    def known_problem(self) -> str | None:
        """What is already known to be wrong; nothing is waited for."""
        return self._problem

    def problem(self) -> str | None:
        """Wait for the digests.

        Returns
        -------
        str or None
            What is wrong, in words; None when every file is as it was written.
        """
        if self._problem is None and self._data is not None:
            path = self._packed.path / DATA_NAME
            try:
                if self._data.result() != self._packed.files[DATA_NAME]:
                    self._problem = f"{path} has changed since it was packed"
            except OSError as error:
                self._problem = f"{path} cannot be read ({error.strerror})"
        if self._problem is None and file_marks(self._packed.path) != self._marks:
            self._problem = f"{self._packed.path} was written to while it was loaded"
        return self._problem


def open_checked(packed: PackedGraph, open_on: Callable[[Path], _Opened]) -> _Opened:
    """Open something on a packed graph while its files are hashed; give it out when both have succeeded.

    Parameters
    ----------
    packed : PackedGraph
    open_on : callable
        Opens a session on a graph path.

    Raises
    ------
    ArtifactCorruptError
        A file has changed since it was packed, or does not load any more.
    """
    with PackedCheck(packed) as check:
        if check.known_problem is None:
            try:
                opened = open_on(packed.graph_path)
            except SessionLoadError as error:
                problem = check.problem() or f"{packed.graph_path} does not load ({error.__cause__ or error})"
                raise ArtifactCorruptError(packed.path, problem) from error
        problem_found = check.problem()
        if problem_found is not None:
            raise ArtifactCorruptError(packed.path, problem_found)
        return opened


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
            compared = _compared_places(staging, profile)
        with progress.step("digest packed weights"):
            files = {
                path.name: chunked_sha256(path, skip=compared if path.name == DATA_NAME else ())
                for path in sorted(staging.iterdir())
            }
        source = file_marks(graph_path.parent)
        record: dict[str, Any] = {"version": RECORD_VERSION, "files": files, "source": source, "compared": compared}
        (staging / RECORD_NAME).write_bytes(canonical_json(record))
        put_in_place(staging, parent / key, is_intact=partial(_is_intact, profile=profile))
    _remove_other_keys(parent, key)
    # Another process may have made the same key meanwhile; its files are as good.
    return find_packed([parent], key) or PackedGraph(parent / key, files, source, compared)


def _compared_places(staging: Path, profile: Profile) -> list[tuple[int, int]]:
    """Return the places of packed buffers, where this ONNX Runtime refuses changed ones; nothing where it does not."""
    graph_path, data_path = staging / GRAPH_NAME, staging / DATA_NAME
    if not data_path.exists():
        return []  # every weight is small enough to lie in the graph
    blobs = packed_blobs(graph_path.read_bytes(), data_name=DATA_NAME, size_bytes=data_path.stat().st_size)
    if not refuses_changed_blobs(graph_path, data_path, blobs, profile):
        return []
    return [(blob.start, blob.length) for blob in blobs]


def _is_intact(directory: Path, *, profile: Profile) -> bool:
    found = find_packed([directory.parent], directory.name)
    if found is None:
        return False
    try:
        open_checked(found, lambda path: OnnxSession(path, profile, optimized=True))
    except ArtifactCorruptError:
        return False
    return True


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
