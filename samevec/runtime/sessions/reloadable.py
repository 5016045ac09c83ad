"""An engine whose sessions can be let go while nobody asks, and opened again."""

from __future__ import annotations

import gc
import threading
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from samevec.runtime.batching.parallel import BulkSession
from samevec.runtime.sessions.arena import ArenaSession
from samevec.runtime.sessions.onnx import CancellableSession

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    import numpy as np
    from numpy.typing import NDArray

    from samevec.runtime.cancel import CancelToken
    from samevec.runtime.collate import Features
    from samevec.runtime.engine import Engine
    from samevec.runtime.sessions.onnx import Session

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
        return sessions is not None and not getattr(sessions.session, "has_given_way", False)

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


class _CurrentSession:
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
    def fallback_words(self) -> str | None:
        """What another profile took over, of sessions that tell; see :mod:`samevec.runtime.sessions.fallback`."""
        sessions = self._owner._sessions
        words: str | None = None if sessions is None else getattr(sessions.session, "fallback_words", None)
        return words

    def run(self, features: Features) -> NDArray[np.float32]:
        """Compute one microbatch."""
        return self._owner._session().run(features)

    def run_cancellable(self, features: Features, cancel: CancelToken) -> NDArray[np.float32]:
        """Compute one microbatch, and end early where the loaded session can."""
        return _run_cancellable(self._owner._session(), features, cancel)

    def keeping_arena(self) -> AbstractContextManager[None]:
        """Keep work memory from run to run where the loaded session can."""
        session = self._owner._session()
        return session.keeping_arena() if isinstance(session, ArenaSession) else nullcontext()

    @property
    def holds_arena(self) -> bool:
        """Whether the session that is loaded, if any, has work memory to give back."""
        sessions = self._owner._sessions
        return sessions is not None and isinstance(sessions.session, ArenaSession) and sessions.session.holds_arena


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


def _run_cancellable(session: Session, features: Features, cancel: CancelToken) -> NDArray[np.float32]:
    if isinstance(session, CancellableSession):
        return session.run_cancellable(features, cancel)
    return session.run(features)
