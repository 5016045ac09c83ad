"""O16: settings of one request never reach another."""

from __future__ import annotations

import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.full_cases.asking import Answer, embed, rerank, words
from benchmarks.full_cases.bench import LIMIT_TOKENS, Bench, shortened

__all__ = ["o16"]


def o16(bench: Bench) -> dict[str, Any]:
    """Settings of one request never reach another: 32 threads, truncation on and off, embed and rerank."""
    texts = [words(n, first=i) for i, n in enumerate(random.Random(16).choices(range(1, 150), k=60))]
    with bench.limited(shortened(bench.embedder), shortened(bench.reranker)) as (url, _):

        def serial(text: str) -> dict[str, Any]:
            return {kind: {cut: _essence(one(kind, text, truncate=cut)) for cut in (True, False)} for kind in kinds}

        def one(kind: str, text: str, *, truncate: bool) -> Answer:
            if kind == "embed":
                return embed(url, [text], truncate=truncate)
            return rerank(url, "which", [text], truncate=truncate)

        kinds = ("embed", "rerank")
        known = {text: serial(text) for text in texts}

        def one_thread(seed: int) -> list[tuple[int, bool]]:
            rng, seen = random.Random(seed), []
            for _ in range(bench.threads_requests):
                text, truncate, kind = rng.choice(texts), rng.random() < 0.5, rng.choice(kinds)
                answer = one(kind, text, truncate=truncate)
                seen.append((answer.status, _essence(answer) != known[text][kind][truncate]))
            return seen

        started_s = time.perf_counter()
        with ThreadPoolExecutor(32) as pool:
            seen = [pair for share in pool.map(one_thread, range(32)) for pair in share]
        seconds = time.perf_counter() - started_s
    counts = Counter(status for status, _ in seen)
    wrong = sum(differs for _, differs in seen)
    return {
        "limit_tokens": LIMIT_TOKENS,
        "threads": 32,
        "requests_each": bench.threads_requests,
        "statuses": {str(status): n for status, n in sorted(counts.items())},
        "unlike_serial": wrong,
        "seconds": seconds,
        "passed": wrong == 0 and set(counts) == {200, 400},
    }


def _essence(answer: Answer) -> Any:
    """Return what must be the same each time: bits and usage, or the refusal."""
    if answer.status != 200:
        return answer.status, answer.message
    values = answer.vectors if "data" in answer.record else answer.scores
    return answer.status, values.tobytes(), answer.record["usage"]["prompt_tokens"]
