"""Models with a fake session, and the reference they are equal to, for tests of the ranking check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import models, pre_tokenizers, processors

from samevec.lock import load_lock
from samevec.parity.cases.builtin import CaseSet, PairCase, TextCase
from samevec.parity.rankings.retrieval import builtin_fixture, fixture_cases
from samevec.parity.reference.file import CapturedRow, Reference, RetrievalReference
from samevec.runtime.embedder import Embedder
from samevec.runtime.engine import Engine
from samevec.runtime.reranker import Reranker
from samevec.runtime.sessions.fake import FakeSession
from samevec.runtime.tokenization import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from samevec.runtime.collate import Features

    Model = Embedder | Reranker
    Wrong = Callable[[NDArray[np.float32], Features], NDArray[np.float32]]

WIDTH = 384
LOCK = load_lock("toy")
FIXTURE = builtin_fixture()


class WrongSession(FakeSession):
    """A FakeSession whose output is changed by a function of output and features."""

    def __init__(self, width: int, wrong: Wrong) -> None:
        super().__init__(width)
        self._wrong = wrong

    def run(self, features: Features, **how: Any) -> NDArray[np.float32]:
        return self._wrong(super().run(features, **how), features)


def make_model(task: str, session: FakeSession | None = None) -> Model:
    raw = RawTokenizer(
        models.BPE(vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[])
    )
    raw.add_special_tokens(["<sep>"])
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.post_processor = processors.TemplateProcessing(
        single="$A <sep>", pair="<sep> $A <sep> $B <sep>", special_tokens=[("<sep>", 256)]
    )
    entry = next(entry for entry in LOCK.models if entry.task == task)
    width = WIDTH if task == "embed" else 1
    session = session or FakeSession(width)
    engine = Engine(session=session, width=session.width, max_rows=32)
    kind = Embedder if task == "embed" else Reranker
    return kind(entry=entry, tokenizer=Tokenizer(raw, 2048), engine=engine)


def make_reference(task: str) -> Reference:
    """Return what a FakeSession gives for the fixture, as the reference."""
    model = make_model(task)
    session = cast("FakeSession", model.engine.session)
    cases = fixture_cases(FIXTURE, task, prompts=model.entry.prompts)
    ids: list[tuple[int, ...]] = []
    for case in cases.cases:
        if isinstance(model, Embedder):
            ids += [row.ids for row in model.tokenize([cast("TextCase", case).text], prompt=cast("Any", case).prompt)]
        else:
            ids += [row.ids for row in model.tokenize([(cast("PairCase", case).query, cast("Any", case).document)])]
    rows = []
    for one in ids:
        raw = session.row(list(one))[None]
        rows.append(CapturedRow(one, raw[0], np.atleast_1d(model.finish(raw)[0])))
    small = CaseSet(task=cases.task, texts=cases.texts[:1], pairs=cases.pairs[:1])
    return Reference.from_rows(
        rows[:1],
        model=model.name,
        case_set=small,
        lock_entry_digest=model.entry.digest,
        prompts={},
        toolchain={},
        retrieval=RetrievalReference.from_rows(rows, fixture_digest=FIXTURE.digest, task=task),
    )


REFERENCES = {task: make_reference(task) for task in ("embed", "rerank")}
