"""O15: one failing item stops nobody else."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from benchmarks.full_cases.asking import ask, embed
from samevec.runtime.sessions.base import Session

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from benchmarks.full_cases.bench import Bench
    from samevec.runtime.collate import Features

    Array = NDArray[np.float32]

__all__ = ["o15"]


class _Poisoned(Session):
    """A session that fails whenever one row is among those it is given, or always."""

    def __init__(self, session: Any, poison: tuple[int, ...]) -> None:
        self._session, self._poison = session, poison
        self.broken = False

    @property
    def provider(self) -> str:
        return str(self._session.provider)

    def run(self, features: Features, **how: Any) -> Array:
        self._look(features)
        found: Array = self._session.run(features, **how)
        return found

    def _look(self, features: Features) -> None:
        rows = zip(features.input_ids, features.attention_mask, strict=True)
        if self.broken or any(tuple(ids[mask == 1].tolist()) == self._poison for ids, mask in rows):
            raise RuntimeError("as asked")


def o15(bench: Bench) -> dict[str, Any]:
    """One failing item stops nobody else; a dead engine shows."""
    model = bench.embedder
    poison = "this text cannot be computed"
    session = _Poisoned(model.engine.session, model.tokenize([poison])[0].ids)
    spoilt = replace(model, engine=replace(model.engine, session=session))
    good = [f"valid text number {i}" for i in range(120)]
    known = {text: model.encode([text])[0].tobytes() for text in good}
    with bench.limited(spoilt, max_batch_items=1000) as (url, _):
        started_s = time.perf_counter()
        with ThreadPoolExecutor(21) as pool:
            bad, *first = pool.map(lambda text: embed(url, [text]), [poison, *good[:20]])
        bad_s = time.perf_counter() - started_s
        beyond = [embed(url, ["x"] * 1001), ask(url, "/v1/embeddings", {"input": "x " * 500}, timeout_s=0.001)]
        with ThreadPoolExecutor(10) as pool:
            after = list(pool.map(lambda text: embed(url, [text]), good[20:]))
        right = sum(
            answer.vectors[0].tobytes() == known[text] for text, answer in zip(good, first + after, strict=True)
        )
        ready = ask(url, "/ready").status
        session.broken = True
        broken = embed(url, ["anything"]).status
        started_s = time.perf_counter()
        while ask(url, "/ready").status != 503 and time.perf_counter() - started_s < 10:
            time.sleep(0.02)
        dead_s = time.perf_counter() - started_s
        refused = {embed(url, ["anything"]).status for _ in range(5)}
    return {
        "bad_item": {"status": bad.status, "message": bad.message, "seconds": bad_s},
        "beyond_every_limit": [answer.status for answer in beyond],
        "valid_beside_and_after": len(good),
        "right": right,
        "ready_after": ready,
        "dead": {"first_status": broken, "not_ready_after_s": dead_s, "then": sorted(refused)},
        "passed": (
            bad.status == 500
            and bad.message == "input[0]: could not be computed: RuntimeError"
            and [answer.status for answer in beyond] == [413, 504]
            and (right, ready, refused) == (len(good), 200, {503})
            and dead_s < 2
        ),
    }
