"""Starting and idling: ``python -m benchmarks.startup``, both models in one real server, receipts passed.

Seconds from process start to the ready line, every file verified (target 4 s, file cache warm), and the processor time
it took, which says more where the machine is not idle; private memory and processor time while idle (targets 300 MB
and 2% of a core); what two servers on the same artifacts hold together, by proportional set size.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING, Any

import psutil

from benchmarks.memory import Memory, read_memory
from benchmarks.results import NOTICE, machine_record
from benchmarks.served import FrameClient, HttpClient, Served, prove_both, serving, write_result
from benchmarks.setup import add_model_arguments, models_of, say
from benchmarks.workloads import make_workload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.setup import Models

_IDLE_S = 5.0


def _megabytes(memory: Memory) -> dict[str, float]:
    return {
        "private": round(memory.private_bytes / 1e6, 1),
        "resident": round(memory.resident_bytes / 1e6, 1),
        "proportional": round(memory.proportional_bytes / 1e6, 1),
    }


def _work(served: Served) -> None:
    """Have both models compute, so that their weights are in memory."""
    FrameClient(served).embed(make_workload("query16").items)
    for query, document in make_workload("pair16").items:
        HttpClient(served).rerank(query, [document])


def _idle_cpu_percent(pid: int) -> float:
    process = psutil.Process(pid)
    before = process.cpu_times()
    time.sleep(_IDLE_S)
    after = process.cpu_times()
    return 100 * (after.user + after.system - before.user - before.system) / _IDLE_S


def _idle_record(models: Models, profile: str) -> dict[str, Any]:
    with serving(models, profile) as first:
        record: dict[str, Any] = {"ready_mb": _megabytes(read_memory(first.pid))}
        _work(first)
        time.sleep(1)
        record["idle_cpu_percent"] = _idle_cpu_percent(first.pid)
        record["after_work_mb"] = _megabytes(read_memory(first.pid))
        with serving(models, profile) as second:
            _work(second)
            time.sleep(1)
            pair = [read_memory(served.pid) for served in (first, second)]
    record["two_servers_mb"] = [_megabytes(memory) for memory in pair]
    together = sum(memory.proportional_bytes for memory in pair)
    record["two_servers_over_one"] = together / 1e6 / record["after_work_mb"]["proportional"]
    return record


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and write ``startup.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_arguments(parser)
    parser.add_argument("--profile", default="cpu")
    parser.add_argument("--starts", type=int, default=5)
    arguments = parser.parse_args(argv)
    say(NOTICE)
    models = models_of(arguments)
    prove_both(models, arguments.profile)
    seconds: list[float] = []
    processor_s: list[float] = []
    for _ in range(arguments.starts):
        with serving(models, arguments.profile) as served:
            used = psutil.Process(served.pid).cpu_times()
            seconds.append(served.ready_s)
            processor_s.append(used.user + used.system)
            say(f"ready after {served.ready_s:.2f} s, {processor_s[-1]:.2f} s of processor time")
    record = {"notice": NOTICE, "machine": machine_record(), "profile": arguments.profile}
    record |= {"ready_s": seconds, "ready_median_s": statistics.median(seconds), "target_ready_s": 4.0}
    record |= {"ready_processor_s": processor_s}
    record |= {**_idle_record(models, arguments.profile), "target_idle_private_mb": 300}
    write_result("startup", record, arguments.output)


if __name__ == "__main__":
    main()
