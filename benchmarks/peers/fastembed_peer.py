"""fastembed with a custom model: the plain optimum export, registered as its documentation says."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.peers.loop import main

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_NAME = "benchmark/custom"


class FastembedPeer:
    """``TextEmbedding`` and ``TextCrossEncoder`` with their own batch sizes, in arrival order."""

    batch_size: int | None = None
    padded_tokens = 0
    levels = ("final", "final")

    def prepare(self, request: dict[str, Any]) -> None:
        """Nothing to do: the files are those of the plain export."""

    def load(self, request: dict[str, Any]) -> None:
        """Register the model and load it."""
        sources = importlib.import_module("fastembed.common.model_description")
        self._is_embedder = request["task"] == "embed"
        settings: dict[str, Any] = {
            "model": _NAME,
            "sources": sources.ModelSource(hf=_NAME),
            "model_file": "model.onnx",
            # Named so that it is looked for; a reranker's graph holds its weights itself.
            "additional_files": ["model.onnx_data"] if self._is_embedder else [],
        }
        if self._is_embedder:
            kind = importlib.import_module("fastembed").TextEmbedding
            pooling = sources.PoolingType.LAST_TOKEN
            settings |= {"pooling": pooling, "normalization": True, "dim": request["options"]["dimensions"]}
        else:
            kind = importlib.import_module("fastembed.rerank.cross_encoder").TextCrossEncoder
            self.levels = ("raw", "raw")  # its rerankers apply no activation
        kind.add_custom_model(**settings)
        self._model = kind(_NAME, specific_model_path=request["work"], local_files_only=True)
        self._watch_tokenizer()

    def _watch_tokenizer(self) -> None:
        """Count padded tokens where the library makes its batches; they lie in the encodings it pads."""
        inner = self._model.model
        tokenize = inner.tokenize

        def counted(*arguments: Any, **keywords: Any) -> Any:
            encodings = tokenize(*arguments, **keywords)
            self.padded_tokens += sum(len(encoding.ids) for encoding in encodings)
            return encodings

        inner.tokenize = counted

    def raw(self, items: Sequence[Any]) -> NDArray[np.float32]:
        """Return what :meth:`final` does: the library gives nothing else."""
        return self.final(items)

    def final(self, items: Sequence[Any]) -> NDArray[np.float32]:
        """Return unit vectors or logits."""
        if self._is_embedder:
            return np.stack(list(self._model.embed(list(items))))
        return np.asarray(list(self._model.rerank_pairs(list(items))), dtype=np.float32)


if __name__ == "__main__":
    main(FastembedPeer())
