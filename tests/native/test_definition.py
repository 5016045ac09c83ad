"""The definition of the native operators against mathematics: its arithmetic exactly, its functions by their errors."""

from __future__ import annotations

import itertools
import math
import random
import re
import struct
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import definition
import numpy as np
import pytest
from definition import INF, NAN, Heads, add, div, f32, fma, mul, sqrt, sub

if TYPE_CHECKING:
    from collections.abc import Callable

U = 2.0**-24
"""Half a unit in the last place of 1: the relative error of one rounding."""

LARGEST = float.fromhex("0x1.fffffep+127")
MAGNITUDES = (
    *(0, 2**-149, 3 * 2**-149, 2**-126 - 2**-149, 2**-126, 2**-75, 2**-74, 2**-24, 2**-23, 1 / 3, 1 - 2**-24, 1),
    *(1 + 2**-23, 1 + 2**-12, 1 + 2**-11 - 2**-23, 3, 2**24, 2**24 - 1, 2.0**64, 2.0**103, LARGEST, INF),
)
HOSTILE = [f32(sign * x) for sign in (1, -1) for x in MAGNITUDES]
SPECIAL = [*HOSTILE, NAN]


def nearest(x: Fraction) -> float:
    """The float32 nearest to a number that is not 0, ties to even, by integers alone."""
    binade = abs(x.numerator).bit_length() - x.denominator.bit_length()
    if Fraction(2) ** binade > abs(x):
        binade -= 1
    unit = Fraction(2) ** max(binade - 23, -149)
    rounded = round(x / unit) * unit
    if abs(rounded) >= 2**128:
        return math.copysign(INF, x)
    return float(rounded) if rounded else math.copysign(0.0, x)


def random_bits(rng: random.Random) -> float:
    """A finite float32 of any exponent, or one near 1."""
    exponent = rng.choice([rng.randrange(255), rng.randrange(120, 135)])
    bits = (rng.getrandbits(1) << 31) | (exponent << 23) | rng.choice([0, 1, 0x7FFFFF, rng.getrandbits(23)])
    (value,) = struct.unpack("<f", struct.pack("<I", bits))
    return float(value)


def random_values(n: int, how_many: int, seed: int) -> list[tuple[float, ...]]:
    rng = random.Random(seed)
    return [tuple(random_bits(rng) for _ in range(how_many)) for _ in range(n)]


def same(a: float, b: float) -> bool:
    return (math.isnan(a) and math.isnan(b)) or struct.pack("<d", a) == struct.pack("<d", b)


def fma_by_fractions(a: float, b: float, c: float) -> float:
    if not all(map(math.isfinite, (a, b, c))):
        return a * b + c  # an infinity or a NaN; the product of two float32 values does not overflow
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    return nearest(exact) if exact else a * b + c  # the sign of a zero


def normal(*shape: int, seed: int = 1) -> definition.Floats:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


# The arithmetic


def test_fma_rounds_once_on_hostile_values() -> None:
    for a, b, c in itertools.product(SPECIAL, repeat=3):
        assert same(fma(a, b, c), fma_by_fractions(a, b, c)), (a, b, c)


def test_fma_rounds_once_on_random_values() -> None:
    for a, b, c in random_values(20_000, 3, seed=1):
        assert same(fma(a, b, c), fma_by_fractions(a, b, c)), (a, b, c)


def test_fma_rounds_once_where_the_sum_cancels_or_a_product_stands_halfway() -> None:
    for a, b, c in random_values(20_000, 3, seed=2):
        for near in (f32(-a * b), math.copysign(2**-149, c), math.copysign(f32(abs(a * b) * 2**-60), c)):
            assert same(fma(a, b, near), fma_by_fractions(a, b, near)), (a, b, near)


def test_a_product_halfway_between_two_values_goes_where_the_smallest_addend_pulls_it() -> None:
    a = 1 + 2**-12  # its square is 1 + 2**-11 + 2**-24, halfway
    assert fma(a, a, 0.0) == 1 + 2**-11
    assert fma(a, a, 2**-149) == 1 + 2**-11 + 2**-23
    assert fma(a, a, -(2**-149)) == 1 + 2**-11


def test_each_other_operation_rounds_once() -> None:
    pairs = [*itertools.product(HOSTILE, repeat=2), *((a, b) for a, b in random_values(10_000, 2, seed=3))]
    for a, b in pairs:
        if not (math.isfinite(a) and math.isfinite(b)):
            continue
        x, y = Fraction(a), Fraction(b)
        for found, exact in [(add(a, b), x + y), (sub(a, b), x - y), (mul(a, b), x * y), (div(a, b), y and x / y)]:
            if exact:
                assert same(found, nearest(exact)), (a, b)


def test_each_root_is_rounded_once() -> None:
    for a in [*HOSTILE, *(abs(a) for (a,) in random_values(10_000, 1, seed=4))]:
        if 0 < a < INF:
            scaled = Fraction(a) * 4**200
            whole = math.isqrt(scaled.numerator)  # far more bits than a float32 has
            odd = whole * whole != scaled.numerator
            assert same(sqrt(a), nearest(Fraction(2 * whole + odd, 2**201))), a


def test_zeros_infinities_and_nans_are_those_of_ieee_754() -> None:
    for got, expected in [
        (add(0.0, -0.0), 0.0),
        (sub(-0.0, 0.0), -0.0),
        (fma(-1.0, 0.0, -0.0), -0.0),
        (fma(-1.0, 0.0, 0.0), 0.0),
        (fma(1.0, 1.0, -1.0), 0.0),
        (fma(INF, 0.0, 1.0), NAN),
        (fma(INF, 1.0, -INF), NAN),
        (fma(LARGEST, LARGEST, -INF), -INF),
        (fma(LARGEST, 1.0, 2.0**103), INF),
        (add(LARGEST, LARGEST), INF),
        (div(1.0, -0.0), -INF),
        (div(0.0, 0.0), NAN),
        (div(NAN, 0.0), NAN),
        (div(INF, INF), NAN),
        (div(-1.0, INF), -0.0),
        (sqrt(-0.0), -0.0),
        (sqrt(-1.0), NAN),
        (sqrt(INF), INF),
    ]:
        assert same(got, expected)


def test_the_pages_constants_are_those_of_the_code() -> None:
    root = Path(__file__).parents[2]
    constant = re.compile(r"-?0x1[0-9a-f.]*p[+-]?\d+")
    page, code = (
        {float.fromhex(word) for word in constant.findall(path.read_text())}
        for path in (root / "native/DEFINITION.md", Path(definition.__file__))
    )
    assert {abs(value) for value in page} == {abs(value) for value in code}


# Text layout


def test_a_mask_gives_the_ends_of_its_texts() -> None:
    ends = definition.offsets(np.array([[1, 1, 1], [1, 0, 0], [1, 1, 0]]))
    assert ends.tolist() == [0, 3, 4, 6]
    ids = np.array([[1, 2, 3], [4, 0, 0], [5, 6, 0]])
    assert definition.unpad(ids, ends).tolist() == [1, 2, 3, 4, 5, 6]
    assert definition.positions(ends).tolist() == [0, 1, 2, 0, 0, 1]


@pytest.mark.parametrize("row", [[0, 0, 0], [0, 1, 1], [1, 0, 1], [1, 2, 0], [-1, 1, 1], [2, 0, 0], [3, 0, 0]])
def test_a_mask_that_is_not_ones_then_zeros_is_refused(row: list[int]) -> None:
    with pytest.raises(ValueError, match="ones followed by zeros"):
        definition.offsets(np.array([[1, 1, 1], row]))


# Products


def test_a_new_chain_starts_after_256_products() -> None:
    x = [0.0] * 512
    for chain, expected in [(255, 2.0**24), (256, 2.0**24 + 2)]:  # 2**24 + 1 is halfway, and goes to even
        w = [0.0] * 512
        x[0], x[chain], x[chain + 1] = 1.0, 1.0, 1.0
        w[0], w[chain], w[chain + 1] = 2.0**24, 1.0, 1.0
        assert definition.product(x, w) == (2.0**24 if chain == 255 else expected)


@pytest.mark.parametrize("k", [1, 255, 256, 257, 600])
def test_a_product_is_as_near_the_true_one_as_its_roundings_allow(k: int) -> None:
    x, w, bias = normal(5, k), normal(k, 7, seed=2), normal(7, seed=3)
    wide_x, wide_w = x.astype(np.float64), w.astype(np.float64)
    true = wide_x @ wide_w + bias
    roundings = min(k, 256) + -(-k // 256)
    bound = 1.01 * roundings * U * (np.abs(wide_x) @ np.abs(wide_w) + np.abs(bias))
    assert (np.abs(definition.matmul(x, w, bias) - true) <= bound).all()


@pytest.mark.parametrize("columns", [1, 32, 33, 100])
def test_panels_hold_each_weight_where_the_page_says(columns: int) -> None:
    bits = np.arange(1, 3 * columns + 1, dtype=np.uint16).reshape(3, columns)
    w = definition.widened(bits)
    panels, words = definition.f32_panels(w), definition.bf16_panels(bits).view("<u4")
    assert panels.shape == (-(-columns // 32), 3, 32)
    assert words.shape == (-(-columns // 32), 3, 16)
    for column in range(32 * len(panels)):
        p, j = divmod(column, 32)
        for k in range(3):
            expected = int(bits[k, column]) if column < columns else 0
            assert int(panels[p, k, j].view(np.uint32)) >> 16 == expected
            assert int(words[p, k, j % 16]) >> (16 * (j // 16)) & 0xFFFF == expected


# Norms


def test_values_are_folded_in_halves() -> None:
    big = 2.0**24
    values = [0.0] * 64
    values[0], values[16], values[8] = big, 1.0, 1.0
    assert definition.fold32(values) == big  # (big + 1) + 1, each halfway
    values[16], values[24] = 0.0, 1.0
    assert definition.fold32(values) == big + 2  # big + (1 + 1)
    values = [0.0] * 64
    values[0], values[32], values[1] = big, 1.0, 1.0
    assert definition.fold32(values) == big


@pytest.mark.parametrize("n", [32, 96, 384])
def test_norms_are_near_the_true_ones(n: int) -> None:
    x, residual, g, b = normal(4, n), normal(4, n, seed=2), normal(n, seed=3), normal(n, seed=4)
    wide = x.astype(np.float64)
    rms = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6)
    d = wide - wide.mean(-1, keepdims=True)
    layer = d / np.sqrt((d**2).mean(-1, keepdims=True) + 1e-6)
    room = n * U * np.abs(g)
    assert (np.abs(definition.rms_norm(x, g, 1e-6) - rms * g) <= room * np.abs(rms)).all()
    assert (np.abs(definition.layer_norm(x, g, None, 1e-6) - layer * g) <= room * (1 + np.abs(layer))).all()
    with_bias = definition.layer_norm(x, g, b, 1e-6)
    assert (np.abs(with_bias - (layer * g + b)) <= room * (1 + np.abs(layer)) + U * np.abs(with_bias)).all()
    y, total = definition.add_rms_norm(x, residual, g, 1e-6)
    assert total.tobytes() == (x + residual).tobytes()
    assert y.tobytes() == definition.rms_norm(total, g, 1e-6).tobytes()
    y, total = definition.add_layer_norm(x, residual, g, b, 1e-6)
    assert total.tobytes() == (x + residual).tobytes()
    assert y.tobytes() == definition.layer_norm(total, g, b, 1e-6).tobytes()


def test_a_constant_row_has_no_layer_norm_but_its_bias() -> None:
    x, b = np.full((1, 64), 3, np.float32), normal(64)
    assert definition.layer_norm(x, normal(64, seed=2), b, 1e-12).tolist() == [b.tolist()]


# Functions


def points(low: float, high: float, n: int = 4000) -> list[float]:
    rng = random.Random(7)
    return [f32(rng.uniform(low, high)) for _ in range(n)]


def true_silu(x: float) -> float:
    return x / (1 + math.exp(-x))


def true_gelu(x: float) -> float:
    return x / 2 * math.erfc(-x / math.sqrt(2))


def test_exp2_is_within_a_unit_in_the_last_place() -> None:
    for x in [*points(-1, 0), *points(-125, 0), *map(float, range(-125, 1))]:
        true = 2.0**x
        assert abs(definition.exp2(x) - true) <= 2 * U * 2.0 ** math.floor(x), x


def test_exp2_is_exact_at_integers_and_ends_at_minus_126() -> None:
    assert all(definition.exp2(-float(n)) == 2.0**-n for n in range(127))
    assert definition.exp2(-0.0) == 1
    below = math.nextafter(-126.0, -INF)
    for x in (f32(-126.00001), -127.0, -1e30, -INF, below):
        assert same(definition.exp2(x), 0.0)
    assert math.isnan(definition.exp2(NAN))


@pytest.mark.parametrize(("function", "true"), [(definition.silu, true_silu), (definition.gelu, true_gelu)])
def test_gates_are_within_three_roundings_of_their_argument(
    function: Callable[[float], float], true: Callable[[float], float]
) -> None:
    for x in [*points(-1, 1), *points(-6, 6), *points(-80, 80), 0.0]:
        assert abs(function(x) - true(x)) <= 3 * U * max(1.0, abs(x)), x


def test_tanh_is_within_two_units_in_the_last_place() -> None:
    for x in [*points(-0.7, 0.7), *points(-1e-3, 1e-3), *points(-12, 12)]:
        true = math.tanh(x)
        assert abs(definition.tanh(x) - true) <= 2 * float(np.spacing(np.float32(abs(true)))), x


def test_functions_are_continued_to_the_ends_of_the_numbers() -> None:
    for x, silu, gelu, tanh in [
        (0.0, 0.0, 0.0, 0.0),
        (-0.0, -0.0, -0.0, 0.0),
        (INF, INF, INF, 1.0),
        (-INF, NAN, NAN, -1.0),
        (LARGEST, LARGEST, LARGEST, 1.0),
        (-LARGEST, -0.0, -0.0, -1.0),
        (2**-149, 0.0, 0.0, 2**-149),
        (NAN, NAN, NAN, NAN),
    ]:
        assert same(definition.silu(x), silu), x
        assert same(definition.gelu(x), gelu), x
        assert same(definition.tanh(x), tanh), x


def test_a_gate_multiplies_the_second_half() -> None:
    x = normal(3, 2, 14)
    for gate, function in [(definition.swiglu, definition.silu), (definition.geglu, definition.gelu)]:
        expected = definition.per_value(x[..., :7], function) * x[..., 7:]
        assert gate(x).tobytes() == expected.tobytes()


# Attention


def true_attention(qkv: definition.Floats, how: Heads) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Softmax attention of one text in float64."""
    length = len(qkv)
    heads = qkv.astype(np.float64).reshape(length, how.heads + 2 * how.kv_heads, -1).transpose(1, 0, 2)
    i = np.arange(length)
    seen = np.array([[how.sees(int(a), int(b)) for b in i] for a in i])
    out = []
    for h in range(how.heads):
        q, k, v = (heads[n] for n in (h, how.heads + h // how.group, how.heads + how.kv_heads + h // how.group))
        scores = np.where(seen, q @ k.T / math.sqrt(q.shape[-1]), -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        out.append(p @ v / p.sum(-1, keepdims=True))
    return np.concatenate(out, -1)


@pytest.mark.parametrize(
    ("how", "length"),
    [
        (Heads(1, 1), 1),
        (Heads(1, 1), 100),
        (Heads(2, 1), 130),
        (Heads(6, 2, causal=True), 40),
        (Heads(1, 1, causal=True), 197),
        (Heads(1, 1, window=3), 150),
        (Heads(1, 1, window=100), 120),
        (Heads(3, 1, causal=True, window=0), 30),
        (Heads(5, 1, causal=True, window=20), 110),
    ],
)
def test_attention_is_near_the_true_one(how: Heads, length: int) -> None:
    qkv = normal(length, (how.heads + 2 * how.kv_heads) * 32)
    found = definition.attention(qkv, np.array([0, length]), how)
    assert np.abs(found - true_attention(qkv, how)).max() <= 64 * U


def test_a_key_that_is_not_seen_changes_nothing() -> None:
    how = Heads(1, 1, causal=True, window=5)
    qkv = normal(60, 96)
    changed = qkv.copy()
    changed[40:, 32:] = normal(20, 64, seed=2)
    ends = np.array([0, 60])
    before, after = (definition.attention(x, ends, how) for x in (qkv, changed))
    assert before[:40].tobytes() == after[:40].tobytes()
    assert before[40:].tobytes() != after[40:].tobytes()


def test_texts_do_not_see_each_other() -> None:
    how = Heads(2, 1)
    qkv, ends = normal(50, 128), np.array([0, 1, 35, 50])
    together = definition.attention(qkv, ends, how)
    for a, b in itertools.pairwise(ends.tolist()):
        assert together[a:b].tobytes() == definition.attention(qkv[a:b], np.array([0, b - a]), how).tobytes()


@pytest.mark.parametrize(
    ("how", "query", "length", "keys"),
    [
        (Heads(1, 1), 40, 100, range(100)),
        (Heads(1, 1, causal=True), 40, 100, range(64)),
        (Heads(1, 1, causal=True), 99, 100, range(100)),
        (Heads(1, 1, window=10), 40, 100, range(22, 74)),
        (Heads(1, 1, window=10), 99, 100, range(86, 100)),
        (Heads(1, 1, causal=True, window=10), 40, 100, range(22, 64)),
        (Heads(5, 1, causal=True), 40, 100, range(42)),  # six positions a block: 36 .. 41
        (Heads(64, 2, causal=True), 40, 100, range(41)),
    ],
)
def test_a_query_block_reads_the_keys_that_one_of_its_queries_may_see(
    how: Heads, query: int, length: int, keys: range
) -> None:
    assert how.keys_of_block(query, length) == keys


def test_a_rotation_turns_the_pair_of_each_component() -> None:
    x = normal(32).tolist()
    angle = [0.1 * j for j in range(16)]
    cos, sin = [f32(math.cos(a)) for a in angle], [f32(math.sin(a)) for a in angle]
    turned = definition.rotated(x, cos, sin)
    for j, a in enumerate(angle):
        expected = complex(x[j], x[j + 16]) * complex(math.cos(a), math.sin(a))
        assert abs(complex(turned[j], turned[j + 16]) - expected) <= 4 * U * abs(expected)


def test_a_nan_stays_in_its_text() -> None:
    qkv, ends = normal(20, 96), np.array([0, 10, 20])
    before = definition.attention(qkv, ends, Heads(1, 1))
    qkv[3, 40] = NAN
    after = definition.attention(qkv, ends, Heads(1, 1))
    assert np.isnan(after[:10]).all()
    assert before[10:].tobytes() == after[10:].tobytes()


# Pooling and the values that leave


def test_pools_take_the_first_the_last_and_the_mean_token() -> None:
    x, ends = normal(120, 5), np.array([0, 1, 70, 120])
    assert definition.first_token(x, ends).tobytes() == x[[0, 1, 70]].tobytes()
    assert definition.last_token(x, ends).tobytes() == x[[0, 69, 119]].tobytes()
    means = np.array([x[a:b].astype(np.float64).mean(0) for a, b in itertools.pairwise(ends.tolist())])
    assert np.abs(definition.mean_pool(x, ends) - means).max() <= 64 * U


def test_a_mean_is_summed_in_runs_of_32_tokens() -> None:
    big = 2.0**24
    assert definition.mean([big, 1.0, 1.0] + [0.0] * 61) == big / 64
    assert definition.mean([big] + [0.0] * 31 + [1.0, 1.0] + [0.0] * 30) == (big + 2) / 64


@pytest.mark.parametrize("n", [1, 5, 32, 384, 1000])
def test_unit_norm_is_rounded_once_from_nearly_exact(n: int) -> None:
    for scale in (1e-38, 1.0, 1e37):
        x = normal(3, n) * np.float32(scale)
        wide = x.astype(np.float64)
        true = wide / np.linalg.norm(wide, axis=-1, keepdims=True)
        assert (np.abs(definition.unit_norm(x) - true) <= 1.0001 * U * np.abs(true)).all()
    assert np.isnan(definition.unit_norm(np.zeros((1, n), np.float32))).all()


def test_sigmoid_is_within_a_few_roundings_of_binary64() -> None:
    for x in [*points(-2, 2), *points(-40, 40), *points(-700, 700)]:
        true = 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
        assert abs(definition.sigmoid(x) - true) <= (4 + 2 * abs(x)) * 2.0**-53 * true, x
    assert definition.sigmoid(0.0) == definition.sigmoid(-0.0) == 0.5
    assert definition.sigmoid(INF) == definition.sigmoid(LARGEST) == 1
    assert definition.sigmoid(-INF) == definition.sigmoid(-LARGEST) == 0
    assert math.isnan(definition.sigmoid(NAN))
