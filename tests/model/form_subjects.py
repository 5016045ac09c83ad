"""Small models of every architecture and task, for comparing graph forms with PyTorch by value."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from samevec.export.toy.checkpoint import TOY_EMBEDDER, TOY_RERANKER, build_toy
from samevec.export.toy.synthetic import bert_tensors, write_tensors
from samevec.lock import load_lock
from samevec.runtime.collate import collate
from samevec.runtime.rows import TokenRow

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from samevec.lock import LockedModel

#: Architectures by task, BERT with both of its poolings.
SUBJECTS = (TOY_EMBEDDER, TOY_RERANKER, "bert mean", "bert cls", "bert reranker")

_BERT_CONFIG = {
    "vocab_size": 512,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 160,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
}
# Boosted until scores differ from key to key and segments weigh more than the tolerance.
_BERT_BOOSTS = {"self.query": 2, "self.key": 2, "self.value": 2, "output.dense": 1, "pooler.dense": 1, "classifier": 2}


@dataclass(frozen=True, slots=True)
class Subject:
    """A PyTorch module, the files it was loaded from, and what the lock would say of it."""

    name: str
    entry: LockedModel
    module: Any
    snapshot: Path

    def rows(self, lengths: Sequence[int], *, seed: int = 5) -> list[TokenRow]:
        """Rows of random ids, the second half of each in the second segment."""
        stream, n_ids = np.random.default_rng(seed), int(self.module.config.vocab_size)
        return [
            TokenRow(tuple(stream.integers(0, n_ids, n).tolist()), tuple(int(2 * i >= n) for i in range(n)))
            for n in lengths
        ]

    def reference(self, rows: Sequence[TokenRow]) -> NDArray[np.float32]:
        """Return what PyTorch gives for each row alone, so that no padding is seen."""
        torch = pytest.importorskip("torch", reason="needs the export extra")
        from samevec.export.architectures import get_architecture  # noqa: PLC0415 - needs torch

        architecture, found = get_architecture(self.entry), []
        with torch.inference_mode():
            for row in rows:
                feed = collate([row], pad_token_id=0, pad_to_multiple=1).as_feed(architecture.input_names)
                tensors = {name: torch.from_numpy(array) for name, array in feed.items()}
                found.append(self._pool(self.module(**tensors)).numpy()[0])
        return np.stack(found)

    def _pool(self, output: Any) -> Any:
        """Pool a row that has no padding."""
        if self.entry.task == "rerank":
            return output.logits
        states = output.last_hidden_state
        return {"last_token": states[:, -1], "cls": states[:, 0], "mean": states.mean(1)}[self.entry.pooling]


def make_subject(name: str, folder: Path) -> Subject:
    """Build a model of :data:`SUBJECTS` and load it in PyTorch."""
    if not name.startswith("bert"):
        from samevec.parity.reference.pytorch import load_reference_model  # noqa: PLC0415 - needs torch

        entry = load_lock("toy").model(name)
        build_toy(name, folder / "snapshot")
        return Subject(name, entry, load_reference_model(folder / "snapshot", entry).module, folder / "snapshot")
    entry = _bert_entry(name)
    return Subject(name, entry, _bert_module(entry, folder), folder / "bert")


def _bert_entry(name: str) -> LockedModel:
    lock = load_lock()
    if name == "bert reranker":
        return replace(lock.model("ms-marco-minilm-l6-v2"), max_tokens=512)
    pooling: Any = name.partition(" ")[2]
    return replace(lock.model("all-minilm-l6-v2"), dimensions=64, max_tokens=512, pooling=pooling)


def _bert_module(entry: LockedModel, folder: Path) -> Any:
    """Load random weights as transformers would: a tensor that is missing or of another shape would be drawn anew."""
    transformers = pytest.importorskip("transformers", reason="needs the export extra")
    torch = pytest.importorskip("torch", reason="needs the export extra")
    reranks = entry.task == "rerank"
    names = {"architectures": ["BertForSequenceClassification" if reranks else "BertModel"]}
    config = transformers.BertConfig(**_BERT_CONFIG, num_labels=1 if reranks else 2, **names)
    config.save_pretrained(folder / "bert")
    specs = bert_tensors(config.to_dict(), boosts=_BERT_BOOSTS)
    write_tensors(folder / "bert" / "model.safetensors", specs, seed=7)
    kind = transformers.BertForSequenceClassification if reranks else transformers.BertModel
    module, told = kind.from_pretrained(folder / "bert", dtype=torch.float32, output_loading_info=True)
    assert not told["missing_keys"], told
    assert not told["mismatched_keys"], told
    return module.eval()
