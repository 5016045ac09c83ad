"""Run as a process of its own: load an artifact, change how the thread computes, compute two texts.

Arguments: lock, model, home, and one of ``unchanged``, ``flushed``, ``upward``, ``probe``. The last runs the start-up
probe instead. Prints ``computed``, or the error that refused.
"""

from __future__ import annotations

import ctypes
import importlib
import platform
import sys
from pathlib import Path
from typing import Any

from samevec.errors import SamevecError
from samevec.gate import probe_of
from samevec.lock import load_lock
from samevec.opening import open_candidate
from samevec.parity.cases.builtin import builtin_cases
from samevec.parity.probe import require_probe
from samevec.parity.tokens import tokenize_cases


def flush_denormals() -> None:
    """As a library beside samevec may do to the whole thread."""
    torch: Any = importlib.import_module("torch")
    assert torch.set_flush_denormal(True)


def round_upward() -> None:
    """Set FE_UPWARD, whose number depends on the processor."""
    upward = 0x400000 if platform.machine() in ("aarch64", "arm64") else 0x800
    libm = ctypes.CDLL("libm.so.6" if sys.platform == "linux" else None)
    assert libm.fesetround(upward) == 0


CHANGES = {"unchanged": lambda: None, "flushed": flush_denormals, "upward": round_upward}


def main(lock: str, model: str, home: str, how: str) -> None:
    """Print what came of it."""
    loaded = load_lock(lock)
    entry = loaded.model(model)
    candidate = open_candidate(entry, profile="cpu", home=Path(home), n_threads=1)
    rows = tokenize_cases(candidate.model, builtin_cases(entry.task, prompts=entry.prompts), together=True)
    try:
        if how == "probe":
            require_probe(candidate.model, probe_of(candidate, loaded.tolerance))
        else:
            CHANGES[how]()
            candidate.model.run_microbatch(rows[:2])
    except SamevecError as error:
        print(error)
    else:
        print("computed")


if __name__ == "__main__":
    main(*sys.argv[1:])
