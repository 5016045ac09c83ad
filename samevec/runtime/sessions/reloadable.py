"""An engine whose session is closed while idle and opened again."""

from __future__ import annotations

import gc
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from samevec.runtime.sessions.base import Session

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from samevec.runtime.cancel import CancelToken
    from samevec.runtime.collate import Features
    from samevec.runtime.engine import Engine

__all__ = ["Reloadable"]


class Reloadable:
    """The session of one model, loaded or not; safe between threads.

    Parameters
    ----------
    engine : Engine
        Loaded. Keeping it keeps its session: use :attr:`engine` instead.
    reopen : callable
        Opens the same model again, with every check that was made the first time, and returns its engine.

    Attributes
    ----------
    engine : Engine
        The same, but its runs go to the session that is loaded at the time; a run that finds none opens it first.
    """

    def __init__(self, engine: Engine, reopen: Callable[[], Engine]) -> None:
        self._lock = threading.Lock()
        self._reopen = reopen
        self._session: Session | None = engine.session
        self.engine = replace(engine, session=_CurrentSession(self, engine.session))

    @property
    def is_loaded(self) -> bool:
        """Whether a run would begin at once."""
        return self._session is not None

    @property
    def may_unload(self) -> bool:
        """Whether there is something loaded that would be the same when it is opened again.

        A session that gave way to another profile, until restart, would go back to its device.
        """
        session = self._session
        return session is not None and session.may_reopen

    def load(self) -> None:
        """Open the session, unless it is open.

        Raises
        ------
        SamevecError
            What opening it raises; the next call tries again.
        """
        self.loaded()

    def unload(self) -> None:
        """Let the session go; a run in progress keeps it until it ends."""
        with self._lock:
            self._session = None
        gc.collect()  # an exception's traceback may still refer to it in a cycle

    @property
    def session(self) -> Session | None:
        """The session that is loaded, if any."""
        return self._session

    def loaded(self) -> Session:
        """Return the session, opened first where it was unloaded."""
        with self._lock:
            if self._session is None:
                self._session = self._reopen().session
            return self._session


class _CurrentSession(Session):
    """A Session that hands each run to the one that is loaded."""

    def __init__(self, owner: Reloadable, first: Session) -> None:
        self._owner = owner
        self._provider, self._options = first.provider, first.provider_options

    @property
    def provider(self) -> str:
        """The execution provider; of a model that is unloaded, the one that opening it again will insist on."""
        session = self._owner.session
        return self._provider if session is None else session.provider

    @property
    def provider_options(self) -> dict[str, str]:
        """The provider's options when the model was first loaded."""
        return self._options

    @property
    def notice(self) -> str | None:
        """The notice of the session that is loaded, if any."""
        session = self._owner.session
        return None if session is None else session.notice

    def run(
        self, features: Features, *, cancel: CancelToken | None = None, keep_memory: bool = False
    ) -> NDArray[np.float32]:
        """Compute one microbatch in the session that is loaded."""
        return self._owner.loaded().run(features, cancel=cancel, keep_memory=keep_memory)

    def release_memory(self) -> None:
        """Release what the session that is loaded, if any, has kept."""
        session = self._owner.session
        if session is not None:
            session.release_memory()
