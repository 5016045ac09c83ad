"""Qwen3 embedders in the library's operators: causal attention, the last layer for each text's last token alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from samevec.export.native.graph import require_covered

if TYPE_CHECKING:
    import onnx

    from samevec.export.native.graph import GraphBuilder
    from samevec.lock import LockedModel

__all__ = ["PREFIX", "embedder"]

#: Of the base model's parameters, in checkpoints that have one.
PREFIX = "model."


def embedder(graph: GraphBuilder, config: Any, entry: LockedModel) -> onnx.ModelProto:
    """Return the graph of a Qwen3 embedder that pools the last token; ExportError if it is not covered."""
    _require_covered(config, entry)
    n_layers, epsilon = config.num_hidden_layers, config.rms_norm_eps
    offsets, ids = graph.unpadded()
    states = graph.gather("embed_tokens.weight", ids, name="embeddings")
    rotary = graph.rotary("rotary", theta=config.rope_theta, head_dim=config.head_dim, n_positions=entry.max_tokens)
    normed = graph.rms_norm(states, "layers.0.input_layernorm", epsilon=epsilon)
    with graph.progress.step("write the native graph", total=n_layers, unit="layers") as advance:
        for i in range(n_layers):
            at = f"layers.{i}"
            attended = _attend(graph, config, at, normed, offsets=offsets, rotary=rotary)
            if i == n_layers - 1:
                attended = graph.node("LastToken", attended, offsets, name=f"{at}.attended")
                states = graph.node("LastToken", states, offsets, name=f"{at}.states")
            projected = graph.product(attended, f"{at}.self_attn.o_proj", name=f"{at}.self_attn.o_proj")
            normed, states = graph.add_rms_norm(projected, states, f"{at}.post_attention_layernorm", epsilon=epsilon)
            inner = graph.product(normed, f"{at}.mlp.gate_proj", f"{at}.mlp.up_proj", name=f"{at}.mlp.gate_up")
            gated = graph.node("SwiGlu", inner, name=f"{at}.mlp.gated")
            outer = graph.product(gated, f"{at}.mlp.down_proj", name=f"{at}.mlp.down_proj")
            following = "norm" if i == n_layers - 1 else f"layers.{i + 1}.input_layernorm"
            normed, states = graph.add_rms_norm(outer, states, following, epsilon=epsilon)
            advance(1)
    return graph.model(["input_ids", "attention_mask"], normed, name="embedding", width=config.hidden_size)


def _attend(graph: GraphBuilder, config: Any, at: str, normed: str, *, offsets: str, rotary: tuple[str, str]) -> str:
    layers = (f"{at}.self_attn.{part}_proj" for part in "qkv")
    qkv = graph.product(normed, *layers, name=f"{at}.self_attn.qkv")
    norms = (graph.vector(f"{at}.self_attn.{part}_norm.weight") for part in "qk")
    attended: str = graph.node(
        "Attention",
        *(qkv, offsets, *rotary, *norms),
        name=f"{at}.self_attn",
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        causal=1,
        window=-1,
        epsilon=config.rms_norm_eps,
    )
    return attended


def _require_covered(config: Any, entry: LockedModel) -> None:
    require_covered(
        entry,
        {
            f"hidden_act {config.hidden_act!r}": config.hidden_act == "silu",
            "rope_scaling": not config.rope_scaling,
            "a sliding window": set(config.layer_types) == {"full_attention"},
            "partial_rotary_factor": getattr(config, "partial_rotary_factor", 1.0) == 1.0,
            f"pooling {entry.pooling!r}": entry.pooling == "last_token",
        },
        head_dim=config.head_dim,
        group=config.num_attention_heads // config.num_key_value_heads,
        widths={"hidden_size": config.hidden_size, "intermediate_size": config.intermediate_size},
    )
