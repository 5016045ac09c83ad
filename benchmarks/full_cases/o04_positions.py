"""O04: position i is text i."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.full_cases.asking import embed, rerank
from benchmarks.workloads import Writer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.full_cases.bench import Bench
    from benchmarks.served import Served


__all__ = ["o04"]


def _with_duplicates(items: list[str], rng: random.Random) -> list[str]:
    for _ in range(5):
        items.insert(rng.randrange(len(items)), rng.choice(items))
    return items


def _texts(task: str, lengths: Sequence[int], seed: str) -> list[str]:
    """Return distinct texts of so many content tokens, shuffled."""
    writer, rng = Writer(f"cases {seed}", task), random.Random(seed)
    texts = [writer.text(n) if n else "" for n in lengths]
    rng.shuffle(texts)
    return list(dict.fromkeys(texts))


def o04(bench: Bench, served: Served) -> dict[str, Any]:
    """Position i is text i, in several microbatches and beside seven other clients."""
    rng = random.Random(4)
    texts = _with_duplicates(_texts("embed", range(0, 257, bench.length_step), "texts"), rng)
    documents = _with_duplicates(_texts("rerank", range(1, 258), "documents"), rng)
    query = "which of these is meant"
    started_s = time.perf_counter()
    vectors, scores = embed(served.url, texts).vectors, rerank(served.url, query, documents).scores
    batch_s = time.perf_counter() - started_s
    known = {text: embed(served.url, [text]).vectors[0] for text in dict.fromkeys(texts)}
    alone = np.stack([known[text] for text in texts])
    ranked = {document: rerank(served.url, query, [document]).scores[0] for document in dict.fromkeys(documents)}
    distinct = [texts.index(text) for text in known]
    best = (vectors[distinct] @ alone[distinct].T).argmax(axis=1)
    own = [_texts("embed", range(1 + i, 65, 8), f"client {i}") for i in range(8)]
    expected = [[embed(served.url, [text]).vectors[0].tobytes() for text in mine] for mine in own]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda mine: embed(served.url, mine).vectors, own))
    together = [[row.tobytes() for row in rows] for rows in found]
    sample = [i for i in distinct if 1 < len(texts[i]) < 700][:5]
    against = bench.outcome(bench.reference([texts[i] for i in sample]), vectors[sample])
    pairs = bench.outcome(bench.reference([(query, document) for document in documents[:5]]), scores[:5])
    record = {
        "texts": len(texts),
        "content_tokens": f"0 to 256 in steps of {bench.length_step}, and 5 duplicates",
        "documents": len(documents),
        "batch_seconds": batch_s,
        "different_vectors": int((vectors != alone).any(axis=1).sum()),
        "different_scores": int((scores != np.array([ranked[document] for document in documents])).sum()),
        "best_match_is_own": bool((best == np.arange(len(distinct))).all()),
        "clients_at_once": 8,
        "their_texts": sum(map(len, own)),
        "theirs_equal": together == expected,
        "vectors_against_pytorch": against,
        "scores_against_pytorch": pairs,
    }
    good = not record["different_vectors"] and not record["different_scores"] and record["best_match_is_own"]
    close = against["within_tolerance"] and pairs["within_tolerance"]
    return record | {"passed": bool(good and record["theirs_equal"] and close)}
