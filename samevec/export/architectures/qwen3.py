"""Qwen3 embedders: causal attention, last-token pooling.

Two traced forms. ``plain`` is transformers' own forward with the pooling added. ``cuda`` is the same mathematics for
CUDA: each key head is repeated for the queries that share it, so that MultiHeadAttention, which takes float32 there,
sees as many key heads as query heads; and the last layer computes only the pooled token.
"""

from __future__ import annotations

from typing import Any

import torch
from optimum.exporters.onnx.model_configs import Qwen3OnnxConfig

from samevec.export.architectures.base import Architecture, ContractConfig, ForwardPatcher, rotary_tables
from samevec.export.contrib_ops import multi_head_attention, reshape, rotary_embedding

__all__ = ["ARCHITECTURES"]


def last_token(states: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    """Return each row's state at its last real token: (rows, tokens, width) -> (rows, width)."""
    last = attention_mask.sum(1) - 1
    index = last.view(-1, 1, 1).expand(-1, 1, states.shape[-1])
    return torch.gather(states, 1, index)[:, 0]  # squeeze(1) would export an If


class _PlainPatcher(ForwardPatcher):
    def export_forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, *_unused: object, **_ignored: object
    ) -> dict[str, torch.Tensor]:
        positions = torch.arange(input_ids.shape[1]).unsqueeze(0)
        states = self._kept_forward(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=positions, use_cache=False
        ).last_hidden_state
        return {"embedding": last_token(states, attention_mask)}


class _CudaPatcher(ForwardPatcher):
    def __init__(self, config: Any, model: Any, model_kwargs: dict[str, Any] | None = None) -> None:
        super().__init__(config, model, model_kwargs=model_kwargs)
        head_dim = model.layers[0].self_attn.head_dim
        self._rotary = rotary_tables(model, model.rotary_emb, config.max_tokens, "samevec_rotary", head_dim=head_dim)

    def export_forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, *_unused: object, **_ignored: object
    ) -> dict[str, torch.Tensor]:
        """Encode in ONNX Runtime's own operators; the last layer computes only each row's last token."""
        model = self._model
        states = model.embed_tokens(input_ids)
        *body, top = model.layers
        for layer in body:
            states = self._finish(layer, self._attend(layer, states), states)
        attended = last_token(self._attend(top, states), attention_mask)
        return {"embedding": model.norm(self._finish(top, attended, last_token(states, attention_mask)))}

    def _attend(self, layer: Any, states: torch.Tensor) -> torch.Tensor:
        config = self._model.config
        query, key, value = self._project(layer, states)
        repeats = config.num_attention_heads // config.num_key_value_heads
        query, key = rotary_embedding(query, self._rotary), rotary_embedding(key, self._rotary)
        key, value = (_repeat_heads(part, config.num_key_value_heads, repeats) for part in (key, value))
        n_heads, scale = config.num_attention_heads, float(layer.self_attn.scaling)
        return multi_head_attention(query, key, value, bias=None, n_heads=n_heads, scale=scale, causal=True)

    def _project(self, layer: Any, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        attention, config = layer.self_attn, self._model.config
        normed = layer.input_layernorm(states)
        query = _norm_heads(attention.q_proj(normed), attention.q_norm, config.num_attention_heads)
        key = _norm_heads(attention.k_proj(normed), attention.k_norm, config.num_key_value_heads)
        return query, key, attention.v_proj(normed)

    @staticmethod
    def _finish(layer: Any, attended: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        states = states + layer.self_attn.o_proj(attended)
        finished: torch.Tensor = states + layer.mlp(layer.post_attention_layernorm(states))
        return finished


def _repeat_heads(states: torch.Tensor, n_heads: int, repeats: int) -> torch.Tensor:
    """Put each head `repeats` times side by side, in the order of the queries that share it."""
    split = reshape(states, (0, 0, n_heads, 1, -1))
    return reshape(torch.cat([split] * repeats, 3), (0, 0, -1))


def _norm_heads(states: torch.Tensor, norm: Any, n_heads: int) -> torch.Tensor:
    return reshape(norm(reshape(states, (0, 0, n_heads, -1))), (0, 0, -1))


class _EmbedderConfig(ContractConfig, Qwen3OnnxConfig):  # type: ignore[misc]
    _MODEL_PATCHER = _PlainPatcher
    output_name = "embedding"


class _CudaEmbedderConfig(_EmbedderConfig):
    _MODEL_PATCHER = _CudaPatcher


ARCHITECTURES = {
    "embed": Architecture(
        optimum_task="feature-extraction", configs={"plain": _EmbedderConfig, "cuda": _CudaEmbedderConfig}
    )
}
