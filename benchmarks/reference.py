"""PyTorch float32, one item at a time: computed once a workload in a process of its own, and kept by digest."""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.protocol import REPOSITORY
from benchmarks.workloads import make_workload
from samevec.lock import load_lock
from samevec.parity.compare import compare

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from benchmarks.workloads import Workload
    from samevec.lock import Lock, Tolerance

__all__ = ["count_violations", "ensure_references", "read_reference", "reference_path"]


def reference_path(workload: Workload, lock: Lock, cache: Path) -> Path:
    """Return where a workload's reference is kept: named by everything that decides its values."""
    versions = sorted(lock.toolchain.versions.items())
    key = hashlib.sha256(repr((workload.digest, lock.model(workload.model).digest, versions)).encode())
    return cache / "references" / f"{workload.name}-{key.hexdigest()[:16]}.npz"


def ensure_references(workloads: Sequence[Workload], *, lock_path: Path, snapshots: Path, cache: Path) -> None:
    """Compute the references that are missing.

    Parameters
    ----------
    workloads : sequence of Workload
    lock_path, snapshots : Path
        The full-shape pair.
    cache : Path

    Raises
    ------
    subprocess.CalledProcessError
        PyTorch is not installed, or failed; it has said how.
    """
    lock = load_lock(lock_path)
    missing = [w.name for w in workloads if not reference_path(w, lock, cache).is_file()]
    if missing:
        command = [sys.executable, "-m", "benchmarks.reference", *missing, "--lock", str(lock_path)]
        subprocess.run([*command, "--from", str(snapshots), "--cache", str(cache)], check=True, cwd=REPOSITORY)


def read_reference(workload: Workload, lock: Lock, cache: Path) -> dict[str, NDArray[np.float32]]:
    """Return the reference by level, ``"raw"`` and ``"final"``, shape (n_compared, width)."""
    with np.load(reference_path(workload, lock, cache)) as arrays:
        return {name: arrays[name] for name in ("raw", "final")}


def count_violations(
    workload: Workload,
    reference: Mapping[str, NDArray[np.float32]],
    outputs: Sequence[tuple[str, NDArray[np.float32]]],
    tolerance: Tolerance,
) -> tuple[int, float]:
    """Apply the frozen rule to what a system gave.

    Parameters
    ----------
    workload : Workload
    reference : mapping
        From :func:`read_reference`.
    outputs : sequence of (str, ndarray of float32)
        Level and outputs of all items, in order.
    tolerance : Tolerance

    Returns
    -------
    (int, float)
        Items of which some component differs by more than is allowed at some level, and the greatest difference.
    """
    failing: set[int] = set()
    greatest = 0.0
    for level, values in outputs:
        candidate = np.asarray(values, dtype=np.float32).reshape(len(workload.items), -1)[list(workload.compared)]
        found = compare(reference[level], candidate, tolerance)
        failing.update(found.failing_rows)
        greatest = max(greatest, found.max_abs)
    return len(failing), greatest


def _compute(names: Sequence[str], lock_path: Path, snapshots: Path, cache: Path) -> None:
    from samevec.parity.reference.pytorch import load_reference_model  # noqa: PLC0415  loads torch

    lock = load_lock(lock_path)
    loaded: dict[str, Any] = {}
    for workload in map(make_workload, names):
        print(f"reference {workload.name}: PyTorch float32, one item at a time", file=sys.stderr, flush=True)
        if workload.model not in loaded:
            loaded = {workload.model: load_reference_model(snapshots / workload.model, lock.model(workload.model))}
        model = loaded[workload.model]
        items = [workload.items[i] for i in workload.compared]
        rows = model.capture_texts(items) if workload.task == "embed" else model.capture_pairs(items)
        path = reference_path(workload, lock, cache)
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays = {"raw": np.stack([row.raw for row in rows]), "final": np.stack([row.final for row in rows])}
        part = path.with_suffix(".part.npz")
        np.savez(part, raw=arrays["raw"], final=arrays["final"])
        part.replace(path)


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--lock", type=Path, required=True)
    parser.add_argument("--from", dest="snapshots", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    arguments = parser.parse_args()
    # By task, so that one model is in memory at a time.
    names = sorted(arguments.names, key=lambda name: make_workload(name).task)
    _compute(names, arguments.lock, arguments.snapshots, arguments.cache)


if __name__ == "__main__":
    _main()
