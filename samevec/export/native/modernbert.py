"""ModernBERT rerankers in the library's operators: local and global attention in turn, a head on pooled states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from samevec.export.native.graph import require_covered

if TYPE_CHECKING:
    import onnx

    from samevec.export.native.graph import GraphBuilder
    from samevec.lock import LockedModel

__all__ = ["PREFIX", "reranker"]

#: Of the base model's parameters, in checkpoints that have one.
PREFIX = "model."


def reranker(graph: GraphBuilder, config: Any, entry: LockedModel) -> onnx.ModelProto:
    """Return the graph of a ModernBERT sequence classifier with one label; ExportError if it is not covered."""
    _require_covered(config, entry)
    n_layers, epsilon = config.num_hidden_layers, config.norm_eps
    offsets, ids = graph.unpadded()
    words = graph.gather("embeddings.tok_embeddings.weight", ids, name="embeddings")
    states = normed = graph.layer_norm(words, "embeddings.norm", epsilon=epsilon)  # layer 0 has no norm of its own
    with graph.progress.step("write the native graph", total=n_layers, unit="layers") as advance:
        for i in range(n_layers):
            at = f"layers.{i}"
            attended = _attend(graph, config, i, normed, offsets=offsets, n_positions=entry.max_tokens)
            projected = graph.product(attended, f"{at}.attn.Wo", name=f"{at}.attn.Wo")
            normed, states = graph.add_layer_norm(projected, states, f"{at}.mlp_norm", epsilon=epsilon)
            inner = graph.product(normed, f"{at}.mlp.Wi", name=f"{at}.mlp.Wi")
            gated = graph.node("GeGlu", inner, name=f"{at}.mlp.gated")
            outer = graph.product(gated, f"{at}.mlp.Wo", name=f"{at}.mlp.Wo")
            following = "final_norm" if i == n_layers - 1 else f"layers.{i + 1}.attn_norm"
            normed, states = graph.add_layer_norm(outer, states, following, epsilon=epsilon)
            advance(1)
    pool = {"mean": "MeanPool", "cls": "FirstToken"}[config.classifier_pooling]
    pooled = graph.node(pool, normed, offsets, name="pooled")
    dense = graph.product(pooled, "head.dense", name="head.dense")
    activated = graph.node("Gelu", dense, name="head.activated")
    logits = graph.product(graph.layer_norm(activated, "head.norm", epsilon=epsilon), "classifier", name="classifier")
    return graph.model(["input_ids", "attention_mask"], logits, name="logits", width=1)


def _attend(graph: GraphBuilder, config: Any, i: int, normed: str, *, offsets: str, n_positions: int) -> str:
    local = i % config.global_attn_every_n_layers != 0
    own_theta = local and config.local_rope_theta is not None
    rotary = graph.rotary(
        "rotary.local" if local else "rotary.global",
        theta=config.local_rope_theta if own_theta else config.global_rope_theta,
        head_dim=config.hidden_size // config.num_attention_heads,
        n_positions=n_positions,
    )
    at = f"layers.{i}.attn"
    attended: str = graph.node(
        "Attention",
        *(graph.product(normed, f"{at}.Wqkv", name=f"{at}.Wqkv"), offsets, *rotary),
        name=at,
        heads=config.num_attention_heads,
        kv_heads=config.num_attention_heads,
        causal=0,
        window=config.local_attention // 2 if local else -1,
        epsilon=config.norm_eps,
    )
    return attended


def _require_covered(config: Any, entry: LockedModel) -> None:
    require_covered(
        entry,
        {
            f"hidden_activation {config.hidden_activation!r}": config.hidden_activation == "gelu",
            f"classifier_activation {config.classifier_activation!r}": config.classifier_activation == "gelu",
            "rope_scaling": not getattr(config, "rope_scaling", None),
            f"{config.num_labels} labels": config.num_labels == 1,
        },
        head_dim=config.hidden_size // config.num_attention_heads,
        group=1,
        widths={"hidden_size": config.hidden_size, "intermediate_size": config.intermediate_size},
    )
