"""Packed buffers in a graph's data file: where they lie, and whether ONNX Runtime compares them when it loads."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING, Any

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto
from packed_graph import CPU, needs_comparing, write_packed

from samevec.errors import SessionLoadError
from samevec.runtime import packed_file
from samevec.runtime.packed_file import Blob, packed_blobs, refuses_changed_blobs
from samevec.runtime.session import OnnxSession

if TYPE_CHECKING:
    from pathlib import Path

NAME = "model.onnx.data"


def graph_with(*weights: dict[str, str]) -> bytes:
    """Serialise a graph whose initializers have these entries."""
    model = onnx.ModelProto(ir_version=10)
    model.graph.node.add(op_type="MatMul", input=["x", "w"])
    for i, entries in enumerate(weights):
        tensor = TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=[3, 4])
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=value)
        model.graph.initializer.append(tensor)
    model.graph.initializer.add(name="inline", raw_data=b"\0" * 8)
    return bytes(model.SerializeToString())


def weight(start: int, length: int, *packed: str, location: str = NAME) -> dict[str, str]:
    entries = {"location": location, "offset": str(start), "length": str(length)}
    return entries | {f"prepacked_{i}": value for i, value in enumerate(packed)}


def test_buffers_in_file_order() -> None:
    graph = graph_with(
        weight(100, 20, "Gemm+77|120;8;0|128;4;0", "MatMul+9|132;8;0"),
        weight(0, 48, "MatMul+5|48;50;0"),
        weight(98, 2),
        weight(0, 99, "MatMul+1|0;99;0", location="another.data"),
    )
    assert packed_blobs(graph, data_name=NAME, size_bytes=140) == [
        (48, 50, "MatMul 0"),
        (120, 8, "Gemm 0"),
        (128, 4, "Gemm 1"),
        (132, 8, "MatMul 0"),
    ]
    assert packed_blobs(graph_with(), data_name=NAME, size_bytes=0) == []


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        (weight(0, 10, "MatMul+5|9;10;0"), "overlaps"),
        (weight(0, 10, "MatMul+5|10;10;0", "Gemm+5|19;1;0"), "overlaps"),
        (weight(0, 10, "MatMul+5|10;31;0"), "lies outside the 40 bytes"),
        (weight(0, 10, "MatMul+5|-5;5;0"), "lies outside"),
        (weight(0, 10, "MatMul+5|30;-5;0"), "lies outside"),
        (weight(0, 41), "lies outside"),
        (weight(0, 10, "MatMul+5|10;10"), "cannot be read"),
        (weight(0, 10, "MatMul+5|ten;10;0"), "cannot be read"),
        ({"location": NAME, "length": "5"}, "cannot be read"),
    ],
)
def test_places_that_cannot_be(entries: dict[str, str], words: str) -> None:
    with pytest.raises(SessionLoadError, match=words):
        packed_blobs(graph_with(entries), data_name=NAME, size_bytes=40)


@given(st.binary(max_size=64))
def test_bytes_that_are_no_graph(junk: bytes) -> None:
    """Whatever is read of them, nothing but our own error comes out, and no place outside the file."""
    for content in (junk, graph_with(weight(0, 4, "MatMul+5|4;4;0"))[: len(junk)] + junk):
        try:
            blobs = packed_blobs(content, data_name=NAME, size_bytes=8)
        except SessionLoadError:
            continue
        assert all(blob.start >= 0 and blob.start + blob.length <= 8 for blob in blobs)


@given(st.lists(st.tuples(st.integers(1, 1 << 40), st.lists(st.integers(1, 1 << 40), max_size=3)), max_size=8))
def test_what_the_onnx_package_writes(sizes: list[tuple[int, list[int]]]) -> None:
    expected, weights, end = [], [], 0
    for length, packed in sizes:
        start, end = end, end + length
        entry = "MatMul+12345"
        for i, packed_length in enumerate(packed):
            entry += f"|{end};{packed_length};0"
            expected.append(Blob(end, packed_length, f"MatMul {i}"))
            end += packed_length
        weights.append(weight(start, length, *[entry] if packed else []))
    assert packed_blobs(graph_with(*weights), data_name=NAME, size_bytes=end) == expected


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_packed(tmp_path_factory.mktemp("packed"))


def blobs_of(packed: Path) -> list[Blob]:
    data = packed / NAME
    return packed_blobs((packed / "model.onnx").read_bytes(), data_name=NAME, size_bytes=data.stat().st_size)


@needs_comparing
def test_this_onnx_runtime_refuses_every_changed_buffer(packed: Path, tmp_path: Path) -> None:
    """What is not hashed rests on this: one bit anywhere in a packed buffer, and the graph does not load."""
    directory = tmp_path / "copy"
    shutil.copytree(packed, directory)
    blobs = blobs_of(directory)
    assert {blob.kind for blob in blobs} == {"MatMul 0", "Gemm 0"}
    content = (directory / NAME).read_bytes()
    chance = random.Random(0)
    for blob in blobs:
        for place in (0, blob.length - 1, *(chance.randrange(blob.length) for _ in range(8))):
            changed = bytearray(content)
            changed[blob.start + place] ^= 1 << chance.randrange(8)
            (directory / NAME).write_bytes(changed)
            with pytest.raises(SessionLoadError, match="do not match"):
                OnnxSession(directory / "model.onnx", CPU, optimized=True)
    (directory / NAME).write_bytes(content)
    OnnxSession(directory / "model.onnx", CPU, optimized=True)


@needs_comparing
def test_trying_leaves_the_file_as_it_was(packed: Path) -> None:
    content = (packed / NAME).read_bytes()
    assert refuses_changed_blobs(packed / "model.onnx", packed / NAME, blobs_of(packed), CPU)
    assert (packed / NAME).read_bytes() == content


def test_an_onnx_runtime_that_compares_nothing(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = (packed / NAME).read_bytes()
    opened: list[bytes] = []

    def opens_anything(*_: Any, **__: Any) -> None:
        opened.append((packed / NAME).read_bytes())

    monkeypatch.setattr(packed_file, "OnnxSession", opens_anything)
    assert not refuses_changed_blobs(packed / "model.onnx", packed / NAME, blobs_of(packed), CPU)
    assert opened[0] == content != opened[1]
    assert (packed / NAME).read_bytes() == content


def test_a_graph_that_does_not_load_as_it_is(packed: Path, tmp_path: Path) -> None:
    directory = tmp_path / "copy"
    shutil.copytree(packed, directory)
    blobs = blobs_of(directory)
    (directory / "model.onnx").write_bytes(b"no graph")
    with pytest.raises(SessionLoadError, match="cannot be loaded"):
        refuses_changed_blobs(directory / "model.onnx", directory / NAME, blobs, CPU)
