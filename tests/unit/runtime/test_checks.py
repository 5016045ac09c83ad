"""Option values: whole numbers only, said in words. Rows: which may leave."""

from __future__ import annotations

import numpy as np
import pytest

from samevec.errors import InputError, NonFiniteOutputError
from samevec.runtime.checks import require_usable, usable_rows, whole_number

ROWS = np.array([[1, 2], [0, 3], [0, 0], [np.nan, 1], [1, -np.inf]], dtype=np.float32)


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_integers_of_any_kind_are_whole(value: object) -> None:
    number = whole_number(value, field="top_n")
    assert (number, type(number)) == (3, int)


@pytest.mark.parametrize("value", [True, 2.0, "2", None, [2], np.array([1, 2]), np.float32(2)])
def test_anything_else_is_not(value: object) -> None:
    with pytest.raises(InputError) as caught:
        whole_number(value, field="top_n")
    assert str(caught.value) == f"top_n: {value!r} is not a whole number"
    assert (caught.value.field, caught.value.index) == ("top_n", None)


def test_bounds_are_named() -> None:
    with pytest.raises(InputError, match=r"^top_n: 0 given, at least 1 is needed$"):
        whole_number(0, field="top_n")
    for value in (31, 1025, -1):
        with pytest.raises(InputError, match=rf"^dimensions: {value} given, 32 to 1024 is possible$"):
            whole_number(value, field="dimensions", least=32, most=1024)
    assert [whole_number(v, field="dimensions", least=32, most=1024) for v in (32, 1024)] == [32, 1024]


@pytest.mark.parametrize(("may_be_zero", "usable"), [(True, [0, 1, 2]), (False, [0, 1])])
def test_rows_that_are_finite_are_usable_and_zero_ones_where_they_may_be(may_be_zero: bool, usable: list[int]) -> None:
    assert np.flatnonzero(usable_rows(ROWS, may_be_zero=may_be_zero)).tolist() == usable
    require_usable(ROWS[usable], may_be_zero=may_be_zero)
    require_usable(ROWS[:0], may_be_zero=may_be_zero)
    with pytest.raises(NonFiniteOutputError) as caught:
        require_usable(ROWS, may_be_zero=may_be_zero)
    assert caught.value.indices == tuple(i for i in range(len(ROWS)) if i not in usable)
