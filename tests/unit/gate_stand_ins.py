"""Models with a fake session, the reference they are equal to, and ways of being wrong, for tests of the gate."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import models, pre_tokenizers, processors

from samevec.lock import load_lock
from samevec.parity.cases.builtin import builtin_cases
from samevec.parity.cases.texts import letters
from samevec.parity.gate import run_gate
from samevec.parity.limit import LimitCase, ids_digest
from samevec.parity.reference.file import CapturedRow, Reference
from samevec.parity.sweep import capture_sweep, plan_sweep
from samevec.parity.tokens import tokenize_cases
from samevec.progress import SilentProgress
from samevec.runtime.embedder import Embedder
from samevec.runtime.engine import DEFAULT_ROWS, Engine
from samevec.runtime.providers.profiles import Profile
from samevec.runtime.reranker import Reranker
from samevec.runtime.sessions.fake import FakeSession
from samevec.runtime.tokenization import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from samevec.parity.cases.builtin import CaseSet
    from samevec.parity.reference.file import SweepReference
    from samevec.parity.verdict import Verdict
    from samevec.runtime.collate import Features
    from samevec.runtime.rows import TokenRow
    from samevec.runtime.sessions.base import Session

    Model = Embedder | Reranker
    Wrong = Callable[[NDArray[np.float32], Features], NDArray[np.float32]]

WIDTH = 384
LOCK = load_lock("toy")
EXACT = Profile(name="exact", provider=FakeSession.provider, graph_form="none", bit_identical_groupings=True)
LOOSE = dataclasses.replace(EXACT, name="loose", bit_identical_groupings=False)


class WrongSession(FakeSession):
    """A FakeSession whose output is changed by a function of output and features."""

    def __init__(self, width: int, wrong: Wrong) -> None:
        super().__init__(width)
        self._wrong = wrong

    def run(self, features: Features, **how: Any) -> NDArray[np.float32]:
        return self._wrong(super().run(features, **how), features)


class DeafEngine(Engine):
    """An engine that ignores what the caller asks for: `max_rows` run together."""

    def run_rows(self, rows: Sequence[TokenRow], **asked: Any) -> NDArray[np.float32]:
        return Engine.run_rows(self, rows, batch_size=self.max_rows, recorder=asked.get("recorder"))


def raw_tokenizer(*, end: bool = True) -> RawTokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: i for i, symbol in enumerate(alphabet)} | {"<end>": 256, "<sep>": 257}
    tokenizer = RawTokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    single = "$A <end>" if end else "<sep> $A"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair="<sep> $A <sep> $B <sep>", special_tokens=[("<end>", 256), ("<sep>", 257)]
    )
    return tokenizer


def make_model(task: str, session: Session | None = None, *, end: bool = True) -> Model:
    entry = next(entry for entry in LOCK.models if entry.task == task)
    width = WIDTH if task == "embed" else 1
    engine = Engine(session=session or FakeSession(width), width=width, max_rows=32 if task == "embed" else 64)
    kind = Embedder if task == "embed" else Reranker
    return kind(entry=entry, tokenizer=Tokenizer(raw_tokenizer(end=end), 2048), engine=engine)


def make_reference(task: str, case_set: CaseSet | None = None) -> Reference:
    """Return what a FakeSession gives, as the reference."""
    model = make_model(task)
    cases = case_set or builtin_cases(task, prompts=model.entry.prompts)
    session = FakeSession(WIDTH if task == "embed" else 1)
    rows = []
    for row in tokenize_cases(model, cases):
        raw = session.row(list(row.ids))[None]
        rows.append(CapturedRow(row.ids, raw[0], np.atleast_1d(model.finish(raw)[0])))
    return Reference.from_rows(
        rows, model=model.name, case_set=cases, lock_entry_digest=model.entry.digest, prompts={}, toolchain={}
    )


def make_sweep(task: str, reference: Reference) -> SweepReference:
    """Return what a FakeSession gives beside the cases."""
    model = make_model(task)
    plan = plan_sweep(longest_tokens=max(map(len, reference.ids)), max_rows=DEFAULT_ROWS[task])
    return capture_sweep(model, plan, limit=limit_cases(task), progress=SilentProgress())


def limit_cases(task: str) -> tuple[LimitCase, LimitCase]:
    """Return a text of exactly the limit and one a token longer: a token a character, and the special ones."""
    raw, limit = raw_tokenizer(), make_model(task).entry.max_tokens
    before, after, n_beside = (
        ([], [256], 1) if task == "embed" else ([257, *raw.encode("a", add_special_tokens=False).ids, 257], [257], 4)
    )
    cases = []
    for n_tokens in (limit, limit + 1):
        content = raw.encode(letters(limit)[: n_tokens - n_beside], add_special_tokens=False).ids
        ids = [*before, *content[: limit - n_beside], *after]
        cases.append(LimitCase(n_tokens - n_beside, n_tokens, ids_digest(ids)))
    return cases[0], cases[1]


REFERENCES = {task: make_reference(task) for task in ("embed", "rerank")}


def gate(
    task: str, wrong: Wrong | None = None, *, profile: Profile = EXACT, swept: bool = False, **options: Any
) -> Verdict:
    width = WIDTH if task == "embed" else 1
    session = FakeSession(width) if wrong is None else WrongSession(width, wrong)
    model = make_model(task, session)
    references = SWEPT if swept else REFERENCES
    return run_gate(model, references[task], tolerance=LOCK.tolerance, profile=profile, **options)


SWEPT = {task: dataclasses.replace(found, sweep=make_sweep(task, found)) for task, found in REFERENCES.items()}


def swap_rows(raw: NDArray[np.float32], _features: Features) -> NDArray[np.float32]:
    return raw if len(raw) < 2 else raw[[1, 0, *range(2, len(raw))]]


def one_component(raw: NDArray[np.float32], _features: Features) -> NDArray[np.float32]:
    raw[:, -1] += np.float32(0.01)
    return raw


def noise_by_row(raw: NDArray[np.float32], _features: Features) -> NDArray[np.float32]:
    return raw + (np.arange(len(raw), dtype=np.float32) * np.float32(0.01))[:, None]


def padding_leaks(raw: NDArray[np.float32], features: Features) -> NDArray[np.float32]:
    padding = features.shape[1] - features.attention_mask.sum(axis=1)
    return raw + np.where(padding > 3, 0.05, 0).astype(np.float32)[:, None]
