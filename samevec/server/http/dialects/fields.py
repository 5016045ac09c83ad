"""A JSON object's values, each checked as it is taken. A key that nobody reads is refused by name."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

from samevec.errors import BatchTooLargeError, EmptyInputError, InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "MOST_COUNT",
    "PROMPT_NAMES",
    "Fields",
    "json_kind",
    "limit_items",
    "read_documents",
    "read_inputs",
    "read_texts",
]

_ABSENT: Any = object()
#: The prompts a caller may ask for; which of them a model has, its lock entry says.
PROMPT_NAMES = ("query", "document")
#: The largest count any option takes: it fits every client's integers.
MOST_COUNT = 2**31 - 1
# From here on the JSON parser gives whole numbers as floats.
_LARGE = 2.0**63


class Fields:
    """Hands out a body's values by key, each checked, and knows which keys nobody asked for.

    Parameters
    ----------
    body : object
        Parsed JSON.

    Raises
    ------
    InputError
        It is no object. Every method raises it too, naming the key.
    """

    def __init__(self, body: object) -> None:
        if not isinstance(body, dict):
            raise InputError(f"{json_kind(body)} given, a JSON object is needed", field="body")
        self._body = body
        self._known: list[str] = []

    def take(self, name: str) -> object:
        """Return a value as it is, or a mark of absence; null counts as left out."""
        self._known.append(name)
        value = self._body.get(name, _ABSENT)
        return _ABSENT if value is None else value

    def require(self, name: str) -> object:
        """Return a value that must be there."""
        value = self.take(name)
        if value is _ABSENT:
            raise InputError("missing" if name not in self._body else "null given, a value is needed", field=name)
        return value

    def text(self, name: str, default: str | None) -> str | None:
        """Return a string."""
        value = self.take(name)
        if value is _ABSENT:
            return default
        if not isinstance(value, str):
            raise InputError(f"{json_kind(value)} given, a string is needed", field=name)
        return value

    def require_text(self, name: str) -> str:
        """Return a string that must be there."""
        value = self.require(name)
        if not isinstance(value, str):
            raise InputError(f"{json_kind(value)} given, a string is needed", field=name)
        return value

    def choice(self, name: str, options: Sequence[str], default: str | None) -> str | None:
        """Return one of some strings."""
        value = self.text(name, default)
        if value is not default and value not in options:
            raise InputError(f"{value!r} given, it must be one of: {', '.join(options)}", field=name)
        return value

    def boolean(self, name: str, *, default: bool) -> bool:
        """Return true or false."""
        value = self.take(name)
        if value is _ABSENT:
            return default
        if not isinstance(value, bool):
            raise InputError(f"{json_kind(value)} given, true or false is needed", field=name)
        return value

    def count(self, name: str, *, least: int = 1) -> int | None:
        """Return a whole number; 2.0 is none, and neither is true."""
        value = self.take(name)
        if value is _ABSENT:
            return None
        if isinstance(value, float) and abs(value) >= _LARGE:
            value = int(value)  # a whole number too long for the parser's integers
        if isinstance(value, bool) or not isinstance(value, int):
            raise InputError(f"{json_kind(value)} given, a whole number is needed", field=name)
        if value < least:
            raise InputError(f"{value} given, at least {least} is needed", field=name)
        if value > MOST_COUNT:
            raise InputError(f"{value} given, at most {MOST_COUNT} is possible", field=name)
        return value

    def seconds(self, name: str) -> float | None:
        """Return a finite number."""
        value = self.take(name)
        if value is _ABSENT:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise InputError(f"{json_kind(value)} given, a number of seconds is needed", field=name)
        return float(value)

    def refuse_rest(self) -> None:
        """Refuse the keys nobody asked for: an option that is dropped in silence changes results."""
        for name in self._body:
            if name not in self._known:
                raise InputError(f"unknown option; the options are: {', '.join(sorted(self._known))}", field=str(name))


def json_kind(value: object) -> str:
    """Return JSON's name for a value's type."""
    names = {
        bool: "a boolean",
        int: "a whole number",
        float: "a fraction",
        str: "a string",
        list: "a list",
        dict: "an object",
    }
    return "null" if value is None else names.get(type(value), type(value).__name__)


def limit_items(n_items: int, limit: int, *, field: str) -> None:
    """Refuse more items than one request may have.

    Raises
    ------
    BatchTooLargeError
    """
    if n_items > limit:
        raise BatchTooLargeError(f"{n_items} items, the limit of one request is {limit}; send several", field=field)


def read_texts(value: object, *, field: str, limit: int) -> tuple[str, ...]:
    """Return a list of at least one string.

    Raises
    ------
    InputError, EmptyInputError, BatchTooLargeError
    """
    if not isinstance(value, list):
        raise InputError(f"{json_kind(value)} given, a list is needed", field=field)
    if not value:
        raise EmptyInputError("empty list, at least one item is needed", field=field)
    limit_items(len(value), limit, field=field)
    for i, item in enumerate(value):
        if not isinstance(item, str):
            raise InputError(f"{json_kind(item)} given, a string is needed", field=field, index=i)
    return tuple(value)


def _token_ids(value: list[object], *, field: str) -> tuple[int, ...]:
    """Check that a list holds whole numbers; whether they are ids of the vocabulary, the tokenizer knows."""
    for i, item in enumerate(value):
        if isinstance(item, bool) or not isinstance(item, int):
            raise InputError(f"{json_kind(item)} given among token ids, a whole number is needed", field=field, index=i)
    return cast("tuple[int, ...]", tuple(value))


def read_inputs(value: object, *, field: str, limit: int) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
    """Read what is to be embedded: a string, strings, token ids, or lists of token ids.

    Parameters
    ----------
    value : object
    field : str
        The key it came under, for messages.
    limit : int
        Most items.

    Returns
    -------
    (tuple of str, tuple of tuple of int)
        One of them is empty.

    Raises
    ------
    InputError, EmptyInputError, BatchTooLargeError
    """
    if isinstance(value, str):
        return (value,), ()
    if isinstance(value, list) and value:
        first = value[0]
        if isinstance(first, list):
            limit_items(len(value), limit, field=field)
            for i, item in enumerate(value):
                if not isinstance(item, list):
                    raise InputError(f"{json_kind(item)} given, a list of token ids is needed", field=field, index=i)
                if not item:
                    raise InputError("no token ids", field=field, index=i)
            return (), tuple(_token_ids(item, field=f"{field}[{i}]") for i, item in enumerate(value))
        if isinstance(first, int | float):
            return (), (_token_ids(value, field=field),)
    elif not isinstance(value, list):
        raise InputError(f"{json_kind(value)} given, a string, a list of strings or token ids are needed", field=field)
    return read_texts(value, field=field, limit=limit), ()


def read_documents(value: object, *, limit: int) -> tuple[str, ...]:
    """Read documents given as strings or as objects with a text, see :func:`read_texts`."""
    if isinstance(value, list):
        texts = []
        for i, item in enumerate(value[: limit + 1]):
            if isinstance(item, dict):
                unknown = sorted(str(key) for key in item if key != "text")
                if unknown:
                    raise InputError(f"unknown key {unknown[0]!r}, only text is read", field="documents", index=i)
                texts.append(item.get("text"))
            else:
                texts.append(item)
        value = texts + value[limit + 1 :]
    return read_texts(value, field="documents", limit=limit)
