"""Cosine and sine tables of rotary positions, the same bytes on every machine.

transformers computes them in float32, with functions whose last bit depends on the processor. Here the same steps are
taken by integers, decimals of 60 digits, and additions and products in float64: inverse frequencies and angles are the
float32 that exact powers give, cosine and sine the nearest float32.
"""

from __future__ import annotations

import decimal
from typing import TYPE_CHECKING

import numpy as np

from samevec.errors import ExportError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["cosine_and_sine", "inverse_frequencies", "rotary_tables"]

# Half a pi in three parts, as fdlibm's e_rem_pio2.c has them: products of the first two, of 33 bits, with a count of
# up to 20 bits are exact.
_HALF_PI = (1.57079632673412561417e00, 6.07710050630396597660e-11, 2.02226624879595063154e-21)
_PER_HALF_PI = 6.36619772367581382433e-01
_TO_INTEGER = 1.5 * 2.0**52  # added and taken away again, it rounds to the nearest integer
_MOST_HALF_PIS = 1 << 20
# fdlibm's k_sin.c and k_cos.c, highest power first: errors below 2^-58 up to a quarter of pi.
_SINE = (
    *(1.58969099521155010221e-10, -2.50507602534068634195e-08, 2.75573137070700676789e-06),
    *(-1.98412698298579493134e-04, 8.33333333332248946124e-03, -1.66666666666666324348e-01),
)
_COSINE = (
    *(-1.13596475577881948265e-11, 2.08757232129817482790e-09, -2.75573143513906633035e-07),
    *(2.48015872894767294178e-05, -1.38888888888741095749e-03, 4.16666666666666019037e-02),
)


def inverse_frequencies(theta: float, head_dim: int) -> NDArray[np.float32]:
    """Return ``1 / theta ** (i / head_dim)`` for even i, rounded to float32 at each step of transformers."""
    context = decimal.Context(prec=60)
    exponents = np.arange(0, head_dim, 2).astype(np.float32) / np.float32(head_dim)
    powers = [context.power(decimal.Decimal(theta), decimal.Decimal(float(exponent))) for exponent in exponents]
    return np.float32(1) / np.array([float(power) for power in powers]).astype(np.float32)


def cosine_and_sine(angles: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return cosine and sine of float32 angles >= 0 without libm; ExportError beyond 2^20 right angles."""
    wide = angles.astype(np.float64)
    n_half_pis = (wide * _PER_HALF_PI + _TO_INTEGER) - _TO_INTEGER
    if n_half_pis.size and n_half_pis.max() >= _MOST_HALF_PIS:
        raise ExportError("positions reach further than rotary tables can be computed")
    rest = wide
    for part in _HALF_PI:
        rest = rest - n_half_pis * part
    square = rest * rest
    sine = rest + rest * square * _polynomial(_SINE, square)
    cosine = 1 - (0.5 * square - square * square * _polynomial(_COSINE, square))
    quadrant = n_half_pis.astype(np.int64) & 3
    odd = quadrant % 2 == 1
    signed_cosine = np.where(odd, sine, cosine) * np.where((quadrant == 1) | (quadrant == 2), -1.0, 1.0)
    signed_sine = np.where(odd, cosine, sine) * np.where(quadrant >= 2, -1.0, 1.0)
    return signed_cosine.astype(np.float32), signed_sine.astype(np.float32)


def _polynomial(coefficients: tuple[float, ...], x: NDArray[np.float64]) -> NDArray[np.float64]:
    total = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * x + coefficient
    return total


def rotary_tables(theta: float, head_dim: int, n_positions: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return float32 cosines and sines for positions from 0, each of shape (n_positions, head_dim / 2)."""
    positions = np.arange(n_positions, dtype=np.float32)
    return cosine_and_sine(positions[:, None] * inverse_frequencies(theta, head_dim))
