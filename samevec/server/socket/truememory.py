"""TrueMemory's conventions: where its client looks for a model server, and what its tiers and model names mean here.

References
----------
truememory 0.7.6.2: ``model_client.py`` (paths, liveness by pid file), ``model_server.py`` (lock before bind, pid after
bind, owner-only folder and socket), ``tier_config.py`` (base and pro are Qwen3-Embedding-0.6B
at 256 dimensions).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from samevec.errors import ConfigError, InputError, NotReadyError
from samevec.server.endpoints import bind_unix
from samevec.server.settings import find_served

if TYPE_CHECKING:
    from collections.abc import Sequence

    from samevec.server.endpoints import Endpoints
    from samevec.server.settings import ServedModel

__all__ = ["EmbedTarget", "reserve_truememory", "resolve_reranker", "resolve_tier", "truememory_folder"]

SOCKET_NAME, PID_NAME, LOCK_NAME = "model.sock", "model_server.pid", "model_server.lock"

#: What TrueMemory calls the embedder: its tiers, its internal name for it, and no tier at all.
_EMBEDDER_TIERS = ("", "base", "pro", "qwen3_256")
#: What it cuts vectors to, with sentence-transformers' ``truncate_dim``.
_TIER_DIMENSIONS = 256
_RERANKER_NAME = "Alibaba-NLP/gte-reranker-modernbert-base"


@dataclass(frozen=True, slots=True)
class EmbedTarget:
    """The served embedder a tier stands for, and the length of its vectors (None: full)."""

    model: str
    dimensions: int | None


def truememory_folder() -> Path:
    """Return the folder TrueMemory's client looks in."""
    return Path.home() / ".truememory"


def reserve_truememory(endpoints: Endpoints) -> None:
    """Take the place of TrueMemory's own model server.

    Parameters
    ----------
    endpoints : Endpoints
        Gets the socket, and what undoes all this.

    Raises
    ------
    NotReadyError
        A model server runs there already, TrueMemory's own or ours.
    ConfigError
        The folder or the socket cannot be had.
    """
    folder = truememory_folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)  # it holds people's memories, and may have been made with another mode
        lock = _hold_lock(folder / LOCK_NAME)
    except OSError as error:
        raise ConfigError(f"--truememory: {folder}: {error.strerror or error}") from error
    endpoints.add_cleanup(lambda: os.close(lock))
    endpoints.add_frames(bind_unix(folder / SOCKET_NAME))
    # After the bind: the pid file says "a server answers here", and the client starts its own server otherwise.
    _write_pid(folder / PID_NAME)
    endpoints.add_cleanup(lambda: _remove_pid(folder / PID_NAME))


def _hold_lock(path: Path) -> int:
    """Take the lock that TrueMemory's server takes before it touches socket and pid; held until closed."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise NotReadyError(f"{path}: another model server holds the lock{_owner(path)}; stop it first") from error
    return descriptor


def _owner(lock_path: Path) -> str:
    try:
        return f" (pid {int(lock_path.with_name(PID_NAME).read_text())})"
    except (OSError, ValueError):
        return ""


def _write_pid(path: Path) -> None:
    # Renamed into place: the client must never read half a number, and a link there must not be followed.
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(str(os.getpid()))
    temporary.replace(path)


def _remove_pid(path: Path) -> None:
    with contextlib.suppress(OSError, ValueError):
        if int(path.read_text()) == os.getpid():
            path.unlink()


def resolve_tier(tier: str, embedders: Sequence[ServedModel]) -> EmbedTarget:
    """Return which embedder a tier means.

    Parameters
    ----------
    tier : str
        A tier of TrueMemory, or a name of a served embedder (full vectors then).
    embedders : sequence of ServedModel

    Returns
    -------
    EmbedTarget

    Raises
    ------
    InputError
        The tier's model is not served. Another model's vectors would be taken for its own, in silence.
    """
    found = find_served(tier, embedders)
    if found is not None:
        return EmbedTarget(found.name, None)
    if tier in _EMBEDDER_TIERS:
        for served in embedders:
            if served.model.entry.architecture == "qwen3" and served.model.task == "embed":
                # truncate_dim beyond the width leaves vectors as they are; so does this, for the toy models.
                cut = _TIER_DIMENSIONS if served.model.dimensions > _TIER_DIMENSIONS else None
                return EmbedTarget(served.name, cut)
    names = ", ".join(served.name for served in embedders) or "none"
    raise InputError(f"tier {tier!r} is not served here (embedders: {names}; tiers: base, pro)", field="tier")


def resolve_reranker(name: str | None, rerankers: Sequence[ServedModel]) -> str:
    """Return which reranker a model name means.

    Parameters
    ----------
    name : str or None
        Any of a served reranker's names; None for TrueMemory's reranker, or else the only one.
    rerankers : sequence of ServedModel

    Returns
    -------
    str
        A served name.

    Raises
    ------
    InputError
        It is not served.
    """
    found = None if name is None else find_served(name, rerankers)
    if found is not None:
        return found.name
    if name is None or name.lower() == _RERANKER_NAME.lower():
        for served in rerankers:
            if served.model.entry.architecture == "modernbert":
                return served.name
    if name is None and len(rerankers) == 1:
        return rerankers[0].name
    names = ", ".join(served.name for served in rerankers) or "none"
    raise InputError(f"{name!r} is not served here (rerankers: {names})", field="model_name")
