"""Directories written under a temporary name, locked meanwhile, and renamed when they are complete."""

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
    """Yield a new locked directory beside its final name; :func:`put_in_place` renames it, else it is removed.

    Directories that dead processes left in `parent` are removed first; those of living ones stay, even where the
    process is in another container.
    """
    with ExitStack() as held:
        with _locked(parent / _LOCK_NAME):  # no other process clears it before it is locked
            _clear_abandoned(parent)
            directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
            held.callback(shutil.rmtree, directory, ignore_errors=True)
            held.enter_context(_locked(directory))
        yield directory


def put_in_place(directory: Path, final: Path, *, is_intact: Callable[[Path], bool]) -> None:
    """Rename a finished directory of :func:`unfinished_directory` to `final`, beside it, once its files are on disk.

    `is_intact` is called with an existing directory of that name: if intact it stays and `directory` is dropped, else
    it is replaced; processes that have its files mapped keep them.
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
    """Hold a lock among processes on a file or directory; the kernel releases it when its owner dies."""
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _clear_abandoned(parent: Path) -> None:
    """Remove what dead processes left; directories of living writers stay."""
    for path in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError), _locked(path, wait=False):
            shutil.rmtree(path, ignore_errors=True)
