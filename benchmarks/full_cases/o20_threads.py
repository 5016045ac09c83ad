"""O20: threads follow the allowance, and rest when idle."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from benchmarks.full_cases.asking import embed, rerank
from benchmarks.full_cases.bench import Bench, cpu_s
from benchmarks.served import serving
from benchmarks.workloads import Writer

__all__ = ["o20"]


def o20(bench: Bench) -> dict[str, Any]:
    """Threads follow the allowance, and rest when idle."""
    allowed = sorted(os.sched_getaffinity(0))
    writer = Writer("cases o20", "embed")
    texts = [writer.text(63) for _ in range(8)]
    found: dict[str, Any] = {}
    log = Path(f"/tmp/samevec-cases-{os.getpid()}.log")
    for n_cpus in sorted({1, len(allowed)}):
        # A process inherits the affinity of the thread that starts it, as under taskset.
        os.sched_setaffinity(0, allowed[:n_cpus])
        try:
            with serving(bench.models, bench.profile, log_path=log) as served:
                os.sched_setaffinity(0, allowed)
                embed(served.url, texts)
                rerank(served.url, "q", ["d"])
                started_s = time.perf_counter()
                embed(served.url, texts)
                seconds = time.perf_counter() - started_s
                before_s = cpu_s(served.pid)
                time.sleep(bench.idle_s / 2)
                idle = (cpu_s(served.pid) - before_s) / (bench.idle_s / 2)
                threads = len(list(Path(f"/proc/{served.pid}/task").iterdir()))
                found[str(n_cpus)] = {"threads": threads, "idle_cpu_share": idle, "eight_texts_of_64_tokens_s": seconds}
            found[str(n_cpus)]["affinity_complaints"] = log.read_text().lower().count("affinity")
        finally:
            os.sched_setaffinity(0, allowed)
            log.unlink(missing_ok=True)
    counts = [record["threads"] for record in found.values()]
    # Both models have a pool: the thread that asks, and the rest of the allowance. So have tokenizers and numpy's BLAS.
    per_processor = (counts[-1] - counts[0]) / max(1, len(allowed) - 1)
    return {
        "by_processors": found,
        "more_threads_a_processor": per_processor,
        "quota": "none: there is no control group to write to here",
        "passed": (
            all(record["idle_cpu_share"] < 0.02 for record in found.values())
            and not any(record["affinity_complaints"] for record in found.values())
            and per_processor <= 4
        ),
    }
