"""Idle models are unloaded after a while; the next request loads them again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from samevec.errors import SamevecError
from samevec.server.telemetry.records import Phase, current_record

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

    from samevec.runtime.sessions.reloadable import Reloadable

__all__ = ["IdleModels"]

_log = logging.getLogger(__name__)


class IdleModels:
    """Which models are in use, and since when others are idle. Runs in the event loop, but for loading itself.

    Parameters
    ----------
    models : mapping of str to Reloadable
        Those that may be unloaded.
    after_s : float
        Seconds without a request.
    clock : callable
        Seconds, monotonic.
    """

    def __init__(self, models: Mapping[str, Reloadable], *, after_s: float, clock: Callable[[], float]) -> None:
        self._models = models
        self._after_s = after_s
        self._clock = clock
        self._users = dict.fromkeys(models, 0)
        self._idle_since_s = dict.fromkeys(models, clock())
        self._loading: dict[str, asyncio.Future[None]] = {}
        self._failures: dict[str, str] = {}

    @property
    def failures(self) -> list[str]:
        """Why models could not be loaded again; a model that loads later is no longer listed."""
        return list(self._failures.values())

    def state(self, name: str) -> str:
        """Return ``"loaded"`` or ``"unloaded"``."""
        return "loaded" if name not in self._models or self._models[name].is_loaded else "unloaded"

    @contextlib.asynccontextmanager
    async def using(self, name: str) -> AsyncIterator[None]:
        """Keep a model loaded during a block, loading it first where needed.

        Raises
        ------
        SamevecError
            It cannot be loaded again: its gate has closed, or its files have changed.
        """
        if name not in self._models:
            yield
            return
        self._users[name] += 1
        try:
            if not self._models[name].is_loaded:
                start_s = self._clock()
                await self._load(name)
                current_record().phases.append(Phase("load", start_s, self._clock()))
            yield
        finally:
            self._users[name] -= 1
            self._idle_since_s[name] = self._clock()

    @contextlib.contextmanager
    def holding(self, name: str) -> Iterator[bool]:
        """Keep a model as it is during a block, and say whether it is loaded; does not count as a request."""
        if name not in self._models:
            yield True
            return
        self._users[name] += 1
        try:
            yield self._models[name].is_loaded
        finally:
            self._users[name] -= 1

    async def _load(self, name: str) -> None:
        """Load a model once for all who wait; one who gives up does not stop it for the others."""
        loading = self._loading.get(name)
        if loading is None:
            loading = self._loading[name] = asyncio.ensure_future(self._load_now(name))
            loading.add_done_callback(lambda done: done.cancelled() or done.exception())  # read where no request waits
        await asyncio.shield(loading)

    async def _load_now(self, name: str) -> None:
        try:
            await asyncio.to_thread(self._models[name].load)
            self._failures.pop(name, None)
            _log.info("%s: loaded again", name)
        except BaseException as error:
            words = str(error) if isinstance(error, SamevecError) else type(error).__name__
            self._failures[name] = f"{name}: could not be loaded again: {words}"
            _log.error("%s", self._failures[name])
            raise
        finally:
            self._loading.pop(name, None)

    def unload_due(self) -> list[str]:
        """Unload the models that have been idle for long enough.

        Returns
        -------
        list of str
            Their names.
        """
        now_s = self._clock()
        due = [
            name
            for name, model in self._models.items()
            if model.may_unload and not self._users[name] and now_s - self._idle_since_s[name] >= self._after_s
        ]
        for name in due:
            self._models[name].unload()
            _log.info("%s: unloaded after %g s without a request", name, self._after_s)
        return due
