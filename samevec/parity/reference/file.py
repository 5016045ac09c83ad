"""``reference.safetensors``: what PyTorch gave for cases, retrieval fixture and sweep; without torch."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from samevec.digest import canonical_json
from samevec.errors import ReferenceMissingError
from samevec.parity.limit import LimitCase
from samevec.parity.reference.torch_baseline import TorchBaseline

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from samevec.parity.cases.builtin import CaseSet

__all__ = [
    "REFERENCE_VERSION",
    "CapturedRow",
    "Reference",
    "RetrievalReference",
    "SweepReference",
    "read_reference",
    "write_reference",
]

REFERENCE_VERSION = 4

# One key: the library writes several in an order that changes from run to run, and with it the file's digest.
_METADATA_KEY = "samevec"
_TENSORS = ("ids", "offsets", "raw", "final")
_RETRIEVAL, _SWEEP = "retrieval_", "sweep_"  # before the names of the same tensors; a sweep has no final rows


@dataclass(frozen=True, slots=True)
class CapturedRow:
    """What the reference computed for one case.

    Attributes
    ----------
    ids : tuple of int
        Token ids really fed, special tokens included.
    raw : ndarray of float32, shape (width,)
        Pooled vector before any normalisation, or logits.
    final : ndarray of float32, shape (width,) or (1,)
        What sentence-transformers returned: the vector, or the score.
    """

    ids: tuple[int, ...]
    raw: NDArray[np.float32]
    final: NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True)
class RetrievalReference:
    """What the reference computed for a retrieval fixture, in the order of its cases.

    Attributes
    ----------
    fixture_digest : str
    ids : tuple of tuple of int
    raw : ndarray of float32, shape (n_cases, width)
    final : ndarray of float32, shape (n_cases, width) or (n_cases,)
    """

    fixture_digest: str
    ids: tuple[tuple[int, ...], ...]
    raw: NDArray[np.float32]
    final: NDArray[np.float32]

    @classmethod
    def from_rows(cls, rows: Sequence[CapturedRow], *, fixture_digest: str, task: str) -> RetrievalReference:
        """Put captured rows, in the order of the fixture's cases, into one record."""
        ids, raw, final = _stack(rows, task)
        return cls(fixture_digest=fixture_digest, ids=ids, raw=raw, final=final)

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepReference:
    """What the reference computed beside the cases, see :mod:`samevec.parity.sweep` and :mod:`samevec.parity.limit`.

    Attributes
    ----------
    ids : tuple of tuple of int
    raw : ndarray of float32, shape (n_rows, width)
        Each row alone.
    limit : tuple of LimitCase
    """

    ids: tuple[tuple[int, ...], ...]
    raw: NDArray[np.float32]
    limit: tuple[LimitCase, ...]


def _stack(
    rows: Sequence[CapturedRow], task: str
) -> tuple[tuple[tuple[int, ...], ...], NDArray[np.float32], NDArray[np.float32]]:
    final = np.stack([row.final for row in rows])
    ids = tuple(row.ids for row in rows)
    return ids, np.stack([row.raw for row in rows]), final[:, 0] if task == "rerank" else final


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """The reference of one model for one case set.

    Attributes
    ----------
    model, task : str
    lock_entry_digest, case_set_digest : str
    prompts : mapping of str to str
        The prompts in words, as the reference put them before the texts.
    toolchain : mapping of str to str
        Versions that computed it.
    ids : tuple of tuple of int
    raw : ndarray of float32, shape (n_cases, width)
    final : ndarray of float32, shape (n_cases, width) or (n_cases,)
    retrieval : RetrievalReference or None
        None only where a caller compares other cases; a file has it.
    sweep : SweepReference or None
        The same.
    torch_baseline : TorchBaseline or None
        PyTorch against itself; an export always measures it.
    """

    model: str
    task: str
    lock_entry_digest: str
    case_set_digest: str
    prompts: dict[str, str]
    toolchain: dict[str, str]
    ids: tuple[tuple[int, ...], ...]
    raw: NDArray[np.float32]
    final: NDArray[np.float32]
    retrieval: RetrievalReference | None = None
    sweep: SweepReference | None = None
    torch_baseline: TorchBaseline | None = None

    @classmethod
    def from_rows(
        cls,
        rows: Sequence[CapturedRow],
        *,
        model: str,
        case_set: CaseSet,
        lock_entry_digest: str,
        prompts: dict[str, str],
        toolchain: dict[str, str],
        retrieval: RetrievalReference | None = None,
        sweep: SweepReference | None = None,
    ) -> Reference:
        """Put captured rows, in the order of the cases, into one record.

        Raises
        ------
        ValueError
            There is not one row a case.
        """
        if len(rows) != len(case_set):
            raise ValueError(f"{len(rows)} rows captured for {len(case_set)} cases")
        ids, raw, final = _stack(rows, case_set.task)
        return cls(
            model=model,
            task=case_set.task,
            lock_entry_digest=lock_entry_digest,
            case_set_digest=case_set.digest,
            prompts=dict(prompts),
            toolchain=dict(toolchain),
            ids=ids,
            raw=raw,
            final=final,
            retrieval=retrieval,
            sweep=sweep,
        )

    def __len__(self) -> int:
        return len(self.ids)


def write_reference(path: Path, reference: Reference) -> None:
    """Write a reference; equal references give equal bytes.

    Parameters
    ----------
    path : Path
    reference : Reference

    Raises
    ------
    ValueError
        It lacks the rows of the retrieval fixture or of the sweep.
    """
    if reference.retrieval is None or reference.sweep is None:
        raise ValueError("the reference lacks the rows of the retrieval fixture or of the sweep")
    metadata = {
        "reference_version": REFERENCE_VERSION,
        "model": reference.model,
        "task": reference.task,
        "lock_entry_digest": reference.lock_entry_digest,
        "case_set_digest": reference.case_set_digest,
        "prompts": reference.prompts,
        "toolchain": reference.toolchain,
        "fixture_digest": reference.retrieval.fixture_digest,
        "limit": [[case.n_characters, case.n_tokens, case.digest] for case in reference.sweep.limit],
        "torch_baseline": None if reference.torch_baseline is None else reference.torch_baseline.to_dict(),
    }
    tensors = (
        _to_tensors(reference, reference.final)
        | _to_tensors(reference.retrieval, reference.retrieval.final, prefix=_RETRIEVAL)
        | _to_tensors(reference.sweep, prefix=_SWEEP)
    )
    path.write_bytes(save(tensors, metadata={_METADATA_KEY: canonical_json(metadata).decode("ascii")}))


def _to_tensors(
    rows: Reference | RetrievalReference | SweepReference,
    final: NDArray[np.float32] | None = None,
    *,
    prefix: str = "",
) -> dict[str, NDArray[Any]]:
    found: dict[str, NDArray[Any]] = {
        prefix + "ids": np.asarray([i for ids in rows.ids for i in ids], dtype=np.int64),
        prefix + "offsets": np.cumsum([0, *(len(ids) for ids in rows.ids)], dtype=np.int64),
        prefix + "raw": np.ascontiguousarray(rows.raw, dtype=np.float32),
    }
    if final is not None:
        found[prefix + "final"] = np.ascontiguousarray(final, dtype=np.float32)
    return found


def read_reference(path: Path, *, fix: str = "samevec export") -> Reference:
    """Read a reference.

    Parameters
    ----------
    path : Path
    fix : str
        The command that makes a new one, for the message.

    Raises
    ------
    ReferenceMissingError
        The file is missing, damaged or of another version.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = json.loads((file.metadata() or {})[_METADATA_KEY])
            version = metadata.pop("reference_version")
            if version == REFERENCE_VERSION:
                names = [prefix + name for prefix in ("", _RETRIEVAL) for name in _TENSORS]
                names += [_SWEEP + name for name in _TENSORS if name != "final"]
                return _from_tensors(metadata, {name: file.get_tensor(name) for name in names})
    except FileNotFoundError as error:
        raise ReferenceMissingError(f"{path}: no reference to compare with", fix=fix) from error
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise ReferenceMissingError(f"{path}: not a readable reference ({error})", fix=fix) from error
    raise ReferenceMissingError(
        f"{path}: written by another samevec (reference version {version}, this one reads {REFERENCE_VERSION})", fix=fix
    )


def _from_tensors(metadata: dict[str, Any], tensors: dict[str, NDArray[Any]]) -> Reference:
    retrieval = RetrievalReference(fixture_digest=metadata.pop("fixture_digest"), **_rows(tensors, _RETRIEVAL))
    limit = tuple(LimitCase(int(a), int(b), str(c)) for a, b, c in metadata.pop("limit"))
    sweep = SweepReference(limit=limit, **_rows(tensors, _SWEEP))
    record = metadata.pop("torch_baseline")
    baseline = None if record is None else TorchBaseline.from_dict(record)
    return Reference(**metadata, **_rows(tensors, ""), retrieval=retrieval, sweep=sweep, torch_baseline=baseline)


def _rows(tensors: dict[str, NDArray[Any]], prefix: str) -> dict[str, Any]:
    offsets, ids = tensors[prefix + "offsets"].tolist(), tensors[prefix + "ids"].tolist()
    rows = tuple(tuple(ids[a:b]) for a, b in itertools.pairwise(offsets))
    values = {name: tensors[prefix + name] for name in ("raw", "final") if prefix + name in tensors}
    if any(len(array) != len(rows) for array in values.values()):
        raise ValueError("token ids, raw and final rows differ in number")
    return {"ids": rows, **values}
