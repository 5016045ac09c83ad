"""Cancellation: a caller that no longer wants its work says so once, and every run made for it alone ends."""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from samevec.errors import WorkCancelledError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["CancelToken", "every_cancelled"]


class CancelToken:
    """Says whether work is still wanted; once cancelled it stays so. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancelled = False
        self._callbacks: dict[object, Callable[[], None]] = {}

    @property
    def is_cancelled(self) -> bool:
        """Whether the work is no longer wanted."""
        return self._cancelled

    def cancel(self) -> None:
        """Give the work up: watchers are called in this thread, before this returns."""
        with self._lock:
            if self._cancelled:
                return
            self._cancelled = True
            callbacks = list(self._callbacks.values())
        for callback in callbacks:
            callback()

    def require_wanted(self) -> None:
        """Stop here if the work is no longer wanted.

        Raises
        ------
        WorkCancelledError
            It was cancelled.
        """
        if self._cancelled:
            raise WorkCancelledError

    @contextmanager
    def telling(self, callback: Callable[[], None]) -> Iterator[None]:
        """Have `callback` called on cancellation while the block runs; at once if that has happened already.

        Parameters
        ----------
        callback : callable
            Short, and without exceptions: it runs in the thread that cancels, perhaps after the block has ended.
        """
        key = object()
        with self._lock:
            already = self._cancelled
            self._callbacks[key] = callback
        if already:
            callback()
        try:
            yield
        finally:
            with self._lock:
                del self._callbacks[key]


@contextmanager
def every_cancelled(tokens: Sequence[CancelToken]) -> Iterator[CancelToken]:
    """Give a token that is cancelled once all of some tokens are: for a run that many requests share.

    Parameters
    ----------
    tokens : sequence of CancelToken
        Of every item in the run. An item that cannot be cancelled has one that never changes; without any tokens the
        given one is never cancelled.

    Yields
    ------
    CancelToken
        Of use within the block only.
    """
    joined = CancelToken()

    def look() -> None:
        if all(token.is_cancelled for token in tokens):
            joined.cancel()

    with ExitStack() as stack:
        for token in set(tokens):
            stack.enter_context(token.telling(look))
        yield joined
