"""Weights packed for this machine: what is recorded, and that no changed byte of them is ever given out."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from packed_graph import CPU, needs_comparing, write_graph

from samevec.digest import chunked_sha256
from samevec.errors import ArtifactCorruptError, SessionRunError
from samevec.progress import SilentProgress
from samevec.runtime import prepack
from samevec.runtime.prepack import PackedGraph, find_packed, make_packed, open_checked
from samevec.runtime.session import OnnxSession

if TYPE_CHECKING:
    from pathlib import Path

KEY = "0123456789abcdef"


def packed_in(directory: Path, graph_path: Path) -> PackedGraph:
    return make_packed(graph_path, [directory], KEY, CPU, progress=SilentProgress())


def open_session(path: Path) -> OnnxSession:
    return OnnxSession(path, CPU, optimized=True)


def never(path: Path) -> None:
    pytest.fail(f"{path} was opened")


@pytest.fixture(scope="module")
def graph_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_graph(tmp_path_factory.mktemp("graph"))


@pytest.fixture(scope="module")
def made(graph_path: Path, tmp_path_factory: pytest.TempPathFactory) -> PackedGraph:
    return packed_in(tmp_path_factory.mktemp("machine"), graph_path)


@pytest.fixture
def packed(made: PackedGraph, tmp_path: Path) -> PackedGraph:
    """A copy that may be damaged."""
    shutil.copytree(made.path, tmp_path / KEY)
    found = find_packed([tmp_path], KEY)
    assert found is not None
    return found


def hashed_places(packed: PackedGraph) -> list[tuple[int, int]]:
    """Return start and end of each run of bytes that is hashed in the data file."""
    size_bytes = (packed.path / "model.onnx.data").stat().st_size
    ends = [0, *(start + length for start, length in packed.compared)]
    starts = [*(start for start, _ in packed.compared), size_bytes]
    return [(end, start) for end, start in zip(ends, starts, strict=True) if end < start]


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@needs_comparing
def test_an_intact_one_is_given_out(packed: PackedGraph, made: PackedGraph) -> None:
    assert isinstance(open_checked(packed, open_session), OnnxSession)
    assert replace(packed, path=made.path) == made
    assert len(packed.compared) == 4
    assert sum(end - start for start, end in hashed_places(packed)) >= 4 * (50 * 64 + 64 * 48 + 48 * 32 + 32 * 40)


def test_a_change_in_any_hashed_place_is_found(packed: PackedGraph) -> None:
    data = packed.path / "model.onnx.data"
    places = hashed_places(packed)
    assert places
    for start, end in places:
        for place in {start, (start + end) // 2, end - 1}:
            flip(data, place)
            with pytest.raises(ArtifactCorruptError, match=r"model\.onnx\.data has changed since it was packed"):
                open_checked(packed, open_session)
            flip(data, place)
    open_checked(packed, open_session)


@needs_comparing
def test_a_change_in_any_compared_place_is_refused(packed: PackedGraph) -> None:
    data = packed.path / "model.onnx.data"
    for start, length in packed.compared:
        for place in (start, start + length - 1):
            flip(data, place)
            with pytest.raises(ArtifactCorruptError, match=r"model\.onnx does not load \(.*do not match"):
                open_checked(packed, open_session)
            flip(data, place)
    open_checked(packed, open_session)


def test_a_changed_graph_is_never_opened(packed: PackedGraph) -> None:
    for place in range(0, (packed.path / "model.onnx").stat().st_size, 97):
        flip(packed.path / "model.onnx", place)
        with pytest.raises(ArtifactCorruptError, match=r"model\.onnx has changed since it was packed"):
            open_checked(packed, never)
        flip(packed.path / "model.onnx", place)


@pytest.mark.parametrize("name", ["model.onnx", "model.onnx.data"])
def test_a_missing_file_is_never_opened(packed: PackedGraph, name: str) -> None:
    (packed.path / name).unlink()
    with pytest.raises(ArtifactCorruptError, match=rf"{name} cannot be read \(No such file"):
        open_checked(packed, never)


def test_a_shortened_file(packed: PackedGraph) -> None:
    data = packed.path / "model.onnx.data"
    content = data.read_bytes()
    for n_bytes in (len(content) - 1, len(content) // 2, 0):
        data.write_bytes(content[:n_bytes])
        with pytest.raises(ArtifactCorruptError, match="has changed since it was packed"):
            open_checked(packed, lambda path: path)
    data.write_bytes(content + b"\0")
    with pytest.raises(ArtifactCorruptError, match="has changed since it was packed"):
        open_checked(packed, lambda path: path)


def test_a_file_written_to_while_it_is_loaded(packed: PackedGraph) -> None:
    data = packed.path / "model.onnx.data"

    def rewrite(_: Path) -> None:
        before = data.stat().st_ctime_ns
        while data.stat().st_ctime_ns == before:  # a file system's clock ticks every few milliseconds
            with data.open("r+b") as file:
                file.write(content[:1])

    content = data.read_bytes()
    with pytest.raises(ArtifactCorruptError, match="was written to while it was loaded"):
        open_checked(packed, rewrite)


def test_an_error_that_is_not_the_files(packed: PackedGraph) -> None:
    def fails(path: Path) -> None:
        raise SessionRunError(f"{path} is fine")

    with pytest.raises(SessionRunError, match="is fine"):
        open_checked(packed, fails)


def test_places_that_somebody_adds_to_the_record(packed: PackedGraph) -> None:
    """What is not hashed is part of the digest that receipts are bound to."""
    record_path = packed.path / "packed.json"
    record = json.loads(record_path.read_bytes())
    start, end = hashed_places(packed)[0]
    record["compared"] = sorted([*record["compared"], [start, end - start]])
    record_path.write_text(json.dumps(record))
    found = find_packed([packed.path.parent], KEY)
    assert found is not None
    with pytest.raises(ArtifactCorruptError, match="has changed since it was packed"):
        open_checked(found, open_session)
    data = packed.path / "model.onnx.data"
    assert chunked_sha256(data, skip=found.compared) != chunked_sha256(data, skip=packed.compared)


@pytest.mark.parametrize("change", [{"version": 1}, {"compared": [[1]]}, {"compared": None}, {"files": 3}])
def test_a_record_that_cannot_be_read_counts_as_absent(packed: PackedGraph, change: dict[str, object]) -> None:
    record_path = packed.path / "packed.json"
    record_path.write_text(json.dumps({**json.loads(record_path.read_bytes()), **change}))
    assert find_packed([packed.path.parent], KEY) is None


@pytest.mark.parametrize("damage", ["hashed", pytest.param("compared", marks=needs_comparing)])
def test_packing_again_replaces_a_damaged_one(packed: PackedGraph, graph_path: Path, damage: str) -> None:
    place = hashed_places(packed)[0][0] if damage == "hashed" else packed.compared[0][0]
    flip(packed.path / "model.onnx.data", place)
    again = packed_in(packed.path.parent, graph_path)
    assert again.files == packed.files
    open_checked(again, open_session)


def test_packing_again_keeps_an_intact_one(packed: PackedGraph, graph_path: Path) -> None:
    inode = (packed.path / "model.onnx.data").stat().st_ino
    packed_in(packed.path.parent, graph_path)
    assert (packed.path / "model.onnx.data").stat().st_ino == inode


@needs_comparing
def test_everything_is_hashed_where_nothing_is_compared(
    graph_path: Path, tmp_path: Path, made: PackedGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepack, "refuses_changed_blobs", lambda *_: False)
    packed = packed_in(tmp_path, graph_path)
    assert packed.compared == []
    assert packed.digest != made.digest
    flip(packed.path / "model.onnx.data", made.compared[0][0])
    with pytest.raises(ArtifactCorruptError, match="has changed since it was packed"):
        open_checked(packed, lambda path: path)
