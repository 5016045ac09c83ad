"""What the server adds to a call in the same process: ``python -m benchmarks.server_overhead``.

A 16-token query through the library, HTTP and the framed socket in turn, so that drift of the machine meets all three;
then 64 mixed texts in one call, and over HTTP also as 8 requests of 8 at once. Target: at most 3 ms at the median.
"""

from __future__ import annotations

import argparse
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from benchmarks.results import NOTICE, machine_record
from benchmarks.served import FrameClient, HttpClient, Served, prove_both, serving, write_result
from benchmarks.setup import add_model_arguments, models_of, say
from benchmarks.workloads import EMBEDDER, make_workload
from samevec.load import load_embedder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Call = Callable[[], object]

_CLIENTS = 8


def _median_ms(walls: Sequence[float]) -> float:
    return statistics.median(walls) * 1e3


def _alternate(calls: Mapping[str, Call], rounds: int, warm_up: int) -> dict[str, list[float]]:
    """Time every call once a round; the first rounds are not kept."""
    walls: dict[str, list[float]] = {name: [] for name in calls}
    for i in range(rounds + warm_up):
        for name, call in calls.items():
            started_s = time.perf_counter()
            call()
            if i >= warm_up:
                walls[name].append(time.perf_counter() - started_s)
    return walls


def _query_record(calls: Mapping[str, Call], rounds: int) -> dict[str, Any]:
    walls = _alternate(calls, rounds, warm_up=5)
    p50 = {name: _median_ms(values) for name, values in walls.items()}
    over = {name: value - p50["in process"] for name, value in p50.items() if name != "in process"}
    return {"rounds": rounds, "p50_ms": p50, "over_in_process_ms": over, "target_ms": 3.0}


def _spread(served: Served, texts: Sequence[str]) -> Call:
    """Return a call that sends the texts as several requests at once."""
    shares = [texts[i::_CLIENTS] for i in range(_CLIENTS)]
    pool = ThreadPoolExecutor(_CLIENTS)
    return lambda: list(pool.map(lambda share: HttpClient(served).embed(share), shares))


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and write ``server_overhead.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_arguments(parser)
    parser.add_argument("--profile", default="cpu")
    parser.add_argument("--rounds", type=int, default=60)
    arguments = parser.parse_args(argv)
    say(NOTICE)
    models = models_of(arguments)
    prove_both(models, arguments.profile)
    query, mixed = make_workload("query16"), make_workload("mixed64")
    embedder = load_embedder(EMBEDDER, profile=arguments.profile, home=models.home, lock=models.lock_path)
    with serving(models, arguments.profile) as served:
        http, frames = HttpClient(served), FrameClient(served)
        one: dict[str, Call] = {
            "in process": lambda: embedder.encode(query.items),
            "http base64": lambda: http.embed(query.items),
            "http float": lambda: http.embed(query.items, encoding="float"),
            "socket": lambda: frames.embed(query.items),
        }
        # New connections: the server closes those that were idle while another call took its seconds.
        bulk: dict[str, Call] = {
            "in process": lambda: embedder.encode(mixed.items),
            "http, one request": lambda: HttpClient(served).embed(mixed.items),
            f"http, {_CLIENTS} requests at once": _spread(served, mixed.items),
            "socket, one request": lambda: FrameClient(served).embed(mixed.items),
        }
        query_record = _query_record(one, arguments.rounds)
        walls = _alternate(bulk, rounds=max(1, arguments.rounds // 20), warm_up=1)
    speeds = {name: mixed.useful_tokens / statistics.median(values) for name, values in walls.items()}
    record = {"notice": NOTICE, "machine": machine_record(), "profile": arguments.profile, "query16": query_record}
    write_result("server_overhead", {**record, "mixed64_tokens_per_s": speeds}, arguments.output)


if __name__ == "__main__":
    main()
