"""Weights in panels, entry by entry as native/DEFINITION.md places them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from samevec.export.native.panels import pack, unpack

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHAPES = ((1, 1), (1, 64), (32, 3), (33, 5), (64, 32), (100, 7))


def weight_of(shape: tuple[int, int], dtype: type[Any]) -> NDArray[Any]:
    return (np.arange(1, 1 + shape[0] * shape[1]).reshape(shape) % 65_521).astype(dtype)


@pytest.mark.parametrize("shape", SHAPES)
def test_float32_entry_j_of_a_row_is_column_j(shape: tuple[int, int]) -> None:
    weight, (n_columns, inner) = weight_of(shape, np.float32), shape
    panels = pack(weight)
    assert panels.shape == (-(-n_columns // 32), inner, 32)
    assert panels.dtype == np.float32
    for column in range(panels.shape[0] * 32):
        expected = weight[column] if column < n_columns else np.zeros(inner, np.float32)
        assert panels[column // 32, :, column % 32].tolist() == expected.tolist()


@pytest.mark.parametrize("shape", SHAPES)
def test_bfloat16_word_j_of_a_row_has_column_j_low_and_column_16_plus_j_high(shape: tuple[int, int]) -> None:
    weight, (n_columns, inner) = weight_of(shape, np.uint16), shape
    words = pack(weight).astype("<u2").view("<u4")
    assert words.shape == (-(-n_columns // 32), inner, 16)
    for column in range(words.shape[0] * 32):
        panel, place = divmod(column, 32)
        found = words[panel, :, place % 16] >> (16 * (place // 16)) & 0xFFFF
        expected = weight[column] if column < n_columns else np.zeros(inner, np.uint16)
        assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
@pytest.mark.parametrize("shape", SHAPES)
def test_unpack_gives_the_weight_back(shape: tuple[int, int], dtype: type[Any]) -> None:
    weight = weight_of(shape, dtype)
    assert np.array_equal(unpack(pack(weight), shape[0]), weight)


def test_panels_of_whole_panels_put_together_are_panels_of_the_weights_put_together() -> None:
    first, second = weight_of((64, 8), np.float32), weight_of((32, 8), np.float32)
    assert np.array_equal(np.concatenate([pack(first), pack(second)]), pack(np.concatenate([first, second])))
