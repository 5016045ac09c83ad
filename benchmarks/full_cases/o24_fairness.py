"""O24: short queries beside bulk work, crowds over the limit, huge texts."""

from __future__ import annotations

import math
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from benchmarks.full_cases.asking import WORDS, Answer, ask, embed, words
from benchmarks.served import HttpClient, Served, serving
from benchmarks.workloads import Writer

if TYPE_CHECKING:
    from benchmarks.full_cases.bench import Bench


__all__ = ["o24"]

_MAX_QUEUE = 64


def o24(bench: Bench, served: Served) -> dict[str, Any]:
    """A short query waits for one microbatch at most; over the limit all are refused alike; huge texts stop nobody."""
    queries = _beside_bulk(served)
    crowd = _over_the_limit(bench)
    huge = _huge_text(served)
    return {
        "queries_beside_bulk": queries,
        "over_the_limit": crowd,
        "huge_text": huge,
        "passed": queries["p95_over_microbatch"] <= 3 and queries["wrong"] == 0 and crowd["passed"] and huge["passed"],
    }


def _beside_bulk(served: Served) -> dict[str, Any]:
    writer = Writer("cases o24", "embed")
    budget = ask(served.url, "/info").record["models"][0]["worker"]["token_budget"]
    full = [writer.text(399) for _ in range(max(1, budget // 400))]
    walls = []
    for i in range(3):
        started_s = time.perf_counter()
        embed(served.url, [f"{text} {WORDS[i]}" for text in full])
        walls.append(time.perf_counter() - started_s)
    microbatch_s = statistics.median(walls)
    asked = [words(4, first=i) for i in range(4)]
    known = [embed(served.url, [text]).vectors.tobytes() for text in asked]
    bulk_texts = [writer.text(399) for _ in range(40)]
    over, found_s, wrong = threading.Event(), [], []

    def client(i: int) -> None:
        while not over.is_set():
            started_s = time.perf_counter()
            answer = embed(served.url, [asked[i]])
            found_s.append(time.perf_counter() - started_s)
            wrong.append(answer.vectors.tobytes() != known[i])
            over.wait(0.1)

    with ThreadPoolExecutor(4) as pool:
        clients = [pool.submit(client, i) for i in range(4)]
        started_s = time.perf_counter()
        try:
            embed(served.url, bulk_texts)
        finally:
            bulk_s = time.perf_counter() - started_s
            over.set()
        for one in clients:
            one.result()
    ordered = sorted(found_s)
    p95_s = ordered[min(len(ordered) - 1, math.ceil(0.95 * len(ordered)) - 1)]
    return {
        "bulk": "40 texts of 400 tokens in one request",
        "bulk_seconds": bulk_s,
        "microbatch": f"{len(full)} texts of 400 tokens",
        "microbatch_s": microbatch_s,
        "queries": len(found_s),
        "p50_s": statistics.median(found_s),
        "p95_s": p95_s,
        "slowest_s": ordered[-1],
        "p95_over_microbatch": p95_s / microbatch_s,
        "wrong": sum(wrong),
    }


def _over_the_limit(bench: Bench) -> dict[str, Any]:
    """500 requests at once where 64 may wait, half as a string and half as a list."""
    texts = [words(4, first=i) for i in range(500)]
    known = {text: bench.embedder.encode([text])[0].tobytes() for text in dict.fromkeys(texts)}
    with serving(bench.models, bench.profile, "--max-queue", str(_MAX_QUEUE)) as served:
        begin = threading.Barrier(500)

        def one(i: int) -> Answer:
            begin.wait()
            return embed(served.url, texts[i] if i % 2 else [texts[i]])

        with ThreadPoolExecutor(500) as pool:
            answers = list(pool.map(one, range(500)))
        after = HttpClient(served).embed([texts[0]])
    statuses = [answer.status for answer in answers]
    served_right = all(
        answer.vectors[0].tobytes() == known[text]
        for text, answer in zip(texts, answers, strict=True)
        if answer.status == 200
    )
    refused = [answer for answer in answers if answer.status != 200]
    forms = {form: sum(s == 429 for s in statuses[start::2]) for form, start in (("list", 0), ("string", 1))}
    told = all(answer.retry_after is not None and int(answer.retry_after) >= 1 for answer in refused)
    return {
        "at_once": 500,
        "max_queue": _MAX_QUEUE,
        "answered": statuses.count(200),
        "refused_429": forms,
        "longest_retry_after_s": max((int(answer.retry_after or 0) for answer in refused), default=0),
        "passed": (
            set(statuses) == {200, 429}
            and served_right
            and told
            and all(forms.values())
            and after[0].tobytes() == known[texts[0]]
        ),
    }


def _huge_text(served: Served) -> dict[str, Any]:
    """2 MB of one text, refused for its length once it is tokenised, while others ask."""
    text = words(400_000)
    with ThreadPoolExecutor(1) as pool:
        started_s = time.perf_counter()
        huge = pool.submit(embed, served.url, text, truncate=False)
        shorts_s: list[float] = []
        health_s: list[float] = []
        while not huge.done() or not shorts_s:
            begun_s = time.perf_counter()
            embed(served.url, "short")
            shorts_s.append(time.perf_counter() - begun_s)
            begun_s = time.perf_counter()
            ask(served.url, "/health")
            health_s.append(time.perf_counter() - begun_s)
        refused, seconds = huge.result(), time.perf_counter() - started_s
    return {
        "bytes": len(text),
        "status": refused.status,
        "message": refused.message,
        "seconds": seconds,
        "short_requests_meanwhile": len(shorts_s),
        "slowest_short_s": max(shorts_s),
        "slowest_health_s": max(health_s),
        "passed": refused.status == 400 and "400001 tokens" in refused.message and len(shorts_s) > 1,
    }
