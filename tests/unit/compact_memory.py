"""Run by test_compact.py in a process of its own: load a graph, run it twice, print the peak of anonymous memory."""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import replace
from pathlib import Path

from samevec.runtime.collate import collate
from samevec.runtime.profiles import get_profile
from samevec.runtime.rows import TokenRow
from samevec.runtime.session import OnnxSession


def anonymous_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def main() -> None:
    path, mode = Path(sys.argv[1]), sys.argv[2]
    profile = get_profile("cpu-compact")
    if mode == "folded":
        profile = replace(profile, disabled_optimizers=())
    before, peak, over = anonymous_bytes(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not over.wait(0.001):
            peak = max(peak, anonymous_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    session = OnnxSession(path, profile, n_threads=1)
    for _ in range(2):
        session.run(collate([TokenRow(tuple(range(16)))], pad_token_id=0, pad_to_multiple=4))
    over.set()
    watcher.join()
    print(json.dumps({"before_bytes": before, "peak_bytes": peak}))


if __name__ == "__main__":
    main()
