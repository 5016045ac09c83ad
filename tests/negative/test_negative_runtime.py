"""Right graphs used wrongly: padding, order, token ids, prompts, activation, prefixes, provider."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
from negative_tools import (
    EMBEDDER,
    PORTABLE,
    RERANKER,
    TORCH,
    cell_of,
    graph_session,
    require_agreed,
    require_refused,
    without_end_rule,
)
from negative_torch import CausalMaskLost, LeftPadding, MaskForPoolingOnly
from parity_records import make_binding

from samevec.errors import ProviderUnavailableError, StaleReceiptError
from samevec.parity.receipt import gate_state, require_passed, write_receipt
from samevec.parity.reference.torch_session import TorchSession
from samevec.runtime.embedder import Embedder
from samevec.runtime.engine import Engine
from samevec.runtime.pooling import activate
from samevec.runtime.reranker import Reranker
from samevec.runtime.rows import TokenRow
from samevec.runtime.sessions.base import Session
from samevec.runtime.sessions.onnx import OnnxSession
from samevec.runtime.tokenization import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    from negative_tools import Toy
    from numpy.typing import NDArray

    from samevec.runtime.collate import Features

pytest_plugins = ("negative_fixtures",)
pytestmark = pytest.mark.model

RAW = {EMBEDDER: "raw", RERANKER: "logits"}
BOTH = pytest.mark.parametrize("name", [EMBEDDER, RERANKER])


@BOTH
def test_the_reference_itself_passes_in_company(name: str, toys: dict[str, Toy]) -> None:
    """The baseline of every candidate below that runs in PyTorch."""
    toy = toys[name]
    verdict = toy.judge(toy.model(TorchSession(toy.torch), pad_to_multiple=1), profile=TORCH)
    assert verdict.failures == ()


def test_left_padding_under_right_padding_pooling(embedder: Toy) -> None:
    verdict = embedder.judge(embedder.model(LeftPadding(graph_session(embedder.graph_path)), pad_to_multiple=1))
    require_agreed(verdict, "raw/alone", "raw/equal_lengths")
    require_refused(verdict, "raw/batch_8", "raw/long_among_short", by=5000)


@BOTH
def test_left_padding_alone_changes_nothing(name: str, toys: dict[str, Toy]) -> None:
    """Rotary positions are relative, and here pooling follows the mask: a gate that refused this would cry wolf."""
    toy = toys[name]
    verdict = toy.judge(toy.model(LeftPadding(TorchSession(toy.torch))), profile=TORCH)
    assert verdict.failures == ()
    long_row = cell_of(verdict, f"{RAW[name]}/long_among_short").comparison
    assert long_row is not None
    assert long_row.max_abs > 0  # it was really run another way


def test_a_dropped_mask_under_causal_attention_changes_nothing(embedder: Toy) -> None:
    """Padding on the right is behind every token that counts."""
    verdict = embedder.judge(embedder.model(MaskForPoolingOnly(embedder.torch)), profile=TORCH)
    assert verdict.failures == ()


def test_a_dropped_mask_without_causal_attention(reranker: Toy) -> None:
    """The same session around a model that looks both ways."""
    verdict = reranker.judge(reranker.model(MaskForPoolingOnly(reranker.torch), pad_to_multiple=1), profile=TORCH)
    require_agreed(verdict, "logits/alone", "logits/equal_lengths")
    require_refused(verdict, "logits/batch_8", "logits/long_among_short", by=200)


@pytest.mark.parametrize("pad_to_multiple", [1, 4])
def test_equal_length_batch_without_causal_mask(pad_to_multiple: int, embedder: Toy) -> None:
    """Padded batches and lone texts are right: only rows of equal length together show it."""
    session = CausalMaskLost(embedder.torch)
    verdict = embedder.judge(embedder.model(session, pad_to_multiple=pad_to_multiple), profile=TORCH)
    require_agreed(verdict, "raw/alone", "raw/long_among_short")
    require_refused(verdict, "raw/equal_lengths", by=3000)


class RowsSwapped(Session):
    """A session whose first two rows change places."""

    def __init__(self, session: OnnxSession) -> None:
        self._session = session

    @property
    def provider(self) -> str:
        return self._session.provider

    def run(self, features: Features, **how: Any) -> NDArray[np.float32]:
        rows = self._session.run(features, **how)
        return rows[[1, 0, *range(2, len(rows))]] if len(rows) > 1 else rows


@BOTH
def test_rows_swapped(name: str, toys: dict[str, Toy]) -> None:
    toy = toys[name]
    verdict = toy.judge(toy.model(RowsSwapped(graph_session(toy.graph_path))))
    require_agreed(verdict, f"{RAW[name]}/alone")
    require_refused(verdict, f"{RAW[name]}/batch_8", f"{RAW[name]}/equal_lengths", by=100)


class NotScattered(Engine):
    """An engine that gives rows back in the order in which they ran, longest first."""

    def run_rows(self, rows: Sequence[TokenRow], **asked: Any) -> NDArray[np.float32]:
        raw = Engine.run_rows(self, rows, **asked)
        return raw[sorted(range(len(rows)), key=lambda i: -rows[i].n_tokens)]


@BOTH
def test_rows_left_in_sorted_order(name: str, toys: dict[str, Toy]) -> None:
    toy = toys[name]
    model = toy.model()
    fields = {field.name: getattr(model.engine, field.name) for field in dataclasses.fields(Engine)}
    verdict = toy.judge(dataclasses.replace(model, engine=NotScattered(**fields)))
    require_agreed(verdict, f"{RAW[name]}/alone", f"{RAW[name]}/equal_lengths")
    require_refused(verdict, f"{RAW[name]}/default", f"{RAW[name]}/batch_8", f"{RAW[name]}/long_among_short", by=500)


class EndTokenCut(Tokenizer):
    """Adds the end token first and cuts afterwards."""

    def encode_texts(
        self,
        texts: Sequence[str],
        *,
        prompt: str = "",
        max_tokens: int | None = None,
        truncate: bool = True,
        field: str = "input",
    ) -> list[TokenRow]:
        rows = Tokenizer.encode_texts(self, texts, prompt=prompt, truncate=truncate, field=field)
        return [TokenRow(row.ids[: max_tokens or self.max_tokens]) for row in rows]


def test_end_token_lost_in_truncation(embedder: Toy) -> None:
    model = embedder.model()
    tokenizer = EndTokenCut(model.tokenizer.raw, model.max_tokens)
    verdict = embedder.judge(dataclasses.replace(model, tokenizer=tokenizer))
    require_refused(verdict, "ids/together", "ids/alone", "raw/alone", by=500)
    found = cell_of(verdict, "ids/together").comparison
    assert found is not None
    assert {embedder.cases.cases[row].max_tokens for row in found.failing_rows} == {16}


class StraySpace(Tokenizer):
    """Puts a space after a prompt."""

    def encode_texts(
        self, texts: Sequence[str], *, prompt: str = "", max_tokens: int | None = None, **settings: Any
    ) -> list[TokenRow]:
        return Tokenizer.encode_texts(self, texts, prompt=prompt and prompt + " ", max_tokens=max_tokens, **settings)


def test_prompt_with_a_stray_space(embedder: Toy) -> None:
    model = embedder.model()
    verdict = embedder.judge(dataclasses.replace(model, tokenizer=StraySpace(model.tokenizer.raw, model.max_tokens)))
    require_refused(verdict, "ids/together", "ids/alone", "raw/alone", by=500)
    found = cell_of(verdict, "raw/alone").comparison
    assert found is not None
    # Where the text is cut inside the prompt the space is cut off as well.
    assert {embedder.cases.cases[row].tag for row in found.failing_rows} == {"query prompt"}


def test_tokenizer_without_the_end_rule(embedder: Toy, tmp_path: Path) -> None:
    verdict = embedder.judge(
        embedder.model(tokenizer_path=without_end_rule(embedder.snapshot / "tokenizer.json", tmp_path))
    )
    require_refused(verdict, "ids/together", "ids/alone")
    # The empty text has no token left, which no graph can run.
    assert any(failure.startswith("raw/alone: could not be computed: ") for failure in verdict.failures)


class DoubleSigmoid(Reranker):
    """Activates scores twice."""

    def finish(self, logits: NDArray[np.float32], *, raw: bool = False) -> NDArray[np.float32]:
        once = activate(logits, None if raw else "sigmoid")
        return activate(once[:, None], None if raw else "sigmoid")


class NoSigmoid(Reranker):
    """Gives logits for scores."""

    def finish(self, logits: NDArray[np.float32], *, raw: bool = False) -> NDArray[np.float32]:
        return activate(logits, None)


@pytest.mark.parametrize("kind", [DoubleSigmoid, NoSigmoid])
def test_double_and_missing_sigmoid(kind: type[Reranker], reranker: Toy) -> None:
    """Logits are right: only the level of scores can tell."""
    model = reranker.model()
    wrong = kind(entry=model.entry, tokenizer=model.tokenizer, engine=model.engine)
    verdict = reranker.judge(wrong)
    require_agreed(verdict, "logits/alone", "logits/default")
    require_refused(verdict, "scores/alone", "scores/default", by=500)


class CutAfterNormalising(Embedder):
    """Gives TrueMemory's prefix where OpenAI's is asked for: normalised whole, then cut."""

    def finish(
        self,
        raw: NDArray[np.float32],
        *,
        dimensions: int | None = None,
        normalize: bool = True,
        renormalize: bool = True,
    ) -> NDArray[np.float32]:
        return Embedder.finish(self, raw, dimensions=dimensions, normalize=normalize, renormalize=False)


def test_prefix_cut_after_normalising(embedder: Toy) -> None:
    """The whole vector is right: only the level of prefixes can tell."""
    model = embedder.model()
    wrong = CutAfterNormalising(entry=model.entry, tokenizer=model.tokenizer, engine=model.engine)
    verdict = embedder.judge(wrong)
    require_agreed(verdict, "raw/alone", "normalised/alone")
    require_refused(verdict, "prefix_256/alone", by=50)


class CutBeforeNormalising(Embedder):
    """Gives OpenAI's prefix where TrueMemory's is asked for: cut, then normalised."""

    def finish(
        self,
        raw: NDArray[np.float32],
        *,
        dimensions: int | None = None,
        normalize: bool = True,
        renormalize: bool = True,
    ) -> NDArray[np.float32]:
        return Embedder.finish(self, raw, dimensions=dimensions, normalize=normalize)


def test_prefix_scaled_again_where_truememorys_rule_is_asked(embedder: Toy) -> None:
    model = embedder.model()
    wrong = CutBeforeNormalising(entry=model.entry, tokenizer=model.tokenizer, engine=model.engine)
    require_refused(embedder.judge(wrong), "truncated_256/alone", by=50)


@BOTH
def test_another_provider_than_the_one_proved(name: str, toys: dict[str, Toy], tmp_path: Path) -> None:
    """No value differs: the receipt refuses, and so does the session."""
    toy = toys[name]
    model = toy.model()
    verdict = toy.judge(model)
    proved = make_binding(
        model=name,
        profile=PORTABLE.name,
        lock_entry_digest=toy.entry.digest,
        case_set_digest=verdict.case_set_digest,
        provider=model.engine.session.provider,
        session_options=PORTABLE.session_options(),
    )
    write_receipt([tmp_path], verdict.to_receipt(proved, created_at="2020-01-01T00:00:00+00:00"))
    asked = dataclasses.replace(proved, provider="CUDAExecutionProvider")
    state = gate_state([tmp_path], asked)
    assert state.state == "stale"
    with pytest.raises(StaleReceiptError, match="CPUExecutionProvider -> CUDAExecutionProvider"):
        require_passed(state, model=name, fix="samevec parity")
    cuda = dataclasses.replace(PORTABLE, provider="CUDAExecutionProvider")
    with pytest.raises(ProviderUnavailableError, match="CUDAExecutionProvider"):
        OnnxSession(toy.graph_path, cuda, n_threads=1)


class OtherProvider(Session):
    """The right graph on the right provider, and a session that says it is another."""

    provider = "CUDAExecutionProvider"

    def __init__(self, session: OnnxSession) -> None:
        self._session = session

    def run(self, features: Features, **how: Any) -> NDArray[np.float32]:
        return self._session.run(features, **how)


@BOTH
def test_another_provider_at_gate_time(name: str, toys: dict[str, Toy]) -> None:
    """No value differs: only what the session computes with can tell."""
    toy = toys[name]
    verdict = toy.judge(toy.model(OtherProvider(graph_session(toy.graph_path))))
    require_agreed(verdict, f"{RAW[name]}/alone", f"{RAW[name]}/batch_8", f"{RAW[name]}/long_among_short")
    words = (
        "provider: the session computes with CUDAExecutionProvider, the profile portable is for CPUExecutionProvider"
    )
    assert verdict.failures == (words,)
