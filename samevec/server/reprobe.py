"""The probe through the server's own queue and workers: at its start, and again and again while it serves."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from samevec.errors import NonFiniteOutputError, NotReadyError
from samevec.server.queue.microbatch import brief, public_words

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from contextlib import AbstractContextManager

    import numpy as np
    from numpy.typing import NDArray

    from samevec.parity.probe import Probe, ProbeCall

__all__ = ["OUTCOMES", "Reprobing"]

_log = logging.getLogger(__name__)

#: How a probe may end; ``error``: it could not be computed, and the next one tells more.
OUTCOMES = ("passed", "failed", "error")


class Reprobing:
    """Which models were probed, with which outcomes; a model that has failed is not probed again.

    Parameters
    ----------
    probes : mapping of str to Probe
        By the model's name.
    ask : callable
        Given a model's name and a call, awaits what a client would get.
    holding : callable
        Given a model's name, keeps it as it is during a block, and says whether it is loaded.

    Attributes
    ----------
    failures : dict of str to str
        Why a model is not served any more.
    """

    def __init__(
        self,
        probes: Mapping[str, Probe],
        ask: Callable[[str, ProbeCall], Awaitable[NDArray[np.float32]]],
        *,
        holding: Callable[[str], AbstractContextManager[bool]],
    ) -> None:
        self.failures: dict[str, str] = {}
        self._probes = probes
        self._ask = ask
        self._holding = holding
        self._counts = {name: dict.fromkeys(OUTCOMES, 0) for name in probes}

    def counts(self, name: str) -> dict[str, int]:
        """Return how many probes of a model ended in each outcome; empty for one that is not probed."""
        return dict(self._counts.get(name, {}))

    async def require_passed(self) -> None:
        """Probe every model once, before anyone else may ask.

        Raises
        ------
        NotReadyError
            With what differs, and the command that mends it.
        """
        for name, probe in self._probes.items():
            problem = await self._problem(name)
            if problem is not None:
                raise NotReadyError(f"{name}: the start-up probe through the server {problem}; run: {probe.fix}")

    async def repeat(self, every_s: float, *, wait: Callable[[float], Awaitable[object]] = asyncio.sleep) -> None:
        """Probe every loaded model each time `wait` has waited; for ever, not at all with 0 seconds."""
        while every_s:
            await wait(every_s)
            await self.probe_all()

    async def probe_all(self) -> None:
        """Probe every model that is loaded, one after the other."""
        for name in self._probes:
            with self._holding(name) as is_loaded:
                if is_loaded and name not in self.failures:
                    await self._probe(name)

    async def _problem(self, name: str) -> str | None:
        """Return what differs, as the end of a sentence; looked at when all answers are there."""
        probe = self._probes[name]
        asked: list[tuple[ProbeCall, NDArray[np.float32]]] = []
        try:
            for calls in probe.server:
                found = await asyncio.gather(*(self._ask(name, call) for call in calls))
                asked += zip(calls, found, strict=True)
        except NonFiniteOutputError as error:
            return f"came to nothing: {public_words(error)}"
        return probe.problem(asked)

    async def _probe(self, name: str) -> None:
        try:
            problem = await self._problem(name)
        except NotReadyError:  # its worker has died or is stopping, which readiness tells
            return
        except Exception as error:
            self._counts[name]["error"] += 1
            _log.warning("%s: a repeated probe could not be computed, and will be tried again: %s", name, brief(error))
            return
        self._counts[name]["passed" if problem is None else "failed"] += 1
        if problem is not None:
            self.failures[name] = f"{name}: a repeated probe {problem}; it is not served any more, restart the server"
            _log.error("%s", self.failures[name])
