"""Does memory grow? ``python -m benchmarks.long_run``: 3,000 requests of changing shapes to a real server.

Private memory is read while the server is idle, every 250 requests. Target: after 3,000 at most 1.10x of after 1,000.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from benchmarks.memory import read_memory
from benchmarks.results import NOTICE, machine_record
from benchmarks.served import HttpClient, Served, prove_both, serving, write_result
from benchmarks.setup import add_model_arguments, models_of, say
from benchmarks.workloads import Writer

if TYPE_CHECKING:
    from collections.abc import Sequence

# The server gives freed memory back once it has been at rest for one to two seconds.
_SETTLE_S = 3.0
_LIMIT = 1.10


class _Traffic:
    """Requests of changing shapes: mostly short, one in a hundred long, one in three for the embedder."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self._texts = Writer("samevec long run texts", "embed")
        self._pairs = Writer("samevec long run pairs", "rerank")

    def _shape(self, number: int) -> tuple[int, int]:
        """Return items and most tokens of each."""
        if number % 100 == 50:
            return 1, 600 + self._texts.below(1500)
        return 1 + self._texts.below(6), 8 + self._texts.below(60)

    def send(self, number: int) -> None:
        n_items, most_tokens = self._shape(number)
        sizes = [max(4, most_tokens - self._texts.below(most_tokens // 2)) for _ in range(n_items)]
        if number % 3 == 0:
            self._client.embed([self._texts.text(size) for size in sizes])
        else:
            self._client.rerank(self._pairs.text(8), [self._pairs.text(size) for size in sizes])


def _run(served: Served, n_requests: int, every: int) -> dict[int, dict[str, int]]:
    traffic = _Traffic(HttpClient(served))
    readings = {}
    for number in range(n_requests + 1):
        if number % every == 0:
            time.sleep(_SETTLE_S)
            memory = read_memory(served.pid)
            readings[number] = {"private_bytes": memory.private_bytes, "resident_bytes": memory.resident_bytes}
            say(f"{number} requests: private {memory.private_bytes / 1e6:,.1f} MB")
        if number < n_requests:
            traffic.send(number)
    return readings


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and write ``long_run.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_arguments(parser)
    parser.add_argument("--profile", default="cpu")
    parser.add_argument("--requests", type=int, default=3000)
    arguments = parser.parse_args(argv)
    say(NOTICE)
    models = models_of(arguments)
    prove_both(models, arguments.profile)
    every = max(1, arguments.requests // 12)
    started_s = time.monotonic()
    with serving(models, arguments.profile) as served:
        readings = _run(served, arguments.requests, every)
    third = arguments.requests // 3 // every * every
    growth = readings[max(readings)]["private_bytes"] / readings[third]["private_bytes"]
    record: dict[str, Any] = {"notice": NOTICE, "machine": machine_record(), "profile": arguments.profile}
    record |= {"requests": arguments.requests, "seconds": round(time.monotonic() - started_s, 1), "readings": readings}
    record |= {"growth_from_requests": third, "growth": growth, "target_growth": _LIMIT, "met": growth <= _LIMIT}
    write_result("long_run", record, arguments.output)


if __name__ == "__main__":
    main()
