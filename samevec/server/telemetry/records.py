"""What is known of one request, or of one microbatch, when it has ended; metrics, the log and traces are made of it.

A record holds names, counts and seconds, never a text, so that whatever observes it cannot give one away.
"""

from __future__ import annotations

import contextlib
import contextvars
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = [
    "CLIENT_GONE",
    "BatchRecord",
    "Observer",
    "Observers",
    "Phase",
    "RequestRecord",
    "current_record",
    "note_error",
    "observed",
]

#: nginx's number for "the client closed the connection": it stands in logs; no client receives it.
CLIENT_GONE = 499

_current: contextvars.ContextVar[RequestRecord | None] = contextvars.ContextVar("samevec_record", default=None)


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a request's time: ``"tokenise"``, ``"load"``, ``"queue"`` or ``"run"``, in the service's clock."""

    name: str
    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end_s - self.start_s


@dataclass(kw_only=True, slots=True)
class RequestRecord:
    """One request, filled while it is answered.

    Attributes
    ----------
    route : str
        The route's template, or ``"socket/embed"`` and the like; never what a client wrote.
    request_id : str
    traceparent : str or None
        W3C trace context the client sent.
    start_s, end_s : float
        In the service's clock.
    status : int
        HTTP status; of a socket request, the one that HTTP would have had.
    error : str or None
        Kind of the error, of the table in :mod:`samevec.server.error_map`.
    model : str or None
    items, tokens : int
        Texts or pairs; tokens as computed, padding not counted.
    cut_items, cut_tokens : int
        What truncation took.
    phases : list of Phase
    """

    route: str
    request_id: str = ""
    traceparent: str | None = None
    start_s: float = 0.0
    end_s: float = 0.0
    status: int = 0
    error: str | None = None
    model: str | None = None
    items: int = 0
    tokens: int = 0
    cut_items: int = 0
    cut_tokens: int = 0
    phases: list[Phase] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """From the first byte read to the last one handed over."""
        return self.end_s - self.start_s


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchRecord:
    """One microbatch that has run.

    Attributes
    ----------
    model : str
    rows : int
    useful_tokens, padded_tokens : int
        Tokens of the rows; the same with padding to the longest row.
    seconds : float
    """

    model: str
    rows: int
    useful_tokens: int
    padded_tokens: int
    seconds: float


class Observer(Protocol):
    """Is told what has ended. Called in the event loop and in workers' threads: it must be quick and must not raise."""

    def request_ended(self, record: RequestRecord) -> None:
        """Take the record of a request whose answer was sent."""
        ...

    def batch_ended(self, record: BatchRecord) -> None:
        """Take the record of a microbatch."""
        ...


@dataclass(frozen=True, slots=True)
class Observers:
    """Several observers, told in order; none of them is an observer too."""

    members: Sequence[Observer] = ()

    def request_ended(self, record: RequestRecord) -> None:
        """Pass it on."""
        for member in self.members:
            member.request_ended(record)

    def batch_ended(self, record: BatchRecord) -> None:
        """Pass it on."""
        for member in self.members:
            member.batch_ended(record)


def current_record() -> RequestRecord:
    """Return the record of the request this task works for; an unread one where there is none."""
    return _current.get() or RequestRecord(route="none")


def note_error(kind: str) -> None:
    """Note in the present record what kind of error is answered."""
    current_record().error = kind


@contextlib.contextmanager
def observed(
    record: RequestRecord, observer: Observer, *, clock: Callable[[], float] = time.monotonic
) -> Iterator[RequestRecord]:
    """Keep a record while a block answers a request, and hand it over afterwards.

    Parameters
    ----------
    record : RequestRecord
        Its times are set here; tasks begun in the block find it with :func:`current_record`.
    observer : Observer
    clock : callable
        Seconds, monotonic; the service's.

    Yields
    ------
    RequestRecord
        The same record.
    """
    record.start_s = clock()
    token = _current.set(record)
    try:
        yield record
    finally:
        _current.reset(token)
        record.end_s = clock()
        observer.request_ended(record)
