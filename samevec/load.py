"""The public way in: a model's name in, a model that may be used out, or the reason why not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from samevec.errors import ConfigError
from samevec.gate import open_proved
from samevec.hints import Commands
from samevec.lock import load_lock
from samevec.settings import default_home

if TYPE_CHECKING:
    from samevec.runtime.embedder import Embedder
    from samevec.runtime.model import Model
    from samevec.runtime.reranker import Reranker

__all__ = ["load_embedder", "load_reranker"]


def load_embedder(
    name: str,
    *,
    profile: str = "cpu",
    home: str | Path | None = None,
    lock: str | Path | None = None,
) -> Embedder:
    """Load an exported embedding model whose parity was proved on this machine.

    Parameters
    ----------
    name : str
        Its name in the lock, such as ``"qwen3-embedding-0.6b"``.
    profile : str
        How to run it.
    home : str or Path, optional
        Where artifacts are; ``$SAMEVEC_HOME``, else the platform's user data folder.
    lock : str or Path, optional
        A lock file; ``"toy"`` for the built-in toy pair; the packaged ``models.lock`` when not given.

    Returns
    -------
    Embedder

    Raises
    ------
    LockError, ConfigError
        The lock or the name is wrong.
    ArtifactError
        Nothing exported, or damaged since.
    ParityError
        Not proved here, failed, or something bound to the receipt has changed; the message has the command to run.
    InferenceError
        The graph cannot be loaded here.
    """
    model = _load(name, "embed", profile=profile, home=home, lock=lock)
    assert model.task == "embed"  # noqa: S101  build_model goes by the task checked above
    return model


def load_reranker(
    name: str,
    *,
    profile: str = "cpu",
    home: str | Path | None = None,
    lock: str | Path | None = None,
) -> Reranker:
    """Load an exported reranking model whose parity was proved on this machine; see :func:`load_embedder`."""
    model = _load(name, "rerank", profile=profile, home=home, lock=lock)
    assert model.task == "rerank"  # noqa: S101  build_model goes by the task checked above
    return model


def _load(name: str, task: str, *, profile: str, home: str | Path | None, lock: str | Path | None) -> Model:
    loaded = load_lock(lock)
    entry = loaded.model(name)
    if entry.task != task:
        kinds = {"embed": "an embedding model", "rerank": "a reranking model"}
        raise ConfigError(f"{name} is {kinds[entry.task]}, {kinds[task]} is needed")
    home = default_home() if home is None else Path(home)
    commands = Commands(lock=lock, home=home)
    return open_proved(entry, tolerance=loaded.tolerance, profile=profile, home=home, commands=commands).model
