"""What is kept of a verdict: a receipt for every full gate, for a quick one only when it failed."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from parity_records import make_binding
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import models, pre_tokenizers, processors

from samevec import gate as prove_module
from samevec.gate import prove
from samevec.lock import load_lock
from samevec.parity.cases.builtin import builtin_cases
from samevec.parity.receipt import gate_state
from samevec.parity.reference.file import CapturedRow, Reference
from samevec.parity.tokens import tokenize_cases
from samevec.runtime.engine import Engine
from samevec.runtime.providers.profiles import Profile
from samevec.runtime.reranker import Reranker
from samevec.runtime.sessions.fake import FakeSession
from samevec.runtime.tokenization import Tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from samevec.runtime.collate import Features

LOCK = load_lock("toy")
ENTRY = LOCK.model("toy-modernbert-reranker")
PROFILE = Profile(name="exact", provider=FakeSession.provider, graph_form="none", bit_identical_groupings=True)
BINDING = make_binding(
    model=ENTRY.name, profile="exact", lock_entry_digest=ENTRY.digest, provider="Fake", onnxruntime_version="1.32.0"
)


class ShiftedSession(FakeSession):
    """Every logit off by a constant."""

    def run(self, features: Features, **how: Any) -> NDArray[np.float32]:
        return super().run(features, **how) + np.float32(0.5)


def make_model(session: FakeSession) -> Reranker:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = RawTokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)} | {"<s>": 256}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B <s>", special_tokens=[("<s>", 256)]
    )
    engine = Engine(session=session, width=1, max_rows=64)
    return Reranker(entry=ENTRY, tokenizer=Tokenizer(raw, 2048), engine=engine)


def make_reference() -> Reference:
    model, cases = make_model(FakeSession(1)), builtin_cases("rerank")
    rows = []
    for row in tokenize_cases(model, cases):
        raw = FakeSession(1).row(list(row.ids))
        rows.append(CapturedRow(row.ids, raw, np.atleast_1d(model.finish(raw[None]))))
    return Reference.from_rows(
        rows, model=ENTRY.name, case_set=cases, lock_entry_digest=ENTRY.digest, prompts={}, toolchain={}
    )


REFERENCE = make_reference()


@dataclasses.dataclass(frozen=True)
class FakeManifest:
    samevec_version: str = "0.1.0"


@dataclasses.dataclass(frozen=True)
class FakeArtifact:
    digest: str = "sha256:a"
    manifest: FakeManifest = FakeManifest()


@dataclasses.dataclass(frozen=True)
class FakeCandidate:
    model: Reranker
    entry: Any = ENTRY
    artifact: Any = FakeArtifact()
    profile: Profile = PROFILE
    home: Any = None
    export_command: str = "samevec export"
    answers: Any = None


@pytest.fixture
def receipts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(prove_module, "reference_of", lambda _candidate: REFERENCE)
    monkeypatch.setattr(prove_module, "binding_of", lambda *_: BINDING)
    monkeypatch.setattr(prove_module, "receipt_directories", lambda *_: [tmp_path])
    return tmp_path


def run(session: FakeSession, *, day: int = 1, **options: Any) -> Any:
    candidate: Any = FakeCandidate(make_model(session))
    now = datetime(2020, 1, day, tzinfo=UTC)
    return prove(candidate, tolerance=LOCK.tolerance, now=lambda: now, **options)


def test_a_full_gate_writes_a_receipt_whatever_the_outcome(receipts: Path) -> None:
    for day, session, state in ((1, FakeSession(1), "passed"), (2, ShiftedSession(1), "failed")):
        assert run(session, day=day).artifact_digest == "sha256:a"
        assert gate_state([receipts], BINDING).state == state


def test_a_quick_gate_that_passes_proves_nothing(receipts: Path) -> None:
    assert run(FakeSession(1), quick=True).passed
    assert list(receipts.iterdir()) == []
    assert gate_state([receipts], BINDING).state == "missing"


def test_a_quick_gate_that_fails_ends_an_older_leave_to_serve(receipts: Path) -> None:
    run(FakeSession(1))
    assert gate_state([receipts], BINDING).state == "passed"
    assert not run(ShiftedSession(1), day=2, quick=True).passed
    found = gate_state([receipts], BINDING)
    assert found.state == "failed"
    assert found.receipt is not None
    assert found.receipt.summary["quick"] is True
    assert run(FakeSession(1), day=3, quick=True).passed
    assert gate_state([receipts], BINDING).state == "failed"  # only a full gate opens it again
    run(FakeSession(1), day=4)
    assert gate_state([receipts], BINDING).state == "passed"


def test_a_live_reference_that_differs_fails_the_receipt(receipts: Path) -> None:
    assert run(FakeSession(1), live=REFERENCE).passed
    raw = REFERENCE.raw + np.float32(0.01)
    verdict = run(FakeSession(1), day=2, live=dataclasses.replace(REFERENCE, raw=raw))
    assert any(failure.startswith("logits/stored_vs_live: ") for failure in verdict.failures)
    assert gate_state([receipts], BINDING).state == "failed"


def test_a_receipt_leaves_out_what_only_plots_need(receipts: Path) -> None:
    run(FakeSession(1))
    receipt = gate_state([receipts], BINDING).receipt
    assert receipt is not None
    assert {"row_errors", "histograms"}.isdisjoint(receipt.summary)
    assert receipt.summary["code_digest"].startswith("sha256:")
    assert len(receipt.summary["worst_rows"]) == 10
