"""Checks that every way shares: of option values on the way in, of rows on the way out."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, SupportsIndex

import numpy as np

from samevec.errors import InputError, NonFiniteOutputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["require_usable", "usable_rows", "whole_number"]


def usable_rows(rows: NDArray[np.float32], *, may_be_zero: bool) -> NDArray[np.bool_]:
    """Return which rows are finite, and not all zero where they may not be.

    Parameters
    ----------
    rows : ndarray of float32, shape (n_rows, width)
    may_be_zero : bool
        A logit may; a vector has no direction then.

    Returns
    -------
    ndarray of bool, shape (n_rows,)
    """
    finite: NDArray[np.bool_] = np.asarray(np.isfinite(rows).all(axis=1))
    return finite if may_be_zero else np.asarray(finite & rows.any(axis=1))


def require_usable(rows: NDArray[np.float32], *, may_be_zero: bool) -> None:
    """Refuse rows that are not usable, see :func:`usable_rows`.

    Raises
    ------
    NonFiniteOutputError
        With the positions of the rows at fault.
    """
    bad = np.flatnonzero(~usable_rows(rows, may_be_zero=may_be_zero))
    if bad.size:
        raise NonFiniteOutputError(bad.tolist(), what="not finite" if may_be_zero else "zero or not finite")


def whole_number(value: object, *, field: str, least: int = 1, most: int | None = None) -> int:
    """Return an option as an int, or say what is wrong with it.

    Parameters
    ----------
    value : object
        What the caller gave; integers of numpy are integers too, booleans and floats are not.
    field : str
        The option's name.
    least, most : int
        Bounds, both possible.

    Raises
    ------
    InputError
        Not a whole number, or out of bounds.
    """
    try:
        number = operator.index(value) if isinstance(value, SupportsIndex) and not isinstance(value, bool) else None
    except TypeError:
        number = None  # an array of several numbers has the method and refuses to use it
    if number is None:
        raise InputError(f"{value!r} is not a whole number", field=field)
    if most is not None and not least <= number <= most:
        raise InputError(f"{number} given, {least} to {most} is possible", field=field)
    if number < least:
        raise InputError(f"{number} given, at least {least} is needed", field=field)
    return number
