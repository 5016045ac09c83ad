"""One microbatch: run it, deliver its rows, and find out what was at fault where some did not come out."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from samevec.errors import NonFiniteOutputError, SamevecError, SessionRunError, WorkCancelledError
from samevec.runtime.cancel import every_cancelled
from samevec.runtime.checks import usable_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from samevec.runtime.cancel import CancelToken
    from samevec.runtime.engine import Outcome
    from samevec.runtime.limits import AdaptiveLimit
    from samevec.runtime.rows import TokenRow
    from samevec.server.queue.jobs import QueuedRow
    from samevec.server.queue.work_queue import Batch

__all__ = ["GuardedEngine", "brief", "compute_canary", "public_words", "run_batch"]

_log = logging.getLogger(__name__)


class GuardedEngine(Protocol):
    """What a worker needs of an engine; :class:`samevec.runtime.engine.Engine` is one."""

    @property
    def limit(self) -> AdaptiveLimit:
        """Rows that proved too many."""
        ...

    @property
    def overlapping(self) -> bool:
        """Whether a small run may go beside bulk ones."""
        ...

    def run_guarded(
        self,
        rows: Sequence[TokenRow],
        *,
        cancel: CancelToken | None = None,
        more_follows: bool = False,
    ) -> Outcome:
        """Run a microbatch in as many session runs as memory demands, see :meth:`samevec.runtime.engine.Engine`."""
        ...


def run_batch(engine: GuardedEngine, batch: Batch, *, canary: TokenRow, name: str) -> bool:
    """Run a microbatch and deliver its rows; whatever fails fails its own item only.

    Parameters
    ----------
    engine : GuardedEngine
    batch : Batch
    canary : TokenRow
        Computed when every row was lost, to tell poisonous input from a dead session.
    name : str
        The model's, for the log.

    Returns
    -------
    bool
        Whether it ran to its end: False when nobody wanted it any more.

    Raises
    ------
    Exception
        The canary could not be computed either: it is the session that is broken.
    """
    try:
        suspects, n_failed = _run_together(engine, batch, name)
    except WorkCancelledError:
        return False
    for row in suspects:
        _run_alone(engine, row, name)
    if (suspects or n_failed) and all(row.job.is_lost for row in batch.rows):
        compute_canary(engine, canary)
    return True


def compute_canary(engine: GuardedEngine, canary: TokenRow) -> None:
    """Compute a row that must come out.

    Raises
    ------
    Exception
        It did not.
    """
    outcome = engine.run_guarded([canary])
    for error in outcome.errors.values():
        raise error
    if not _good_rows(outcome.raw)[0]:
        raise NonFiniteOutputError((0,), what="zero or not finite")


def _run_together(engine: GuardedEngine, batch: Batch, name: str) -> tuple[list[QueuedRow], int]:
    """Run a microbatch and deliver its good rows; return the doubtful, to be tried alone, and how many failed."""
    rows = batch.rows
    with every_cancelled([row.job.cancel for row in rows]) as cancel:
        try:
            outcome = engine.run_guarded(
                [row.token_row for row in rows],
                cancel=cancel,
                more_follows=batch.more_follows,
            )
        except WorkCancelledError:
            raise
        except Exception as error:
            _log.warning("%s: a microbatch of %d rows failed: %s", name, len(rows), brief(error))
            return rows, 0
    good = _good_rows(outcome.raw)
    for i, row in enumerate(rows):
        if i in outcome.errors:  # it was tried alone already
            _fail(row, outcome.errors[i], name)
        elif good[i]:
            row.job.deliver(row.slot, outcome.raw[i])
    return [row for i, row in enumerate(rows) if not good[i] and i not in outcome.errors], len(outcome.errors)


def _run_alone(engine: GuardedEngine, row: QueuedRow, name: str) -> None:
    """Run one row and deliver it, or fail its job with an error that names the item."""
    if row.job.is_dead:
        return
    try:
        outcome = engine.run_guarded([row.token_row], cancel=row.job.cancel)
    except WorkCancelledError:
        return
    except Exception as error:
        _fail(row, error, name)
        return
    if outcome.errors:
        _fail(row, outcome.errors[0], name)
    elif _good_rows(outcome.raw)[0]:
        row.job.deliver(row.slot, outcome.raw[0])
    else:
        _log.error("%s: a row of %d tokens came out zero or not finite", name, row.n_tokens)
        row.job.fail(NonFiniteOutputError((row.job.position(row.slot),), what="zero or not finite"))


def _fail(row: QueuedRow, error: Exception, name: str) -> None:
    _log.error("%s: a row of %d tokens failed", name, row.n_tokens, exc_info=error)
    job = row.job
    failure = SessionRunError(
        f"{job.item_field}[{job.position(row.slot)}]: could not be computed: {public_words(error)}",
        out_of_memory=isinstance(error, SessionRunError) and error.out_of_memory,
    )
    failure.__cause__ = error
    job.fail(failure)


def _good_rows(raw: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return which rows may leave."""
    return usable_rows(raw, may_be_zero=raw.shape[1] == 1)


def public_words(error: BaseException) -> str:
    """Return what clients may read of an error; messages of strangers may hold paths."""
    return brief(error) if isinstance(error, SamevecError) else type(error).__name__


def brief(error: BaseException) -> str:
    """Return the first line of an error's message, or its class."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
