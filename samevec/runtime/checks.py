"""Checks of option values that every way in shares."""

from __future__ import annotations

import operator
from typing import SupportsIndex

from samevec.errors import InputError

__all__ = ["whole_number"]


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
