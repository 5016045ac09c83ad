"""One TOML file of a command's flags, ``samevec serve --config FILE``; flags and variables take precedence."""

from __future__ import annotations

import difflib
import tomllib
from typing import TYPE_CHECKING, Any

import click

from samevec.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["defaults_from", "read_config"]


def read_config(path: Path, options: Sequence[click.Option]) -> dict[str, Any]:
    """Read a file of flags, for ``Context.default_map``.

    Keys are the long names of `options` without dashes, such as ``api-key-file``. Relative paths are taken from the
    file's folder, since a service manager chooses the working directory.

    Raises
    ------
    ConfigError
        Not readable, not TOML, an unknown key or a value of another type; names the file and the key.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path}: cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"--config {path}: not TOML: {error}") from error
    return defaults_from(content, options, origin=path)


def defaults_from(content: Mapping[str, Any], options: Sequence[click.Option], *, origin: Path) -> dict[str, Any]:
    """Check the content of a file, see :func:`read_config`."""
    known = {_key(option): option for option in options}
    values: dict[str, Any] = {}
    for key, value in content.items():
        option = known.get(key)
        if option is None:
            raise ConfigError(f"{origin}: {key}: unknown key{_guess(key, known)}")
        values[option.name or key] = _value(value, option, f"{origin}: {key}", origin.parent)
    return values


def _key(option: click.Option) -> str:
    return max(option.opts, key=len).lstrip("-")


def _guess(key: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(key.replace("_", "-"), list(known), n=1)
    return f"; is {close[0]} meant?" if close else f"; possible are: {', '.join(sorted(known))}"


def _value(value: Any, option: click.Option, where: str, folder: Path) -> Any:
    if option.multiple:
        if not isinstance(value, list):
            raise ConfigError(f'{where}: a list is needed, such as ["..."]')
        return [_single(one, option, f"{where}[{i}]", folder) for i, one in enumerate(value)]
    return _single(value, option, where, folder)


def _single(value: Any, option: click.Option, where: str, folder: Path) -> Any:
    kinds, words = _kinds(option)
    if not isinstance(value, kinds) or (isinstance(value, bool) and not option.is_flag):
        raise ConfigError(f"{where}: {words} is needed, {value!r} given")
    if isinstance(option.type, click.Path):
        return value if str(value).startswith("~") else str(folder / str(value))
    return value


def _kinds(option: click.Option) -> tuple[tuple[type, ...], str]:
    if option.is_flag:
        return (bool,), "true or false"
    if isinstance(option.type, (click.types.IntParamType, click.IntRange)):
        return (int,), "a whole number"
    if isinstance(option.type, (click.types.FloatParamType, click.FloatRange)):
        return (int, float), "a number"
    return (str,), "a string"
