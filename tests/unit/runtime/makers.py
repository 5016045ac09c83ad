"""Rows, engines and models for the runtime's tests: fake sessions, real toy tokenizers."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samevec.export.toy.checkpoint import TOY_EMBEDDER, TOY_RERANKER, build_toy
from samevec.lock import load_lock
from samevec.runtime.embedder import Embedder
from samevec.runtime.engine import Engine
from samevec.runtime.reranker import Reranker
from samevec.runtime.rows import TokenRow
from samevec.runtime.sessions.fake import FakeSession
from samevec.runtime.tokenization import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from samevec.runtime.collate import Features


@functools.cache
def toy_tokenizer_path(name: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="samevec-test-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    build_toy(name, folder)
    return folder / "tokenizer.json"


def toy_tokenizer(name: str, *, max_tokens: int = 2048, type_ids: bool = False) -> Tokenizer:
    return Tokenizer.from_file(toy_tokenizer_path(name), max_tokens=max_tokens, type_ids=type_ids)


def rows(lengths: Sequence[int], *, first_id: int = 10) -> list[TokenRow]:
    """Distinct rows of these lengths."""
    return [TokenRow((first_id + i, *range(1, n))) for i, n in enumerate(lengths)]


def fake_engine(session: FakeSession | None = None, **limits: Any) -> Engine:
    session = session or FakeSession()
    return Engine(session=session, width=session.width, **limits)


def embedder(session: FakeSession | None = None, **limits: Any) -> Embedder:
    entry = load_lock("toy").model(TOY_EMBEDDER)
    session = session or FakeSession(entry.dimensions or 0)
    return Embedder(
        entry=replace(entry, dimensions=session.width, matryoshka_min_dimensions=min(4, session.width)),
        tokenizer=toy_tokenizer(TOY_EMBEDDER, max_tokens=entry.max_tokens),
        engine=fake_engine(session, **limits),
    )


def reranker(session: FakeSession | None = None, **limits: Any) -> Reranker:
    entry = load_lock("toy").model(TOY_RERANKER)
    return Reranker(
        entry=entry,
        tokenizer=toy_tokenizer(TOY_RERANKER, max_tokens=entry.max_tokens),
        engine=fake_engine(session or FakeSession(1), **limits),
    )


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def passes(self, seconds: float) -> Callable[[Features], None]:
        def before_run(features: Features) -> None:
            self.now_s += seconds

        return before_run
