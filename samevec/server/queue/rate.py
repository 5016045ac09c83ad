"""How many tokens a model's threads compute in a second, all of them together."""

from __future__ import annotations

import threading

__all__ = ["Rate"]

# Weight of what was measured before, at each run that ends; about the last ten runs count.
_KEPT = 0.8


class Rate:
    """Tokens over the seconds in which at least one run was in progress; idle time does not count. Thread-safe.

    Notes
    -----
    Runs that overlap share their seconds: two that take two seconds each, one begun a second after the other, are one
    run a second.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_running = 0
        self._since_s = self._tokens = self._seconds = 0.0  # since when something runs

    @property
    def tokens_per_s(self) -> float:
        """The rate; 0 before the first run has ended."""
        with self._lock:
            return self._tokens / max(self._seconds, 1e-6) if self._tokens else 0.0

    def start(self, now_s: float) -> None:
        """Note that a run begins."""
        with self._lock:
            if self._n_running == 0:
                self._since_s = now_s
            self._n_running += 1

    def finish(self, n_tokens: int, now_s: float) -> None:
        """Note that a run has ended; with 0 tokens, one that gave nothing, and its seconds do not count."""
        with self._lock:
            self._n_running -= 1
            if n_tokens:
                self._tokens = _KEPT * self._tokens + n_tokens
                self._seconds = _KEPT * self._seconds + (now_s - self._since_s)
            self._since_s = now_s
