"""Which bytes of a packed graph ONNX Runtime itself compares at every load, so that they need not be hashed.

A saved packed graph holds each matrix twice: as the graph has it, and in the layout of this processor's kernels. To
load it, ONNX Runtime packs the first again, looks the result up by its hash, and takes the second in its place. 1.32
then compares what it takes with what it packed, byte for byte, and refuses to load where they differ; older versions do
not. Where it does, hashing the first covers both.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, NamedTuple

from samevec.errors import SessionLoadError
from samevec.runtime.session import OnnxSession

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from samevec.runtime.profiles import Profile

__all__ = ["Blob", "packed_blobs", "refuses_changed_blobs"]


class Blob(NamedTuple):
    """One packed buffer in the data file.

    Attributes
    ----------
    start, length : int
        Bytes.
    kind : str
        The operator that packed it and which of its buffers it is, such as ``"MatMul 0"``.
    """

    start: int
    length: int
    kind: str


def packed_blobs(graph: bytes, *, data_name: str, size_bytes: int) -> list[Blob]:
    """Return the packed buffers that a graph names in its data file, in file order.

    Parameters
    ----------
    graph : bytes
        A serialised ``ModelProto``.
    data_name : str
        The data file; buffers in another one are left out.
    size_bytes : int
        Of the data file.

    Raises
    ------
    SessionLoadError
        It is not a graph, or a buffer lies outside the file, or on bytes of an unpacked weight or of another buffer.

    References
    ----------
    onnxruntime ``tensor_external_data_info.cc``: an entry ``prepacked_N`` is
    ``key|offset;length;checksum[|offset;length;checksum]``, its key ``operator+hash``.
    """
    blobs: list[Blob] = []
    weights: list[Blob] = []
    for tensor in _read_graph(graph).graph.initializer:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if entries.get(b"location") != data_name.encode():
            continue
        try:
            weights.append(Blob(int(entries[b"offset"]), int(entries[b"length"]), "unpacked weight"))
            blobs += _blobs_of(entries)
        except (KeyError, ValueError) as error:
            raise SessionLoadError(f"a weight's place in {data_name} cannot be read: {error}") from error
    _require_apart([*weights, *blobs], size_bytes)
    return sorted(blobs)


def _blobs_of(entries: Mapping[bytes, bytes]) -> Iterable[Blob]:
    for name, value in entries.items():
        if name.startswith(b"prepacked"):
            key, *buffers = value.split(b"|")
            operator = key.partition(b"+")[0].decode()
            for i, buffer in enumerate(buffers):
                start, length, _checksum = buffer.split(b";")
                yield Blob(int(start), int(length), f"{operator} {i}")


def _require_apart(places: list[Blob], size_bytes: int) -> None:
    """Refuse places that overlap or lie outside: a byte left out of the hash must be a packed buffer's alone."""
    end, before = 0, "the file's beginning"
    for place in sorted(place for place in places if place.length):
        if place.length < 0 or place.start < end or place.start + place.length > size_bytes:
            raise SessionLoadError(f"{place} overlaps {before} or lies outside the {size_bytes} bytes of its file")
        end, before = place.start + place.length, str(place)


def refuses_changed_blobs(graph_path: Path, data_path: Path, blobs: Iterable[Blob], profile: Profile) -> bool:
    """Try whether this ONNX Runtime notices packed buffers that are not what it packs from the unpacked weights.

    Parameters
    ----------
    graph_path : Path
        A packed graph that nobody else reads yet.
    data_path : Path
        Its data. One bit at a time is changed while a session is opened, and put back.
    blobs : iterable of Blob
    profile : Profile

    Returns
    -------
    bool
        True if the first and the last buffer of each kind were refused with one bit changed.

    Raises
    ------
    SessionLoadError
        The graph does not load as it is.
    """
    OnnxSession(graph_path, profile, optimized=True)
    by_kind: dict[str, list[Blob]] = {}
    for blob in blobs:
        if blob.length:
            by_kind.setdefault(blob.kind, []).append(blob)
    places = {place for same in by_kind.values() for place in (same[0].start, same[-1].start + same[-1].length - 1)}
    return all(_is_refused(graph_path, data_path, place, profile) for place in sorted(places))


def _is_refused(graph_path: Path, data_path: Path, place: int, profile: Profile) -> bool:
    _flip_bit(data_path, place)
    try:
        OnnxSession(graph_path, profile, optimized=True)
    except SessionLoadError:
        return True
    finally:
        _flip_bit(data_path, place)
    return False


def _flip_bit(path: Path, place: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        (value,) = file.read(1)
        file.seek(place)
        file.write(bytes([value ^ 1]))


def _read_graph(graph: bytes) -> Any:
    """Parse the few fields needed of a ``ModelProto``; the serving install has protobuf, not the onnx package."""
    message = importlib.import_module("google.protobuf.message")
    factory = importlib.import_module("google.protobuf.message_factory")
    pool = importlib.import_module("google.protobuf.descriptor_pool").DescriptorPool()
    pool.Add(_schema())
    model = factory.GetMessageClass(pool.FindMessageTypeByName("samevec.Model"))()
    try:
        model.ParseFromString(graph)
    except message.DecodeError as error:
        raise SessionLoadError(f"the packed graph is not an ONNX graph: {error}") from error
    return model


#: Field numbers of ``onnx.proto``: ModelProto, GraphProto, TensorProto, StringStringEntryProto.
_FIELDS = {
    "Model": (("graph", 7, "Graph"),),
    "Graph": (("initializer", 5, "Tensor"),),
    "Tensor": (("external_data", 13, "Entry"),),
    "Entry": (("key", 1, ""), ("value", 2, "")),
}


def _schema() -> Any:
    descriptor = importlib.import_module("google.protobuf.descriptor_pb2")
    file = descriptor.FileDescriptorProto(name="samevec/packed_graph.proto", package="samevec", syntax="proto2")
    field_types = descriptor.FieldDescriptorProto
    for message_name, fields in _FIELDS.items():
        message = file.message_type.add(name=message_name)
        for name, number, kind in fields:
            label = field_types.LABEL_REPEATED if kind in ("Tensor", "Entry") else field_types.LABEL_OPTIONAL
            field = message.field.add(name=name, number=number, label=label)
            field.type = field_types.TYPE_MESSAGE if kind else field_types.TYPE_BYTES
            if kind:
                field.type_name = f".samevec.{kind}"
    return file
