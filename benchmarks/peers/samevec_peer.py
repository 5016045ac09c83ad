"""samevec itself, through its public API, under the same protocol as its peers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.peers.loop import Unavailable, main

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from samevec.runtime.collate import Features
    from samevec.runtime.embedder import Embedder
    from samevec.runtime.reranker import Reranker


class SamevecPeer:
    """``load_embedder`` and ``load_reranker``: the gate must have passed, unless the run says it may not have."""

    batch_size: int | None = None
    padded_tokens = 0
    levels = ("raw", "final")
    _model: Embedder | Reranker

    def prepare(self, request: dict[str, Any]) -> None:
        """Nothing to do: artifacts are exported by the command line."""

    def load(self, request: dict[str, Any]) -> None:
        """Load the model under a profile, every file verified."""
        from samevec.runtime.providers.profiles import PROFILES  # noqa: PLC0415  counted as load time

        options = request["options"]
        if options["profile"] not in PROFILES:
            raise Unavailable(f"this samevec has no profile {options['profile']}")
        self._model = self._open(request)

    @staticmethod
    def _open(request: dict[str, Any]) -> Embedder | Reranker:
        from samevec.load import load_embedder, load_reranker  # noqa: PLC0415
        from samevec.lock import load_lock  # noqa: PLC0415
        from samevec.opening import open_candidate  # noqa: PLC0415

        options = request["options"]
        home, lock = Path(options["home"]), Path(options["lock"])
        if options["unproved"]:
            entry = load_lock(lock).model(request["model"])
            return open_candidate(entry, profile=options["profile"], home=home).model
        load = load_embedder if request["task"] == "embed" else load_reranker
        return load(request["model"], profile=options["profile"], home=home, lock=lock)

    def raw(self, items: Sequence[Any]) -> NDArray[np.float32]:
        """Return pooled vectors or logits, shape (n, width)."""
        return self._model.compute(self._model.tokenize(items), recorder=self._record)

    def _record(self, indices: Sequence[int], features: Features) -> None:
        self.padded_tokens += features.shape[0] * features.shape[1]

    def final(self, items: Sequence[Any]) -> NDArray[np.float32]:
        """Return what callers get."""
        return self._model.encode(items) if hasattr(self._model, "encode") else self._model.score(items)


if __name__ == "__main__":
    main(SamevecPeer())
