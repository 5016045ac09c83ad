"""ModernBERT rerankers: bidirectional attention, local and global layers in turn, pooling to one logit.

``plain`` is transformers' own forward. ``fused`` is the same mathematics written for ONNX Runtime's CPU provider:
global layers on the attention operator's path that never builds the score matrix, local layers as blocks of queries
against three neighbouring blocks of keys, the mean as a batched product and the head on two copies of the rows, so that
a pair's bits do not depend on its neighbours (FINDINGS, "Reranker graph" and "Bits").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from optimum.exporters.onnx.model_configs import ModernBertOnnxConfig
from torch.nn.functional import linear

from samevec.errors import ExportError
from samevec.export.architectures.base import (
    HIDDEN,
    Architecture,
    ContractConfig,
    ForwardPatcher,
    PaddingComponent,
    mean_of_tokens,
    rotary_tables,
)
from samevec.export.contrib_ops import multi_head_attention, reshape, rotary_embedding

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ARCHITECTURES"]

# Queries in one local block; the window (64 either side) must fit one neighbour block.
_BLOCK_TOKENS = 64


def reference_rows(module: Any, inputs: Mapping[str, torch.Tensor], _pooling: str) -> torch.Tensor:
    """Return logits of the unpatched model, shape (rows, 1)."""
    return cast("torch.Tensor", module(**inputs).logits)


class _PlainPatcher(ForwardPatcher):
    def export_forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, *_unused: object, **_ignored: object
    ) -> dict[str, torch.Tensor]:
        return {"logits": self._kept_forward(input_ids=input_ids, attention_mask=attention_mask).logits}


@dataclass(frozen=True, slots=True)
class _Layout:
    """How local layers cut rows into blocks; scalars of int64, known when the graph runs.

    Attributes
    ----------
    rows : Tensor
    block, neighbour : Tensor
        Queries in a block, and keys seen on either side of it: 64 and 64; or the whole input and none, when it fits one
        block, where every token sees every other.
    n_fill : Tensor
        Tokens that complete the last block.
    """

    rows: Any
    block: Any
    neighbour: Any
    n_fill: Any

    @property
    def seen(self) -> Any:
        """Keys that a block sees."""
        return self.block + 2 * self.neighbour


@dataclass(frozen=True, slots=True)
class _Shared:
    """What all layers of one run share.

    Attributes
    ----------
    layout : _Layout
    padding : PaddingComponent
        Of the global layers.
    block_bias : Tensor, shape (rows * blocks, 1, block, seen)
        Window and padding of the local layers.
    query_fill : Tensor, shape (rows, n_fill, width)
    key_fill, key_fill_right : Tensor, shape (rows, block, width) and (rows, n_fill + block, width)
    query_shape, key_shape, seen_shape, row_shape : Tensor of int64
        Shapes to and from blocks, built once a run.
    """

    layout: _Layout
    padding: PaddingComponent
    block_bias: torch.Tensor
    query_fill: torch.Tensor
    key_fill: torch.Tensor
    key_fill_right: torch.Tensor
    query_shape: torch.Tensor
    key_shape: torch.Tensor
    seen_shape: torch.Tensor
    row_shape: torch.Tensor


class _FusedPatcher(ForwardPatcher):
    def __init__(self, config: Any, model: Any, model_kwargs: dict[str, Any] | None = None) -> None:
        super().__init__(config, model, model_kwargs=model_kwargs)
        half_window = model.config.local_attention // 2
        if half_window > _BLOCK_TOKENS:
            raise ExportError(f"a window of {half_window} tokens either side does not fit blocks of {_BLOCK_TOKENS}")
        self._half_window = half_window
        self._n_heads = model.config.num_attention_heads
        self._width = model.config.hidden_size
        self._rotary: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        for layer in model.model.layers:
            kind = "local" if _is_local(layer) else "global"
            if kind not in self._rotary:
                head_dim = self._width // self._n_heads
                self._rotary[kind] = rotary_tables(
                    model, layer.attn.rotary_emb, config.max_tokens, f"samevec_rotary_{kind}", head_dim=head_dim
                )

    def export_forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, *_unused: object, **_ignored: object
    ) -> dict[str, torch.Tensor]:
        body = self._model.model
        valid = attention_mask.to(torch.float32)
        shared = self._share(input_ids, valid)
        states = body.embeddings(input_ids=input_ids)
        for layer in body.layers:
            states = states + layer.attn.Wo(self._attend(layer, layer.attn_norm(states), shared))
            states = states + _gated_mlp(layer.mlp, layer.mlp_norm(states))
        pooled = self._pool(body.final_norm(states), valid)
        # Two copies, one sliced off: the head's products never have a single row, whose kernel gives other bits.
        logits = self._model.classifier(self._model.head(torch.cat([pooled, pooled])))
        return {"logits": logits[: torch._shape_as_tensor(input_ids)[0]]}

    def _share(self, input_ids: torch.Tensor, valid: torch.Tensor) -> _Shared:
        layout, width = _layout(input_ids), self._width
        key_bias = (1 - valid) * HIDDEN
        padding = PaddingComponent.from_bias(key_bias, self._n_heads)

        def zeros(n_tokens: Any) -> torch.Tensor:
            return torch.zeros(layout.rows, n_tokens, width)

        key_fill, key_fill_right = zeros(layout.block), zeros(layout.n_fill + layout.block)
        edge_bias = torch.cat([key_fill[:, :, 0] + HIDDEN, key_bias, key_fill_right[:, :, 0] + HIDDEN], 1)
        return _Shared(
            layout=layout,
            padding=padding,
            block_bias=_block_bias(edge_bias, layout, self._half_window),
            query_fill=zeros(layout.n_fill),
            key_fill=key_fill,
            key_fill_right=key_fill_right,
            query_shape=_shape(-1, layout.block, width),
            key_shape=_shape(layout.rows, -1, layout.block, width),
            seen_shape=_shape(-1, layout.seen, width),
            row_shape=_shape(layout.rows, -1, width),
        )

    def _attend(self, layer: Any, normed: torch.Tensor, shared: _Shared) -> torch.Tensor:
        rotary = self._rotary["local" if _is_local(layer) else "global"]
        query, key, value = (linear(normed, weight) for weight in _row_slices(layer.attn.Wqkv.weight, 3))
        query, key = rotary_embedding(query, rotary), rotary_embedding(key, rotary)
        attend = self._attend_local if _is_local(layer) else self._attend_global
        return attend(query, key, value, shared)

    def _attend_global(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, shared: _Shared
    ) -> torch.Tensor:
        return shared.padding.attend(query, key, value, n_heads=self._n_heads, scale=self._scale)

    def _attend_local(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, shared: _Shared
    ) -> torch.Tensor:
        tokens = query.shape[1]
        blocks = reshape(torch.cat([query, shared.query_fill], 1), shared.query_shape)
        key, value = (self._key_blocks(states, shared) for states in (key, value))
        out = multi_head_attention(blocks, key, value, bias=shared.block_bias, n_heads=self._n_heads, scale=self._scale)
        return reshape(out, shared.row_shape)[:, :tokens]

    def _key_blocks(self, states: torch.Tensor, shared: _Shared) -> torch.Tensor:
        filled = torch.cat([shared.key_fill, states, shared.key_fill_right], 1)
        return reshape(_with_neighbours(reshape(filled, shared.key_shape), shared.layout), shared.seen_shape)

    def _pool(self, states: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        if self._model.config.classifier_pooling == "cls":
            return states[:, 0]
        return mean_of_tokens(states, valid)

    @property
    def _scale(self) -> float:
        return float((self._width // self._n_heads) ** -0.5)


def _is_local(layer: Any) -> bool:
    return bool(layer.attn.local_attention != (-1, -1))


def _layout(input_ids: torch.Tensor) -> _Layout:
    rows, tokens = torch._shape_as_tensor(input_ids)
    most = torch.tensor(_BLOCK_TOKENS)
    fits = tokens <= most
    block = torch.where(fits, tokens, most)
    return _Layout(rows, block, torch.where(fits, torch.tensor(0), most), (block - tokens % block) % block)


def _shape(*parts: Any) -> torch.Tensor:
    return torch.cat([torch.as_tensor(part).reshape(1) for part in parts])


def _block_bias(edge_bias: torch.Tensor, layout: _Layout, half_window: int) -> torch.Tensor:
    """Return 0 where a block's query may see a key, and hidden elsewhere, from the padding's bias with its edges."""
    seen = _with_neighbours(reshape(edge_bias, _shape(layout.rows, -1, layout.block)), layout)
    distance = torch.arange(layout.block)[:, None] - (torch.arange(layout.seen)[None] - layout.neighbour)
    window = torch.where(distance.abs() <= half_window, 0.0, HIDDEN)
    return reshape(torch.minimum(seen[:, :, None, :], window), _shape(-1, 1, layout.block, layout.seen))


def _with_neighbours(blocks: torch.Tensor, layout: _Layout) -> torch.Tensor:
    """Put each block between the nearest tokens of its two neighbours.

    Parameters
    ----------
    blocks : Tensor, shape (rows, blocks + 2, block, ...)
        With one more block at either end.
    layout : _Layout

    Returns
    -------
    Tensor, shape (rows, blocks, seen, ...)
    """
    left = blocks[:, :-2, layout.block - layout.neighbour :]
    return torch.cat([left, blocks[:, 1:-1], blocks[:, 2:, : layout.neighbour]], 2)


def _row_slices(weight: torch.Tensor, n_parts: int) -> list[torch.Tensor]:
    """Cut a weight into equal parts by rows; plain slices, which the exporter folds into separate stored weights."""
    size = weight.shape[0] // n_parts
    return [weight[i * size : (i + 1) * size] for i in range(n_parts)]


def _gated_mlp(mlp: Any, normed: torch.Tensor) -> torch.Tensor:
    inner, gate = (linear(normed, weight) for weight in _row_slices(mlp.Wi.weight, 2))
    return cast("torch.Tensor", mlp.Wo(mlp.act(inner) * gate))


class _RerankerConfig(ContractConfig, ModernBertOnnxConfig):  # type: ignore[misc]
    _MODEL_PATCHER = _PlainPatcher
    output_name = "logits"


class _FusedRerankerConfig(_RerankerConfig):
    _MODEL_PATCHER = _FusedPatcher


ARCHITECTURES = {
    "rerank": Architecture(
        optimum_task="text-classification",
        configs={"plain": _RerankerConfig, "fused": _FusedRerankerConfig},
        reference_rows=reference_rows,
    )
}
