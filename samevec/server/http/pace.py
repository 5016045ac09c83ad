"""When requests begin: those that come in one instant a few at a time."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Pace"]

_PER_TURN = 8


class Pace:
    """Lets so many requests begin in each turn of the event loop; the others begin in the next ones, in order.

    A thousand requests alive at once take 20 MB of small objects, which the interpreter keeps for good once any of them
    stays. Begun over some turns, most have been refused and are gone before the last ones begin.

    Parameters
    ----------
    per_turn : int
    """

    def __init__(self, per_turn: int = _PER_TURN) -> None:
        self._per_turn = per_turn
        self._left = per_turn
        self._waiting: deque[Callable[[], object]] = deque()
        self._is_scheduled = False

    def begin(self, start: Callable[[], object]) -> None:
        """Call something now or in a later turn."""
        if self._left:
            self._left -= 1
            start()
        else:
            self._waiting.append(start)
        self._schedule()

    async def turn(self) -> None:
        """Wait until something may begin."""
        may_begin: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.begin(functools.partial(_set, may_begin))
        await may_begin

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._is_scheduled = False
        self._left = self._per_turn
        while self._left and self._waiting:
            self._left -= 1
            asyncio.get_running_loop().call_soon(self._waiting.popleft())
        if self._left < self._per_turn:
            self._schedule()


def _set(may_begin: asyncio.Future[None]) -> None:
    if not may_begin.done():  # whoever waited may have gone
        may_begin.set_result(None)
