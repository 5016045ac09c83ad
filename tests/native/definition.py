"""``native/DEFINITION.md`` as plain Python: every operator of the native library, to the last bit.

A float32 value is held in a Python float, which is a binary64. Arrays only carry values in and out.
"""

from __future__ import annotations

import math
import struct
from ctypes import c_float
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Ints = NDArray[np.integer[Any]]
    Values = Sequence[float]

PANEL = 32
"""Columns of a panel of weights."""
CHAIN = 256
"""Products of one chain in a matrix product."""
KEY_BLOCK = 96
QUERY_ROWS = 32
POOLED_RUN = 32
NAN = math.nan
INF = math.inf
LOG2_E = float.fromhex("0x1.715476p+0")
MINUS_TWO_LOG2_E = float.fromhex("-0x1.715476p+1")
LOG2_E_IN_BINARY64 = float.fromhex("0x1.71547652b82fep+0")


# Rules


def f32(x: float) -> float:
    """``x`` rounded to float32."""
    return c_float(x).value


# A sum, difference, product, quotient or root of float32 values that is rounded to binary64 and then to float32
# is the one rounded once: 53 bits are more than 2 * 24 + 1.


def add(a: float, b: float) -> float:
    return f32(a + b)


def sub(a: float, b: float) -> float:
    return f32(a - b)


def mul(a: float, b: float) -> float:
    return f32(a * b)


def quotient(a: float, b: float) -> float:
    """``a / b`` in binary64, with the infinities and NaNs for which Python raises."""
    if b != 0:
        return a / b
    return NAN if a == 0 or math.isnan(a) else math.copysign(INF, a) * math.copysign(1, b)


def root(a: float) -> float:
    """The square root in binary64, with the NaN for which Python raises."""
    return NAN if a < 0 else math.sqrt(a)


def div(a: float, b: float) -> float:
    return f32(quotient(a, b))


def sqrt(a: float) -> float:
    return f32(root(a))


_binary64 = struct.Struct("<d")


def fma(a: float, b: float, c: float) -> float:
    """``a * b + c`` rounded once.

    The product is exact in binary64. The sum is rounded *to odd*: where it is inexact, to the neighbour whose last bit
    is 1. That bit keeps it from standing halfway between two float32 values, or on one, so the second rounding sees
    which side the exact sum is on.
    """
    product = a * b
    total = product + c
    if not math.isfinite(total):
        return total
    part = total - product
    lost = (product - (total - part)) + (c - part)  # what rounding the sum lost, exactly
    if lost and not _binary64.pack(total)[0] & 1:
        total = math.nextafter(total, math.copysign(INF, lost))
    return c_float(total).value


def chain_of_products(a: Iterable[float], b: Iterable[float]) -> float:
    acc = 0.0
    for x, y in zip(a, b, strict=True):
        acc = fma(x, y, acc)
    return acc


def chain_of_sums(values: Iterable[float]) -> float:
    acc = 0.0
    for v in values:
        acc = add(acc, v)
    return acc


def polynomial(x: float, coefficients: Values) -> float:
    """The chain ``p = fma(p, x, next)`` from the first coefficient over the others."""
    p = coefficients[0]
    for following in coefficients[1:]:
        p = fma(p, x, following)
    return p


def hexes(text: str) -> tuple[float, ...]:
    return tuple(float.fromhex(word) for word in text.split())


def per_row(x: Floats, row: Callable[[Values], Values]) -> Floats:
    """``row`` of each row of the last axis."""
    rows = [row(values) for values in x.reshape(-1, x.shape[-1]).tolist()]
    width = len(rows[0]) if rows else 0
    return np.array(rows, np.float32).reshape(*x.shape[:-1], width)


def per_value(x: Floats, function: Callable[[float], float]) -> Floats:
    return np.array([function(v) for v in x.ravel().tolist()], np.float32).reshape(x.shape)


# Text layout


def offsets(attention_mask: Ints) -> NDArray[np.int32]:
    ends = [0]
    for row in attention_mask.tolist():
        length = sum(row)
        if length == 0 or row != [1] * length + [0] * (len(row) - length):
            msg = "each row of the mask must be ones followed by zeros"
            raise ValueError(msg)
        ends.append(ends[-1] + length)
    return np.array(ends, np.int32)


def text_spans(ends: Ints) -> list[tuple[int, int]]:
    """Where each text starts and stops among the tokens of all texts."""
    return list(zip(ends.tolist()[:-1], ends.tolist()[1:], strict=True))


def unpad(ids: Ints, ends: Ints) -> NDArray[np.int64]:
    spans = text_spans(ends)
    return np.array([i for row, (a, b) in zip(ids.tolist(), spans, strict=True) for i in row[: b - a]], np.int64)


def positions(ends: Ints) -> NDArray[np.int64]:
    return np.array([i for a, b in text_spans(ends) for i in range(b - a)], np.int64)


# Products


def product(x: Values, column: Values, bias: float | None = None) -> float:
    """One element of a matrix product: a row of ``x`` with a column of the weights."""
    y = 0.0
    for k in range(0, len(x), CHAIN):
        part = chain_of_products(x[k : k + CHAIN], column[k : k + CHAIN])
        y = part if k == 0 else add(y, part)
    return y if bias is None else add(y, bias)


def matmul(x: Floats, w: Floats, bias: Floats | None = None) -> Floats:
    """``MatMulF32`` with the weights as ``[K, N]``, and ``MatMulBf16`` with its weights widened."""
    columns = w.T.tolist()
    biases: list[float | None] = [None] * len(columns) if bias is None else bias.tolist()
    return per_row(x, lambda row: [product(row, c, b) for c, b in zip(columns, biases, strict=True)])


def widened(bits: NDArray[np.uint16]) -> Floats:
    """Bfloat16 values, given as bits, as float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def f32_panels(w: Floats) -> Floats:
    """Weights ``[K, N]`` as ``MatMulF32`` takes them."""
    k, n = w.shape
    panels = np.zeros((-(-n // PANEL), k, PANEL), w.dtype)
    for column in range(n):
        panels[column // PANEL, :, column % PANEL] = w[:, column]
    return panels


def bf16_panels(w: NDArray[np.uint16]) -> NDArray[np.uint16]:
    """Bfloat16 weights ``[K, N]``, given as bits, as ``MatMulBf16`` takes them: bits in memory order."""
    k, n = w.shape
    panels = np.zeros((-(-n // PANEL), k, PANEL), np.uint16)
    for column in range(n):
        panel, j = divmod(column, PANEL)
        panels[panel, :, 2 * j if j < 16 else 2 * (j - 16) + 1] = w[:, column]
    return panels


# Norms


def fold(sums: list[float], plus: Callable[[float, float], float]) -> float:
    """32 sums folded into one."""
    s = list(sums)
    for half in (16, 8, 4, 2, 1):
        for j in range(half):
            s[j] = plus(s[j], s[j + half])
    return s[0]


def fold32(values: Values) -> float:
    sums = [0.0] * 32
    for i, v in enumerate(values):
        sums[i % 32] = add(sums[i % 32], v)
    return fold(sums, add)


def fold32_of_squares(values: Values) -> float:
    sums = [0.0] * 32
    for i, v in enumerate(values):
        sums[i % 32] = fma(v, v, sums[i % 32])
    return fold(sums, add)


def one_over_root_mean_square(values: Values, epsilon: float) -> float:
    return div(1.0, sqrt(add(div(fold32_of_squares(values), len(values)), f32(epsilon))))


def rms_norm_row(x: Values, g: Values, epsilon: float) -> list[float]:
    r = one_over_root_mean_square(x, epsilon)
    return [mul(mul(v, r), w) for v, w in zip(x, g, strict=True)]


def layer_norm_row(x: Values, g: Values, b: Values | None, epsilon: float) -> list[float]:
    mean = div(fold32(x), len(x))
    d = [sub(v, mean) for v in x]
    r = one_over_root_mean_square(d, epsilon)
    if b is None:
        return [mul(mul(v, r), w) for v, w in zip(d, g, strict=True)]
    return [fma(mul(v, r), w, c) for v, w, c in zip(d, g, b, strict=True)]


def rms_norm(x: Floats, g: Floats, epsilon: float) -> Floats:
    gains = g.tolist()
    return per_row(x, lambda row: rms_norm_row(row, gains, epsilon))


def layer_norm(x: Floats, g: Floats, b: Floats | None, epsilon: float) -> Floats:
    gains, biases = g.tolist(), None if b is None else b.tolist()
    return per_row(x, lambda row: layer_norm_row(row, gains, biases, epsilon))


def sums(x: Floats, residual: Floats) -> Floats:
    pairs = zip(x.ravel().tolist(), residual.ravel().tolist(), strict=True)
    return np.array([add(a, b) for a, b in pairs], np.float32).reshape(x.shape)


def add_rms_norm(x: Floats, residual: Floats, g: Floats, epsilon: float) -> tuple[Floats, Floats]:
    total = sums(x, residual)
    return rms_norm(total, g, epsilon), total


def add_layer_norm(x: Floats, residual: Floats, g: Floats, b: Floats | None, epsilon: float) -> tuple[Floats, Floats]:
    total = sums(x, residual)
    return layer_norm(total, g, b, epsilon), total


# exp2

EXP2 = hexes(
    "0x1.41fbbcp-13 0x1.5f3e54p-10 0x1.3b2d4cp-7 0x1.c6aee8p-5 0x1.ebfbdcp-3 0x1.62e430p-1 0x1p0",
)
TO_INTEGER = 12582912.0


def exp2(x: float) -> float:
    """2 to the ``x``, for ``x <= 0``."""
    if math.isnan(x):
        return NAN
    if x < -126:
        return 0.0
    n = sub(add(x, TO_INTEGER), TO_INTEGER)
    return mul(polynomial(sub(x, n), EXP2), math.ldexp(1, int(n)))


# Gates

ROOT_HALF = float.fromhex("0x1.6a09e6p-1")
GELU_INNER = hexes(
    "0x1.496308p-14 -0x1.a3f482p-11 0x1.540560p-8 -0x1.b7f904p-6 0x1.ce2cf6p-4 -0x1.81273ep-2 0x1.06eba8p-3",
)
GELU_OUTER = hexes(
    "0x1.06752cp-15 -0x1.4dd218p-11 0x1.8d88cep-8 -0x1.29ecd2p-5 0x1.405676p-3 0x1.d3bbf0p-1 0x1.a12fe6p+0"
    " -0x1.1c7552p-12",
)
TANH_INNER = hexes("-0x1.76aca4p-8 0x1.5256fep-6 -0x1.b84450p-5 0x1.11076ap-3 -0x1.555534p-2")


def silu(x: float) -> float:
    e = exp2(mul(abs(x), -LOG2_E))
    q = 1.0 if x >= 0 else e
    return mul(x, div(q, add(1.0, e)))


def gelu(x: float) -> float:
    z = mul(abs(x), ROOT_HALF)
    if z < 1:
        p = polynomial(mul(z, z), GELU_INNER)
        h = sub(1.0, fma(z, p, z))
    elif z < 4:
        h = exp2(sub(0.0, polynomial(z, GELU_OUTER)))
    elif z >= 4:
        h = 0.0
    else:
        h = NAN
    h = mul(0.5, h)
    return mul(x, sub(1.0, h)) if x >= 0 else mul(x, h)


def tanh(x: float) -> float:
    a = abs(x)
    if a >= 0.625:
        e = exp2(mul(a, MINUS_TWO_LOG2_E))
        t = div(sub(1.0, e), add(1.0, e))
    else:
        s = mul(a, a)
        t = fma(mul(a, s), polynomial(s, TANH_INNER), a)
    return t if x >= 0 else sub(0.0, t)


def gated(row: Values, gate: Callable[[float], float]) -> list[float]:
    n = len(row) // 2
    return [mul(gate(row[i]), row[n + i]) for i in range(n)]


def swiglu(x: Floats) -> Floats:
    return per_row(x, lambda row: gated(row, silu))


def geglu(x: Floats) -> Floats:
    return per_row(x, lambda row: gated(row, gelu))


# Attention


class Heads(NamedTuple):
    """The attributes of ``Attention``."""

    heads: int
    kv_heads: int
    causal: bool = False
    window: int = -1
    epsilon: float = 1e-6

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads

    def sees(self, query: int, key: int) -> bool:
        return (not self.causal or key <= query) and (self.window < 0 or abs(query - key) <= self.window)

    def keys_of_block(self, query: int, length: int) -> range:
        """The keys which the query block of ``query`` reads."""
        size = QUERY_ROWS // self.group
        q0 = query // size * size
        q1 = min(q0 + size, length)
        if self.causal:
            hi = q1
        elif self.window >= 0:
            hi = min(length, q1 + self.window)
        else:
            hi = length
        return range(max(0, q0 - self.window) if self.window >= 0 else 0, hi)


def rotated(x: Values, cos: Values, sin: Values) -> list[float]:
    half = len(x) // 2
    pairs = list(zip(x[:half], x[half:], cos, sin, strict=True))
    low = [sub(mul(a, c), mul(b, s)) for a, b, c, s in pairs]
    high = [add(mul(b, c), mul(a, s)) for a, b, c, s in pairs]
    return low + high


def ready_head(x: Values, rotation: tuple[Values, Values] | None, gains: Values | None, epsilon: float) -> list[float]:
    """A query or a key with its norm and its rotation."""
    y = list(x) if gains is None else rms_norm_row(x, gains, epsilon)
    return y if rotation is None else rotated(y, *rotation)


def attended(
    query: Values, keys: Sequence[Values], values: Sequence[Values], read: range, seen: Callable[[int], bool]
) -> list[float]:
    """What one query head takes from the values; it reads the keys of ``read`` and sees those of ``seen``."""
    scale = mul(div(1.0, sqrt(len(query))), LOG2_E)
    m, l, o = f32(-1e30), 0.0, [0.0] * len(query)  # noqa: E741
    first_block, last_block = read[0] // KEY_BLOCK, read[-1] // KEY_BLOCK
    for block in range(first_block, last_block + 1):
        js = range(max(read.start, block * KEY_BLOCK), min(read.stop, (block + 1) * KEY_BLOCK))
        scores = {j: chain_of_products(query, keys[j]) for j in js if seen(j)}
        largest = m
        for score in scores.values():
            largest = score if score > largest else largest
        p = [exp2(mul(sub(scores[j], largest), scale)) if j in scores else 0.0 for j in js]
        f = exp2(mul(sub(m, largest), scale))
        l = fma(l, f, chain_of_sums(p))  # noqa: E741
        taken = [chain_of_products(p, column) for column in zip(*(values[j] for j in js), strict=True)]
        o = taken if block == first_block else [add(mul(old, f), new) for old, new in zip(o, taken, strict=True)]
        m = largest
    inverse = div(1.0, l)
    return [mul(x, inverse) for x in o]


class Text(NamedTuple):
    """The heads of one text made ready: ``[head][position]``."""

    queries: list[list[list[float]]]
    keys: list[list[list[float]]]
    values: list[list[list[float]]]


def ready_text(
    qkv: Floats,
    how: Heads,
    rotation: tuple[Floats, Floats] | None = None,
    gains: tuple[Floats, Floats] | None = None,
) -> Text:
    """The queries, keys and values of one text, ``[length, (heads + 2 kv_heads) * d]``."""
    length = len(qkv)
    split = qkv.reshape(length, how.heads + 2 * how.kv_heads, -1).transpose(1, 0, 2).tolist()
    first_value = how.heads + how.kv_heads
    cos_sin = None if rotation is None else list(zip(*(t[:length].tolist() for t in rotation), strict=True))
    gq, gk = (None, None) if gains is None else (gains[0].tolist(), gains[1].tolist())

    def ready(heads: list[list[list[float]]], g: Values | None) -> list[list[list[float]]]:
        return [
            [ready_head(x, None if cos_sin is None else cos_sin[i], g, how.epsilon) for i, x in enumerate(head)]
            for head in heads
        ]

    return Text(ready(split[: how.heads], gq), ready(split[how.heads : first_value], gk), split[first_value:])


def attention_of(text: Text, how: Heads, head: int, i: int) -> list[float]:
    """The attention of one head at position ``i`` of a text."""
    kv = head // how.group
    read = how.keys_of_block(i, len(text.keys[kv]))
    return attended(text.queries[head][i], text.keys[kv], text.values[kv], read, lambda j: how.sees(i, j))


def attention(
    qkv: Floats,
    ends: Ints,
    how: Heads,
    rotation: tuple[Floats, Floats] | None = None,
    gains: tuple[Floats, Floats] | None = None,
) -> Floats:
    """``Attention``; ``rotation`` is ``cos, sin`` and ``gains`` is ``gq, gk``."""
    rows = []
    for start, stop in text_spans(ends):
        text = ready_text(qkv[start:stop], how, rotation, gains)
        rows += [[attention_of(text, how, head, i) for head in range(how.heads)] for i in range(stop - start)]
    return np.array(rows, np.float32).reshape(len(qkv), -1)


# Pooling


def first_token(x: Floats, ends: Ints) -> Floats:
    return x[[start for start, _ in text_spans(ends)]]


def last_token(x: Floats, ends: Ints) -> Floats:
    return x[[stop - 1 for _, stop in text_spans(ends)]]


def mean(values: Values) -> float:
    total = 0.0
    for run in range(0, len(values), POOLED_RUN):
        total = add(total, chain_of_sums(values[run : run + POOLED_RUN]))
    return div(total, len(values))


def mean_pool(x: Floats, ends: Ints) -> Floats:
    return np.array([[mean(c) for c in x[a:b].T.tolist()] for a, b in text_spans(ends)], np.float32)


# Values that leave: in binary64

TO_INTEGER_IN_BINARY64 = float.fromhex("0x1.8p52")
SIGMOID = hexes(
    "0x1.c3bd650fc2986p-36 0x1.e8cac7351bb25p-32 0x1.e4cf5158b8ecap-28 0x1.b5253d395e7c4p-24 0x1.62c0223a5c824p-20"
    " 0x1.ffcbfc588b0c7p-17 0x1.430912f86c787p-13 0x1.5d87fe78a6731p-10 0x1.3b2ab6fba4e77p-7 0x1.c6b08d704a0c0p-5"
    " 0x1.ebfbdff82c58fp-3 0x1.62e42fefa39efp-1 0x1p0",
)


def unit_norm_row(x: Values) -> list[float]:
    sums_of_squares = [0.0] * 32
    for i, v in enumerate(x):
        sums_of_squares[i % 32] += v * v
    norm = root(fold(sums_of_squares, lambda a, b: a + b))
    return [f32(quotient(v, norm)) for v in x]


def unit_norm(x: Floats) -> Floats:
    return per_row(x, unit_norm_row)


def sigmoid(x: float) -> float:
    t = abs(x) * -LOG2_E_IN_BINARY64
    if t < -1022:
        e = 0.0
    elif math.isnan(t):
        e = NAN
    else:
        n = (t + TO_INTEGER_IN_BINARY64) - TO_INTEGER_IN_BINARY64
        p = SIGMOID[0]
        for following in SIGMOID[1:]:
            p = p * (t - n) + following
        e = math.ldexp(p, int(n))
    return 1 / (1 + e) if x >= 0 else e / (1 + e)
