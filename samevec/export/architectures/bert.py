"""BERT embedders and cross-encoders: bidirectional attention, learned positions, pooling by mean or first token.

``plain`` is transformers' own forward with the pooling added. ``cuda`` is the same mathematics written for CUDA:
attention on the operator's path that never builds the score matrix, padding as more components of its heads.

An embedder sees one segment, so its graph has segment 0 built in and takes no segment ids; a cross-encoder is fed them.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from optimum.exporters.onnx.model_configs import BertOnnxConfig

from samevec.errors import ExportError
from samevec.export.architectures.base import (
    HIDDEN,
    Architecture,
    ContractConfig,
    ForwardPatcher,
    PaddingComponent,
    mean_of_tokens,
)

__all__ = ["ARCHITECTURES"]


def pooled_states(states: torch.Tensor, attention_mask: torch.Tensor, pooling: str) -> torch.Tensor:
    """Return each row's mean over its real tokens, or its first token: (rows, tokens, width) -> (rows, width)."""
    if pooling == "cls":
        return states[:, 0]
    return mean_of_tokens(states, attention_mask.to(torch.float32))


class _PlainEmbedder(ForwardPatcher):
    def __init__(self, config: Any, model: Any, model_kwargs: dict[str, Any] | None = None) -> None:
        super().__init__(config, model, model_kwargs=model_kwargs)
        self._pooling: str = config.pooling

    def export_forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, *_unused: object, **_ignored: object
    ) -> dict[str, torch.Tensor]:
        states = self._kept_forward(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return {"embedding": pooled_states(states, attention_mask, self._pooling)}


class _PlainReranker(ForwardPatcher):
    def export_forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor,
        *_unused: object,
        **_ignored: object,
    ) -> dict[str, torch.Tensor]:
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        return {"logits": self._kept_forward(**inputs).logits}


class _CudaEncoder(ForwardPatcher):
    """The body of both; subclasses pool its states."""

    def __init__(self, config: Any, model: Any, model_kwargs: dict[str, Any] | None = None) -> None:
        super().__init__(config, model, model_kwargs=model_kwargs)
        _require_known(model.config, config.max_tokens)
        self._pooling: str = config.pooling
        self._n_heads = model.config.num_attention_heads
        self._scale = float((model.config.hidden_size // self._n_heads) ** -0.5)

    def _encode(self, body: Any, words: torch.Tensor, segments: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        embeddings = body.embeddings
        n_tokens = torch._shape_as_tensor(mask)[1]
        summed = words + segments + embeddings.position_embeddings.weight[:n_tokens]  # in transformers' own order
        states: torch.Tensor = embeddings.LayerNorm(summed)
        key_bias = (1 - mask.to(torch.float32)) * HIDDEN
        padding = PaddingComponent.from_bias(key_bias, self._n_heads)
        for layer in body.encoder.layer:
            states = self._layer(layer, states, padding)
        return states

    def _layer(self, layer: Any, states: torch.Tensor, padding: PaddingComponent) -> torch.Tensor:
        own, after = layer.attention.self, layer.attention.output
        attended = padding.attend(
            own.query(states), own.key(states), own.value(states), n_heads=self._n_heads, scale=self._scale
        )
        states = after.LayerNorm(after.dense(attended) + states)
        inner = layer.intermediate.intermediate_act_fn(layer.intermediate.dense(states))
        return cast("torch.Tensor", layer.output.LayerNorm(layer.output.dense(inner) + states))


def _require_known(config: Any, max_tokens: int) -> None:
    """Refuse relatives of BERT with another forward."""
    kind = getattr(config, "position_embedding_type", "absolute")
    if kind != "absolute":
        raise ExportError(f"positions are {kind!r}, only 'absolute' ones are supported")
    if config.is_decoder:
        raise ExportError("the checkpoint is a decoder, only encoders are supported")
    if max_tokens > config.max_position_embeddings:
        raise ExportError(f"it has {config.max_position_embeddings} positions, the lock says {max_tokens} tokens")


class _CudaEmbedder(_CudaEncoder):
    def export_forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, *_unused: object, **_ignored: object
    ) -> dict[str, torch.Tensor]:
        body = self._model
        first_segment = body.embeddings.token_type_embeddings.weight[0]
        states = self._encode(body, body.embeddings.word_embeddings(input_ids), first_segment, attention_mask)
        return {"embedding": pooled_states(states, attention_mask, self._pooling)}


class _CudaReranker(_CudaEncoder):
    def export_forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor,
        *_unused: object,
        **_ignored: object,
    ) -> dict[str, torch.Tensor]:
        body = self._model.bert
        segments = body.embeddings.token_type_embeddings(token_type_ids)
        states = self._encode(body, body.embeddings.word_embeddings(input_ids), segments, attention_mask)
        return {"logits": self._model.classifier(body.pooler.activation(body.pooler.dense(states[:, 0])))}


class _EmbedderConfig(ContractConfig, BertOnnxConfig):  # type: ignore[misc]
    _MODEL_PATCHER = _PlainEmbedder
    output_name = "embedding"


class _CudaEmbedderConfig(_EmbedderConfig):
    _MODEL_PATCHER = _CudaEmbedder


class _RerankerConfig(ContractConfig, BertOnnxConfig):  # type: ignore[misc]
    _MODEL_PATCHER = _PlainReranker
    output_name = "logits"


class _CudaRerankerConfig(_RerankerConfig):
    _MODEL_PATCHER = _CudaReranker


ARCHITECTURES = {
    "embed": Architecture(
        optimum_task="feature-extraction", configs={"plain": _EmbedderConfig, "cuda": _CudaEmbedderConfig}
    ),
    "rerank": Architecture(
        optimum_task="text-classification",
        configs={"plain": _RerankerConfig, "cuda": _CudaRerankerConfig},
        input_names=("input_ids", "attention_mask", "token_type_ids"),
    ),
}
