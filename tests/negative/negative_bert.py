"""A BERT of two layers with random weights and all-MiniLM's own tokenizer, and exports of it that pool wrongly."""

from __future__ import annotations

import dataclasses
import importlib
import json
import shutil
from typing import TYPE_CHECKING, Any
from unittest import mock

from negative_tools import BERT, TRACED_FORM, Toy

from samevec.lock import load_lock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Pooling = Callable[..., Any]

WIDTH = 64


def make_bert(weights: Path, folder: Path) -> Toy:
    """Build and export it, mean pooling.

    Parameters
    ----------
    weights : Path
        Folder of the real model, for tokenizer and settings.
    folder : Path
    """
    synthetic: Any = importlib.import_module("samevec.export.toy.synthetic")
    snapshot = folder / "snapshot"
    shutil.copytree(weights, snapshot, ignore=shutil.ignore_patterns("*.safetensors", "*.md", "config.json"))
    config = json.loads((weights / "config.json").read_bytes())
    config |= {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 160}
    pooling = {"word_embedding_dimension": WIDTH, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    for path, record in (("config.json", config), ("1_Pooling/config.json", pooling)):
        (snapshot / path).write_text(json.dumps(record))
    synthetic.write_tensors(snapshot / "model.safetensors", synthetic.bert_tensors(config), seed=5)
    real = load_lock().model("all-minilm-l6-v2")
    entry = dataclasses.replace(real, name=BERT, source=f"local:{BERT}", dimensions=WIDTH, optional=False)
    return Toy.exported(entry, snapshot, folder)


def export_pooled(toy: Toy, pooling: Pooling, folder: Path) -> Path:
    """Export a BERT with another pooling in the graph."""
    bert, convert = (importlib.import_module(f"samevec.export.{name}") for name in ("architectures.bert", "convert"))
    with mock.patch.object(bert, "pooled_states", pooling):
        path: Path = convert.convert(toy.torch.module, toy.entry, form=TRACED_FORM, directory=folder)
    return path


def first_token(states: Any, _mask: Any, _pooling: str) -> Any:
    """Pool the first token where the mean is asked for."""
    return states[:, 0]


def mean_of_all_columns(states: Any, _mask: Any, _pooling: str) -> Any:
    """Take the mean over padding too."""
    return states.mean(1)
