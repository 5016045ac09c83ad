"""Locks: which models, at which revision, with which bytes, and how equal is equal.

A lock is TOML (``lock_version = 1``). :func:`load_lock` finds and validates one; only
:mod:`samevec.export.source.lock_update` writes one.

Notes
-----
The form, with every key::

    lock_version = 1
    [tolerance]               atol = 1e-4, rtol = 1e-3: frozen
    [toolchain]               torch = "2.13.0" ...: every distribution of TOOLCHAIN_NAMES
    [[models]]                name, task, source, revision, license, architecture, pooling, max_tokens
                              embed: normalize, dimensions, and perhaps matryoshka_min_dimensions; rerank: activation
    [models.prompts]          NAME = TEXT (embed, may be absent)
    [models.golden.cosines]   queries, documents, values, and perhaps prompt (embed, may be absent)
    [[models.golden.tokens]]  text, ids, and perhaps prompt (embed, may be absent)
    [[models.golden.pairs]]   query, document, logit, score, and perhaps ids (rerank, may be absent)
    [models.answers]          arithmetic, case_set, digest: the output bits (may be absent)
    [[models.files]]          path, size (bytes), sha256
"""

from __future__ import annotations

import textwrap
import tomllib
from pathlib import Path
from typing import Any

import tomli_w

from samevec.errors import LockError
from samevec.lock.parse import FROZEN_TOLERANCE, TOOLCHAIN_NAMES, is_revision, parse_document, revision_problem
from samevec.lock.records import (
    LOCK_VERSION,
    Activation,
    Golden,
    GoldenCosines,
    GoldenPair,
    GoldenTokens,
    Lock,
    LockedFile,
    LockedModel,
    PinnedAnswers,
    Pooling,
    Task,
    Tolerance,
    Toolchain,
)

__all__ = [
    "FROZEN_TOLERANCE",
    "LOCK_VERSION",
    "TOOLCHAIN_NAMES",
    "Activation",
    "Golden",
    "GoldenCosines",
    "GoldenPair",
    "GoldenTokens",
    "Lock",
    "LockedFile",
    "LockedModel",
    "PinnedAnswers",
    "Pooling",
    "Task",
    "Tolerance",
    "Toolchain",
    "dump_lock",
    "is_revision",
    "load_lock",
    "lock_path",
    "parse_lock",
    "read_lock",
    "revision_problem",
]

_PACKAGE = Path(__file__).resolve().parents[1]
_HEADER = """\
# Written by `samevec lock update`; do not edit by hand. `samevec lock check` validates it.
"""


def parse_lock(text: str, *, origin: str = "lock") -> Lock:
    """Return the lock in a TOML text; `origin` names the file in messages.

    Raises
    ------
    LockError
        The text is not TOML.
    LockVersionError
        Written for another version of samevec.
    LockValidationError
        A key is unknown, missing or has a wrong value; names its path, such as ``models[1].files[3].sha256``.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise LockError(f"{origin}: not TOML: {error}") from error
    return parse_document(document, origin=origin)


def read_lock(path: Path, *, origin: str | None = None) -> Lock:
    """Return the lock in a file; LockError if it cannot be read, else raises as :func:`parse_lock`."""
    origin = str(path) if origin is None else origin
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise LockError(f"{origin}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise LockError(f"{origin}: not TOML: not UTF-8 at byte {error.start}") from error
    return parse_lock(text, origin=origin)


def lock_path(ref: str | Path | None) -> Path:
    """Return the file of a lock: None is the packaged one, ``"toy"`` the toy models', anything else a path."""
    if ref == "toy":
        return _PACKAGE / "toy.lock"
    if ref is not None:
        return Path(ref)
    # The wheel carries it inside the package, a checkout at its root.
    for path in (_PACKAGE / "models.lock", _PACKAGE.parent / "models.lock"):
        if path.is_file():
            return path
    raise LockError("models.lock: not found beside or in the samevec package; install samevec again or name a lock")


def load_lock(ref: str | Path | None = None) -> Lock:
    """Return the lock of a name or path, see :func:`lock_path`; LockError if it cannot be read or is not valid."""
    path = lock_path(ref)
    return read_lock(path, origin=path.name if ref is None or ref == "toy" else str(ref))


def dump_lock(lock: Lock) -> str:
    """Return a lock's TOML text, from which :func:`parse_lock` makes an equal lock."""
    record = lock.to_dict()
    models = record.pop("models")
    parts = [_HEADER, _dump_keys({"lock_version": record.pop("lock_version")})]
    parts += [_dump_table(name, table) for name, table in record.items()]
    parts += [_dump_table("models", model, array=True) for model in models]
    return "\n".join(parts)


def _dump_table(name: str, table: dict[str, Any], *, array: bool = False) -> str:
    """Return a table: its plain keys first, then its tables, as TOML requires."""
    plain, tables = {}, []
    for key, value in table.items():
        if isinstance(value, dict):
            tables.append(_dump_table(f"{name}.{key}", value))
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            tables += [_dump_table(f"{name}.{key}", item, array=True) for item in value]
        else:
            plain[key] = value
    header = f"[[{name}]]\n" if array else f"[{name}]\n"
    # A table that holds nothing but tables is implied by them.
    own = [header + _dump_keys(plain)] if plain else []
    return "\n".join(own + tables)


def _dump_keys(table: dict[str, Any]) -> str:
    lines = []
    for key, value in table.items():
        bare = tomli_w.dumps({key: 0}).removesuffix(" = 0\n")
        lines.append(f"{bare} = {_dump_value(value)}\n")
    return "".join(lines)


def _dump_value(value: Any) -> str:
    if not isinstance(value, list):
        # tomli_w knows the escapes; the arrays it writes take one line an item, too long for token ids.
        return tomli_w.dumps({"v": value}).removeprefix("v = ").removesuffix("\n")
    items = [_dump_value(item) for item in value]
    if all(isinstance(item, int | float) for item in value):
        line = "[" + ", ".join(items) + "]"
        if len(line) <= 100:
            return line
        wrapped = textwrap.wrap(", ".join(items), 96, break_long_words=False, break_on_hyphens=False)
        return "[\n" + "".join(f"    {row}\n" for row in wrapped) + "]"
    return "[\n" + "".join(f"    {item},\n" for item in items) + "]"
