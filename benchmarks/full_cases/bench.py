"""Where the cases find models, the library's and PyTorch's, and servers in this process."""

from __future__ import annotations

import functools
import os
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.workloads import EMBEDDER, RERANKER
from samevec.load import load_embedder, load_reranker
from samevec.lock import load_lock
from samevec.parity.compare import compare
from samevec.server.lifecycle import running_server
from samevec.server.settings import ServedModel, ServerSettings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from benchmarks.setup import Models
    from samevec.runtime.embedder import Embedder
    from samevec.runtime.reranker import Reranker

    Array = NDArray[np.float32]

__all__ = ["LIMIT_TOKENS", "Bench", "cpu_s", "shortened"]

#: Of models that are served with a short limit.
LIMIT_TOKENS = 64


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Where the models lie, what was asked for, and the library's models and PyTorch's, each loaded when first used."""

    models: Models
    profile: str
    n_texts: int
    idle_s: float
    threads_requests: int
    length_step: int

    @functools.cached_property
    def embedder(self) -> Embedder:
        """The library's."""
        return load_embedder(EMBEDDER, profile=self.profile, home=self.models.home, lock=self.models.lock_path)

    @functools.cached_property
    def reranker(self) -> Reranker:
        """The library's."""
        return load_reranker(RERANKER, profile=self.profile, home=self.models.home, lock=self.models.lock_path)

    def reference(self, items: Sequence[Any]) -> Array:
        """Compute texts, or pairs, with PyTorch, and let the model go again."""
        from samevec.parity.reference.pytorch import load_reference_model  # noqa: PLC0415 - loads torch

        name = EMBEDDER if isinstance(items[0], str) else RERANKER
        model = load_reference_model(self.models.snapshots / name, load_lock(self.models.lock_path).model(name))
        rows = model.capture_texts(items) if name == EMBEDDER else model.capture_pairs(items)
        return np.stack([row.final for row in rows])

    def outcome(self, reference: Array, candidate: Array) -> dict[str, Any]:
        """Compare with the lock's tolerance."""
        tolerance = load_lock(self.models.lock_path).tolerance
        found = compare(reference.reshape(len(reference), -1), candidate.reshape(len(reference), -1), tolerance)
        return {"rows": len(reference), "max_abs": float(found.max_abs), "within_tolerance": bool(found.passed)}

    @contextmanager
    def limited(self, *models: Embedder | Reranker, **settings: Any) -> Iterator[tuple[str, Path]]:
        """Serve models from this process; gives the URL and the socket's path."""
        folder = Path(f"/tmp/samevec-cases-{os.getpid()}")
        folder.mkdir(mode=0o700)
        try:
            chosen = ServerSettings(port=0, socket=folder / "s.sock", **settings)
            with running_server([ServedModel(model=model) for model in models], chosen) as endpoints:
                yield endpoints.url, folder / "s.sock"
        finally:
            folder.rmdir()


def shortened(model: Any) -> Any:
    """Return the model with a limit of :data:`LIMIT_TOKENS`."""
    return replace(model, tokenizer=replace(model.tokenizer, max_tokens=LIMIT_TOKENS))


def cpu_s(pid: int) -> float:
    """Return the processor time a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
