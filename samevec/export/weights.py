"""Every weight, bit for bit: checkpoint, PyTorch module and graph hold the same values, and a table says where.

The module that PyTorch computes with has exactly the checkpoint's tensors. A native graph's initialisers are read back
from the written file, unpacked and compared with the checkpoint. A traced graph's are matched by digest with the
module's parameters, as they are, transposed, or cut into equal parts. A value without source or place refuses the
export.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from samevec.digest import array_digest, canonical_json
from samevec.errors import WeightsDifferError
from samevec.export.initializers import Initializers
from samevec.export.native.checkpoint import widen
from samevec.export.native.panels import unpack
from samevec.export.native.rotary import rotary_tables

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from samevec.export.native import Weight
    from samevec.export.native.checkpoint import Checkpoint, Stored

__all__ = ["WeightRecord", "module_problems", "native_records", "require_records", "traced_records", "weights_table"]

#: Ends of tensor names that no module needs to read: positions that count from 0, rotary frequencies
#: computed from the configuration, and a head tied to the token table.
_UNREAD_ENDS = ("position_ids", "rotary_emb.inv_freq", "lm_head.weight")
#: Parameters that a graph may leave out: BERT's pooler, where an embedder pools.
_UNUSED_STARTS = ("pooler.", "bert.pooler.")
# Initialisers of a traced graph that may be constants of the form: sizes, scales, epsilons.
_MOST_CONSTANT_VALUES = 64
_MOST_PARTS = 3  # q, k and v of one weight


@dataclass(frozen=True, slots=True)
class WeightRecord:
    """The place of one tensor of the checkpoint in a graph."""

    tensor: str  # its name; empty for a constant of the graph's form
    initializer: str
    transformation: str  # such as "panels" or "transposed"
    digest: str  # sha256 of the tensor's values in float32, the same in every form; a constant's of its bytes


def weights_table(records: Sequence[WeightRecord]) -> bytes:
    """Return the bytes of ``weights.json``: one row a record, in the order of the graph."""
    rows = [[record.tensor, record.initializer, record.transformation, record.digest] for record in records]
    return canonical_json(
        {"weights_version": 1, "columns": ["tensor", "initializer", "transformation", "sha256"], "rows": rows}
    )


def require_records(model: str, records: Sequence[WeightRecord], problems: Sequence[str]) -> None:
    """Refuse an export whose weights are not the checkpoint's, with a WeightsDifferError of every problem."""
    found = list(problems)
    if not any(record.tensor for record in records):
        found.append("no tensor of the checkpoint stands in the graph")
    if found:
        raise WeightsDifferError(model, found)


def module_problems(module: Any, checkpoint: Checkpoint) -> list[str]:
    """Compare a float32 torch module with the checkpoint it was loaded from.

    Problems are parameters that the checkpoint lacks, tensors that the module does not read, and other shapes or
    values.
    """
    problems, read = [], set()
    for name, values in module.state_dict().items():
        if name not in checkpoint:
            if not name.endswith(_UNREAD_ENDS):
                problems.append(f"{name}: the checkpoint has no such tensor, PyTorch filled it")
            continue
        stored = widen(checkpoint.tensor(name))
        read.add(stored.source)
        if not _same(stored.values, values.numpy()):
            problems.append(f"{name}: PyTorch's values are not the checkpoint's")
    unread = [name for name in checkpoint.names if name not in read and not name.endswith(_UNREAD_ENDS)]
    return problems + [f"{name}: nothing reads this tensor of the checkpoint" for name in unread]


def native_records(
    checkpoint: Checkpoint, graph_path: Path, weights: Sequence[Weight]
) -> tuple[list[WeightRecord], list[str]]:
    """Compare a native graph's initialisers, read from its files, with the checkpoint; return table and problems."""
    initializers = Initializers(graph_path)
    records: list[WeightRecord] = []
    placed: set[str] = set()
    known = {weight.name for weight in weights}
    problems = [f"{name}: an initialiser without a source" for name in initializers.names if name not in known]
    for weight in weights:
        values = initializers.values(weight.name)
        if not weight.sources:
            records.append(WeightRecord("", weight.name, weight.transformation, array_digest(values)))
            if not _same(values, _recomputed(weight)):
                problems.append(f"{weight.name}: not what its recipe gives ({weight.transformation})")
            continue
        stored = [checkpoint.tensor(source) for source in weight.sources]
        placed.update(weight.sources)
        for tensor, part in zip(stored, _parts(values, stored, weight.transformation), strict=True):
            records.append(
                WeightRecord(tensor.source, weight.name, weight.transformation, array_digest(widen(tensor).values))
            )
            expected = tensor if part.dtype == tensor.values.dtype else widen(tensor)
            if not _same(part, expected.values):
                problems.append(f"{weight.name}: {tensor.source} has other values in the graph than in the checkpoint")
    left = [name for name in checkpoint.names if name not in placed and not _may_be_left(name)]
    return records, problems + [f"{name}: has no place in the graph" for name in left]


def _may_be_left(name: str) -> bool:
    return name.endswith(_UNREAD_ENDS) or name.startswith(_UNUSED_STARTS)


def _recomputed(weight: Weight) -> NDArray[Any]:
    if weight.table is not None:
        theta, head_dim, n_positions, which = weight.table
        return rotary_tables(theta, head_dim, n_positions)[which]
    return np.array(weight.value, np.int64)


def _parts(values: NDArray[Any], stored: Sequence[Stored], transformation: str) -> list[NDArray[Any]]:
    """Unpack an initialiser and split it into its tensors."""
    sizes = [len(tensor.values) for tensor in stored]
    if transformation.endswith("panels"):
        values = unpack(values, sum(sizes))
    if len(stored) == 1:
        return [values]
    edges = np.cumsum([0, *sizes]).tolist()
    return [values[start:end] for start, end in itertools.pairwise(edges)]


def traced_records(module: Any, checkpoint: Checkpoint, graph_path: Path) -> tuple[list[WeightRecord], list[str]]:
    """Match a traced graph's initialisers with the module's parameters and buffers; return table and problems."""
    initializers = Initializers(graph_path)
    places: dict[str, list[str]] = {}
    for name in initializers.names:
        values = initializers.values(name)
        if values.dtype == np.float32:
            places.setdefault(array_digest(values), []).append(name)
    records, unmatched, left = [], set(places), []
    for name, values in _tensors_of(module):
        found = _found(values, places)
        unmatched.difference_update(digest for digest, _ in found)
        if found:
            source = checkpoint.tensor(name).source if name in checkpoint else ""
            digest = array_digest(values)
            records += [WeightRecord(source, place, how, digest) for key, how in found for place in places[key]]
        elif name in checkpoint and not name.startswith(_UNUSED_STARTS):
            left.append(f"{name}: has no place in the graph")
    for digest in sorted(unmatched):
        for place in places[digest]:
            if not _may_be_constant(initializers.values(place)):
                left.append(f"{place}: an initialiser without a source")
            else:
                records.append(WeightRecord("", place, "constant", digest))
    return records, left


def _may_be_constant(values: NDArray[np.float32]) -> bool:
    """Whether values may belong to a graph's form: a few, or one repeated, such as the zero bias of a norm."""
    return values.size <= _MOST_CONSTANT_VALUES or bool((values == values.flat[0]).all())


def _tensors_of(module: Any) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield every parameter and buffer of float32, tied ones under each of their names."""
    named = {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers())}
    for name, values in named.items():
        array = values.detach().numpy()
        if array.dtype == np.float32:
            yield name, array


def _found(values: NDArray[np.float32], places: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return digests and transformation of the first form in which a parameter stands in the graph; empty if none."""
    for how, pieces in _forms(values):
        digests = [array_digest(piece) for piece in pieces]
        if all(digest in places for digest in digests):
            return [(digest, how) for digest in digests]
    return []


def _forms(values: NDArray[np.float32]) -> Iterator[tuple[str, list[NDArray[np.float32]]]]:
    yield "as stored", [values]
    if values.ndim != 2:
        return
    yield "transposed", [values.T]
    yield "row 0", [values[0]]  # of BERT's segments, where all tokens are of the first
    for n in range(2, _MOST_PARTS + 1):
        if len(values) % n == 0:
            parts = np.split(values, n)
            yield f"cut into {n}, transposed", [part.T for part in parts]


def _same(left: NDArray[Any], right: NDArray[Any]) -> bool:
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    kinds = {2: np.uint16, 4: np.uint32, 8: np.uint64}
    bits = kinds[left.dtype.itemsize]
    return bool(np.array_equal(np.ascontiguousarray(left).view(bits), np.ascontiguousarray(right).view(bits)))
