"""``reference.safetensors``: what PyTorch gave for the built-in cases. Written and read without torch."""

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

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from samevec.parity.cases import CaseSet

__all__ = ["REFERENCE_VERSION", "CapturedRow", "Reference", "read_reference", "write_reference"]

REFERENCE_VERSION = 1

# One key: the library writes several in an order that changes from run to run, and with it the file's digest.
_METADATA_KEY = "samevec"


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
    ) -> Reference:
        """Put captured rows, in the order of the cases, into one record.

        Raises
        ------
        ValueError
            There is not one row a case.
        """
        if len(rows) != len(case_set):
            raise ValueError(f"{len(rows)} rows captured for {len(case_set)} cases")
        final = np.stack([row.final for row in rows])
        return cls(
            model=model,
            task=case_set.task,
            lock_entry_digest=lock_entry_digest,
            case_set_digest=case_set.digest,
            prompts=dict(prompts),
            toolchain=dict(toolchain),
            ids=tuple(row.ids for row in rows),
            raw=np.stack([row.raw for row in rows]),
            final=final[:, 0] if case_set.task == "rerank" else final,
        )

    def __len__(self) -> int:
        return len(self.ids)


def write_reference(path: Path, reference: Reference) -> None:
    """Write a reference; equal references give equal bytes.

    Parameters
    ----------
    path : Path
    reference : Reference
    """
    metadata = {
        "reference_version": REFERENCE_VERSION,
        "model": reference.model,
        "task": reference.task,
        "lock_entry_digest": reference.lock_entry_digest,
        "case_set_digest": reference.case_set_digest,
        "prompts": reference.prompts,
        "toolchain": reference.toolchain,
    }
    tensors: dict[str, NDArray[Any]] = {
        "ids": np.asarray([i for ids in reference.ids for i in ids], dtype=np.int64),
        "offsets": np.cumsum([0, *(len(ids) for ids in reference.ids)], dtype=np.int64),
        "raw": np.ascontiguousarray(reference.raw, dtype=np.float32),
        "final": np.ascontiguousarray(reference.final, dtype=np.float32),
    }
    path.write_bytes(save(tensors, metadata={_METADATA_KEY: canonical_json(metadata).decode("ascii")}))


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
            tensors = {name: file.get_tensor(name) for name in ("ids", "offsets", "raw", "final")}
        return _from_tensors(metadata, tensors)
    except FileNotFoundError as error:
        raise ReferenceMissingError(f"{path}: no reference to compare with", fix=fix) from error
    except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
        raise ReferenceMissingError(f"{path}: not a readable reference ({error})", fix=fix) from error


def _from_tensors(metadata: dict[str, Any], tensors: dict[str, NDArray[Any]]) -> Reference:
    version = metadata.pop("reference_version")
    if version != REFERENCE_VERSION:
        raise ValueError(f"reference_version {version} is not {REFERENCE_VERSION}")
    offsets, ids = tensors["offsets"].tolist(), tensors["ids"].tolist()
    rows = tuple(tuple(ids[a:b]) for a, b in itertools.pairwise(offsets))
    if not len(rows) == len(tensors["raw"]) == len(tensors["final"]):
        raise ValueError("token ids, raw and final rows differ in number")
    return Reference(**metadata, ids=rows, raw=tensors["raw"], final=tensors["final"])
