"""O19: a bulk request runs in bounded pieces, and its memory is given back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.full_cases.asking import embed, rerank, words
from benchmarks.full_cases.bench import Bench, cpu_s
from benchmarks.memory import MemorySampler, read_memory
from benchmarks.workloads import Writer

if TYPE_CHECKING:
    from benchmarks.served import Served


__all__ = ["o19"]

# The server looks every second whether it rests, and gives freed memory back the second time.
_REST_S = 4.0
_MIB = 1 << 20


def o19(bench: Bench, served: Served) -> dict[str, Any]:
    """A bulk request runs in bounded pieces, and its memory is given back."""
    ready = read_memory(served.pid)
    started_s = time.perf_counter()
    pair = rerank(served.url, "q", ["d"])
    pair_s = time.perf_counter() - started_s
    embed(served.url, ["first"])
    time.sleep(_REST_S)
    first = read_memory(served.pid)
    embed(served.url, [words(60, first=i) for i in range(32)])
    rerank(served.url, "which", [words(60, first=i) for i in range(64)])
    time.sleep(_REST_S)
    first_bulk = read_memory(served.pid)
    writer = Writer("cases o19", "embed")
    texts = [writer.text(29) for _ in range(bench.n_texts)]
    texts[bench.n_texts // 2] = writer.text(1999)
    ranker = Writer("cases o19", "rerank")
    with MemorySampler(served.pid) as sampler:
        started_s = time.perf_counter()
        vectors = embed(served.url, texts).vectors
        embed_s = time.perf_counter() - started_s
        scores = rerank(served.url, "which of these", [ranker.text(30) for _ in range(500)]).scores
    cpu_before_s, waited_s = cpu_s(served.pid), bench.idle_s
    time.sleep(waited_s)
    idle_share = (cpu_s(served.pid) - cpu_before_s) / waited_s
    idle = read_memory(served.pid)
    added = (sampler.peak.private_bytes - first.private_bytes) / _MIB
    return {
        "pair_of_five_tokens_s": pair_s,
        "its_tokens": pair.record["usage"]["prompt_tokens"],
        "texts": bench.n_texts,
        "text_tokens": "30 each, one of 2,000",
        "pairs": 500,
        "embed_seconds": embed_s,
        "private_mib": {
            "ready": ready.private_bytes / _MIB,
            "after_first_requests": first.private_bytes / _MIB,
            "after_first_bulk": first_bulk.private_bytes / _MIB,
            "peak": sampler.peak.private_bytes / _MIB,
            "after_idling": idle.private_bytes / _MIB,
        },
        "resident_peak_mib": sampler.peak.resident_bytes / _MIB,
        "peak_added_mib": added,
        "idle_over_first": idle.private_bytes / first.private_bytes,
        "idle_over_first_bulk": idle.private_bytes / first_bulk.private_bytes,
        "idle_s": waited_s,
        "idle_cpu_share_of_a_core": idle_share,
        "control_group": "none: memory was sampled, not capped",
        "passed": bool(
            vectors.shape == (bench.n_texts, 1024)
            and np.isfinite(vectors).all()
            and np.isfinite(scores).all()
            and len(scores) == 500
            and idle.private_bytes <= 1.15 * first.private_bytes
            and pair_s < 2
        ),
    }
