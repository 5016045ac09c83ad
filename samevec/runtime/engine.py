"""Rows in, raw outputs in the same order out: dedupe, plan, pad, run, scatter, check."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from samevec.errors import ItemsFailedError, SessionRunError
from samevec.machine import give_back_memory
from samevec.runtime.batching.cost import COSTS, CostModel
from samevec.runtime.batching.plan import MAX_RUN_TOKENS, NATIVE_ROWS, Plan, plan, plan_native
from samevec.runtime.cancel import CancelToken
from samevec.runtime.checks import require_usable, whole_number
from samevec.runtime.collate import collate, padded_length
from samevec.runtime.limits import AdaptiveLimit, MemoryGuard, Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from samevec.runtime.collate import Features
    from samevec.runtime.rows import TokenRow
    from samevec.runtime.sessions.base import Session

__all__ = ["DEFAULT_ROWS", "Engine", "Outcome", "RunRecorder"]

#: Most rows of one microbatch: what sentence-transformers (embedding) and TrueMemory (pairs) use.
DEFAULT_ROWS = {"embed": 32, "rerank": 64}


class RunRecorder(Protocol):
    """Told about every microbatch that runs; parity records shapes and digests with it."""

    def __call__(self, indices: Sequence[int], features: Features) -> None:
        """Record that the rows at `indices` (in the caller's order) ran as `features`."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of rows: most or all of them computed.

    Attributes
    ----------
    raw : ndarray of float32, shape (n_rows, width)
        Not yet checked for finiteness; NaN for rows that failed.
    errors : mapping of int to SessionRunError
        Positions of the rows that failed, and why.
    """

    raw: NDArray[np.float32]
    errors: Mapping[int, SessionRunError]

    def spread(self, members: NDArray[np.int64]) -> Outcome:
        """Return the outcome for rows each of which equals one of these: row i equals row ``members[i]``."""
        errors = {i: self.errors[slot] for i, slot in enumerate(members.tolist()) if slot in self.errors}
        return Outcome(self.raw[members], errors)

    def require_complete(self) -> NDArray[np.float32]:
        """Return the rows if all of them are there and finite.

        Raises
        ------
        ItemsFailedError, NonFiniteOutputError
            With the positions of the rows at fault.
        """
        if self.errors:
            raise ItemsFailedError(self.errors)
        require_usable(self.raw, may_be_zero=True)
        return self.raw


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """A session with the limits under which it runs.

    Attributes
    ----------
    session : Session
    overlapping : bool
        Whether runs may overlap; a provider that runs one batch at a time gains nothing and pays the memory.
    width : int
        Components of a raw row.
    pad_token_id, pad_to_multiple : int
        See :func:`samevec.runtime.collate.collate`.
    token_budget : int
        Padded tokens of one microbatch.
    max_rows : int
        Rows of one microbatch when the caller asks for nothing, and never more.
    cost : CostModel
        By which plans are compared.
    memory : MemoryGuard
        Keeps every run within the memory that is there; off unless it knows what a token takes.
    limit : AdaptiveLimit
        Rows that proved too many; shared by all callers of this engine.
    clock : callable
        Seconds, monotonic; an argument so that tests can replace it.
    give_back : callable
        Returns free memory to the system, after work of several microbatches.
    """

    session: Session
    width: int
    pad_token_id: int = 0
    pad_to_multiple: int = 4
    token_budget: int = MAX_RUN_TOKENS
    max_rows: int = 32
    cost: CostModel = COSTS["embed"]
    memory: MemoryGuard = field(default_factory=MemoryGuard)
    limit: AdaptiveLimit = field(default_factory=AdaptiveLimit, compare=False)
    clock: Callable[[], float] = time.monotonic
    overlapping: bool = False
    give_back: Callable[[], object] = give_back_memory

    def run_microbatch(self, rows: Sequence[TokenRow], *, cancel: CancelToken | None = None) -> NDArray[np.float32]:
        """Run rows together in one session run, whatever the limits.

        Parameters
        ----------
        rows : sequence of TokenRow
        cancel : CancelToken, optional
            Ends the run early, if the session can.

        Returns
        -------
        ndarray of float32, shape (n_rows, width)
            Not yet checked for finiteness.

        Raises
        ------
        SessionRunError
            The run failed, or gave something else than one float32 row of this width a row.
        WorkCancelledError
            It was cancelled.
        """
        return self._run(self._collate(rows), cancel, keep_memory=False)

    def run_guarded(
        self,
        rows: Sequence[TokenRow],
        *,
        cancel: CancelToken | None = None,
        recorder: RunRecorder | None = None,
        more_follows: bool = False,
    ) -> Outcome:
        """Run a microbatch in as many session runs as memory demands, one as a rule.

        Parameters
        ----------
        rows : sequence of TokenRow
            A microbatch, as :meth:`plan_rows` gives them.
        cancel : CancelToken, optional
            Looked at between the runs, and ends the one in progress, if the session can.
        recorder : RunRecorder, optional
        more_follows : bool
            Another microbatch runs soon: work memory is left to it.

        Returns
        -------
        Outcome
            Rows that could not be had even alone, for want of memory, are its errors; the others are computed.

        Raises
        ------
        WorkCancelledError
            It was cancelled.
        SessionRunError
            A run failed for another reason.
        """
        watch = Watch(clock=self.clock, cancel=cancel or CancelToken())
        return self._run_pieces(rows, watch, recorder, keep_memory=more_follows)

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
        batch_size, token_budget : int, optional
            See :meth:`plan_rows`. With a batch size of 1 every session run has one row.
        deadline_s : float, optional
            Seconds from now; looked at before every session run.
        recorder : RunRecorder, optional

        Returns
        -------
        ndarray of float32, shape (n_rows, width)
            In the order of `rows`. Identical rows are computed once.

        Raises
        ------
        DeadlineExceededError
            The deadline passed between session runs.
        NonFiniteOutputError
            Some row came out as NaN or infinity.
        ItemsFailedError
            Some rows could not be computed even alone, for want of memory; raised after all others were tried.
        SessionRunError
            A run failed for another reason, or gave rows of another shape.
        """
        unique, members = _dedupe(rows)
        distinct = [rows[i] for i in unique]
        steps = self.plan_rows(distinct, batch_size=batch_size, token_budget=token_budget)
        outcome = self.run_plan(distinct, steps, deadline_s=deadline_s, recorder=_renamed(recorder, unique))
        return outcome.spread(members).require_complete()

    def run_native(
        self,
        rows: Sequence[TokenRow],
        char_lengths: Sequence[int],
        *,
        batch_size: int | None = None,
        deadline_s: float | None = None,
        recorder: RunRecorder | None = None,
    ) -> NDArray[np.float32]:
        """Run rows grouped as sentence-transformers groups them, see :func:`samevec.runtime.batching.plan.plan_native`.

        Parameters
        ----------
        rows : sequence of TokenRow
        char_lengths : sequence of int
            Characters of the text, or of both texts of the pair, that each row came from.
        batch_size : int, optional
            Rows of a microbatch, 32 when not given; the engine's `max_rows` still holds.
        deadline_s, recorder
            As for :meth:`run_rows`.

        Returns
        -------
        ndarray of float32, shape (n_rows, width)
            In the order of `rows`. Identical rows are computed as often as they occur.

        Raises
        ------
        DeadlineExceededError, NonFiniteOutputError, SessionRunError
            As :meth:`run_rows`.
        """
        n_rows = NATIVE_ROWS if batch_size is None else whole_number(batch_size, field="batch_size")
        steps = plan_native(char_lengths, [row.n_tokens for row in rows], max_rows=min(n_rows, self.max_rows))
        return self.run_plan(rows, steps, deadline_s=deadline_s, recorder=recorder).require_complete()

    def run_plan(
        self,
        rows: Sequence[TokenRow],
        steps: Plan,
        *,
        deadline_s: float | None = None,
        cancel: CancelToken | None = None,
        recorder: RunRecorder | None = None,
    ) -> Outcome:
        """Run rows by a plan, see :meth:`run_rows` and :meth:`run_guarded`.

        Parameters
        ----------
        rows : sequence of TokenRow
            Identical ones are computed as often as the plan has them.
        steps : Plan
            Of these rows, whoever made it.
        deadline_s, cancel, recorder
            Looked at, or told, at every session run.

        Returns
        -------
        Outcome
            In the order of `rows`.
        """
        end_s = None if deadline_s is None else self.clock() + deadline_s
        watch = Watch(clock=self.clock, end_s=end_s, cancel=cancel or CancelToken())
        raw = np.empty((len(rows), self.width), dtype=np.float32)
        errors: dict[int, SessionRunError] = {}
        n_batches = len(steps.microbatches)
        for n_begun, batch in enumerate(steps.microbatches, 1):
            chosen = list(batch.indices)
            done = self._run_pieces(
                [rows[i] for i in chosen], watch, _renamed(recorder, chosen), keep_memory=n_begun < n_batches
            )
            raw[chosen] = done.raw  # scatter by stored position
            errors.update({chosen[i]: error for i, error in done.errors.items()})
        if n_batches > 1:
            self.give_back()
        return Outcome(raw, errors)

    def release_memory(self) -> None:
        """Release work memory that was kept for runs which did not come.

        Raises
        ------
        SessionRunError
            See :meth:`samevec.runtime.sessions.base.Session.release_memory`.
        """
        self.session.release_memory()

    def plan_rows(
        self, rows: Sequence[TokenRow], *, batch_size: int | None = None, token_budget: int | None = None
    ) -> Plan:
        """Return the microbatches in which rows would run.

        Parameters
        ----------
        rows : sequence of TokenRow
        batch_size : int, optional
            Most rows of one microbatch, as the caller wants it; the engine's `max_rows` and the adaptive limit still
            hold.
        token_budget : int, optional
            Instead of the engine's own.

        Returns
        -------
        Plan
            The cheapest by the engine's cost model. But where the caller names a size every microbatch is filled to
            it: five rows at 8 under a limit of 2 are always [2, 2, 1], and what parity asks for is what runs.
        """
        max_rows = self.max_rows
        if batch_size is not None:
            max_rows = min(whole_number(batch_size, field="batch_size"), max_rows)
        return plan(
            [row.n_tokens for row in rows],
            token_budget=self.token_budget if token_budget is None else token_budget,
            max_rows=self.limit.cap(max_rows),
            cost=self.cost if batch_size is None and token_budget is None else None,
            pad_to_multiple=self.pad_to_multiple,
        )

    def _run_pieces(
        self, rows: Sequence[TokenRow], watch: Watch, recorder: RunRecorder | None, *, keep_memory: bool
    ) -> Outcome:
        raw = np.full((len(rows), self.width), np.nan, dtype=np.float32)
        errors: dict[int, SessionRunError] = {}
        pending = deque([list(range(len(rows)))] if rows else [])
        while pending:
            watch.require_time()
            piece = self._fitting(pending, rows)
            features = self._collate([rows[i] for i in piece])
            if recorder is not None:
                recorder(piece, features)
            try:
                raw[piece] = self._run(features, watch.cancel, keep_memory=keep_memory)
            except SessionRunError as error:
                if not error.out_of_memory:
                    raise
                self.limit.shrink(len(piece))
                if len(piece) == 1:
                    errors[piece[0]] = error
                else:  # half the budget for the same rows, down to one row
                    middle = -(-len(piece) // 2)
                    pending.extendleft([piece[middle:], piece[:middle]])
            else:
                self.limit.note_success()
        return Outcome(raw, errors)

    def _fitting(self, pending: deque[list[int]], rows: Sequence[TokenRow]) -> list[int]:
        """Take as many of the rows that come next as may run together now."""
        piece = pending.popleft()
        allowed = self.limit.cap(len(piece))
        longest = max(rows[i].n_tokens for i in piece)
        fitting = self.memory.fitting_rows(allowed, padded_length(longest, self.pad_to_multiple))
        if fitting < allowed:
            self.limit.shrink(allowed, fitting=fitting)
        if fitting < len(piece):
            pending.appendleft(piece[fitting:])
        return piece[:fitting]

    def _collate(self, rows: Sequence[TokenRow]) -> Features:
        return collate(rows, pad_token_id=self.pad_token_id, pad_to_multiple=self.pad_to_multiple)

    def _run(self, features: Features, cancel: CancelToken | None, *, keep_memory: bool) -> NDArray[np.float32]:
        raw = self.session.run(features, cancel=cancel, keep_memory=keep_memory)
        expected = (features.shape[0], self.width)
        if raw.shape != expected or raw.dtype != np.float32:  # numpy would broadcast one row over all
            raise SessionRunError(f"a run gave {raw.dtype} of shape {raw.shape}, float32 of shape {expected} is needed")
        return raw


def _renamed(recorder: RunRecorder | None, names: Sequence[int]) -> RunRecorder | None:
    """Return a recorder that hears of the positions that ours stand for."""
    if recorder is None:
        return None

    def renaming(indices: Sequence[int], features: Features) -> None:
        recorder([names[i] for i in indices], features)

    return renaming


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
