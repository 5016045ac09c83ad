"""The reference of the toy pair: sentence-transformers' own numbers, the pinned tokenizer's own ids."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tokenizers import Tokenizer as RawTokenizer

from samevec.errors import ExportError
from samevec.export.toy.checkpoint import TOY_EMBEDDER, TOY_RERANKER, build_toy
from samevec.lock import load_lock
from samevec.parity.cases.builtin import CaseSet, builtin_cases
from samevec.parity.gate import run_gate
from samevec.parity.reference.baseline import capture_live, run_baseline
from samevec.parity.reference.pytorch import ReferenceModel, capture_reference, load_reference_model
from samevec.parity.reference.torch_session import TorchSession
from samevec.parity.tokens import tokenize_cases
from samevec.runtime.embedder import Embedder
from samevec.runtime.engine import Engine
from samevec.runtime.providers.profiles import Profile
from samevec.runtime.reranker import Reranker
from samevec.runtime.tokenization import Tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from samevec.parity.reference.file import Reference
    from samevec.parity.verdict import Verdict
    from samevec.runtime.collate import Features

pytestmark = pytest.mark.model
pytest.importorskip("sentence_transformers", reason="needs the export extra")

LOCK = load_lock("toy")
TORCH = Profile(name="torch", provider="PyTorch", graph_form="none", pad_to_multiple=1)


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("toys")
    for name in (TOY_EMBEDDER, TOY_RERANKER):
        build_toy(name, directory / name)
    return directory


@pytest.fixture(scope="module")
def embedder(snapshots: Path) -> ReferenceModel:
    return load_reference_model(snapshots / TOY_EMBEDDER, LOCK.model(TOY_EMBEDDER))


@pytest.fixture(scope="module")
def reranker(snapshots: Path) -> ReferenceModel:
    return load_reference_model(snapshots / TOY_RERANKER, LOCK.model(TOY_RERANKER))


def some_cases(task: str) -> CaseSet:
    """Return every third case, without the very long ones."""
    cases = builtin_cases(task, prompts=("query", "document"))
    texts = [case for case in cases.texts[::3] if len(case.text) < 300]
    pairs = [case for case in cases.pairs[::3] if len(case.query + case.document) < 300]
    return dataclasses.replace(cases, texts=tuple(texts), pairs=tuple(pairs))


def candidate(model: ReferenceModel, snapshots: Path, session: Any = None) -> Embedder | Reranker:
    entry = model.entry
    width = entry.dimensions or 1
    engine = Engine(session=session or TorchSession(model), width=width, pad_to_multiple=1)
    tokenizer = Tokenizer.from_file(snapshots / entry.name / "tokenizer.json", max_tokens=entry.max_tokens)
    kind = Embedder if entry.task == "embed" else Reranker
    return kind(entry=entry, tokenizer=tokenizer, engine=engine)


def captured(model: ReferenceModel) -> tuple[CaseSet, Reference]:
    cases = some_cases(model.entry.task)
    return cases, capture_reference(model, cases, toolchain=LOCK.toolchain.versions)


@pytest.mark.parametrize("task", ["embed", "rerank"])
def test_captured_ids_are_the_pinned_tokenizers(
    task: str, embedder: ReferenceModel, reranker: ReferenceModel, snapshots: Path
) -> None:
    model = embedder if task == "embed" else reranker
    cases = builtin_cases(task, prompts=model.entry.prompts)
    rows = model.capture_cases(cases)
    raw = RawTokenizer.from_file(str(snapshots / model.entry.name / "tokenizer.json"))
    raw.no_padding()
    n_checked = 0
    for case, row in zip(cases.cases, rows, strict=True):
        most_tokens = case.max_tokens or model.entry.max_tokens  # the longest case exceeds the toy's own limit
        raw.enable_truncation(most_tokens)
        assert len(row.ids) <= most_tokens
        n_checked += case.max_tokens is not None
        prompt = model.entry.prompts.get(getattr(case, "prompt", None) or "", "")
        text = getattr(case, "text", None)
        pair: Any = case
        encoding = raw.encode(prompt + text) if text is not None else raw.encode(pair.query, pair.document)
        assert row.ids == tuple(encoding.ids), case.tag
    assert n_checked >= 3
    ours = tokenize_cases(candidate(model, snapshots), cases)
    assert [row.ids for row in ours] == [row.ids for row in rows]


def test_finals_are_what_sentence_transformers_returns(embedder: ReferenceModel) -> None:
    texts = ["The capital of China is Beijing.", "", "a b c"]
    rows = embedder.capture_texts(texts, prompt="query")
    for text, row in zip(texts, rows, strict=True):
        np.testing.assert_array_equal(row.final, embedder.pipeline.encode([text], prompt_name="query")[0])
        assert row.raw.shape == (384,)
        np.testing.assert_allclose(row.raw / np.linalg.norm(row.raw), row.final, rtol=1e-5, atol=1e-7)
        assert not np.allclose(row.raw, row.final)


def test_scores_are_what_the_cross_encoder_returns(reranker: ReferenceModel) -> None:
    pairs = [("capital of China", "Beijing"), ("", ""), ("x", "y " * 100)]
    for pair, row in zip(pairs, reranker.capture_pairs(pairs), strict=True):
        np.testing.assert_array_equal(row.final, reranker.pipeline.predict([pair]))
        np.testing.assert_allclose(1 / (1 + np.exp(-row.raw)), row.final, rtol=1e-5)


def test_a_limit_for_one_call_does_not_stay(embedder: ReferenceModel) -> None:
    cut = embedder.capture_texts(["a" * 40], max_tokens=16)[0]
    assert len(cut.ids) == 16
    assert cut.ids[-1] == embedder.capture_texts([""])[0].ids[-1]  # the terminal token is kept
    assert len(embedder.capture_texts(["a" * 40])[0].ids) == 41


def test_capturing_twice_gives_equal_bits(embedder: ReferenceModel) -> None:
    first, second = embedder.capture_texts(["some text", "some text"])
    assert first.raw.tobytes() == second.raw.tobytes()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pooling": "mean"}, "pooling is lasttoken, the lock says mean"),
        ({"normalize": False}, "it normalises, the lock says otherwise"),
        ({"max_tokens": 4096}, "it takes 2048 tokens, the lock says 4096"),
        ({"prompts": {"query": "Q: "}}, "the lock says 'Q: '"),
    ],
)
def test_files_that_are_not_what_the_lock_says_are_refused(snapshots: Path, change: dict[str, Any], words: str) -> None:
    entry = dataclasses.replace(LOCK.model(TOY_EMBEDDER), **change)
    with pytest.raises(ExportError) as caught:
        load_reference_model(snapshots / TOY_EMBEDDER, entry)
    assert words in str(caught.value)


def test_another_activation_is_refused(snapshots: Path) -> None:
    entry = dataclasses.replace(LOCK.model(TOY_RERANKER), activation="identity")
    with pytest.raises(ExportError, match="activation is sigmoid, the lock says identity"):
        load_reference_model(snapshots / TOY_RERANKER, entry)


def gate(model: ReferenceModel, snapshots: Path, session: Any = None) -> Verdict:
    cases, reference = captured(model)
    return run_gate(
        candidate(model, snapshots, session),
        reference,
        tolerance=LOCK.tolerance,
        profile=TORCH,
        case_set=cases,
        repeats=1,
    )


@pytest.mark.parametrize("task", ["embed", "rerank"])
def test_the_reference_passes_against_itself_in_batches(
    task: str, embedder: ReferenceModel, reranker: ReferenceModel, snapshots: Path
) -> None:
    verdict = gate(embedder if task == "embed" else reranker, snapshots)
    assert verdict.failures == ()
    assert verdict.baseline
    assert verdict.notes[0].startswith("PyTorch itself: the baseline")


def test_the_bits_of_pytorch_itself_are_not_required(embedder: ReferenceModel, snapshots: Path) -> None:
    cases, reference = captured(embedder)
    strict = dataclasses.replace(TORCH, bit_identical_groupings=True)
    model = candidate(embedder, snapshots)
    verdict = run_gate(model, reference, tolerance=LOCK.tolerance, profile=strict, case_set=cases, repeats=1)
    assert verdict.failures == ()
    assert not any(cell.bits_required for cell in verdict.cells)


def test_a_live_reference_agrees_with_the_stored_one(snapshots: Path, embedder: ReferenceModel) -> None:
    cases, stored = captured(embedder)
    live = capture_live(embedder.entry, snapshots / embedder.entry.name, toolchain={}, case_set=cases)
    cells = run_baseline(candidate(embedder, snapshots), stored, live, tolerance=LOCK.tolerance, case_set=cases)
    assert all(cell.passed for cell in cells)
    stored_raw = next(cell for cell in cells if cell.name == "raw/stored_vs_live")
    assert stored_raw.comparison is not None
    assert stored_raw.comparison.max_abs == 0.0


class ChangedSession(TorchSession):
    """The reference with one thing done wrong: first-token pooling, or no mask."""

    def __init__(self, model: ReferenceModel, wrong: str) -> None:
        super().__init__(model)
        self._wrong = wrong

    def run(self, features: Features, **how: Any) -> NDArray[np.float32]:
        if self._wrong == "no mask":
            return super().run(
                dataclasses.replace(features, attention_mask=np.ones_like(features.attention_mask)), **how
            )
        torch = pytest.importorskip("torch")
        with torch.inference_mode():
            output = self._reference.module(**{k: torch.from_numpy(v) for k, v in features.as_feed(INPUTS).items()})
        hidden: NDArray[np.float32] = output.last_hidden_state.numpy()
        if self._wrong == "first token":
            return hidden[:, 0]
        if self._wrong == "last column":
            return hidden[:, -1]
        mask = features.attention_mask[..., None].astype(np.float32)
        pooled: NDArray[np.float32] = (hidden * mask).sum(axis=1) / mask.sum(axis=1)
        return pooled


INPUTS = ("input_ids", "attention_mask")


@pytest.mark.parametrize("wrong", ["first token", "mean", "last column"])
def test_wrong_pooling_is_refused(wrong: str, embedder: ReferenceModel, snapshots: Path) -> None:
    verdict = gate(embedder, snapshots, ChangedSession(embedder, wrong))
    failing = {cell.name for cell in verdict.cells if not cell.passed}
    assert "raw/default" in failing
    # Without padding the last column is the last token: only groupings that pad can catch it.
    assert ("raw/alone" in failing) is (wrong != "last column")


def test_a_dropped_mask_is_refused_where_there_is_padding(reranker: ReferenceModel, snapshots: Path) -> None:
    verdict = gate(reranker, snapshots, ChangedSession(reranker, "no mask"))
    failing = {cell.name for cell in verdict.cells if not cell.passed}
    assert "logits/default" in failing
    assert "logits/alone" not in failing
