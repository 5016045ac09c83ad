"""How much accepted and unfinished work the process holds, and what is refused beyond that."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from samevec.errors import OverloadedError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Admission", "Received", "Ticket"]

# Bounds of what Retry-After may say: below a second clients hammer, above a minute nobody believes it.
_MIN_RETRY_S, _MAX_RETRY_S = 1.0, 60.0


class Admission:
    """Counts accepted and unfinished work of the process, and refuses what exceeds the bounds.

    Parameters
    ----------
    max_items, max_tokens, max_bytes : int
        Bytes are those of the bodies that requests came in.
    retry_after_s : callable
        Given the tokens that wait, says in how many seconds there will be room.

    Notes
    -----
    A request is always let into an empty queue: otherwise one larger than a bound would be told to retry for ever. And
    a body of no more bytes than each item may have of them is never refused for its bytes: a few huge ones do not keep
    short queries out.
    """

    def __init__(
        self, *, max_items: int, max_tokens: int, max_bytes: int, retry_after_s: Callable[[int], float]
    ) -> None:
        self._max_items = max_items
        self._max_tokens = max_tokens
        self._max_bytes = max_bytes
        self._retry_after_s = retry_after_s
        self._lock = threading.Lock()
        self.items = 0
        self.tokens = 0
        self.bytes = 0
        self._n_admitted = 0
        self._n_seen: int | None = None
        self._at_rest = False

    def receive(self) -> Received:
        """Begin to count the bytes of a request, before it is parsed."""
        return Received(self)

    def admit(self, n_items: int) -> Ticket:
        """Accept a request by its items, before it is tokenised.

        Raises
        ------
        OverloadedError
            The queue is full.
        """
        with self._lock:
            if self.items and self.items + n_items > self._max_items:
                raise self._refusal(f"{self.items} items are queued")
            self.items += n_items
            self._n_admitted += 1
        return Ticket(self, n_items)

    def comes_to_rest(self) -> bool:
        """Say once after work, and once after the start, that nothing waited at two looks nor was asked between them.

        At the first look after the work its answers may still be encoded or sent.
        """
        with self._lock:
            rests = self.items == 0 and self._n_admitted == self._n_seen
            self._n_seen = self._n_admitted if self.items == 0 else None
            begins, self._at_rest = rests and not self._at_rest, rests
            return begins

    def _refusal(self, what: str) -> OverloadedError:
        wait_s = min(_MAX_RETRY_S, max(_MIN_RETRY_S, self._retry_after_s(self.tokens)))
        return OverloadedError(f"the queue is full ({what}); try again in {wait_s:.0f} s", retry_after_s=wait_s)

    def _add_tokens(self, n_tokens: int) -> None:
        with self._lock:
            if self.tokens and self.tokens + n_tokens > self._max_tokens:
                raise self._refusal(f"{self.tokens} tokens are queued")
            self.tokens += n_tokens

    def _add_bytes(self, n_bytes: int, n_before: int) -> None:
        with self._lock:
            n_others = self.bytes - n_before
            is_small = n_before + n_bytes <= self._max_bytes // self._max_items
            if n_others and not is_small and self.bytes + n_bytes > self._max_bytes:
                raise self._refusal(f"requests of {self.bytes} bytes are held")
            self.bytes += n_bytes

    def _release_bytes(self, n_bytes: int) -> None:
        with self._lock:
            self.bytes -= n_bytes

    def _release(self, n_items: int, n_tokens: int) -> None:
        with self._lock:
            self.items -= n_items
            self.tokens -= n_tokens


class Received:
    """The bytes of one request's body, as long as the request is held; a context manager that gives them back."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._n_bytes = 0

    def add(self, n_bytes: int) -> None:
        """Account for bytes that have come.

        Raises
        ------
        OverloadedError
            Too many are held; those of this request count no longer, since it is given up.
        """
        try:
            self._admission._add_bytes(n_bytes, self._n_bytes)
        except OverloadedError:
            self._give_back()
            raise
        self._n_bytes += n_bytes

    def __enter__(self) -> Received:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._give_back()

    def _give_back(self) -> None:
        self._admission._release_bytes(self._n_bytes)
        self._n_bytes = 0


class Ticket:
    """A request's place in the queue; a context manager that gives it back."""

    def __init__(self, admission: Admission, n_items: int) -> None:
        self._admission = admission
        self._n_items = n_items
        self._n_tokens = 0

    def add_tokens(self, n_tokens: int) -> None:
        """Account for the request's tokens once they are known.

        Raises
        ------
        OverloadedError
            Too many tokens are queued.
        """
        self._admission._add_tokens(n_tokens)
        self._n_tokens += n_tokens

    def __enter__(self) -> Ticket:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._admission._release(self._n_items, self._n_tokens)
