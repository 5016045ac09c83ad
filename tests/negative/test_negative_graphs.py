"""Wrong graphs and weights, each refused by the cell that its test names.

A number after ``by=`` is the least size of the effect, in allowances of the frozen tolerance: a third or less of what
was measured on the toy pair's own weights. No effect stays inside the tolerance there, so none needs other weights.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any
from unittest import mock

import negative_graphs as graphs
import numpy as np
import onnx
import pytest
from negative_tools import (
    EMBEDDER,
    PAD_TOKENS,
    RERANKER,
    TRACED_FORM,
    cell_of,
    graph_session,
    quantised,
    require_agreed,
    require_refused,
)
from onnxruntime.transformers.float16 import convert_float_to_float16

from samevec.parity.cases.builtin import CaseSet, PairCase, TextCase

if TYPE_CHECKING:
    from pathlib import Path

    from negative_tools import Toy
    from numpy.typing import NDArray

pytest_plugins = ("negative_fixtures",)
pytestmark = pytest.mark.model

END_TOKEN = 256
#: The raw level of each model, and a norm in the middle of it.
RAW = {EMBEDDER: "raw", RERANKER: "logits"}
NORM = {EMBEDDER: "layers.1.input_layernorm.weight", RERANKER: "model.layers.2.mlp_norm.weight"}
BOTH = pytest.mark.parametrize("name", [EMBEDDER, RERANKER])


def both(embedder: float, reranker: float) -> pytest.MarkDecorator:
    """Both models, each with its own least size of the effect."""
    return pytest.mark.parametrize(("name", "by"), [(EMBEDDER, embedder), (RERANKER, reranker)])


def unchanged(_model: onnx.ModelProto) -> None:
    """Edit nothing."""


@BOTH
def test_a_graph_that_was_only_rewritten_passes(name: str, toys: dict[str, Toy], tmp_path: Path) -> None:
    toy = toys[name]
    verdict = toy.judge(toy.model(toy.edited(unchanged, tmp_path)))
    assert verdict.failures == ()


def test_first_token_pooling(embedder: Toy, tmp_path: Path) -> None:
    verdict = embedder.judge(embedder.model(embedder.edited(graphs.pool_first_token, tmp_path)))
    require_refused(verdict, "raw/alone", "normalised/alone", "prefix_256/alone", by=500)


def test_mean_pooling(embedder: Toy, tmp_path: Path) -> None:
    """Transformers' own forward with a mean instead of the last token, exported as a user would."""
    verdict = embedder.judge(embedder.model(graph_session(export_mean(embedder, tmp_path))))
    require_refused(verdict, "raw/alone", "raw/long_among_short", by=500)


def export_mean(toy: Toy, folder: Path) -> Path:
    convert, qwen3 = (importlib.import_module(f"samevec.export.{name}") for name in ("convert", "architectures.qwen3"))

    def mean(states: Any, mask: Any) -> Any:
        weights = mask.unsqueeze(-1).to(states.dtype)
        return (states * weights).sum(1) / weights.sum(1)

    with mock.patch.object(qwen3, "last_token", mean):
        path: Path = convert.convert(toy.torch.module, toy.entry, form="plain", directory=folder)
    return path


def test_first_token_head(reranker: Toy, tmp_path: Path) -> None:
    verdict = reranker.judge(reranker.model(reranker.edited(graphs.pool_head_first_token, tmp_path)))
    require_refused(verdict, "logits/alone", by=500)


def test_pooling_at_the_last_column(embedder: Toy, tmp_path: Path) -> None:
    verdict = embedder.judge(embedder.model(embedder.edited(graphs.pool_last_column, tmp_path)))
    require_refused(verdict, "raw/alone", "raw/long_among_short", by=500)  # alone: rows are padded to a multiple of 4


@pytest.mark.parametrize(
    ("name", "edit", "by"),
    [(EMBEDDER, graphs.pool_last_column, 5000), (RERANKER, graphs.pool_padding_too, 50)],
)
def test_o06_right_unpadded_and_wrong_padded(
    name: str, edit: graphs.Edit, by: float, toys: dict[str, Toy], tmp_path: Path
) -> None:
    """Without the multiple of 4 nothing is padded where a text is alone: only company shows it."""
    toy = toys[name]
    verdict = toy.judge(toy.model(toy.edited(edit, tmp_path), pad_to_multiple=1))
    require_agreed(verdict, f"{RAW[name]}/alone", f"{RAW[name]}/equal_lengths")
    require_refused(verdict, f"{RAW[name]}/batch_8", f"{RAW[name]}/long_among_short", by=by)


def test_dropped_attention_mask(reranker: Toy, tmp_path: Path) -> None:
    session = reranker.edited(graphs.drop_attention_mask, tmp_path)
    verdict = reranker.judge(reranker.model(session))
    require_refused(verdict, "logits/batch_8", "logits/long_among_short", by=200)


def test_dropped_attention_mask_without_the_multiple_of_4(reranker: Toy, tmp_path: Path) -> None:
    session = reranker.edited(graphs.drop_attention_mask, tmp_path)
    verdict = reranker.judge(reranker.model(session, pad_to_multiple=1))
    require_agreed(verdict, "logits/alone")
    require_refused(verdict, "logits/long_among_short", by=200)


def test_mask_from_pad_ids_where_the_end_token_pads(embedder: Toy, tmp_path: Path) -> None:
    verdict = embedder.judge(embedder.model(embedder.edited(graphs.mask_from_ids(END_TOKEN), tmp_path)))
    require_refused(verdict, "raw/alone", by=5000)


PAD_CASES = {
    EMBEDDER: CaseSet(task="embed", texts=(TextCase(text="Stop! Go!", tag="pad id", quick=True),)),
    RERANKER: CaseSet(task="rerank", pairs=(PairCase(query="x", document="[PAD] [PAD] x", tag="pad id", quick=True),)),
}


@BOTH
def test_mask_from_pad_ids_where_a_text_holds_one(name: str, toys: dict[str, Toy], tmp_path: Path) -> None:
    """The embedder pads with 0, which is an exclamation mark; the reranker with what a text can spell as [PAD]."""
    toy = toys[name].with_cases(PAD_CASES[name])
    verdict = toy.judge(toy.model(toy.edited(graphs.mask_from_ids(PAD_TOKENS[name]), tmp_path)))
    require_refused(verdict, f"{RAW[name]}/alone", f"{RAW[name]}/default", by=200)
    (failure,) = [failure for failure in verdict.failures if failure.startswith(f"{RAW[name]}/alone: ")]
    assert failure.endswith("(pad id)")


@BOTH
def test_mask_from_pad_ids_with_the_built_in_cases(name: str, toys: dict[str, Toy], tmp_path: Path) -> None:
    toy = toys[name]
    verdict = toy.judge(toy.model(toy.edited(graphs.mask_from_ids(PAD_TOKENS[name]), tmp_path)))
    require_refused(verdict, f"{RAW[name]}/alone", by=200)


def test_double_sigmoid_in_the_graph(reranker: Toy, tmp_path: Path) -> None:
    verdict = reranker.judge(reranker.model(reranker.edited(graphs.add_sigmoid, tmp_path)))
    require_refused(verdict, "logits/alone", "scores/alone", by=500)


@pytest.mark.parametrize("n_tokens", [63, 65])
def test_window_off_by_one(n_tokens: int, reranker: Toy, tmp_path: Path) -> None:
    """Only pairs longer than the window of 64 tokens either side can show it."""
    verdict = reranker.judge(reranker.model(reranker.edited(graphs.half_window(n_tokens), tmp_path)))
    require_refused(verdict, "logits/alone", by=7)
    comparison = cell_of(verdict, "logits/alone").comparison
    assert comparison is not None
    lengths = [len(reranker.reference.ids[row]) for row in comparison.failing_rows]
    assert min(lengths) > n_tokens


def test_key_heads_shared_in_the_wrong_order(embedder: Toy, tmp_path: Path) -> None:
    verdict = embedder.judge(embedder.model(embedder.edited(graphs.tile_key_heads, tmp_path)))
    require_refused(verdict, "raw/alone", by=500)


@both(200, 13)
def test_one_norm_scaled(name: str, by: float, toys: dict[str, Toy], tmp_path: Path) -> None:
    def scale(values: NDArray[np.float32]) -> NDArray[np.float32]:
        return values * np.float32(1.05)

    toy = toys[name]
    verdict = toy.judge(toy.model(toy.edited(graphs.change_weight(NORM[name], scale), tmp_path)))
    require_refused(verdict, f"{RAW[name]}/alone", by=by)


@both(1000, 9)
def test_one_zeroed_block(name: str, by: float, toys: dict[str, Toy], tmp_path: Path) -> None:
    """4 KiB of 12 MiB: what 1 MiB would be in a model of 3 GiB."""
    toy = toys[name]
    verdict = toy.judge(toy.model(toy.edited(graphs.zero_page, tmp_path)))
    require_refused(verdict, f"{RAW[name]}/alone", by=by)


@both(200, 50)
def test_int8_dynamic_quantisation(name: str, by: float, toys: dict[str, Toy], tmp_path: Path) -> None:
    toy = toys[name]
    verdict = toy.judge(toy.model(graph_session(quantised(toy.graph_path, tmp_path))))
    require_refused(verdict, f"{RAW[name]}/alone", by=by)


@both(3, 1.4)
def test_fp16_computation(name: str, by: float, toys: dict[str, Toy], tmp_path: Path) -> None:
    """ONNX Runtime's own converter: weights and everything computed in half precision.

    Of all controls the nearest to the tolerance: 12 and 4 allowances.
    """
    toy = toys[name]
    model = convert_float_to_float16(onnx.load(str(toy.graph_path)), keep_io_types=True)
    onnx.save(model, str(tmp_path / "model.onnx"))
    verdict = toy.judge(toy.model(graph_session(tmp_path / "model.onnx")))
    require_refused(verdict, f"{RAW[name]}/alone", by=by)


@BOTH
def test_another_revision(name: str, toys: dict[str, Toy], tmp_path: Path) -> None:
    """Same shapes, other weights: the toy pair drawn from another seed."""
    toy = toys[name]
    verdict = toy.judge(toy.model(graph_session(export_other_seed(toy, tmp_path))))
    require_refused(verdict, f"{RAW[name]}/alone", by=500)
    assert verdict.cells[0].passed  # the tokenizer is the same


def export_other_seed(toy: Toy, folder: Path) -> Path:
    builder, convert, reference = (
        importlib.import_module(f"samevec.{name}")
        for name in ("export.toy.checkpoint", "export.convert", "parity.reference.pytorch")
    )
    with mock.patch.multiple(builder, _EMBEDDER_SEED=1, _RERANKER_SEED=2):
        builder.build_toy(toy.entry.name, folder / "other")
    other: Any = reference.load_reference_model(folder / "other", toy.entry)
    path: Path = convert.convert(other.module, toy.entry, form=TRACED_FORM, directory=folder)
    return path
