"""A device without memory even for one row gives way to another proved profile, once and until restart."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import numpy as np

from samevec.errors import SamevecError, SessionRunError
from samevec.runtime.collate import Features
from samevec.runtime.sessions.base import Session

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from samevec.runtime.cancel import CancelToken

__all__ = ["FallbackSession"]

_log = logging.getLogger(__name__)


class FallbackSession(Session):
    """Runs on one session until it has no memory for a single row; from then on on another. Safe between threads.

    Several rows that do not fit are the engine's to halve; only a single row that does not fit changes the session. The
    first is let go then, so that its memory is free.

    Parameters
    ----------
    first : Session
    open_second : callable
        Opens the session that takes over; raises a SamevecError where that profile is not proved.
    profile : str
        Name of that profile.
    budget_tokens : int
        Padded tokens of one of its runs: it may have less room than the device had.
    """

    def __init__(self, first: Session, open_second: Callable[[], Session], *, profile: str, budget_tokens: int) -> None:
        self._first: Session | None = first
        self._first_provider = first.provider
        self._open_second = open_second
        self._profile = profile
        self._budget_tokens = budget_tokens
        self._lock = threading.Lock()
        self._second: Session | None = None
        self._refusal: str | None = None

    @property
    def provider(self) -> str:
        """The execution provider that computes now."""
        return self._current.provider

    @property
    def provider_options(self) -> dict[str, str]:
        """Options of that provider."""
        return self._current.provider_options

    @property
    def may_reopen(self) -> bool:
        """Only while the first session computes: a model opened again would go back to its device."""
        return self._second is None

    @property
    def _current(self) -> Session:
        first, second = self._first, self._second  # in this order: the first goes when the second is there
        session = first if second is None else second
        assert session is not None  # noqa: S101  one of them always is
        return session

    @property
    def notice(self) -> str | None:
        """What happened, for ``/info``; None while the first session computes."""
        if self._second is not None:
            return (
                f"{self._first_provider} had no memory for a single row; profile {self._profile}, which has passed its"
                " own gate here, computes until restart"
            )
        return self._refusal

    def run(
        self, features: Features, *, cancel: CancelToken | None = None, keep_memory: bool = False
    ) -> NDArray[np.float32]:
        """Compute one microbatch, see :class:`samevec.runtime.sessions.base.Session`."""
        session = self._current
        if self._second is None:
            try:
                return session.run(features, cancel=cancel, keep_memory=keep_memory)
            except SessionRunError as error:
                if not error.out_of_memory or features.shape[0] > 1:
                    raise
                self._switch(error)
        return self._run_second(features, cancel, keep_memory=keep_memory)

    def release_memory(self) -> None:
        """Release what the session that computes now has kept."""
        self._current.release_memory()

    def _switch(self, error: SessionRunError) -> None:
        with self._lock:
            if self._second is not None:
                return  # another thread has just done it
            try:
                self._second = self._open_second()
            except SamevecError as refusal:
                self._refusal = f"no fall-back to profile {self._profile}: {refusal}"
                _log.error("%s; %s", str(error), self._refusal)
                raise SessionRunError(f"{error}; {self._refusal}", out_of_memory=True) from error
            self._first, self._refusal = None, None
            _log.error("%s; %s", str(error), self.notice)

    def _run_second(self, features: Features, cancel: CancelToken | None, *, keep_memory: bool) -> NDArray[np.float32]:
        assert self._second is not None  # noqa: S101  only called after the switch
        n_rows, n_tokens = features.shape
        step = max(1, self._budget_tokens // n_tokens)
        parts = [
            self._second.run(_rows_of(features, start, start + step), cancel=cancel, keep_memory=keep_memory)
            for start in range(0, n_rows, step)
        ]
        return np.concatenate(parts)


def _rows_of(features: Features, start: int, stop: int) -> Features:
    type_ids = features.token_type_ids
    return Features(
        features.input_ids[start:stop],
        features.attention_mask[start:stop],
        None if type_ids is None else type_ids[start:stop],
    )
