"""ModernBERT rerankers: bidirectional attention, alternating local and global layers, pooling to one logit.

``plain`` is transformers' own forward. ``cuda`` is the same mathematics written for CUDA: global layers on the
attention operator's path that never builds the score matrix, padding as more components of its heads; local layers as
blocks of queries against three neighbouring blocks of keys (one block where the input is short).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

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

__all__ = ["ARCHITECTURES"]

# Queries in one local block; the window (64 either side) must fit one neighbour block.
_BLOCK_TOKENS = 64
# Inputs no longer than this are one block that sees itself.
_ONE_BLOCK_TOKENS = 256


class _PlainPatcher(ForwardPatcher):
    def export_forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, *_unused: object, **_ignored: object
    ) -> dict[str, torch.Tensor]:
        return {"logits": self._kept_forward(input_ids=input_ids, attention_mask=attention_mask).logits}


@dataclass(frozen=True, slots=True)
class _Layout:
    """How local layers cut rows into blocks; int64, known when the graph runs."""

    rows: Any  # scalar
    block: Any  # scalar: queries in a block; 64, or all where the input fits one block
    seen: Any  # scalar: keys a block sees; 192, or all
    query_index: torch.Tensor  # (blocks * block,): each query's token; beyond the last token the last again
    key_index: torch.Tensor  # (blocks * seen,): each key's token; beyond either end the token at that end
    distance: torch.Tensor  # (block, seen): from query to key, in tokens
    outside: torch.Tensor  # bool (blocks, seen): keys beyond either end


@dataclass(frozen=True, slots=True)
class _Shared:
    """Values that all layers of one run share."""

    layout: _Layout
    padding: PaddingComponent  # of the global layers
    block_bias: torch.Tensor  # (rows * blocks, 1, block, seen): window and padding of the local layers
    query_shape: torch.Tensor
    seen_shape: torch.Tensor
    row_shape: torch.Tensor


class _CudaPatcher(ForwardPatcher):
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
        return {"logits": self._model.classifier(self._model.head(pooled))}

    def _share(self, input_ids: torch.Tensor, valid: torch.Tensor) -> _Shared:
        layout = _layout(input_ids)
        key_bias = (1 - valid) * HIDDEN
        return _Shared(
            layout=layout,
            padding=PaddingComponent.from_bias(key_bias, self._n_heads),
            block_bias=_block_bias(key_bias, layout, self._half_window),
            query_shape=_shape(-1, layout.block, self._width),
            seen_shape=_shape(-1, layout.seen, self._width),
            row_shape=_shape(layout.rows, -1, self._width),
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
        tokens, layout = query.shape[1], shared.layout
        blocks = reshape(query.index_select(1, layout.query_index), shared.query_shape)
        key, value = (reshape(states.index_select(1, layout.key_index), shared.seen_shape) for states in (key, value))
        out = multi_head_attention(blocks, key, value, bias=shared.block_bias, n_heads=self._n_heads, scale=self._scale)
        return reshape(out, shared.row_shape)[:, :tokens]

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
    block_tokens: Any = torch.tensor(_BLOCK_TOKENS)
    fits = tokens <= torch.tensor(_ONE_BLOCK_TOKENS)
    block: Any = torch.where(fits, tokens, block_tokens)
    neighbour: Any = torch.where(fits, torch.tensor(0), block_tokens)
    n_blocks, seen = (tokens + block - 1) // block, block + 2 * neighbour
    offsets = torch.arange(seen) - neighbour
    keys = torch.arange(n_blocks)[:, None] * block + offsets[None]
    return _Layout(
        rows=rows,
        block=block,
        seen=seen,
        query_index=torch.minimum(torch.arange(n_blocks * block), tokens - 1),
        key_index=torch.minimum(torch.clamp(keys, min=0), tokens - 1).reshape(-1),
        distance=torch.arange(block)[:, None] - offsets[None],
        outside=(keys < 0) | (keys >= tokens),
    )


def _shape(*parts: Any) -> torch.Tensor:
    return torch.cat([torch.as_tensor(part).reshape(1) for part in parts])


def _block_bias(key_bias: torch.Tensor, layout: _Layout, half_window: int) -> torch.Tensor:
    """Return 0 where a block's query may see a key, else hidden, from the padding's bias (rows, tokens)."""
    seen = reshape(key_bias.index_select(1, layout.key_index), _shape(layout.rows, -1, layout.seen))
    seen = torch.where(layout.outside[None], HIDDEN, seen)
    window = torch.where(layout.distance.abs() <= half_window, 0.0, HIDDEN)
    return reshape(torch.minimum(seen[:, :, None, :], window), _shape(-1, 1, layout.block, layout.seen))


def _row_slices(weight: torch.Tensor, n_parts: int) -> list[torch.Tensor]:
    """Cut a weight into equal parts by rows: slices that the exporter folds into separate stored weights."""
    size = weight.shape[0] // n_parts
    return [weight[i * size : (i + 1) * size] for i in range(n_parts)]


def _gated_mlp(mlp: Any, normed: torch.Tensor) -> torch.Tensor:
    inner, gate = (linear(normed, weight) for weight in _row_slices(mlp.Wi.weight, 2))
    return cast("torch.Tensor", mlp.Wo(mlp.act(inner) * gate))


class _RerankerConfig(ContractConfig, ModernBertOnnxConfig):  # type: ignore[misc]
    _MODEL_PATCHER = _PlainPatcher
    output_name = "logits"


class _CudaRerankerConfig(_RerankerConfig):
    _MODEL_PATCHER = _CudaPatcher


ARCHITECTURES = {
    "rerank": Architecture(
        optimum_task="text-classification", configs={"plain": _RerankerConfig, "cuda": _CudaRerankerConfig}
    )
}
