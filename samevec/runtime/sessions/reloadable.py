"""An engine whose sessions can be let go while nobody asks, and opened again."""

from __future__ import annotations

import gc
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from samevec.runtime.batching.parallel import BulkSession
from samevec.runtime.sessions.base import Session

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from samevec.runtime.cancel import CancelToken
    from samevec.runtime.collate import Features
    from samevec.runtime.engine import Engine

__all__ = ["Reloadable"]


@dataclass(frozen=True, slots=True)
class _Sessions:
    session: Session
    bulk: BulkSession | None


class Reloadable:
    """Sessions of one model, loaded or not; safe between threads.

    Parameters
    ----------
    engine : Engine
        Loaded. Whoever keeps it keeps its sessions: use :attr:`engine` instead.
    reopen : callable
        Opens the same model again, with every check that was made the first time, and returns its engine.

    Attributes
    ----------
    engine : Engine
        The same, but its runs go to the sessions that are loaded at the time; a run that finds none opens them first.
    """

    def __init__(self, engine: Engine, reopen: Callable[[], Engine]) -> None:
        self._lock = threading.Lock()
        self._reopen = reopen
        self._sessions: _Sessions | None = _Sessions(engine.session, engine.bulk)
        bulk = None if engine.bulk is None else _CurrentBulk(engine.bulk.n_workers, self)
        self.engine = replace(engine, session=_CurrentSession(self, engine.session), bulk=bulk)

    @property
    def is_loaded(self) -> bool:
        """Whether a run would begin at once."""
        return self._sessions is not None

    @property
    def may_unload(self) -> bool:
        """Whether there is something loaded that would be the same when it is opened again.

        A session that gave way to another profile, until restart, would go back to its device.
        """
        sessions = self._sessions
        return sessions is not None and sessions.session.may_reopen

    def load(self) -> None:
        """Open the sessions, unless they are open.

        Raises
        ------
        SamevecError
            What opening them raises; the next call tries again.
        """
        self._loaded()

    def unload(self) -> None:
        """Let the sessions go; a run in progress keeps them until it ends."""
        with self._lock:
            self._sessions = None
        gc.collect()  # an exception's traceback may still refer to them in a cycle

    def _loaded(self) -> _Sessions:
        with self._lock:
            if self._sessions is None:
                engine = self._reopen()
                self._sessions = _Sessions(engine.session, engine.bulk)
            return self._sessions

    def _session(self) -> Session:
        return self._loaded().session

    def _bulk_session(self) -> Session:
        sessions = self._loaded()
        return sessions.session if sessions.bulk is None else sessions.bulk.get()


class _CurrentSession(Session):
    """A Session that hands each run to the one that is loaded."""

    def __init__(self, owner: Reloadable, first: Session) -> None:
        self._owner = owner
        self._provider, self._options = first.provider, first.provider_options

    @property
    def provider(self) -> str:
        """The execution provider; of a model that is unloaded, the one that opening it again will insist on."""
        sessions = self._owner._sessions
        return self._provider if sessions is None else sessions.session.provider

    @property
    def provider_options(self) -> dict[str, str]:
        """The provider's options when the model was first loaded."""
        return self._options

    @property
    def notice(self) -> str | None:
        """The notice of the session that is loaded, if any."""
        sessions = self._owner._sessions
        return None if sessions is None else sessions.session.notice

    def run(
        self, features: Features, *, cancel: CancelToken | None = None, keep_memory: bool = False
    ) -> NDArray[np.float32]:
        """Compute one microbatch in the session that is loaded."""
        return self._owner._session().run(features, cancel=cancel, keep_memory=keep_memory)

    def release_memory(self) -> None:
        """Release what the session that is loaded, if any, has kept."""
        sessions = self._owner._sessions
        if sessions is not None:
            sessions.session.release_memory()


class _CurrentBulk(BulkSession):
    """A BulkSession that asks for the loaded one each time."""

    def __init__(self, n_workers: int, owner: Reloadable) -> None:
        super().__init__(n_workers, owner._bulk_session)
        self._owner = owner

    def get(self) -> Session:
        return self._owner._bulk_session()

    @property
    def opened(self) -> Session | None:
        sessions = self._owner._sessions
        return None if sessions is None or sessions.bulk is None else sessions.bulk.opened
