"""Directories that are written beside their final name: locked while they are written, cleared when their writer died.

A rename then gives them their name, so that whatever kills the writer, the name never stands for half of something.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["put_in_place", "unfinished_directory"]

# Hidden, so that no listing of finished directories meets them.
_PREFIX = ".unfinished-"
_LOCK_NAME = ".lock"


@contextmanager
def unfinished_directory(parent: Path) -> Iterator[Path]:
    """Give a new directory to write into.

    Parameters
    ----------
    parent : Path
        Where it will stay, under another name. What dead processes left unfinished there is removed first; what a
        living one is writing is left alone, even if it lives in another container.

    Yields
    ------
    Path
        Gone afterwards if :func:`put_in_place` has not renamed it.
    """
    with ExitStack() as held:
        with _locked(parent / _LOCK_NAME):  # so that no other process clears it before it is locked
            _clear_abandoned(parent)
            directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
            held.callback(shutil.rmtree, directory, ignore_errors=True)
            held.enter_context(_locked(directory))
        yield directory


def put_in_place(directory: Path, final: Path, *, is_intact: Callable[[Path], bool]) -> None:
    """Give a finished directory its name, after everything in it has reached the disk.

    Parameters
    ----------
    directory : Path
        From :func:`unfinished_directory`.
    final : Path
        Beside it.
    is_intact : callable
        Asked about a directory that has this name already: an intact one stays and `directory` is dropped; another one
        is replaced. Processes that have its files mapped keep them.
    """
    for path in (*directory.iterdir(), directory):
        _sync(path)
    directory.chmod(0o755)  # mkdtemp makes it owner-only; its files may be read by all who may read their home
    with _locked(final.parent / _LOCK_NAME):
        if final.exists():
            if is_intact(final):
                return
            # Moved aside under a name that counts as abandoned if we die here.
            aside = final.with_name(f"{_PREFIX}replaced-{os.getpid()}-{final.name}")
            final.rename(aside)
            shutil.rmtree(aside, ignore_errors=True)
        directory.rename(final)
        _sync(final.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a lock among processes on a file or directory; its owner's death gives it back.

    Raises
    ------
    BlockingIOError
        Another process holds it, and waiting was not wanted.
    """
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _clear_abandoned(parent: Path) -> None:
    """Remove what dead processes left; what another one is writing is left alone."""
    for path in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError), _locked(path, wait=False):
            shutil.rmtree(path, ignore_errors=True)
