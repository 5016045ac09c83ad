"""The child's half of the protocol: one JSON object a line in, one a line out.

===========  ==========================================  ==============================================
op           request                                     answer, beside ``ok: true``
===========  ==========================================  ==============================================
prepare      model, task, snapshot, work, options        (exports, conversions; in a process of its own)
load         the same                                    load_s, levels
tune         items                                       batch_size, note
examine      items, output (raw outputs as .npy)         wall_s, cpu_s, padded_tokens
time         items, repeats, output (final outputs)      wall_s, cpu_s (lists)
close
===========  ==========================================  ==============================================

Anything that goes wrong answers ``{"ok": false, "kind": "unavailable" | "failed", "error": "..."}``. Runs in the peers'
environments: standard library and numpy.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["BATCH_SIZES", "Peer", "Unavailable", "main"]

#: What "best batch size" is the best of.
BATCH_SIZES = (1, 2, 4, 8, 16, 32)


class Unavailable(Exception):  # noqa: N818  not a fault: the peer does not offer this
    """The peer cannot do this at all, in words."""


class Peer(Protocol):
    """What a peer script provides.

    Attributes
    ----------
    batch_size : int or None
        Changed by tuning; None for peers that choose for themselves.
    padded_tokens : int
        Counted while `raw` runs; meaningless after `final`.
    levels : (str, str)
        What `raw` and `final` really give: ``"raw"`` (pooled vectors, logits) or ``"final"`` (unit vectors, scores).
    """

    batch_size: int | None
    padded_tokens: int
    levels: tuple[str, str]

    def prepare(self, request: dict[str, Any]) -> None:
        """Make files that loading needs."""
        ...

    def load(self, request: dict[str, Any]) -> None:
        """Load the model, ready for its first item."""
        ...

    def raw(self, items: Sequence[Any]) -> NDArray[np.float32]:
        """Return outputs before normalisation or activation, and count padded tokens."""
        ...

    def final(self, items: Sequence[Any]) -> NDArray[np.float32]:
        """Return what a user of the peer gets; this is what is timed."""
        ...


def _timed(peer: Peer, items: Sequence[Any]) -> tuple[float, float, NDArray[np.float32]]:
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    outputs = peer.final(items)
    return time.perf_counter() - wall_s, time.process_time() - cpu_s, outputs


def _tune(peer: Peer, items: Sequence[Any]) -> dict[str, Any]:
    walls: dict[int, float] = {}
    peer.final(items[:1])
    for size in BATCH_SIZES:
        peer.batch_size = size
        walls[size] = _timed(peer, items)[0]
    best = min(walls, key=lambda size: walls[size])
    return {"batch_size": best, "note": ", ".join(f"b{size} {wall:.2f} s" for size, wall in walls.items())}


def _examine(peer: Peer, items: Sequence[Any], output: str) -> dict[str, Any]:
    peer.final(items[:1])  # threads and buffers that the first run of all makes
    peer.padded_tokens = 0
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    outputs = peer.raw(items)
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    np.save(output, np.asarray(outputs, dtype=np.float32))
    return {"wall_s": wall_s, "cpu_s": cpu_s, "padded_tokens": peer.padded_tokens}


def _time(peer: Peer, items: Sequence[Any], repeats: int, output: str) -> dict[str, Any]:
    walls, cpus = [], []
    for _ in range(repeats):
        wall_s, cpu_s, outputs = _timed(peer, items)
        walls.append(wall_s)
        cpus.append(cpu_s)
    np.save(output, np.asarray(outputs, dtype=np.float32))
    return {"wall_s": walls, "cpu_s": cpus}


def _answer(peer: Peer, request: dict[str, Any]) -> dict[str, Any]:
    op = request["op"]
    if op == "prepare":
        peer.prepare(request)
        return {}
    if op == "load":
        started_s = time.perf_counter()
        peer.load(request)
        return {"load_s": time.perf_counter() - started_s, "levels": list(peer.levels)}
    items = [item if isinstance(item, str) else tuple(item) for item in request["items"]]
    if op == "tune":
        return _tune(peer, items)
    if op == "examine":
        return _examine(peer, items, request["output"])
    if op == "time":
        return _time(peer, items, request["repeats"], request["output"])
    raise ValueError(f"no op {op!r}")


def main(peer: Peer) -> None:
    """Answer requests until told to close, or until the parent is gone.

    Parameters
    ----------
    peer : Peer

    Notes
    -----
    Standard output is kept for answers alone: whatever a library prints goes to standard error.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        if request["op"] == "close":
            break
        try:
            answer = {"ok": True, **_answer(peer, request)}
        except Unavailable as error:
            answer = {"ok": False, "kind": "unavailable", "error": str(error)}
        except Exception as error:  # reported in the table, whatever it is
            answer = {"ok": False, "kind": "failed", "error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
