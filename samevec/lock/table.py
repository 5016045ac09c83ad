"""A parsed TOML table whose errors name the path in the lock."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args

from samevec.errors import LockValidationError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

__all__ = ["Table", "shown"]

_Literal = TypeVar("_Literal", bound=str)

# Long enough to recognise a value by, short enough for one line of a terminal.
_SHOWN_CHARACTERS = 60


class Table:
    """One table of a lock, read key by key.

    `path` is such as ``models[1].golden``, empty for the whole lock; `origin` is the file's name. LockValidationError
    unless `value` is a table with no keys outside `keys`.
    """

    def __init__(self, value: object, *, path: str, origin: str, keys: Collection[str] | None) -> None:
        self.path = path
        self.origin = origin
        if not isinstance(value, dict):
            raise LockValidationError(path, f"must be a table, found {shown(value)}", origin=origin)
        self._values: dict[str, Any] = value
        for key in value:
            if keys is not None and key not in keys:
                raise self.error(key, f"unknown key; known here are {', '.join(sorted(keys))}")

    @property
    def keys(self) -> tuple[str, ...]:
        """The table's keys, in the file's order."""
        return tuple(self._values)

    def where(self, key: str) -> str:
        """Return the path of a key of this table."""
        return f"{self.path}.{key}" if self.path else key

    def error(self, key: str, problem: str) -> LockValidationError:
        """Build, without raising, the error for a key; ``files[3].sha256`` is a key too."""
        return LockValidationError(self.where(key), problem, origin=self.origin)

    def has(self, key: str) -> bool:
        """Whether a key is present."""
        return key in self._values

    def raw(self, key: str) -> Any:
        """Return a key's value unchecked; a missing key is refused."""
        if key not in self._values:
            raise self.error(key, "is missing")
        return self._values[key]

    def text(self, key: str, *, empty: bool = False) -> str:
        """Return a string."""
        return self._text(key, self.raw(key), empty=empty)

    def texts(self, key: str) -> tuple[str, ...]:
        """Return an array of at least one string."""
        return tuple(self._text(f"{key}[{i}]", value, empty=True) for i, value in enumerate(self.array(key)))

    def literal(self, key: str, choices: Any) -> Any:
        """Return one of the strings of a ``Literal``."""
        allowed = cast("tuple[str, ...]", get_args(choices))
        value = self.text(key)
        if value not in allowed:
            raise self.error(key, f"must be one of {', '.join(allowed)}, found {shown(value)}")
        return value

    def flag(self, key: str) -> bool:
        """Return a boolean."""
        value = self.raw(key)
        if not isinstance(value, bool):
            raise self.error(key, f"must be true or false, found {shown(value)}")
        return value

    def count(self, key: str) -> int:
        """Return an integer of at least 1."""
        value = self.raw(key)
        if type(value) is not int or value < 1:
            raise self.error(key, f"must be an integer of at least 1, found {shown(value)}")
        return value

    def number(self, key: str) -> float:
        """Return a finite number."""
        return self._number(key, self.raw(key))

    def numbers(self, key: str) -> tuple[float, ...]:
        """Return an array of finite numbers."""
        return tuple(self._number(f"{key}[{i}]", value) for i, value in enumerate(self.array(key)))

    def matrix(self, key: str) -> tuple[tuple[float, ...], ...]:
        """Return an array of arrays of finite numbers."""
        rows = []
        for i, row in enumerate(self.array(key)):
            if not isinstance(row, list):
                raise self.error(f"{key}[{i}]", f"must be an array, found {shown(row)}")
            rows.append(tuple(self._number(f"{key}[{i}][{j}]", value) for j, value in enumerate(row)))
        return tuple(rows)

    def token_ids(self, key: str) -> tuple[int, ...]:
        """Return an array of token ids."""
        ids = self.array(key)
        for i, value in enumerate(ids):
            if type(value) is not int or value < 0:
                raise self.error(f"{key}[{i}]", f"must be a token id (an integer from 0), found {shown(value)}")
        return tuple(ids)

    def array(self, key: str) -> Sequence[Any]:
        """Return an array of at least one item."""
        value = self.raw(key)
        if not isinstance(value, list) or not value:
            raise self.error(key, f"must be an array of at least one item, found {shown(value)}")
        return value

    def table(self, key: str, *, keys: Collection[str] | None) -> Table:
        """Return a table of this table; `keys` None allows any key in it."""
        return Table(self.raw(key), path=self.where(key), origin=self.origin, keys=keys)

    def tables(self, key: str, *, keys: Collection[str]) -> tuple[Table, ...]:
        """Return an array of tables."""
        return tuple(
            Table(value, path=f"{self.where(key)}[{i}]", origin=self.origin, keys=keys)
            for i, value in enumerate(self.array(key))
        )

    def _text(self, key: str, value: object, *, empty: bool) -> str:
        if not isinstance(value, str):
            raise self.error(key, f"must be a string, found {shown(value)}")
        if not value and not empty:
            raise self.error(key, "must not be empty")
        return value

    def _number(self, key: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.error(key, f"must be a finite number, found {shown(value)}")
        return float(value)


def shown(value: object) -> str:
    """Return a value's repr, shortened for a message."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "an array" if value else "an empty array"
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."
