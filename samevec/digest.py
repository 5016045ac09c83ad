"""Digests: sha256 of files, and of records through one canonical JSON."""

from __future__ import annotations

import hashlib
import json
import threading
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from io import FileIO
    from pathlib import Path

__all__ = ["ChunkedDigest", "canonical_json", "chunked_sha256", "digest_json", "sha256_file"]

# Large enough that the hash, not the call overhead, is the cost; small enough to stay in cache.
_CHUNK_BYTES = 1 << 20
_PARALLEL_BYTES = 64 << 20


def sha256_file(path: Path, *, on_bytes: Callable[[int], None] | None = None) -> str:
    """Return the sha256 of a file's bytes.

    Parameters
    ----------
    path : Path
    on_bytes : callable, optional
        Called with the number of bytes read since the last call, for progress.

    Returns
    -------
    str
        64 lower-case hex digits.

    Raises
    ------
    OSError
        The file cannot be read.
    """
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    with path.open("rb", buffering=0) as file:
        while n_bytes := file.readinto(buffer):
            digest.update(buffer[:n_bytes])
            if on_bytes is not None:
                on_bytes(n_bytes)
    return digest.hexdigest()


class ChunkedDigest:
    """One digest of a large file, its chunks hashed by threads while their owner does something else.

    Leaving the ``with`` block gives up what was not asked for; the threads end within a megabyte, and none of them
    keeps a process alive.

    Parameters
    ----------
    path : Path
    skip : sequence of (int, int)
        Start and length of ranges that are left out, in file order and apart from one another.

    Raises
    ------
    OSError
        The file is not there.
    """

    def __init__(self, path: Path, *, skip: Sequence[tuple[int, int]] = ()) -> None:
        self._path = path
        self._size_bytes = path.stat().st_size
        self._chunks = tuple(_chunks(self._size_bytes, skip))
        self._digests = [b""] * len(self._chunks)
        self._todo: SimpleQueue[int] = SimpleQueue()
        for index in range(len(self._chunks)):
            self._todo.put(index)
        self._threads: list[threading.Thread] = []
        self._given_up = threading.Event()
        self._problem: OSError | None = None

    def __enter__(self) -> ChunkedDigest:
        return self

    def __exit__(self, *_: object) -> None:
        self.give_up()

    def give_up(self) -> None:
        """Have the threads end soon; the digest is not wanted any more."""
        self._given_up.set()

    def begin(self, n_threads: int) -> None:
        """Hash with this many threads, those at work included; hashlib releases the interpreter lock."""
        while len(self._threads) < min(n_threads, len(self._chunks)):
            # Daemons: SIGTERM while a model loads must end the process, not wait for gigabytes to be hashed.
            self._threads.append(threading.Thread(target=self._work, name="samevec-digest", daemon=True))
            self._threads[-1].start()

    def result(self, n_threads: int = 4) -> str:
        """Wait for the digest, see :func:`chunked_sha256`."""
        self.begin(n_threads)
        for thread in self._threads:
            thread.join()
        if self._problem is not None:
            raise self._problem
        whole = hashlib.sha256(f"{self._size_bytes}".encode())
        for (start, length), digest in zip(self._chunks, self._digests, strict=True):
            whole.update(f";{start}+{length}:".encode() + digest)
        return "chunked-sha256:" + whole.hexdigest()

    def _work(self) -> None:
        buffer = memoryview(bytearray(_CHUNK_BYTES))
        try:
            with self._path.open("rb", buffering=0) as file:
                while not self._given_up.is_set():
                    index = self._todo.get_nowait()
                    self._digests[index] = self._digest_chunk(file, buffer, *self._chunks[index])
        except Empty:
            return
        except OSError as error:
            self._problem = error

    def _digest_chunk(self, file: FileIO, buffer: memoryview, start: int, left: int) -> bytes:
        digest = hashlib.sha256()
        file.seek(start)
        while left and not self._given_up.is_set() and (n_bytes := file.readinto(buffer[:left])):
            digest.update(buffer[:n_bytes])
            left -= n_bytes
        return digest.digest()


def _chunks(size_bytes: int, skip: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield start and length of what is hashed: everything but the ranges to skip, at most 64 MiB at a time."""
    start = 0
    for skip_start, skip_length in (*skip, (size_bytes, 0)):
        if not start <= skip_start <= skip_start + skip_length <= size_bytes:
            raise ValueError(f"cannot skip {skip_length} bytes from {skip_start} of {size_bytes}, after {start}")
        for chunk in range(start, skip_start, _PARALLEL_BYTES):
            yield chunk, min(_PARALLEL_BYTES, skip_start - chunk)
        start = skip_start + skip_length


def chunked_sha256(path: Path, *, skip: Sequence[tuple[int, int]] = (), n_threads: int = 4) -> str:
    """Return one digest of a large file, its chunks hashed side by side.

    Parameters
    ----------
    path : Path
    skip : sequence of (int, int)
        As for :class:`ChunkedDigest`.
    n_threads : int

    Returns
    -------
    str
        ``"chunked-sha256:<64 hex>"``: sha256 over the file's length and, for each chunk in order, its place and its
        sha256. It is for files that this machine made for itself; published files have a plain sha256, which other
        tools can check.

    Raises
    ------
    OSError
        The file cannot be read.
    ValueError
        The ranges to skip are not in order or lie outside the file.
    """
    with ChunkedDigest(path, skip=skip) as digest:
        return digest.result(n_threads)


def canonical_json(record: Any) -> bytes:
    """Return the one JSON text of a record: sorted keys, no spaces, ASCII, no NaN.

    Parameters
    ----------
    record : Any
        Made of dict, list, str, int, float, bool and None.

    Returns
    -------
    bytes
    """
    return json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")


def digest_json(record: Any) -> str:
    """Return ``"sha256:<64 hex>"`` of a record's canonical JSON."""
    return "sha256:" + hashlib.sha256(canonical_json(record)).hexdigest()
