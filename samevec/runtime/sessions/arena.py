"""Work memory that runs of one session share: who keeps it, and whether it holds any that nobody uses."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

__all__ = ["Arena", "ArenaSession"]


@runtime_checkable
class ArenaSession(Protocol):
    """What a :class:`samevec.runtime.sessions.onnx.Session` has beside if it can keep its work memory between runs."""

    def keeping_arena(self) -> AbstractContextManager[None]:
        """Within the block, runs of this thread leave their work memory to the next run instead of giving it back."""
        ...

    @property
    def holds_arena(self) -> bool:
        """Whether a run left work memory which no later one has given back: one that gives back will."""
        ...


class _Wish(threading.local):
    """Whether runs of this thread keep their work memory."""

    keeps = False


class Arena:
    """The account of one session's arena; safe between threads.

    What a run gives back at its end is what no other run uses, so that the last one to end decides.

    Attributes
    ----------
    holds : bool
        There may be memory of runs that have ended.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wish = _Wish()
        self._n_running = 0
        self.holds = False

    @property
    def keeps(self) -> bool:
        """Whether a run of this thread keeps its memory."""
        return self._wish.keeps

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Have runs of this thread keep their memory."""
        before, self._wish.keeps = self._wish.keeps, True
        try:
            yield
        finally:
            self._wish.keeps = before

    @contextmanager
    def run(self) -> Iterator[None]:
        """Count a run of this thread; one that fails is taken to have kept what it had."""
        with self._lock:
            self._n_running += 1
        gives_back = False
        try:
            yield
            gives_back = not self.keeps
        finally:
            with self._lock:
                self._n_running -= 1
                self.holds = not (gives_back and self._n_running == 0)
