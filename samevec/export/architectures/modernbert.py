"""ModernBERT rerankers: bidirectional attention, local and global layers in turn, pooling to one logit.

``plain`` is transformers' own forward. ``fused`` is the same mathematics written for ONNX Runtime's CPU provider:
global layers on the attention operator's path that never builds the score matrix, local layers as blocks of queries
against three neighbouring blocks of keys, the mean as a batched product and the head on two copies of the rows, so that
a pair's bits do not depend on its neighbours (FINDINGS, "Reranker graph" and "Bits").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from optimum.exporters.onnx.model_configs import ModernBertOnnxConfig
from torch.nn.functional import linear

from samevec.errors import ExportError
from samevec.export.architectures.base import Architecture, ForwardPatcher, contract_inputs, rotary_tables
from samevec.export.contrib_ops import multi_head_attention, rotary_embedding

__all__ = ["ARCHITECTURE"]

# Queries in one local block; the window (64 either side) must fit one neighbour block.
_BLOCK_TOKENS = 64
# Added to the scores of keys that must not be seen. exp() of it is exactly 0 in float32 beside any score a model gives,
# and it is finite, so that a block with no visible key gives numbers (which nothing reads) and not NaN.
_HIDDEN = -1e5


def reference_rows(module: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    """Return logits of the unpatched model, shape (rows, 1)."""
    return cast("torch.Tensor", module(input_ids=input_ids, attention_mask=attention_mask).logits)


class _PlainPatcher(ForwardPatcher):
    def export_forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, *_unused: object, **_ignored: object
    ) -> dict[str, torch.Tensor]:
        return {"logits": self._kept_forward(input_ids=input_ids, attention_mask=attention_mask).logits}


@dataclass(frozen=True, slots=True)
class _Shared:
    """What all layers of one run share.

    Attributes
    ----------
    query_ones : Tensor, shape (rows, tokens, heads, 1)
        The extra query component that meets `key_bias`.
    key_bias : Tensor, shape (rows, tokens, heads, 1)
        0 on real tokens, hidden on padding.
    block_bias : Tensor, shape (rows * blocks, 1, block, 3 * block)
        Window and padding of the local layers.
    query_fill : Tensor, shape (rows, 0 to block - 1, width)
        Zeros that complete the last block.
    key_fill, key_fill_right : Tensor
        One block of zeros before, and `query_fill` plus one block after.
    """

    query_ones: torch.Tensor
    key_bias: torch.Tensor
    block_bias: torch.Tensor
    query_fill: torch.Tensor
    key_fill: torch.Tensor
    key_fill_right: torch.Tensor


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
        rows, tokens = input_ids.shape
        block, heads = _BLOCK_TOKENS, self._n_heads
        n_fill: Any = (block - torch._shape_as_tensor(input_ids)[1] % block) % block
        key_bias = (1 - valid) * _HIDDEN
        per_head = key_bias.view(rows, tokens, 1, 1).expand(rows, tokens, heads, 1)

        def zeros(n_tokens: Any) -> torch.Tensor:
            return torch.zeros(rows, n_tokens, self._width)

        hidden = torch.ones(rows, 1) * _HIDDEN
        edge_bias = torch.cat([hidden.expand(rows, block), key_bias, hidden.expand(rows, n_fill + block)], 1)
        neighbours = _three_blocks(edge_bias.reshape(rows, -1, block))
        distance = torch.arange(block)[:, None] - (torch.arange(3 * block)[None] - block)
        window = torch.where(distance.abs() <= self._half_window, 0.0, _HIDDEN)
        return _Shared(
            query_ones=torch.ones_like(per_head),
            key_bias=per_head,
            block_bias=torch.minimum(neighbours[:, :, None, :], window).reshape(-1, 1, block, 3 * block),
            query_fill=zeros(n_fill),
            key_fill=zeros(block),
            key_fill_right=zeros(n_fill + block),
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
        rows, tokens, heads = query.shape[0], query.shape[1], self._n_heads
        # Padding as one more component of each head: q' = [q, 1], k' = [k, 0 or hidden]. A mask input would take the
        # operator off its flash path (148 ms against 448 ms at 4,096 tokens, FINDINGS).
        query = torch.cat([query.view(rows, tokens, heads, -1), shared.query_ones], 3).reshape(rows, tokens, -1)
        key = torch.cat([key.view(rows, tokens, heads, -1), shared.key_bias], 3).reshape(rows, tokens, -1)
        return multi_head_attention(query, key, value, bias=None, n_heads=heads, scale=self._scale)

    def _attend_local(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, shared: _Shared
    ) -> torch.Tensor:
        rows, tokens, width = query.shape
        blocks = torch.cat([query, shared.query_fill], 1).reshape(-1, _BLOCK_TOKENS, width)
        key, value = (self._neighbour_blocks(states, shared) for states in (key, value))
        out = multi_head_attention(blocks, key, value, bias=shared.block_bias, n_heads=self._n_heads, scale=self._scale)
        return out.reshape(rows, -1, width)[:, :tokens]

    def _neighbour_blocks(self, states: torch.Tensor, shared: _Shared) -> torch.Tensor:
        rows, _, width = states.shape
        filled = torch.cat([shared.key_fill, states, shared.key_fill_right], 1)
        return _three_blocks(filled.reshape(rows, -1, _BLOCK_TOKENS, width)).reshape(-1, 3 * _BLOCK_TOKENS, width)

    def _pool(self, states: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        if self._model.config.classifier_pooling == "cls":
            return states[:, 0]
        # A batched product: ReduceSum over tokens sums in another order when there is one row.
        return torch.bmm(valid.unsqueeze(1), states)[:, 0] / valid.sum(1, keepdim=True)

    @property
    def _scale(self) -> float:
        return float((self._width // self._n_heads) ** -0.5)


def _is_local(layer: Any) -> bool:
    return bool(layer.attn.local_attention != (-1, -1))


def _three_blocks(blocks: torch.Tensor) -> torch.Tensor:
    """Put each block between its two neighbours: (rows, blocks + 2, block, ...) to (rows, blocks, 3 * block, ...)."""
    return torch.cat([blocks[:, :-2], blocks[:, 1:-1], blocks[:, 2:]], 2)


def _row_slices(weight: torch.Tensor, n_parts: int) -> list[torch.Tensor]:
    """Cut a weight into equal parts by rows; plain slices, which the exporter folds into separate stored weights."""
    size = weight.shape[0] // n_parts
    return [weight[i * size : (i + 1) * size] for i in range(n_parts)]


def _gated_mlp(mlp: Any, normed: torch.Tensor) -> torch.Tensor:
    inner, gate = (linear(normed, weight) for weight in _row_slices(mlp.Wi.weight, 2))
    return cast("torch.Tensor", mlp.Wo(mlp.act(inner) * gate))


class _RerankerConfig(ModernBertOnnxConfig):  # type: ignore[misc]
    _MODEL_PATCHER = _PlainPatcher
    max_tokens = 0

    @property
    def inputs(self) -> dict[str, dict[int, str]]:
        return contract_inputs()

    @property
    def outputs(self) -> dict[str, dict[int, str]]:
        return {"logits": {0: "rows"}}


class _FusedRerankerConfig(_RerankerConfig):
    _MODEL_PATCHER = _FusedPatcher


def _make_config(module: Any, form: str, max_tokens: int) -> _RerankerConfig:
    cls = {"plain": _RerankerConfig, "fused": _FusedRerankerConfig}[form]
    config = cls(module.config, task="text-classification")
    config.max_tokens = max_tokens
    return config


ARCHITECTURE = Architecture(optimum_task="text-classification", make_config=_make_config, reference_rows=reference_rows)
