"""BERT embedders and cross-encoders in the library's operators.

An embedder sees one segment, so its graph has segment 0 built in and takes no segment ids; a cross-encoder is fed them.
Where only each text's first token is pooled, the last layer computes nothing else after its attention.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from samevec.export.native.graph import require_covered

if TYPE_CHECKING:
    import onnx

    from samevec.export.native.graph import GraphBuilder
    from samevec.lock import LockedModel

__all__ = ["PREFIX", "embedder", "reranker"]

#: Of the base model's parameters, in checkpoints that have one.
PREFIX = "bert."


def embedder(graph: GraphBuilder, config: Any, entry: LockedModel) -> onnx.ModelProto:
    """Return the graph of a BERT embedder that pools the mean or the first token; ExportError if it is not covered."""
    offsets, ids = graph.unpadded()
    segment = graph.constant("first_segment", 0)
    pooled = _encode(graph, config, entry, offsets=offsets, ids=ids, segments=segment)
    return graph.model(["input_ids", "attention_mask"], pooled, name="embedding", width=config.hidden_size)


def reranker(graph: GraphBuilder, config: Any, entry: LockedModel) -> onnx.ModelProto:
    """Return the graph of a BERT sequence classifier with one label; see :func:`embedder`."""
    offsets, ids = graph.unpadded()
    segments = graph.node("Unpad", "token_type_ids", offsets, name="segments")
    first = _encode(graph, config, entry, offsets=offsets, ids=ids, segments=segments)
    dense = graph.product(first, "pooler.dense", name="pooler.dense")
    logits = graph.product(graph.node("Tanh", dense, name="pooler.activated"), "classifier", name="classifier")
    return graph.model(["input_ids", "attention_mask", "token_type_ids"], logits, name="logits", width=1)


def _encode(graph: GraphBuilder, config: Any, entry: LockedModel, *, offsets: str, ids: str, segments: str) -> str:
    """Return each text's pooled states."""
    _require_covered(config, entry)
    n_layers, means = config.num_hidden_layers, entry.task == "embed" and entry.pooling == "mean"
    states = _embed(graph, config, offsets, ids, segments)
    with graph.progress.step("write the native graph", total=n_layers, unit="layers") as advance:
        for i in range(n_layers):
            at = f"encoder.layer.{i}"
            attended = _attend(graph, config, at, states, offsets)
            if i == n_layers - 1 and not means:
                attended = graph.node("FirstToken", attended, offsets, name=f"{at}.attended")
                states = graph.node("FirstToken", states, offsets, name=f"{at}.states")
            dense = graph.product(attended, f"{at}.attention.output.dense", name=f"{at}.attention.output.dense")
            states = _add_norm(graph, config, dense, states, f"{at}.attention.output.LayerNorm")
            inner = graph.product(states, f"{at}.intermediate.dense", name=f"{at}.intermediate.dense")
            inner = graph.node("Gelu", inner, name=f"{at}.intermediate.activated")
            outer = graph.product(inner, f"{at}.output.dense", name=f"{at}.output.dense")
            states = _add_norm(graph, config, outer, states, f"{at}.output.LayerNorm")
            advance(1)
    pooled: str = graph.node("MeanPool", states, offsets, name="pooled") if means else states
    return pooled


def _embed(graph: GraphBuilder, config: Any, offsets: str, ids: str, segments: str) -> str:
    at = "embeddings"
    words = graph.gather(f"{at}.word_embeddings.weight", ids, name=f"{at}.words")
    kinds = graph.gather(f"{at}.token_type_embeddings.weight", segments, name=f"{at}.segments")
    positions = graph.node("Positions", offsets, name="positions")
    places = graph.gather(f"{at}.position_embeddings.weight", positions, name=f"{at}.positions")
    total = graph.add(graph.add(words, kinds, name=f"{at}.words_segments"), places, name=f"{at}.sum")
    return graph.layer_norm(total, f"{at}.LayerNorm", epsilon=config.layer_norm_eps)


def _attend(graph: GraphBuilder, config: Any, at: str, states: str, offsets: str) -> str:
    layers = (f"{at}.attention.self.{part}" for part in ("query", "key", "value"))
    attended: str = graph.node(
        "Attention",
        *(graph.product(states, *layers, name=f"{at}.attention.self.qkv"), offsets),
        name=f"{at}.attention.self",
        heads=config.num_attention_heads,
        kv_heads=config.num_attention_heads,
        causal=0,
        window=-1,
        epsilon=config.layer_norm_eps,
    )
    return attended


def _add_norm(graph: GraphBuilder, config: Any, x: str, residual: str, parameter: str) -> str:
    return graph.add_layer_norm(x, residual, parameter, epsilon=config.layer_norm_eps)[0]


def _require_covered(config: Any, entry: LockedModel) -> None:
    positions = getattr(config, "position_embedding_type", "absolute")
    require_covered(
        entry,
        {
            f"hidden_act {config.hidden_act!r}": config.hidden_act == "gelu",
            f"positions that are {positions!r}": positions == "absolute",
            "decoders": not config.is_decoder,
            f"{config.num_labels} labels": entry.task == "embed" or config.num_labels == 1,
            f"{entry.max_tokens} tokens with {config.max_position_embeddings} positions": (
                entry.max_tokens <= config.max_position_embeddings
            ),
        },
        head_dim=config.hidden_size // config.num_attention_heads,
        group=1,
        widths={"hidden_size": config.hidden_size, "intermediate_size": config.intermediate_size},
    )
