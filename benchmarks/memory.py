"""Memory of another process, read from ``/proc/PID/smaps_rollup``.

Private is ``Anonymous``: resident pages that no file backs, heap and arenas above all, copies of file pages that were
written to included. Pages of mapped weights that were only read are not in it: the kernel may drop them, and processes
share them. Resident is ``Rss``: everything, those pages too. Elsewhere than on Linux psutil's ``uss`` and ``rss``
stand in.
"""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Memory", "MemorySampler", "parse_rollup", "read_memory"]

_INTERVAL_S = 0.02
# Reading costs the kernel a walk over all pages: never more than this part of the time.
_MOST_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class Memory:
    """One reading, or the peak of many; in bytes."""

    private_bytes: int = 0
    resident_bytes: int = 0
    proportional_bytes: int = 0

    def peak(self, other: Memory) -> Memory:
        """Return the greater of each number."""
        return Memory(
            max(self.private_bytes, other.private_bytes),
            max(self.resident_bytes, other.resident_bytes),
            max(self.proportional_bytes, other.proportional_bytes),
        )


def parse_rollup(text: str) -> Memory:
    """Parse the content of ``smaps_rollup``.

    Parameters
    ----------
    text : str
        A header line, then ``Name:   N kB`` lines.

    Returns
    -------
    Memory
    """
    fields = {}
    for line in text.splitlines()[1:]:
        name, _, value = line.partition(":")
        fields[name] = int(value.split()[0]) * 1024
    return Memory(fields["Anonymous"], fields["Rss"], fields["Pss"])


def read_memory(pid: int) -> Memory:
    """Read a process's memory now; zeros when it is gone."""
    try:
        if sys.platform == "linux":
            return parse_rollup(Path(f"/proc/{pid}/smaps_rollup").read_text())
        full = psutil.Process(pid).memory_full_info()
        return Memory(full.uss, full.rss, getattr(full, "pss", full.rss))
    except (OSError, psutil.Error):
        return Memory()


class MemorySampler:
    """Samples a process from a thread while a block runs, about every 20 ms and never more than 2% of the time.

    Parameters
    ----------
    pid : int

    Attributes
    ----------
    peak : Memory
        Filled when the block ends.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.peak = Memory()

    def _sample(self) -> None:
        while True:
            started_s = time.perf_counter()
            self.peak = self.peak.peak(read_memory(self._pid))
            took_s = time.perf_counter() - started_s
            if self._stop.wait(max(_INTERVAL_S, took_s / _MOST_SHARE)):
                return

    def __enter__(self) -> MemorySampler:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self.peak = self.peak.peak(read_memory(self._pid))
