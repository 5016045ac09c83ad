"""The outcome of a command that runs the gate: verdicts decide, then failed writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from samevec.parity.verdict import Verdict

__all__ = ["GateOutcome"]


class GateOutcome:
    """Collects verdicts and failed writes, so that one failure does not stop the rest."""

    def __init__(self, print_line: Callable[[str], None]) -> None:
        self._print_line = print_line
        self._failed = False
        self._unwritten = False

    def add(self, verdict: Verdict, show: Callable[[Verdict], None]) -> None:
        """Take a verdict and show it."""
        self._failed |= not verdict.passed
        self._unwritten |= bool(verdict.receipt_problem)
        self.attempt("the verdict", lambda: show(verdict))

    def attempt(self, what: str, write: Callable[[], object]) -> bool:
        """Write something; return whether that worked, and print why if it did not."""
        try:
            write()
        except OSError as error:
            self._unwritten = True
            self._print_line(f"samevec: {what} could not be written: {error.strerror or error}")
            return False
        return True

    @property
    def exit_code(self) -> int:
        """1 if a verdict failed; else 3 if something, such as a receipt, could not be written; else 0."""
        return 1 if self._failed else 3 if self._unwritten else 0
