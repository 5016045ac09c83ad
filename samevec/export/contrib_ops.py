"""Operators of the ``com.microsoft`` domain as torch functions that export to them.

Their torch forward gives right shapes only, which is all that tracing reads; values are checked on the exported graph.
Specifications: onnxruntime ``docs/ContribOperators.md`` (1.32).
"""

from __future__ import annotations

from typing import Any, cast

import torch

__all__ = ["multi_head_attention", "reshape", "rotary_embedding"]


def _absent(graph: Any) -> Any:
    """Return the node of an omitted input."""
    node = graph.op("prim::Constant")
    node.setType(torch._C.OptionalType.ofTensor())
    return node


def _set_float(output: Any, like: Any, n_axes: int) -> Any:
    """Set an output's element type to an input's, its sizes to unknown: the exporter cannot infer them."""
    return output.setType(like.type().with_sizes([None] * n_axes))


def _apply(function: Any, *inputs: Any) -> Any:
    """Call a torch autograd function where its tracer sees it; torch gives the method no types."""
    return function.apply(*inputs)


class _Reshape(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, shape: torch.Tensor) -> torch.Tensor:
        sizes = [states.shape[i] if size == 0 else size for i, size in enumerate(shape.tolist())]
        return states.reshape(sizes).clone()

    @staticmethod
    def symbolic(graph: Any, states: Any, shape: Any) -> Any:
        return graph.op("Reshape", states, shape)


def reshape(states: torch.Tensor, shape: torch.Tensor | tuple[int, ...]) -> torch.Tensor:
    """Reshape as the ONNX operator does: 0 keeps an axis, -1 takes the rest; a tuple becomes a constant.

    torch's own reshape exports to six nodes that compute the shape; a short query would run hundreds of them.
    """
    if isinstance(shape, tuple):
        shape = torch.tensor(shape, dtype=torch.int64)
    return cast("torch.Tensor", _Reshape.apply(states, shape))  # type: ignore[no-untyped-call]


class _MultiHeadAttention(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 - torch passes them so
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        bias: torch.Tensor | None,
        n_heads: int,
        scale: float,
        causal: bool,
    ) -> torch.Tensor:
        return query.new_zeros(query.shape[0], query.shape[1], value.shape[2])

    @staticmethod
    def symbolic(  # noqa: PLR0917 - torch passes them so
        graph: Any, query: Any, key: Any, value: Any, bias: Any, n_heads: int, scale: float, causal: bool
    ) -> Any:
        inputs = [query, key, value]
        if bias is not None and not bias.node().mustBeNone():
            absent = _absent(graph)
            inputs += [absent, absent, bias]
        attributes: dict[str, Any] = {"num_heads_i": n_heads, "scale_f": scale}
        if causal:
            attributes["unidirectional_i"] = 1
        output = graph.op("com.microsoft::MultiHeadAttention", *inputs, **attributes)
        return _set_float(output, query, 3)


def multi_head_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    bias: torch.Tensor | None,
    n_heads: int,
    scale: float,
    causal: bool = False,
) -> torch.Tensor:
    """Attend in both directions, or only to earlier tokens.

    `query` and `key` have shape (rows, tokens, n_heads * head_dim), `value` and the result (rows, tokens, n_heads *
    value_dim). `bias`, (rows, 1, query tokens, key tokens), is added to the scores; without it the operator stays on
    its path that never builds the score matrix, except on the CPU provider if `causal`.
    """
    return cast("torch.Tensor", _apply(_MultiHeadAttention, query, key, value, bias, n_heads, scale, causal))


class _RotaryEmbedding(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: torch.Tensor, start: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        return states.clone()

    @staticmethod
    def symbolic(graph: Any, states: Any, start: Any, cos: Any, sin: Any) -> Any:
        return graph.op("com.microsoft::RotaryEmbedding", states, start, cos, sin).setType(states.type())


def rotary_embedding(states: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotate states of shape (rows, tokens, n_heads * head_dim) by their positions, counted from 0 in every row."""
    start = torch.zeros(1, dtype=torch.int64)
    return cast("torch.Tensor", _apply(_RotaryEmbedding, states, start, rotary[0], rotary[1]))
