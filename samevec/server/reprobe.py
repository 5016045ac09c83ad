"""The start-up probe again and again while serving: a core that began to compute wrongly is found out."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from samevec.errors import NonFiniteOutputError, NotReadyError
from samevec.server.queue.microbatch import brief, public_words

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    import numpy as np
    from numpy.typing import NDArray

    from samevec.runtime.rows import TokenRow

__all__ = ["OUTCOMES", "Probe", "Reprobing"]

_log = logging.getLogger(__name__)

#: How a probe may end; ``error``: it could not be computed, and the next one tells more.
OUTCOMES = ("passed", "failed", "error")


class Probe(Protocol):
    """Rows with known outputs; :class:`samevec.parity.probe.Probe` is one."""

    @property
    def rows(self) -> Sequence[TokenRow]:
        """What is computed."""
        ...

    def problem(self, raw: NDArray[np.float32]) -> str | None:
        """Return what differs in their raw outputs, as the end of a sentence; None when nothing does."""
        ...


class Reprobing:
    """Which models were probed, with which outcomes; a model that has failed is not probed again.

    Parameters
    ----------
    probes : mapping of str to Probe
        By the model's name.
    compute : callable
        Given a model's name and rows, awaits their raw outputs.
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
        compute: Callable[[str, Sequence[TokenRow]], Awaitable[NDArray[np.float32]]],
        *,
        holding: Callable[[str], AbstractContextManager[bool]],
    ) -> None:
        self.failures: dict[str, str] = {}
        self._probes = probes
        self._compute = compute
        self._holding = holding
        self._counts = {name: dict.fromkeys(OUTCOMES, 0) for name in probes}

    def counts(self, name: str) -> dict[str, int]:
        """Return how many probes of a model ended in each outcome; empty for one that is not probed."""
        return dict(self._counts.get(name, {}))

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

    async def _probe(self, name: str) -> None:
        probe = self._probes[name]
        try:
            problem = probe.problem(await self._compute(name, probe.rows))
        except NotReadyError:  # its worker has died or is stopping, which readiness tells
            return
        except NonFiniteOutputError as error:
            problem = f"came to nothing: {public_words(error)}"
        except Exception as error:
            self._counts[name]["error"] += 1
            _log.warning("%s: a repeated probe could not be computed, and will be tried again: %s", name, brief(error))
            return
        self._counts[name]["passed" if problem is None else "failed"] += 1
        if problem is not None:
            self.failures[name] = f"{name}: a repeated probe {problem}; it is not served any more, restart the server"
            _log.error("%s", self.failures[name])
