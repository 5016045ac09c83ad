"""Does bulk work hold small requests up, and what does HTTP cost bulk work? ``python -m benchmarks.server_fairness``.

Three measurements on one real ``samevec serve``:

1. One microbatch: 500 short texts in one HTTP request and nothing else. What ``samevec_microbatch_seconds_sum`` has
   grown by at ``/metrics``, over what ``_count`` has, is the mean time of one bulk microbatch, as the server cuts and
   runs it when it is undisturbed.
2. Interactive requests, one embedding of a 16-token query over HTTP, the socket, and one pair of 16 tokens over HTTP in
   turn, 0.2 s after one another, first alone and then while one HTTP request of 2,000 short texts runs from beginning
   to end. Target: 95% of the latter take at most 3 times the microbatch of 1, and every answer is bit for bit the one
   given alone.
3. 500 short texts by a library call in this process and by one HTTP request in turn; medians of tokens per second.
   Target: HTTP has at least 95% of the library's. Answers as base64, which the ``openai`` package asks for.

Run it alone: another busy process makes every figure worthless.
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.answers import openai_vectors
from benchmarks.results import NOTICE, machine_record
from benchmarks.served import FrameClient, HttpClient, Served, serving, write_result
from benchmarks.server_load import add_pair_arguments, pair_of
from benchmarks.setup import say
from benchmarks.workloads import make_workload
from samevec.load import load_embedder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from samevec.runtime.embedder import Embedder

    Question = Callable[[], Any]

_PAUSE_S = 0.2
_MOST_MICROBATCHES = 3.0
_LEAST_SHARE = 0.95
_ALONE_ROUNDS = 10


def _embed(served: Served, texts: Sequence[str]) -> NDArray[np.float32]:
    """Embed by one HTTP request over a connection of its own."""
    body = {"input": list(texts), "encoding_format": "base64"}
    return openai_vectors(HttpClient(served).post("/v1/embeddings", body))


def _microbatches(served: Served, model: str) -> tuple[float, int]:
    """Return the seconds of a model's microbatches so far, summed, and their number."""
    with urllib.request.urlopen(f"{served.url}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    found = {}
    for part in ("sum", "count"):
        match = re.search(
            rf'^samevec_microbatch_seconds_{part}{{model="{re.escape(model)}"}} (\S+)$', text, re.MULTILINE
        )
        found[part] = float(match.group(1)) if match else 0.0
    return found["sum"], int(found["count"])


def _one_microbatch(served: Served, model: str, texts: Sequence[str]) -> dict[str, Any]:
    """Measure the mean time of a bulk microbatch while nothing else is asked."""
    before_s, n_before = _microbatches(served, model)
    _embed(served, texts)
    after_s, n_after = _microbatches(served, model)
    mean_s = (after_s - before_s) / (n_after - n_before)
    return {"texts": len(texts), "microbatches": n_after - n_before, "mean_s": round(mean_s, 4)}


def _questions(served: Served, embedder: str) -> dict[str, Question]:
    """Return the interactive requests; each opens a connection: the server closes those that rested too long."""
    query, pair = make_workload("query16").items[0], make_workload("pair16").items[0]
    return {
        "http embed": lambda: _embed(served, [query]).tobytes(),
        "socket embed": lambda: _ask_socket(served, {"op": "embed", "texts": [query], "tier": embedder})["vectors"],
        "http rerank": lambda: HttpClient(served).post("/v2/rerank", {"query": pair[0], "documents": [pair[1]]})[
            "results"
        ],
    }


def _ask_socket(served: Served, request: dict[str, Any]) -> dict[str, Any]:
    return FrameClient(served).ask(request)


class _Interactive:
    """Small requests one after another, each answer compared with the first.

    Parameters
    ----------
    questions : dict
    """

    def __init__(self, questions: dict[str, Question]) -> None:
        self._questions = questions
        self._expected = {name: ask() for name, ask in questions.items()}
        self.n_wrong = 0

    def round(self, walls_s: dict[str, list[float]]) -> None:
        """Ask everything once, and note how long each took."""
        for name, ask in self._questions.items():
            started_s = time.perf_counter()
            answer = ask()
            walls_s.setdefault(name, []).append(time.perf_counter() - started_s)
            self.n_wrong += answer != self._expected[name]
            time.sleep(_PAUSE_S)


def _times(walls_s: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    together = {**walls_s, "all": [wall for walls in walls_s.values() for wall in walls]}
    return {
        name: {
            "requests": len(walls),
            "p50_ms": round(float(np.percentile(walls, 50)) * 1e3, 1),
            "p95_ms": round(float(np.percentile(walls, 95)) * 1e3, 1),
            "most_ms": round(max(walls) * 1e3, 1),
        }
        for name, walls in together.items()
    }


def _beside_bulk(served: Served, embedder: str, model: Embedder, texts: Sequence[str]) -> dict[str, Any]:
    """Ask small things alone, then while a bulk request runs."""
    interactive = _Interactive(_questions(served, embedder))
    alone: dict[str, list[float]] = {}
    beside: dict[str, list[float]] = {}
    for _ in range(_ALONE_ROUNDS):
        interactive.round(alone)
    started_s = time.perf_counter()
    with ThreadPoolExecutor(1) as pool:
        bulk: Future[NDArray[np.float32]] = pool.submit(_embed, served, texts)
        time.sleep(_PAUSE_S)
        while not bulk.done():
            taken: dict[str, list[float]] = {}
            interactive.round(taken)
            if not bulk.done():  # a round that outlived the bulk work was not all beside it
                for name, walls in taken.items():
                    beside.setdefault(name, []).extend(walls)
        seconds = time.perf_counter() - started_s
        vectors = bulk.result()
    sample = range(0, len(texts), max(1, len(texts) // 50))
    wrong = [i for i in sample if not np.array_equal(vectors[i], model.encode([texts[i]])[0])]
    return {
        "texts": len(texts),
        "bulk_s": round(seconds, 1),
        "alone": _times(alone),
        "beside_bulk": _times(beside),
        "wrong_answers": interactive.n_wrong,
        "bulk_vectors_compared": len(sample),
        "bulk_vectors_wrong": len(wrong),
    }


def _throughput(served: Served, model: Embedder, texts: Sequence[str], n_tokens: int, rounds: int) -> dict[str, Any]:
    """Embed the same texts here and over HTTP in turn."""
    calls: dict[str, Question] = {
        "in_process": lambda: model.encode(list(texts)),
        "http": lambda: _embed(served, texts),
    }
    walls: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            started_s = time.perf_counter()
            call()
            walls[name].append(time.perf_counter() - started_s)
            say(f"{name}: {len(texts)} texts in {walls[name][-1]:.1f} s")
    speeds = {name: n_tokens / statistics.median(values) for name, values in walls.items()}
    return {
        "texts": len(texts),
        "rounds": rounds,
        "walls_s": {name: [round(wall, 3) for wall in values] for name, values in walls.items()},
        "tokens_per_s": {name: round(speed, 1) for name, speed in speeds.items()},
        "http_over_in_process": round(speeds["http"] / speeds["in_process"], 4),
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and write ``server_fairness.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_pair_arguments(parser)
    parser.add_argument("--bulk-texts", type=int, default=2000, help="of the bulk job beside interactive requests")
    parser.add_argument("--texts", type=int, default=500, help="of the microbatch's and the throughput's measurement")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args(argv)
    say(NOTICE)
    models, embedder, _ = pair_of(arguments)
    workload = make_workload("short2000")
    few, n_tokens = workload.items[: arguments.texts], sum(workload.lengths_tokens[: arguments.texts])
    model = load_embedder(embedder, profile=arguments.profile, home=models.home, lock=models.lock_path)
    with serving(models, arguments.profile) as served:
        _embed(served, few[:100])
        microbatch = _one_microbatch(served, embedder, few)
        say(f"one microbatch: {microbatch['mean_s']:.3f} s")
        fairness = _beside_bulk(served, embedder, model, workload.items[: arguments.bulk_texts])
        throughput = _throughput(served, model, few, n_tokens, arguments.rounds)
    p95_s = fairness["beside_bulk"]["all"]["p95_ms"] / 1e3
    ratio = p95_s / microbatch["mean_s"]
    met = {
        "interactive": ratio <= _MOST_MICROBATCHES,
        "throughput": throughput["http_over_in_process"] >= _LEAST_SHARE,
        "answers_right": not fairness["wrong_answers"] and not fairness["bulk_vectors_wrong"],
    }
    record = {"notice": NOTICE, "machine": machine_record(), "profile": arguments.profile, "model": embedder}
    record |= {"microbatch": microbatch, "interactive": fairness, "p95_over_microbatch": round(ratio, 3)}
    record |= {"target_p95_over_microbatch": _MOST_MICROBATCHES, "throughput": throughput}
    record |= {"target_http_over_in_process": _LEAST_SHARE, "met": met | {"all": all(met.values())}}
    write_result("server_fairness", record, arguments.output)


if __name__ == "__main__":
    main()
