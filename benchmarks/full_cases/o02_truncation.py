"""O02: truncation keeps the terminal token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.full_cases.asking import embed, words
from benchmarks.full_cases.bench import LIMIT_TOKENS, Bench, shortened
from benchmarks.served import FrameClient, Served

if TYPE_CHECKING:
    from pathlib import Path


__all__ = ["o02"]


def o02(bench: Bench) -> dict[str, Any]:
    """Truncation keeps the terminal token; without it, limit and count are told."""
    limit = LIMIT_TOKENS
    sizes = {limit - 1: 62, limit: 63, limit + 1: 64, 2 * limit: 127, "100,000 characters": 19_000}
    texts = [words(n) for n in sizes.values()]
    assert len(texts[-1]) >= 100_000
    with bench.limited(shortened(bench.embedder)) as (url, path):
        answer = embed(url, texts)
        alone = np.concatenate([embed(url, [text]).vectors for text in texts[:2]])
        counts = [embed(url, [text]).record["usage"]["prompt_tokens"] for text in texts]
        refusals = {str(size): embed(url, [text], truncate=False) for size, text in zip(sizes, texts, strict=True)}
        framed = FrameClient(_at(path)).embed(texts)
    reference = bench.outcome(bench.reference(texts[:2]), alone)
    expected = alone[[0, 1, 1, 1, 1]]
    told = {size: refusal.message for size, refusal in refusals.items() if refusal.status == 400}
    stated = all(f"the limit is {limit}" in message for message in told.values())
    counted = [message.split(": ")[1].split()[0] for message in told.values()]
    return {
        "limit_tokens": limit,
        "usage": counts,
        "equal_bits_http": answer.vectors.tobytes() == expected.tobytes(),
        "equal_bits_socket": framed.tobytes() == expected.tobytes(),
        "against_pytorch": reference,
        "refused": told,
        "passed": (
            answer.vectors.tobytes() == expected.tobytes() == framed.tobytes()
            and reference["within_tolerance"]
            and counts == [limit - 1, *[limit] * 4]
            and answer.record["usage"]["prompt_tokens"] == sum(counts)
            and stated
            and counted == [str(limit + 1), str(2 * limit), str(19_001)]
        ),
    }


def _at(path: Path) -> Served:
    """Return what a FrameClient needs to know."""
    return Served(pid=0, url="", socket_path=path, ready_s=0.0, process=None)  # type: ignore[arg-type]
