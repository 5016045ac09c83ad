"""The plain optimum export run by hand: an ONNX Runtime session as it comes, and a loop over batches."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from benchmarks.peers.loop import main

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_TASKS = {"embed": "feature-extraction", "rerank": "text-classification"}
_ROWS = 32
_BATCH_TOKENS = 4096
_LEAST_SHARE = 0.8


class OnnxRuntimePeer:
    """Right padding, last-token pooling and normalisation in numpy, as people write it themselves."""

    batch_size: int | None = None
    padded_tokens = 0
    levels = ("raw", "final")

    def prepare(self, request: dict[str, Any]) -> None:
        """Export with optimum's own defaults, in float32."""
        export = importlib.import_module("optimum.exporters.onnx").main_export
        export(request["snapshot"], output=request["work"], task=_TASKS[request["task"]], dtype="fp32", device="cpu")

    def load(self, request: dict[str, Any]) -> None:
        """Load tokenizer and session, everything at its default."""
        ort = importlib.import_module("onnxruntime")
        tokenizers = importlib.import_module("tokenizers")
        self._grouping: str = request["options"]["grouping"]
        self._is_embedder = request["task"] == "embed"
        snapshot = Path(request["snapshot"])
        self._tokenizer = tokenizers.Tokenizer.from_file(str(snapshot / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._pad_token_id = json.loads((snapshot / "config.json").read_bytes()).get("pad_token_id") or 0
        graph = str(Path(request["work"]) / "model.onnx")
        self._session = ort.InferenceSession(graph, providers=["CPUExecutionProvider"])
        self._inputs = [value.name for value in self._session.get_inputs()]

    def raw(self, items: Sequence[Any]) -> NDArray[np.float32]:
        """Return pooled vectors or logits."""
        encodings = self._tokenizer.encode_batch(list(items))
        rows = [encoding.ids for encoding in encodings]
        outputs: list[Any] = [None] * len(rows)
        for batch in _groups([len(row) for row in rows], self._grouping):
            for position, output in zip(batch, self._run([rows[i] for i in batch]), strict=True):
                outputs[position] = output
        return np.stack(outputs)

    def final(self, items: Sequence[Any]) -> NDArray[np.float32]:
        """Return unit vectors or sigmoid scores."""
        raw = self.raw(items)
        if self._is_embedder:
            return cast("NDArray[np.float32]", raw / np.linalg.norm(raw, axis=1, keepdims=True))
        return cast("NDArray[np.float32]", 1 / (1 + np.exp(-raw[:, 0])))

    def _run(self, rows: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        longest = max(len(row) for row in rows)
        ids = np.full((len(rows), longest), self._pad_token_id, dtype=np.int64)
        mask = np.zeros_like(ids)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = row
            mask[i, : len(row)] = 1
        self.padded_tokens += ids.size
        positions = np.broadcast_to(np.arange(longest, dtype=np.int64), ids.shape)
        named = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
        output = self._session.run(None, {name: named[name] for name in self._inputs})[0]
        if not self._is_embedder:
            return cast("NDArray[np.float32]", output)
        return cast("NDArray[np.float32]", output[np.arange(len(rows)), mask.sum(axis=1) - 1])


def _groups(lengths: Sequence[int], grouping: str) -> list[list[int]]:
    """Cut positions into batches: 32 at a time as they come, or sorted and of near-equal length."""
    if grouping == "arrival":
        return [list(range(start, min(start + _ROWS, len(lengths)))) for start in range(0, len(lengths), _ROWS)]
    groups: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if groups:
            longest, n_rows = lengths[groups[-1][0]], len(groups[-1]) + 1
            if n_rows <= _ROWS and n_rows * longest <= _BATCH_TOKENS and lengths[i] >= _LEAST_SHARE * longest:
                groups[-1].append(i)
                continue
        groups.append([i])
    return groups


if __name__ == "__main__":
    main(OnnxRuntimePeer())
