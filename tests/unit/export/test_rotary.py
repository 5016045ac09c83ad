"""Rotary tables against exact values, and against what PyTorch computes with this processor's functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from samevec.errors import ExportError
from samevec.export.native.rotary import cosine_and_sine, inverse_frequencies, rotary_tables

if TYPE_CHECKING:
    from numpy.typing import NDArray

BASES = ((1_000_000, 128), (1_000_000, 64), (160_000.0, 64), (10_000.0, 64), (10_000.0, 32))


def steps_apart(x: NDArray[np.float32], y: NDArray[np.float32]) -> int:
    """Return how many float32 lie between two values at most."""

    def place(values: NDArray[np.float32]) -> NDArray[np.int64]:
        bits = values.view(np.int32).astype(np.int64)
        return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)

    return int(np.abs(place(x) - place(y)).max())


@pytest.mark.parametrize(("theta", "head_dim"), BASES)
def test_inverse_frequencies_are_torchs_or_its_neighbours(theta: float, head_dim: int) -> None:
    torch = pytest.importorskip("torch", reason="needs the export extra")
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).to(torch.float) / head_dim
    assert steps_apart(inverse_frequencies(theta, head_dim), (1.0 / (theta**exponents)).numpy()) <= 1


@pytest.mark.parametrize(("theta", "head_dim"), BASES)
def test_tables_are_within_one_step_of_torchs_at_the_same_angles(theta: float, head_dim: int) -> None:
    torch = pytest.importorskip("torch", reason="needs the export extra")
    cos, sin = rotary_tables(theta, head_dim, 4096)
    angles = np.arange(4096, dtype=np.float32)[:, None] * inverse_frequencies(theta, head_dim)
    assert cos.shape == sin.shape == (4096, head_dim // 2)
    assert steps_apart(cos, torch.from_numpy(angles).cos().numpy()) <= 1
    assert steps_apart(sin, torch.from_numpy(angles).sin().numpy()) <= 1


def test_cosine_and_sine_are_the_nearest_float32() -> None:
    mpmath = pytest.importorskip("mpmath", reason="comes with torch")
    stream = np.random.default_rng(3)
    near = np.arange(1, 200) * (np.pi / 2)  # where one of the two is small
    angles = np.concatenate([[0.0], stream.uniform(0, 40_000, 2000), near]).astype(np.float32)
    cos, sin = cosine_and_sine(angles)
    with mpmath.workprec(200):
        exact = [(mpmath.cos(mpmath.mpf(float(x))), mpmath.sin(mpmath.mpf(float(x)))) for x in angles]
    assert cos.tolist() == [float(np.float32(float(c))) for c, _ in exact]
    assert sin.tolist() == [float(np.float32(float(s))) for _, s in exact]


def test_angles_too_large_for_the_reduction_are_refused() -> None:
    with pytest.raises(ExportError, match="positions reach further"):
        cosine_and_sine(np.array([2e6], np.float32))
