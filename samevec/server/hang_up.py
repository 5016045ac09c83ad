"""A request's work, raced against the end of its connection."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable

__all__ = ["run_unless_gone"]

_T = TypeVar("_T")


async def run_unless_gone(work: Awaitable[_T], gone: Awaitable[object]) -> _T | None:
    """Run a request's work, and cancel it when its client goes first.

    Parameters
    ----------
    work : awaitable
    gone : awaitable
        Ends when the client has gone; cancelled when the work is done.

    Returns
    -------
    object or None
        The result, or None when the client has gone.
    """
    task, watcher = asyncio.ensure_future(work), asyncio.ensure_future(gone)
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for pending in (task, watcher):
            pending.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)
