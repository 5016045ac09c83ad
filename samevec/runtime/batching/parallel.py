"""Bulk microbatches side by side: each on few threads, on a session of their own over the same weights.

A run on all threads waits at every operator for the slowest of them; runs that do not wait for each other finish more
tokens a second (5 to 9% on two cores), but each takes longer, so short queries keep the session with all threads.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from samevec.runtime.batching.plan import MAX_WORKER_TOKENS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from samevec.runtime.batching.cost import CostModel
    from samevec.runtime.sessions.base import Session

__all__ = [
    "MAX_WORKERS",
    "BulkSession",
    "choose_workers",
    "may_share_cores",
    "run_side_by_side",
    "shared_runs",
    "side_by_side_pays",
]

_T = TypeVar("_T")

#: Workers chosen where nobody says how many: with more than 8 each would have less than the least token budget, 1,024.
MAX_WORKERS = 8

# Time of all runs side by side, of the time they take one after another on all threads. 2 cores with AVX-512,
# full-shape models, one run: 0.92 on 64 mixed texts, 0.93 on 50 mixed pairs.
_SIDE_BY_SIDE_SHARE = 0.93
# Padded tokens of a run with others beside it.
_MOST_SHARED_TOKENS = MAX_WORKER_TOKENS // 2


def choose_workers(requested: int, n_threads: int) -> int:
    """Return how many bulk microbatches may run side by side.

    Parameters
    ----------
    requested : int
        0 means choose.
    n_threads : int
        Threads of the machine's allowance.

    Returns
    -------
    int
        What was requested; otherwise one a thread, at most :data:`MAX_WORKERS`.
    """
    return requested or max(1, min(n_threads, MAX_WORKERS))


class BulkSession:
    """The session that bulk microbatches share, opened when the first of them comes; safe between threads.

    Parameters
    ----------
    n_workers : int
        Runs that go side by side.
    open_session : callable
        Opens it; called once, unless it raises.
    """

    def __init__(self, n_workers: int, open_session: Callable[[], Session]) -> None:
        self.n_workers = n_workers
        self._open = open_session
        self._lock = threading.Lock()
        self._session: Session | None = None

    def get(self) -> Session:
        """Return the session.

        Raises
        ------
        SamevecError
            What opening it raises; the next call tries again.
        """
        with self._lock:
            if self._session is None:
                self._session = self._open()
            return self._session

    @property
    def opened(self) -> Session | None:
        """The session, if it is open."""
        return self._session


def side_by_side_pays(runs_s: Sequence[float], n_workers: int) -> bool:
    """Return whether runs take less time side by side, each worker taking the next one as it becomes free.

    Parameters
    ----------
    runs_s : sequence of float
        Seconds of each run on all threads, in the order in which they begin.
    n_workers : int
        Workers that share the threads.
    """
    if n_workers < 2 or len(runs_s) < n_workers:
        return False
    free_at_s = [0.0] * n_workers
    for run_s in runs_s:
        first = free_at_s.index(min(free_at_s))
        free_at_s[first] += run_s * n_workers * _SIDE_BY_SIDE_SHARE
    return max(free_at_s) < sum(runs_s)


def may_share_cores(padded_tokens: int) -> bool:
    """Return whether a run of so many tokens may have others beside it.

    Notes
    -----
    Two runs of 4,096 tokens side by side took twice the memory of one (706 MB instead of 370), and no less time: it is
    small runs that wait much at every operator. With runs of half of it memory stays that of one worker.
    """
    return padded_tokens <= _MOST_SHARED_TOKENS


def shared_runs(shapes: Sequence[tuple[int, int]], n_workers: int, cost: CostModel | None) -> list[int]:
    """Return which runs go side by side: where it pays, all that may share the cores.

    Parameters
    ----------
    shapes : sequence of (int, int)
        Rows and padded tokens a row of each run, in the order in which they begin.
    n_workers : int
    cost : CostModel or None
        By which it pays; padded tokens stand for seconds without one.
    """
    small = [i for i, (n_rows, n_tokens) in enumerate(shapes) if may_share_cores(n_rows * n_tokens)]
    if not small:
        return []
    n_rows, n_tokens = np.array([shapes[i] for i in small]).T
    runs_s = n_rows * n_tokens if cost is None else cost.run_s(n_rows, n_tokens)
    return small if side_by_side_pays(runs_s.tolist(), n_workers) else []


def run_side_by_side(tasks: Sequence[Callable[[], _T]], n_workers: int) -> list[_T]:
    """Run tasks in threads, begun in their order.

    Parameters
    ----------
    tasks : sequence of callable
    n_workers : int
        Threads.

    Returns
    -------
    list
        What each returned, in their order.

    Raises
    ------
    BaseException
        What the first of them raised, by order, once those that had begun are over; none begins after one has raised.
    """
    stop = threading.Event()

    def run(task: Callable[[], _T]) -> _T | None:
        if stop.is_set():
            return None
        try:
            return task()
        except BaseException:
            stop.set()
            raise

    with ThreadPoolExecutor(n_workers, thread_name_prefix="samevec-bulk") as pool:
        futures = [pool.submit(run, task) for task in tasks]
        try:
            results = [future.result() for future in futures]
        except BaseException:  # also KeyboardInterrupt in the caller's thread
            stop.set()
            raise
    return results  # type: ignore[return-value]  # None only after a task has raised, and then this is not reached
