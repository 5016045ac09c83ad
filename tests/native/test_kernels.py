"""The native operators through ONNX Runtime: their bits are the definition's, and depend on nothing else."""

from __future__ import annotations

import math
import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import definition
import numpy as np
import one_node
import pytest
from definition import Heads
from one_node import Bf16, Node, Weight, assert_same, ends_of, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from definition import Floats
    from numpy.typing import NDArray

SETTING = "SAMEVEC_INSTRUCTION_SET"
EPSILON = 1e-5
KINDS = ["normal", "tiny", "wild", "cancelling", "special"]
SPECIAL = [0.0, -0.0, 2**-149, -(2**-149), 2**-126, 1.0, -1.0, 3e38, -3e38, math.inf, -math.inf, math.nan]


def values(rng: np.random.Generator, *shape: int, kind: str = "normal") -> Floats:
    normal = rng.normal(size=shape).astype(np.float32)
    if kind == "tiny":  # denormal, and with denormal products
        normal = np.ldexp(normal, rng.choice([-140, -126, -70], size=shape))
    elif kind == "wild":  # every exponent of a finite value
        bits = rng.integers(0, 2**32, size=shape, dtype=np.uint32)
        normal = np.where(bits >> 23 & 0xFF == 0xFF, bits ^ (1 << 30), bits).astype(np.uint32).view(np.float32)
    elif kind == "cancelling":
        normal = np.ldexp(np.sign(normal), rng.integers(0, 40, size=shape)) + normal
    elif kind == "special":
        sprinkled = rng.random(shape) < 0.02
        normal = np.where(sprinkled, rng.choice(np.array(SPECIAL, np.float32), size=shape), normal)
    return normal.astype(np.float32)


def upper_bits(x: Floats) -> NDArray[np.uint16]:
    return (x.view(np.uint32) >> 16).astype(np.uint16)


class Product:
    """Random weights of a product as both operators take them."""

    def __init__(self, rng: np.random.Generator, op: str, k: int, n: int, kind: str = "normal") -> None:
        w = values(rng, k, n, kind=kind)
        self.op = op
        self.w = definition.widened(upper_bits(w)) if op == "MatMulBf16" else w
        self.panels: Bf16 | Weight = (
            Bf16(definition.bf16_panels(upper_bits(w))) if op == "MatMulBf16" else Weight(definition.f32_panels(w))
        )
        self.bias = Weight(values(rng, n, kind=kind))
        self.columns = n

    def node(self, x: Floats, *, with_bias: bool = False, threads: int = 1) -> Node:
        bias = [self.bias] if with_bias else []
        return Node(self.op, x, self.panels, *bias, columns=self.columns, threads=threads)

    def element(self, row: Floats, column: int, *, with_bias: bool = False) -> float:
        bias = float(self.bias.values[column]) if with_bias else None
        return definition.product(row.tolist(), self.w[:, column].tolist(), bias)


PRODUCTS = pytest.mark.parametrize("op", ["MatMulBf16", "MatMulF32"])


# Text layout


def test_padding_is_taken_out_as_defined() -> None:
    rng = np.random.default_rng(1)
    for n_rows, width in [(1, 1), (1, 300), (5, 7), (40, 130), (300, 3)]:
        lengths = rng.integers(1, width + 1, size=n_rows)
        mask = (np.arange(width) < lengths[:, None]).astype(np.int64)
        ids = rng.integers(-(2**62), 2**62, size=mask.shape)
        ends = run("Offsets", mask)
        assert_same(ends, definition.offsets(mask))
        assert_same(run("Unpad", ids, ends), definition.unpad(ids, ends))
        assert_same(run("Positions", ends), definition.positions(ends))


# Products


@PRODUCTS
@pytest.mark.parametrize("kind", KINDS)
def test_products_are_as_defined(op: str, kind: str) -> None:
    rng = np.random.default_rng(2)
    for m, k, n in [(1, 1, 1), (2, 255, 5), (3, 256, 33), (1, 257, 100), (5, 600, 33), (7, 40, 64), (13, 513, 2)]:
        product = Product(rng, op, k, n, kind)
        x = values(rng, m, k, kind=kind)
        assert_same(product.node(x)(), definition.matmul(x, product.w))
        if m < 4:
            assert_same(product.node(x, with_bias=True)(), definition.matmul(x, product.w, product.bias.values))


@PRODUCTS
@pytest.mark.parametrize(("m", "k", "n"), [(200, 600, 100), (73, 1025, 769), (17, 64, 3072)])
def test_elements_of_larger_products_are_as_defined(op: str, m: int, k: int, n: int) -> None:
    rng = np.random.default_rng(3)
    product, x = Product(rng, op, k, n), values(rng, m, k)
    found = product.node(x, with_bias=True, threads=2)()
    places = [*rng.integers(0, (m, n), size=(150, 2)).tolist(), [m - 1, n - 1], [0, n - 1], [m - 1, 0]]
    for row, column in places:
        assert_same(found[row, column : column + 1], [product.element(x[row], column, with_bias=True)])


@PRODUCTS
def test_a_product_keeps_the_axes_before_the_last(op: str) -> None:
    rng = np.random.default_rng(4)
    product, x = Product(rng, op, 20, 33), values(rng, 2, 3, 1, 20)
    assert_same(product.node(x)(), definition.matmul(x, product.w))
    assert_same(product.node(x[0, 0, 0])(), definition.matmul(x[0, 0, 0], product.w))


@PRODUCTS
def test_a_rows_product_does_not_depend_on_its_neighbours_or_their_number(op: str) -> None:
    rng = np.random.default_rng(5)
    for k, n in [(1, 1), (300, 33), (255, 5), (600, 100)]:
        product, x = Product(rng, op, k, n), values(rng, 200, k)
        node = product.node(x, with_bias=True)
        all_rows = node()
        for m in range(1, 201) if n == 33 else (1, 2, 5, 6, 7, 16, 71, 72, 73, 143, 144, 145, 199):
            assert_same(node(x[:m]), all_rows[:m])
            assert_same(node(x[200 - m :]), all_rows[200 - m :])
        order = rng.permutation(200)
        assert_same(node(x[order]), all_rows[order])


@PRODUCTS
def test_a_product_does_not_depend_on_the_one_before(op: str) -> None:
    rng = np.random.default_rng(6)
    sizes = [(700, 40, 33), (3, 900, 64), (80, 257, 100), (80, 257, 100), (1, 4000, 32), (75, 30, 31)]
    products = [(Product(rng, op, k, n), values(rng, m, k)) for m, k, n in sizes]
    nodes = [product.node(x, threads=2) for product, x in products]
    expected = [product.node(x)() for product, x in products]
    for i in rng.integers(0, len(sizes), size=60).tolist():
        assert_same(nodes[i](), expected[i])


# Norms

NORMS: dict[str, Callable[[Floats, Floats, Floats, Floats | None], list[Floats]]] = {
    "RmsNorm": lambda x, residual, g, b: [definition.rms_norm(x, g, EPSILON)],
    "LayerNorm": lambda x, residual, g, b: [definition.layer_norm(x, g, b, EPSILON)],
    "AddRmsNorm": lambda x, residual, g, b: list(definition.add_rms_norm(x, residual, g, EPSILON)),
    "AddLayerNorm": lambda x, residual, g, b: list(definition.add_layer_norm(x, residual, g, b, EPSILON)),
}


def norm_node(op: str, x: Floats, residual: Floats, g: Floats, b: Floats | None, threads: int = 1) -> Node:
    arguments: list[Any] = [x, residual] if op.startswith("Add") else [x]
    arguments += [Weight(g)] if b is None or "Rms" in op else [Weight(g), Weight(b)]
    return Node(op, *arguments, threads=threads, epsilon=EPSILON)


@pytest.mark.parametrize("op", NORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_norms_are_as_defined(op: str, kind: str) -> None:
    rng = np.random.default_rng(7)
    for shape in [(3, 32), (2, 2, 64), (5, 96), (1, 384), (2, 1024), (160,)]:
        x, residual = (values(rng, *shape, kind=kind) for _ in range(2))
        g, b = (values(rng, shape[-1], kind=kind) for _ in range(2))
        for bias in (b, None) if "Layer" in op else (None,):
            found = norm_node(op, x, residual, g, bias).runs()
            for got, expected in zip(found, NORMS[op](x, residual, g, bias), strict=True):
                assert_same(got, expected)


def test_a_row_of_zeros_and_a_constant_row_have_norms_as_defined() -> None:
    x = np.stack([np.full(64, v, np.float32) for v in (0.0, -0.0, 1.0, -3e38, 2e19, 1e-40)])
    g, b = np.full(64, -2, np.float32), np.full(64, -0.0, np.float32)
    for op, expected in NORMS.items():
        for bias in (b, None):
            assert_same(norm_node(op, x, x, g, bias)(), expected(x, x, g, bias)[0])


# Gates


def around(*points: float) -> Floats:
    """The values about some points and their negatives."""
    bits = np.array(points, np.float32).view(np.int32)[:, None] + np.arange(-40, 41)
    found = bits.astype(np.int32).view(np.float32).ravel()
    return np.concatenate([found, -found])


TURNS = (0.625, math.sqrt(2), 4 * math.sqrt(2), 1.0, 4.0, 87.3365, 43.6682, 0.34657, 9.0, 2**-126, 17.0)


def gate_values(kind: str) -> Floats:
    rng = np.random.default_rng(8)
    spread = np.concatenate([rng.uniform(-a, a, 600) for a in (0.01, 1, 6, 20, 100)]).astype(np.float32)
    return np.concatenate([spread, around(*TURNS), np.array(SPECIAL, np.float32), values(rng, 600, kind=kind)])


@pytest.mark.parametrize("kind", ["wild", "tiny"])
@pytest.mark.parametrize(("op", "function"), [("Gelu", definition.gelu), ("Tanh", definition.tanh)])
def test_functions_of_one_value_are_as_defined(op: str, function: Callable[[float], float], kind: str) -> None:
    x = gate_values(kind)
    assert_same(run(op, x), definition.per_value(x, function))
    for shape in [(1, 1), (3, 5), (2, 3, 33), (7, 100)]:
        part = np.random.default_rng(9).choice(x, size=shape).astype(np.float32)
        assert_same(run(op, part), definition.per_value(part, function))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("op", "gate"), [("SwiGlu", definition.swiglu), ("GeGlu", definition.geglu)])
def test_gates_are_as_defined(op: str, gate: Callable[[Floats], Floats], kind: str) -> None:
    rng, x = np.random.default_rng(10), gate_values(kind)
    both = np.concatenate([x, values(rng, len(x), kind=kind)])[None]
    assert_same(run(op, both), gate(both))
    for shape in [(1, 2), (3, 10), (2, 3, 66), (7, 200)]:
        part = rng.choice(both[0], size=shape).astype(np.float32)
        assert_same(run(op, part), gate(part))


# Attention


def rotary_tables(n: int, d: int) -> tuple[Floats, Floats]:
    angles = np.arange(n)[:, None] * 10000.0 ** (-np.arange(d // 2) / (d // 2))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


class Attending:
    """One attention over ragged texts."""

    def __init__(
        self,
        how: Heads,
        d: int,
        lengths: list[int],
        *,
        rotates: bool = False,
        norms: bool = False,
        kind: str = "normal",
        seed: int = 11,
    ) -> None:
        rng = np.random.default_rng(seed)
        self.how, self.ends = how, ends_of(lengths)
        self.qkv = values(rng, sum(lengths), (how.heads + 2 * how.kv_heads) * d, kind=kind)
        self.rotation = rotary_tables(max(lengths) + 3, d) if rotates or norms else None
        self.gains = (values(rng, d), values(rng, d)) if norms else None

    def node(self, threads: int = 1) -> Node:
        weights = [Weight(w) for pair in (self.rotation, self.gains) if pair is not None for w in pair]
        how = self.how
        return Node(
            "Attention",
            self.qkv,
            self.ends,
            *weights,
            threads=threads,
            heads=how.heads,
            kv_heads=how.kv_heads,
            causal=int(how.causal),
            window=how.window,
            epsilon=how.epsilon,
        )

    def expected(self) -> Floats:
        return definition.attention(self.qkv, self.ends, self.how, self.rotation, self.gains)

    def check_places(self, n: int, threads: int = 2) -> None:
        """Compare some heads of some positions with the definition."""
        found = self.node(threads)().reshape(len(self.qkv), self.how.heads, -1)
        rng = np.random.default_rng(12)
        for start, stop in definition.text_spans(self.ends):
            text = definition.ready_text(self.qkv[start:stop], self.how, self.rotation, self.gains)
            places = rng.integers(0, (self.how.heads, stop - start), size=(n, 2)).tolist()
            for head, i in [*places, [self.how.heads - 1, stop - start - 1]]:
                assert_same(found[start + i, head], definition.attention_of(text, self.how, head, i))


SMALL = [
    (Heads(1, 1), 32, [1, 2, 31, 33], {}),
    (Heads(2, 1), 64, [5, 40], {"rotates": True}),
    (Heads(4, 2, causal=True), 32, [1, 17, 35], {"norms": True}),
    (Heads(3, 3, window=4), 32, [20, 3, 1], {"rotates": True}),
    (Heads(5, 1, causal=True, window=7), 96, [14, 9], {"norms": True}),
    (Heads(32, 1), 32, [3, 1], {}),
    (Heads(17, 1, causal=True), 32, [4, 1], {"rotates": True}),
    (Heads(1, 1, window=0), 128, [9], {}),
    (Heads(1, 1, causal=True), 32, [98, 5], {}),
    (Heads(1, 1, window=30), 32, [110], {}),
]


@pytest.mark.parametrize(("how", "d", "lengths", "options"), SMALL)
def test_attention_is_as_defined(how: Heads, d: int, lengths: list[int], options: dict[str, Any]) -> None:
    attending = Attending(how, d, lengths, **options)
    assert_same(attending.node()(), attending.expected())


@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize(
    ("how", "lengths", "options"),
    [
        (Heads(1, 1), [1, 2, 40], {}),
        (Heads(2, 1, causal=True), [35, 6], {"rotates": True}),
        (Heads(2, 2, window=3), [37], {}),
        (Heads(2, 1, causal=True, window=5), [20, 3], {"norms": True}),
        (Heads(1, 1, causal=True), [99], {}),
    ],
)
def test_attention_over_hostile_values_is_as_defined(
    how: Heads, lengths: list[int], options: dict[str, Any], kind: str
) -> None:
    for seed in (13, 14):
        attending = Attending(how, 32, lengths, **options, kind=kind, seed=seed)
        assert_same(attending.node()(), attending.expected())


def test_attention_with_a_few_bad_values_is_as_defined() -> None:
    rng = np.random.default_rng(15)
    for how in (Heads(1, 1), Heads(1, 1, causal=True), Heads(2, 1, window=6), Heads(1, 1, causal=True, window=6)):
        attending = Attending(how, 32, [70, 4])
        for bad in SPECIAL[-5:]:
            qkv = attending.qkv.copy()
            for _ in range(2):
                qkv[tuple(rng.integers(0, qkv.shape))] = bad
            expected = definition.attention(qkv, attending.ends, how)
            assert_same(attending.node()(qkv), expected)


@pytest.mark.parametrize("size", [1e3, 1e15, 2e18, 1e19])
def test_attention_over_scores_of_any_size_is_as_defined(size: float) -> None:
    for how in (Heads(1, 1), Heads(1, 1, causal=True, window=9)):
        attending = Attending(how, 32, [100])
        attending.qkv[:, :64] *= np.float32(size)
        if size == 1e15:
            attending.qkv[:, :32] = np.abs(attending.qkv[:, :32])
            attending.qkv[:, 32:64] = -np.abs(attending.qkv[:, 32:64])  # every score below -1e30
        assert_same(attending.node()(), attending.expected())


@pytest.mark.parametrize(
    ("how", "d", "length", "options"),
    [
        (Heads(12, 12), 64, 300, {"rotates": True}),
        (Heads(16, 8, causal=True), 128, 200, {"norms": True}),
        (Heads(12, 12, window=64), 64, 700, {"rotates": True}),
        (Heads(6, 2, causal=True, window=100), 32, 1000, {}),
        (Heads(7, 1), 96, 193, {}),
    ],
)
def test_places_of_larger_attentions_are_as_defined(how: Heads, d: int, length: int, options: dict[str, Any]) -> None:
    Attending(how, d, [length, 1, length // 2], **options).check_places(8)


@pytest.mark.parametrize(
    ("how", "options"),
    [
        (Heads(2, 2), {"rotates": True}),
        (Heads(4, 1, causal=True), {"norms": True}),
        (Heads(3, 1, window=33), {"rotates": True}),
        (Heads(2, 1, causal=True, window=100), {}),
    ],
)
def test_a_text_among_texts_of_every_length_is_what_it_is_alone(how: Heads, options: dict[str, Any]) -> None:
    lengths = np.random.default_rng(16).permutation(np.arange(1, 301)).tolist()
    attending = Attending(how, 32, lengths, **options)
    node = attending.node(threads=2)
    together = node()
    for start, stop in definition.text_spans(attending.ends):
        assert_same(node(attending.qkv[start:stop], ends_of([stop - start])), together[start:stop])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [249, 250, 2**30, 2**31 - 251, 2**31 - 250, 2**31 - 1])
def test_a_window_as_long_as_the_text_is_none(window: int, causal: bool) -> None:
    without, wide = (Attending(Heads(2, 1, causal, w), 32, [250, 90, 1]) for w in (-1, window))
    assert_same(wide.node()(), without.node()())


# Pooling and the values that leave

POOLS = {
    "FirstToken": definition.first_token,
    "LastToken": definition.last_token,
    "MeanPool": definition.mean_pool,
}


@pytest.mark.parametrize("op", POOLS)
@pytest.mark.parametrize("kind", KINDS)
def test_pools_are_as_defined(op: str, kind: str) -> None:
    rng = np.random.default_rng(17)
    for lengths, n in [([1], 1), ([1, 31, 32, 33], 5), ([64, 65, 100], 33), ([3, 300], 128), ([2, 40], 384)]:
        x, ends = values(rng, sum(lengths), n, kind=kind), ends_of(lengths)
        assert_same(run(op, x, ends), POOLS[op](x, ends))


@pytest.mark.parametrize("kind", KINDS)
def test_unit_norm_is_as_defined(kind: str) -> None:
    rng = np.random.default_rng(18)
    for n in (1, 2, 31, 32, 33, 384, 1000):
        x = values(rng, 4, n, kind=kind)
        x[3] = 0
        assert_same(one_node.unit_norm(x), definition.unit_norm(x))


def test_sigmoid_is_as_defined() -> None:
    rng = np.random.default_rng(19)
    parts = [rng.uniform(-a, a, 3000) for a in (1, 30, 800)]
    x = np.concatenate([*parts, around(708.396, 0.34657, 36.7), SPECIAL, values(rng, 3000, kind="wild")])
    x = x.astype(np.float32)
    assert_same(one_node.sigmoid(x), [definition.sigmoid(v) for v in x.tolist()])


# What bits do not depend on


def all_operators(rng: np.random.Generator, n_tokens: int = 400) -> dict[str, tuple[list[Any], dict[str, Any]]]:
    """Arguments and attributes of each operator on floats; the first argument has a row for each token."""
    d = 64
    lengths = [1, n_tokens // 2 - 1, n_tokens // 4, n_tokens - n_tokens // 2 - n_tokens // 4]
    ends = ends_of(lengths)
    x, residual, wide = (values(rng, n_tokens, n) for n in (256, 256, 4 * d))
    g, b = Weight(values(rng, 256)), Weight(values(rng, 256))
    products = {op: Product(rng, op, 256, 700) for op in ("MatMulBf16", "MatMulF32")}
    how = {"heads": 2, "kv_heads": 1, "causal": 0, "window": -1, "epsilon": EPSILON}
    tables = [Weight(t) for t in (*rotary_tables(n_tokens, d), values(rng, d), values(rng, d))]
    return {
        **{op: ([x, p.panels, p.bias], {"columns": 700}) for op, p in products.items()},
        "RmsNorm": ([x, g], {"epsilon": EPSILON}),
        "LayerNorm": ([x, g, b], {"epsilon": EPSILON}),
        "AddRmsNorm": ([x, residual, g], {"epsilon": EPSILON}),
        "AddLayerNorm": ([x, residual, g, b], {"epsilon": EPSILON}),
        "SwiGlu": ([x], {}),
        "GeGlu": ([x], {}),
        "Gelu": ([x], {}),
        "Tanh": ([x], {}),
        "Attention": ([wide, ends, *tables], how),
        **{op: ([x, ends], {}) for op in POOLS},
    }


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    for op, (arguments, attributes) in all_operators(np.random.default_rng(20)).items():
        one, *others = (Node(op, *arguments, threads=threads, **attributes) for threads in (1, 2, 3))
        expected = one.runs()
        for node in others:
            for _ in range(3):
                for found, wanted in zip(node.runs(), expected, strict=True):
                    assert found.tobytes() == wanted.tobytes(), op


def test_bits_do_not_depend_on_runs_at_the_same_time() -> None:
    nodes = [
        Node(op, *arguments, threads=threads, **attributes)
        for op, (arguments, attributes) in all_operators(np.random.default_rng(25)).items()
        for threads in (1, 2)
        if op.startswith("MatMul") or op == "Attention"
    ]
    expected = [node().tobytes() for node in nodes]
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda i: nodes[i % len(nodes)]().tobytes() == expected[i % len(nodes)], range(120))
        assert all(found)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_bad_value_in_one_row_leaves_the_others_bits_alone(bad: float) -> None:
    rng = np.random.default_rng(21)
    for op, (arguments, attributes) in all_operators(rng).items():
        node = Node(op, *arguments, **attributes)
        before = node()
        per_text = len(arguments) > 1 and isinstance(arguments[1], np.ndarray) and arguments[1].dtype == np.int32
        for token in (0, 57, 399):
            x = arguments[0].copy()
            x[token, ::3] = bad
            after = node(x)
            row = int(np.searchsorted(arguments[1], token, side="right")) - 1 if per_text else token
            own = slice(arguments[1][row], arguments[1][row + 1]) if op == "Attention" else slice(row, row + 1)
            for found, wanted in [(after[: own.start], before[: own.start]), (after[own.stop :], before[own.stop :])]:
                assert found.tobytes() == wanted.tobytes(), op


def test_a_tokens_bits_do_not_depend_on_the_tokens_about_it() -> None:
    for op, (arguments, attributes) in all_operators(np.random.default_rng(22)).items():
        if op == "Attention" or op in POOLS:
            continue
        node = Node(op, *arguments, **attributes)
        all_rows = node.runs()
        fed = list(node.fed.values())
        for start, stop in [(0, 1), (1, 8), (57, 58), (100, 233), (399, 400)]:
            for found, wanted in zip(node.runs(*(x[start:stop] for x in fed)), all_rows, strict=True):
                assert found.tobytes() == wanted[start:stop].tobytes(), op


# Refusals

ENDS = ends_of([2, 3])
X32, W32, PANELS = (np.ones(s, np.float32) for s in ((5, 32), (32,), (1, 32, 32)))
QKV = np.ones((5, 96), np.float32)
COS = np.ones((3, 16), np.float32)
HOW: dict[str, Any] = {"heads": 1, "kv_heads": 1, "causal": 0, "window": -1, "epsilon": EPSILON}
NORM: dict[str, Any] = {"epsilon": EPSILON}
IDS = np.ones((2, 3), np.int64)


def mask(*rows: list[int]) -> NDArray[np.int64]:
    return np.array(rows, np.int64)


def floats(*shape: int) -> Floats:
    return np.ones(shape, np.float32)


REFUSED: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("Offsets", [mask([1, 1, 1], [1, 0, 1])], {}),
    ("Offsets", [mask([1, 1, 1], [0, 1, 1])], {}),
    ("Offsets", [mask([1, 1, 1], [0, 0, 0])], {}),
    ("Offsets", [mask([1, 1, 1], [1, 2, 0])], {}),
    ("Offsets", [mask([2, 0, 0])], {}),
    ("Offsets", [mask([1, -1, 0])], {}),
    ("Offsets", [mask([1, 1, 1])[0]], {}),
    ("Offsets", [mask([1, 1, 1])[None]], {}),
    ("Offsets", [np.ones((2, 0), np.int64)], {}),
    ("Offsets", [mask([1, 1, 1]).astype(np.int32)], {}),
    ("Offsets", [mask([1, 1, 1]).astype(np.float32)], {}),
    ("Unpad", [IDS, ends_of([2, 4])], {}),
    ("Unpad", [IDS, ends_of([2])], {}),
    ("Unpad", [IDS, ends_of([1, 1, 1])], {}),
    ("Unpad", [IDS, np.array([0, 2, 1], np.int32)], {}),
    ("Unpad", [IDS, np.array([1, 2, 3], np.int32)], {}),
    ("Unpad", [IDS, np.array([0, -1, 2], np.int32)], {}),
    ("Unpad", [IDS[0], ends_of([2, 1])], {}),
    ("Unpad", [IDS, ends_of([2, 1]).astype(np.int64)], {}),
    ("Positions", [np.array([0, 2, 2], np.int32)], {}),
    ("Positions", [np.array([0, -5], np.int32)], {}),
    ("Positions", [np.array([3, 5], np.int32)], {}),
    ("Positions", [np.array([], np.int32)], {}),
    ("Positions", [np.array([[0, 2]], np.int32)], {}),
    *(
        (op, [x, w, *bias], {"columns": columns})
        for op, w in [("MatMulF32", Weight(PANELS)), ("MatMulBf16", Bf16(np.ones((1, 32, 32), np.uint16)))]
        for x, bias, columns in [
            (floats(5, 31), [], 32),
            (floats(5, 33), [], 32),
            (floats(5, 0), [], 32),
            (floats(), [], 32),
            (X32, [], 33),
            (X32, [], 0),
            (X32, [], -1),
            (X32, [], 2**40),
            (X32, [], 2**63 - 1),
            (X32, [Weight(floats(31))], 32),
            (X32, [Weight(floats(1, 32))], 32),
            (X32.astype(np.float64), [], 32),
        ]
    ),
    ("MatMulF32", [X32, Weight(floats(2, 32, 32))], {"columns": 32}),
    ("MatMulF32", [X32, Weight(floats(32, 32))], {"columns": 32}),
    ("MatMulF32", [X32, Weight(floats(1, 32, 16))], {"columns": 16}),
    ("MatMulF32", [X32, Bf16(np.ones((1, 32, 32), np.uint16))], {"columns": 32}),
    ("MatMulBf16", [X32, Weight(PANELS)], {"columns": 32}),
    ("MatMulF32", [floats(2**40, 0), Weight(floats(1, 0, 32))], {"columns": 32}),
    ("MatMulF32", [floats(2**30, 2**29, 0), Weight(floats(1, 0, 32))], {"columns": 32}),
    ("RmsNorm", [X32, W32[:31]], NORM),
    ("RmsNorm", [floats(5, 33), floats(33)], NORM),
    ("RmsNorm", [floats(5, 16), floats(16)], NORM),
    ("RmsNorm", [floats(5, 0), floats(0)], NORM),
    ("RmsNorm", [X32, W32[None]], NORM),
    ("LayerNorm", [X32, W32, W32[:31]], NORM),
    ("LayerNorm", [X32, W32.astype(np.float64)], NORM),
    ("AddRmsNorm", [X32, X32[:4], W32], NORM),
    ("AddRmsNorm", [X32, floats(1, 5, 32), W32], NORM),
    ("AddLayerNorm", [X32, X32[:1], W32, W32], NORM),
    ("AddLayerNorm", [X32, X32, W32, floats(64)], NORM),
    ("SwiGlu", [floats(3, 5)], {}),
    ("GeGlu", [floats(3, 0)], {}),
    ("GeGlu", [floats()], {}),
    ("Gelu", [floats(3).astype(np.float16)], {}),
    ("Tanh", [floats(3).astype(np.int32)], {}),
    ("Attention", [QKV, ENDS], HOW | {"heads": 2}),
    ("Attention", [QKV, ENDS], HOW | {"heads": 3, "kv_heads": 2}),
    ("Attention", [QKV, ENDS], HOW | {"heads": 0}),
    ("Attention", [QKV, ENDS], HOW | {"kv_heads": 0}),
    ("Attention", [QKV, ENDS], HOW | {"heads": -1, "kv_heads": -1}),
    ("Attention", [QKV, ENDS], HOW | {"heads": 2**62, "kv_heads": 2**62}),
    ("Attention", [QKV, ENDS], HOW | {"heads": 2**32 + 1}),
    ("Attention", [floats(5, 35 * 32), ENDS], HOW | {"heads": 33}),
    ("Attention", [floats(5, 3 * 16), ENDS], HOW),
    ("Attention", [floats(5, 3 * 48), ENDS], HOW),
    ("Attention", [floats(5, 3 * 160), ENDS], HOW),
    ("Attention", [floats(5, 0), ENDS], HOW),
    ("Attention", [floats(5, 97), ENDS], HOW),
    ("Attention", [QKV[None], ENDS], HOW),
    ("Attention", [QKV, ends_of([2, 2])], HOW),
    ("Attention", [QKV, ends_of([2, 4])], HOW),
    ("Attention", [QKV, np.array([0, 5, 3, 5], np.int32)], HOW),
    ("Attention", [QKV, np.array([0, 0, 5], np.int32)], HOW),
    ("Attention", [QKV, np.array([0, -7, 5], np.int32)], HOW),
    ("Attention", [QKV, ENDS[None]], HOW),
    ("Attention", [QKV, ENDS.astype(np.int64)], HOW),
    ("Attention", [QKV, ENDS], HOW | {"causal": 2}),
    ("Attention", [QKV, ENDS], HOW | {"causal": -1}),
    ("Attention", [QKV, ENDS], HOW | {"window": -2}),
    ("Attention", [QKV, ENDS, COS[:2], COS[:2]], HOW),
    ("Attention", [QKV, ENDS, COS, COS[:2]], HOW),
    ("Attention", [QKV, ENDS, floats(3, 32), floats(3, 32)], HOW),
    ("Attention", [QKV, ENDS, COS[0], COS[0]], HOW),
    ("Attention", [QKV, ENDS, COS], HOW),
    ("Attention", [QKV, ENDS, None, COS], HOW),
    ("Attention", [QKV, ENDS, COS, COS, W32], HOW),
    ("Attention", [QKV, ENDS, COS, COS, None, W32], HOW),
    ("Attention", [QKV, ENDS, COS, COS, W32, floats(64)], HOW),
    ("Attention", [QKV, ENDS, COS, COS, W32[None], W32[None]], HOW),
    ("FirstToken", [X32, ends_of([2, 2])], {}),
    ("LastToken", [X32, ends_of([2, 9])], {}),
    ("LastToken", [X32, np.array([0, 0, 5], np.int32)], {}),
    ("MeanPool", [X32, np.array([0, 9, 5], np.int32)], {}),
    ("MeanPool", [X32, np.array([], np.int32)], {}),
    ("MeanPool", [X32[0], ENDS], {}),
    ("MeanPool", [X32[None], ENDS], {}),
]


@pytest.mark.parametrize(("op", "arguments", "attributes"), REFUSED)
def test_a_wrong_input_is_refused_by_name_and_the_next_run_works(
    op: str, arguments: list[Any], attributes: dict[str, Any]
) -> None:
    with pytest.raises(Exception, match=op):
        run(op, *arguments, **attributes)
    good = mask([1, 1, 0], [1, 0, 0])
    assert_same(run("Offsets", good), definition.offsets(good))


def test_a_thread_that_flushes_denormals_is_refused() -> None:
    # In a process of its own: ONNX Runtime sets the thread of its first session so, for good.
    code = "import numpy as np; from one_node import Node; Node('Offsets', np.ones((1, 3), np.int64), flushes=True)()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode != 0
    assert "samevec Offsets: this thread flushes denormals to zero" in done.stderr


@pytest.mark.parametrize(
    ("op", "arguments", "attributes", "missing"),
    [
        ("MatMulF32", [X32, Weight(PANELS)], {}, "columns"),
        ("AddLayerNorm", [X32, X32, W32], {}, "epsilon"),
        *(("Attention", [QKV, ENDS], {k: v for k, v in HOW.items() if k != name}, name) for name in HOW),
    ],
)
def test_a_graph_without_an_attribute_is_refused_when_it_is_loaded(
    op: str, arguments: list[Any], attributes: dict[str, Any], missing: str
) -> None:
    with pytest.raises(Exception, match=missing):
        Node(op, *arguments, **attributes)


def test_a_session_that_refused_a_run_gives_the_next_the_same_bits() -> None:
    attending = Attending(Heads(2, 1), 32, [4, 9], rotates=True)
    node = attending.node(threads=2)
    before = node()
    for ends in (ends_of([5, 9]), ends_of([3, 9]), ends_of([13])[:1], np.array([0, 13, 13], np.int32)):
        with pytest.raises(Exception, match="Attention"):
            node(attending.qkv, ends)
    with pytest.raises(Exception, match="Attention: a rotary table is too short"):
        node(np.ones((200, 128), np.float32), ends_of([200]))
    assert_same(node(), before)


def test_attention_may_have_norms_without_a_rotation() -> None:
    rng = np.random.default_rng(23)
    gains: tuple[Floats, Floats] = (values(rng, 32), values(rng, 32))
    qkv, ends, how = values(rng, 6, 96), ends_of([6]), Heads(1, 1, epsilon=EPSILON)
    found = run("Attention", qkv, ends, None, None, *gains, **HOW)
    assert_same(found, definition.attention(qkv, ends, how, None, gains))


def test_an_absent_bias_may_have_an_empty_name() -> None:
    x: Floats = values(np.random.default_rng(24), 5, 32)
    product = Product(np.random.default_rng(24), "MatMulF32", 32, 9)
    assert_same(run("MatMulF32", x, product.panels, None, columns=9), definition.matmul(x, product.w))
    assert_same(run("LayerNorm", x, W32, None, **NORM), definition.layer_norm(x, W32, None, EPSILON))


# The other instruction set


@pytest.mark.skipif(platform.machine().lower() not in {"x86_64", "amd64"}, reason="an instruction set of x86-64")
@pytest.mark.skipif(SETTING in os.environ, reason="an instruction set is chosen already")
def test_all_of_this_holds_with_avx2() -> None:
    if one_node.instruction_set() == "avx2":
        pytest.skip("this machine has no other")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(Path(__file__))],
        env=os.environ | {SETTING: "avx2"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(SETTING not in os.environ, reason="no instruction set is chosen")
def test_the_chosen_instruction_set_is_used() -> None:
    assert one_node.instruction_set() == os.environ[SETTING]
