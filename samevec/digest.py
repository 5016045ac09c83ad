"""Digests: sha256 of files, and of records through one canonical JSON."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["array_digest", "canonical_json", "digest_json", "sha256_file"]

# Large enough that the hash, not the call overhead, is the cost; small enough to stay in cache.
_CHUNK_BYTES = 1 << 20


def sha256_file(path: Path, *, on_bytes: Callable[[int], None] | None = None) -> str:
    """Return the sha256 of a file's bytes as 64 lower-case hex digits; `on_bytes` gets the count of each read."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    with path.open("rb", buffering=0) as file:
        while n_bytes := file.readinto(buffer):
            digest.update(buffer[:n_bytes])
            if on_bytes is not None:
                on_bytes(n_bytes)
    return digest.hexdigest()


def array_digest(array: NDArray[Any]) -> str:
    """Return the sha256 (64 hex digits) of an array's bytes, little-endian."""
    contiguous = np.ascontiguousarray(array)
    little = contiguous.astype(contiguous.dtype.newbyteorder("<"), copy=False)
    return hashlib.sha256(little.data).hexdigest()  # no copy: a token table has hundreds of megabytes


def canonical_json(record: Any) -> bytes:
    """Return the one JSON text of a record of plain values: sorted keys, no spaces, ASCII, no NaN."""
    return json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")


def digest_json(record: Any) -> str:
    """Return ``"sha256:<64 hex>"`` of a record's canonical JSON."""
    return "sha256:" + hashlib.sha256(canonical_json(record)).hexdigest()
