"""A session for each of a few fixed shapes, for a provider that compiles one program a shape."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from samevec.machine import available_memory_bytes
from samevec.runtime.batching.buckets import bucket_shapes, cover, fill_bucket, most_open_shapes, stale_entries
from samevec.runtime.batching.plan import MAX_RUN_TOKENS
from samevec.runtime.sessions.base import Session
from samevec.runtime.sessions.onnx import OnnxSession

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from samevec.runtime.batching.buckets import Bucket
    from samevec.runtime.cancel import CancelToken
    from samevec.runtime.collate import Features
    from samevec.runtime.providers.profiles import Profile

__all__ = ["CACHE_BYTES", "StaticShapeSession", "open_session", "trim_cache"]

#: Most bytes of compiled programs that are kept beside one artifact; each holds a copy of the weights.
CACHE_BYTES = 16 * 2**30


class StaticShapeSession(Session):
    """Pads every run to compiled shapes and cuts the padding off again. Safe between threads; runs go one at a time.

    Parameters
    ----------
    shapes : sequence of Bucket
    open_shape : callable
        Opens a session that takes exactly this shape.
    most_open : int
        Sessions kept; the one that was used longest ago is closed for another.
    """

    def __init__(self, shapes: Sequence[Bucket], open_shape: Callable[[Bucket], Session], *, most_open: int) -> None:
        self._shapes = tuple(shapes)
        self._open_shape = open_shape
        self._most_open = most_open
        self._open: OrderedDict[Bucket, Session] = OrderedDict()
        self._lock = threading.Lock()
        first = self._session(min(self._shapes))  # what cannot be loaded is found at load
        self._provider, self._provider_options = first.provider, first.provider_options

    @property
    def provider(self) -> str:
        """The execution provider in use."""
        return self._provider

    @property
    def provider_options(self) -> dict[str, str]:
        """The options of that provider."""
        return dict(self._provider_options)

    @property
    def open_shapes(self) -> tuple[Bucket, ...]:
        """Shapes that are loaded, the one used last at the end."""
        return tuple(self._open)

    def run(
        self, features: Features, *, cancel: CancelToken | None = None, keep_memory: bool = False
    ) -> NDArray[np.float32]:
        """Compute one microbatch, see :class:`samevec.runtime.sessions.base.Session`."""
        pieces = cover(features.attention_mask.sum(axis=1).tolist(), self._shapes)
        parts = []
        with self._lock:
            for piece in pieces:
                raw = self._session(piece.bucket).run(
                    fill_bucket(features, piece), cancel=cancel, keep_memory=keep_memory
                )
                parts.append(raw[: piece.stop - piece.start])
        return np.concatenate(parts)

    def _session(self, bucket: Bucket) -> Session:
        if bucket not in self._open:
            while len(self._open) >= self._most_open:
                self._open.popitem(last=False)
            self._open[bucket] = self._open_shape(bucket)
        self._open.move_to_end(bucket)
        return self._open[bucket]


def trim_cache(folder: Path, *, most_bytes: int, keep: str | None = None) -> list[str]:
    """Remove the compiled programs used longest ago until a folder is within its bound.

    Parameters
    ----------
    folder : Path
        One subfolder a version of everything that a program depends on, in each of them one a shape. Versions that
        nothing uses any more go by the same rule, since theirs were used longest ago.
    most_bytes : int
    keep : str, optional
        The program in use, ``"<version>/<shape>"``.

    Returns
    -------
    list of str
        Programs that were removed, named in the same way.
    """
    if not folder.is_dir():
        return []
    programs = [path for version in folder.iterdir() if version.is_dir() for path in version.iterdir() if path.is_dir()]
    entries = [(f"{path.parent.name}/{path.name}", _folder_bytes(path), path.stat().st_mtime) for path in programs]
    gone = stale_entries(entries, most_bytes=most_bytes, keep=keep)
    for name in gone:
        shutil.rmtree(folder / name, ignore_errors=True)
        with suppress(OSError):  # others are in it
            (folder / name).parent.rmdir()
    return gone


def _folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def open_session(
    graph_path: Path,
    profile: Profile,
    *,
    max_tokens: int,
    n_threads: int | None = None,
    cache: Path | None = None,
) -> Session:
    """Open a graph as its profile says: one session, or one for each of a few shapes.

    Parameters
    ----------
    graph_path, profile, n_threads
        As for :class:`samevec.runtime.sessions.onnx.OnnxSession`.
    max_tokens : int
        Longest row.
    cache : Path, optional
        Where compiled programs are kept, a subfolder a shape; nowhere when not given. It lies in a folder of such
        caches, one for each version of what a program depends on; all of them together keep to the bound.

    Raises
    ------
    InferenceError
        The provider is not there, or the graph cannot be loaded.
    """
    if not profile.static_shapes:
        return OnnxSession(graph_path, profile, n_threads=n_threads)

    def open_shape(bucket: Bucket) -> Session:
        options = {}
        if cache is not None:
            name = f"{bucket.n_rows}x{bucket.n_tokens}"
            (cache / name).mkdir(parents=True, exist_ok=True)
            os.utime(cache / name, (now := time.time(), now))
            trim_cache(cache.parent, most_bytes=CACHE_BYTES, keep=f"{cache.name}/{name}")
            # A folder a shape: CoreML's key comes from the graph's path, which is the same for all of them.
            options = {"ModelCacheDirectory": str(cache / name)}
        return OnnxSession(
            graph_path, profile, n_threads=n_threads, shape=(bucket.n_rows, bucket.n_tokens), more_options=options
        )

    shapes = bucket_shapes(max_tokens, token_budget=MAX_RUN_TOKENS)
    weights_bytes = sum(path.stat().st_size for path in graph_path.parent.glob(f"{graph_path.name}*"))
    most_open = most_open_shapes(len(shapes), weights_bytes=weights_bytes, available_bytes=available_memory_bytes())
    return StaticShapeSession(shapes, open_shape, most_open=most_open)
