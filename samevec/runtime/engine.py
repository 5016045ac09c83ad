"""Rows in, raw outputs in the same order out: dedupe, plan, pad, run, scatter, check."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from samevec.errors import DeadlineExceededError, NonFiniteOutputError, SessionRunError
from samevec.runtime.checks import whole_number
from samevec.runtime.collate import collate
from samevec.runtime.plan import MAX_WORKER_TOKENS, Plan, plan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from samevec.runtime.collate import Features
    from samevec.runtime.rows import TokenRow
    from samevec.runtime.session import Session

__all__ = ["Engine", "RunRecorder", "check_finite"]


class RunRecorder(Protocol):
    """Told about every microbatch that runs; parity records shapes and digests with it."""

    def __call__(self, indices: Sequence[int], features: Features) -> None:
        """Record that the rows at `indices` (in the caller's order) ran as `features`."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """A session with the limits under which it runs.

    Attributes
    ----------
    session : Session
    width : int
        Components of a raw row.
    pad_token_id, pad_to_multiple : int
        See :func:`samevec.runtime.collate.collate`.
    token_budget : int
        Padded tokens of one microbatch.
    max_rows : int
        Rows of one microbatch when the caller asks for nothing, and never more.
    clock : callable
        Seconds, monotonic; an argument so that tests can replace it.
    """

    session: Session
    width: int
    pad_token_id: int = 0
    pad_to_multiple: int = 4
    token_budget: int = MAX_WORKER_TOKENS
    max_rows: int = 32
    clock: Callable[[], float] = time.monotonic

    def run_microbatch(self, rows: Sequence[TokenRow]) -> NDArray[np.float32]:
        """Run rows together in one session run.

        Returns
        -------
        ndarray of float32, shape (n_rows, width)
            Not yet checked for finiteness.

        Raises
        ------
        SessionRunError
            The run failed, or gave something else than one float32 row of this width a row.
        """
        return self._run(collate(rows, pad_token_id=self.pad_token_id, pad_to_multiple=self.pad_to_multiple))

    def run_rows(
        self,
        rows: Sequence[TokenRow],
        *,
        batch_size: int | None = None,
        token_budget: int | None = None,
        deadline_s: float | None = None,
        recorder: RunRecorder | None = None,
    ) -> NDArray[np.float32]:
        """Run any number of rows in planned microbatches.

        Parameters
        ----------
        rows : sequence of TokenRow
        batch_size : int, optional
            Most rows of one microbatch, as the caller wants it; the engine's `max_rows` still holds. With 1 every
            session run has one row.
        token_budget : int, optional
            Instead of the engine's own.
        deadline_s : float, optional
            Seconds from now; looked at before every microbatch.
        recorder : RunRecorder, optional

        Returns
        -------
        ndarray of float32, shape (n_rows, width)
            In the order of `rows`. Identical rows are computed once.

        Raises
        ------
        DeadlineExceededError
            The deadline passed between microbatches.
        NonFiniteOutputError
            Some row came out as NaN or infinity.
        SessionRunError
            A run failed, or gave rows of another shape.
        """
        unique, members = _dedupe(rows)
        steps = self.plan_rows([rows[i] for i in unique], batch_size=batch_size, token_budget=token_budget)
        end_s = None if deadline_s is None else self.clock() + deadline_s
        outputs = np.empty((len(unique), self.width), dtype=np.float32)
        for batch in steps.microbatches:
            if end_s is not None and self.clock() >= end_s:
                raise DeadlineExceededError
            chosen = [unique[i] for i in batch.indices]
            features = collate(
                [rows[i] for i in chosen], pad_token_id=self.pad_token_id, pad_to_multiple=self.pad_to_multiple
            )
            if recorder is not None:
                recorder(chosen, features)
            outputs[list(batch.indices)] = self._run(features)  # scatter by stored position
        scattered = outputs[members]
        check_finite(scattered)
        return scattered

    def plan_rows(
        self, rows: Sequence[TokenRow], *, batch_size: int | None = None, token_budget: int | None = None
    ) -> Plan:
        """Return the microbatches in which rows would run."""
        max_rows = self.max_rows
        if batch_size is not None:
            max_rows = min(whole_number(batch_size, field="batch_size"), max_rows)
        budget = self.token_budget if token_budget is None else token_budget
        return plan([row.n_tokens for row in rows], token_budget=budget, max_rows=max_rows)

    def _run(self, features: Features) -> NDArray[np.float32]:
        raw = self.session.run(features)
        expected = (features.shape[0], self.width)
        if raw.shape != expected or raw.dtype != np.float32:  # numpy would broadcast one row over all
            raise SessionRunError(f"a run gave {raw.dtype} of shape {raw.shape}, float32 of shape {expected} is needed")
        return raw


def _dedupe(rows: Sequence[TokenRow]) -> tuple[list[int], NDArray[np.int64]]:
    """Return positions of first occurrences, and for every row which of those it equals."""
    seen: dict[object, int] = {}
    unique: list[int] = []
    members = np.empty(len(rows), dtype=np.int64)
    for i, row in enumerate(rows):
        slot = seen.setdefault(row.key, len(unique))
        if slot == len(unique):
            unique.append(i)
        members[i] = slot
    return unique, members


def check_finite(raw: NDArray[np.float32]) -> None:
    """Refuse rows with NaN or infinity.

    Parameters
    ----------
    raw : ndarray of float32, shape (n_rows, width)

    Raises
    ------
    NonFiniteOutputError
        With the positions of the rows at fault.
    """
    bad = np.flatnonzero(~np.isfinite(raw).all(axis=1))
    if bad.size:
        raise NonFiniteOutputError(bad.tolist())
