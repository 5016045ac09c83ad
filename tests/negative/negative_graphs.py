"""Edits of an exported graph, found by structure and not by the names an exporter happens to give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import onnx
    from numpy.typing import NDArray

    Edit = Callable[[onnx.ModelProto], None]
    Values = Callable[[NDArray[np.float32]], NDArray[np.float32]]


def _producer(model: onnx.ModelProto, name: str) -> Any:
    return next((node for node in model.graph.node if name in node.output), None)


def _consumers(model: onnx.ModelProto, name: str) -> list[Any]:
    return [node for node in model.graph.node if name in node.input]


def _only(nodes: Iterator[Any]) -> Any:
    (found,) = nodes
    return found


def _rewire(node: Any, old: str, new: str) -> None:
    for i, name in enumerate(node.input):
        if name == old:
            node.input[i] = new


def _insert(model: onnx.ModelProto, place: Any, *nodes: Any) -> None:
    """Put nodes before another; at the very beginning for None."""
    at = 0 if place is None else list(model.graph.node).index(place)
    for i, node in enumerate(nodes):
        model.graph.node.insert(at + i, node)


def _add_ones(model: onnx.ModelProto) -> str:
    """Add a mask of nothing but ones."""
    _insert(
        model,
        None,
        helper.make_node("Equal", ["attention_mask", "attention_mask"], ["wrong_true"]),
        helper.make_node("Cast", ["wrong_true"], ["wrong_ones"], to=TensorProto.INT64),
    )
    return "wrong_ones"


def _pooled_index(model: onnx.ModelProto) -> Any:
    """The node that computes which token an embedder pools: lengths - 1."""
    gathers = [node for node in model.graph.node if node.op_type == "GatherElements"]
    expands = [_producer(model, node.input[1]) for node in gathers]
    reshapes = {_producer(model, node.input[0]).output[0] for node in expands}
    return _producer(model, _producer(model, _only(iter(reshapes))).input[0])


def pool_first_token(model: onnx.ModelProto) -> None:
    """Make an embedder take its first token."""
    node = _pooled_index(model)
    (reshape,) = _consumers(model, node.output[0])
    _insert(model, reshape, helper.make_node("Sub", [node.output[0], node.output[0]], ["wrong_index"]))
    _rewire(reshape, node.output[0], "wrong_index")


def pool_last_column(model: onnx.ModelProto) -> None:
    """Make an embedder take whatever stands in the last column."""
    lengths = _producer(model, _pooled_index(model).input[0])
    _rewire(lengths, "attention_mask", _add_ones(model))


def _valid(model: onnx.ModelProto) -> Any:
    """The node that turns a reranker's mask into floats."""
    return _only(node for node in _consumers(model, "attention_mask") if node.op_type == "Cast")


def _replace_valid(model: onnx.ModelProto, *, attention: bool) -> None:
    """Give either attention or pooling a mask of ones."""
    valid = _valid(model)
    users = [node for node in _consumers(model, valid.output[0]) if (node.op_type == "Sub") == attention]
    assert users
    ones = _add_ones(model)
    cast = helper.make_node("Cast", [ones], ["wrong_valid"], to=TensorProto.FLOAT)
    _insert(model, valid, cast)
    for node in users:
        _rewire(node, valid.output[0], "wrong_valid")


def drop_attention_mask(model: onnx.ModelProto) -> None:
    """Let a reranker's tokens attend to padding; pooling stays right."""
    _replace_valid(model, attention=True)


def pool_padding_too(model: onnx.ModelProto) -> None:
    """Let a reranker's mean count padding; attention stays right."""
    _replace_valid(model, attention=False)


def pool_head_first_token(model: onnx.ModelProto) -> None:
    """Feed a reranker's head the first token instead of the mean."""
    weights = _only(node for node in _consumers(model, _valid(model).output[0]) if node.op_type == "Unsqueeze")
    (product,) = _consumers(model, weights.output[0])
    (summed,) = _consumers(model, product.output[0])
    (mean,) = _consumers(model, summed.output[0])
    (doubled,) = _consumers(model, mean.output[0])
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(0), "wrong_zero"))
    _insert(model, doubled, helper.make_node("Gather", [product.input[1], "wrong_zero"], ["wrong_pooled"], axis=1))
    _rewire(doubled, mean.output[0], "wrong_pooled")


def mask_from_ids(pad_token_id: int) -> Edit:
    """Make the graph take every pad token for padding, wherever it comes from."""

    def edit(model: onnx.ModelProto) -> None:
        for node in _consumers(model, "attention_mask"):
            _rewire(node, "attention_mask", "wrong_mask")
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(pad_token_id), "wrong_pad"))
        _insert(
            model,
            None,
            helper.make_node("Equal", ["input_ids", "wrong_pad"], ["wrong_is_pad"]),
            helper.make_node("Not", ["wrong_is_pad"], ["wrong_is_token"]),
            helper.make_node("Cast", ["wrong_is_token"], ["wrong_mask"], to=TensorProto.INT64),
        )

    return edit


def half_window(n_tokens: int) -> Edit:
    """Set how far a reranker's local layers see."""

    def edit(model: onnx.ModelProto) -> None:
        absolute = _only(node for node in model.graph.node if node.op_type == "Abs")
        (within,) = _consumers(model, absolute.output[0])
        constant = _producer(model, within.input[1])
        assert numpy_helper.to_array(constant.attribute[0].t) == 64
        constant.attribute[0].t.CopyFrom(numpy_helper.from_array(np.asarray(n_tokens)))

    return edit


def wrong_at(axis: int, size: int) -> Edit:
    """Add 0.05 to every number where the input has this many rows (axis 0) or tokens (axis 1)."""

    def edit(model: onnx.ModelProto) -> None:
        (output,) = model.graph.output
        last = _producer(model, output.name)
        last.output[0] = "right"
        constants = {
            "wrong_axis": np.asarray([axis]),
            "wrong_size": np.asarray([size]),
            "wrong_by": np.asarray([0.05], np.float32),
        }
        model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
        model.graph.node.extend(
            [
                helper.make_node("Shape", ["input_ids"], ["wrong_shape"]),
                helper.make_node("Gather", ["wrong_shape", "wrong_axis"], ["wrong_found"]),
                helper.make_node("Equal", ["wrong_found", "wrong_size"], ["wrong_here"]),
                helper.make_node("Cast", ["wrong_here"], ["wrong_once"], to=TensorProto.FLOAT),
                helper.make_node("Mul", ["wrong_once", "wrong_by"], ["wrong_sum"]),
                helper.make_node("Add", ["right", "wrong_sum"], [output.name]),
            ]
        )

    return edit


def add_sigmoid(model: onnx.ModelProto) -> None:
    """Activate inside the graph what the runtime activates again."""
    (last,) = [node for node in model.graph.node if "logits" in node.output]
    last.output[0] = "wrong_logits"
    model.graph.node.append(helper.make_node("Sigmoid", ["wrong_logits"], ["logits"]))


def change_weight(name: str, change: Values) -> Edit:
    """Change one weight."""

    def edit(model: onnx.ModelProto) -> None:
        _change(model, name, change)

    return edit


def _change(model: onnx.ModelProto, name: str, change: Values) -> None:
    tensor = _only(tensor for tensor in model.graph.initializer if tensor.name == name)
    values = np.array(numpy_helper.to_array(tensor))
    changed = change(values).astype(np.float32)
    assert changed.shape == values.shape
    assert not np.array_equal(changed, values)
    tensor.CopyFrom(numpy_helper.from_array(changed, name))


def zero_page(model: onnx.ModelProto) -> None:
    """Zero one page in the middle of the weight in the middle."""

    def change(values: NDArray[np.float32]) -> NDArray[np.float32]:
        flat = values.flatten()
        start = flat.size // 2
        flat[start : start + 1024] = 0
        return flat.reshape(values.shape)

    products = [node.input[1] for node in model.graph.node if node.op_type == "MatMul"]
    weights = [tensor.name for tensor in model.graph.initializer if tensor.name in products]
    _change(model, weights[len(weights) // 2], change)


def tile_key_heads(model: onnx.ModelProto) -> None:
    """Share key heads in turn (0 1 0 1 0 1) and not in groups (0 0 0 1 1 1), which is a permutation of query heads."""
    n_keys = 2
    for attention in [node for node in model.graph.node if node.op_type == "MultiHeadAttention"]:
        n_heads = next(a.i for a in attention.attribute if a.name == "num_heads")
        order = [head for key in range(n_keys) for head in range(key, n_heads, n_keys)]

        def by_head(values: NDArray[np.float32], order: list[int] = order) -> NDArray[np.float32]:
            return values.reshape(len(order), -1, values.shape[-1])[order].reshape(values.shape)

        _change(model, _product_before(model, attention.input[0]), lambda values: by_head(values.T).T)
        _change(model, _product_after(model, attention.output[0]), by_head)


def _product_before(model: onnx.ModelProto, name: str) -> str:
    node = _producer(model, name)
    while node.op_type != "MatMul":
        sources = (_producer(model, name) for name in node.input)
        node = next(source for source in sources if source is not None and source.op_type != "Constant")
    return str(node.input[1])


def _product_after(model: onnx.ModelProto, name: str) -> str:
    node = _consumers(model, name)[0]
    while node.op_type != "MatMul":
        node = next(user for user in _consumers(model, node.output[0]) if user.op_type != "Shape")
    return str(node.input[1])
