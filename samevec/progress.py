"""Progress of long work, as a protocol: rooms report, only the command line draws."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

__all__ = ["Progress", "SilentProgress"]


class Progress(Protocol):
    """Receives the steps of long work."""

    def step(
        self, label: str, *, total: float | None = None, unit: str = ""
    ) -> AbstractContextManager[Callable[[float], None]]:
        """Open a step; the value is a function that advances it.

        Parameters
        ----------
        label : str
            What is being done, such as ``"verify model.safetensors"``.
        total : float, optional
            The amount of work, in `unit`; None if unknown.
        unit : str
            ``"bytes"``, ``"shapes"``, ``"texts"`` ...
        """
        ...

    def note(self, message: str) -> None:
        """Report one separate line."""
        ...


class SilentProgress:
    """A :class:`Progress` that shows nothing; the default everywhere."""

    @contextmanager
    def step(self, label: str, *, total: float | None = None, unit: str = "") -> Iterator[Callable[[float], None]]:
        """Open a step and ignore its advances."""
        yield lambda advance: None

    def note(self, message: str) -> None:
        """Ignore a line."""
