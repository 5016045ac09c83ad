"""Values of a model card: checked with the published weights only, each from both sides."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
from gate_stand_ins import LOCK, gate, make_model

from samevec.lock import Golden, GoldenCosines, GoldenPair, GoldenTokens, load_lock
from samevec.parity.golden import COSINE_ALLOWANCE, LOGIT_ALLOWANCE, golden_cells, is_published
from samevec.parity.report.terminal import plain_lines
from samevec.runtime.embedder import Embedder
from samevec.runtime.reranker import Reranker

if TYPE_CHECKING:
    from gate_stand_ins import Model


def with_golden(task: str, golden: Golden) -> Model:
    model = make_model(task)
    return dataclasses.replace(model, entry=dataclasses.replace(model.entry, golden=golden))


def embedder_golden(shift: float = 0.0, *, end: int = 256) -> Golden:
    """Return what the fake embedder gives, one cosine moved."""
    queries, documents = ("one", "two"), ("three", "four")
    model = make_model("embed")
    assert isinstance(model, Embedder)
    cosines = (model.encode(queries, prompt="query") @ model.encode(documents).T).astype(float).tolist()
    cosines[1][0] += shift
    values = tuple(tuple(row) for row in cosines)
    ids = (*model.tokenize(["one"], prompt="query")[0].ids[:-1], end)
    return Golden(
        tokens=(GoldenTokens(text="one", prompt="query", ids=ids),),
        cosines=GoldenCosines(queries=queries, documents=documents, values=values, prompt="query"),
    )


def reranker_golden(shift: float = 0.0) -> Golden:
    model = make_model("rerank")
    assert isinstance(model, Reranker)
    pairs = [("one", "two"), ("three", "four")]
    logits = model.score(pairs, raw=True).tolist()
    logits[1] += shift
    return Golden(
        pairs=tuple(
            GoldenPair(query=query, document=document, logit=logit, score=0.5, ids=model.tokenize([pair])[0].ids)
            for pair, (query, document), logit in zip(pairs, pairs, logits, strict=True)
        )
    )


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("allowances", "passes"), [(0.0, True), (0.95, True), (1.05, False)])
def test_values_of_the_model_card_from_both_sides(allowances: float, passes: bool, sign: int) -> None:
    for task, golden, name in (
        ("embed", embedder_golden(sign * allowances * COSINE_ALLOWANCE), "cosines"),
        ("rerank", reranker_golden(sign * allowances * LOGIT_ALLOWANCE), "logits"),
    ):
        cells = {cell.name: cell for cell in golden_cells(with_golden(task, golden))}
        assert set(cells) == {"golden/ids", f"golden/{name}"}
        assert cells["golden/ids"].passed
        assert cells[f"golden/{name}"].passed is passes
        assert cells[f"golden/{name}"].limits == (COSINE_ALLOWANCE if task == "embed" else LOGIT_ALLOWANCE, 0.0)
        if not passes:
            assert "worst row 1 component 0" in cells[f"golden/{name}"].failures[0]


def test_token_ids_of_the_model_card_must_be_equal() -> None:
    ids, cosines = golden_cells(with_golden("embed", embedder_golden(end=257)))
    assert "golden/ids: row 0: token id 256 instead of 257" in ids.failures[0]
    assert cosines.passed


def test_a_model_that_refuses_the_cards_texts_fails() -> None:
    golden = dataclasses.replace(embedder_golden(), tokens=(GoldenTokens(text="one", prompt="none", ids=(1,)),))
    assert "'none' is not a prompt" in golden_cells(with_golden("embed", golden))[0].failures[0]


def test_the_card_is_checked_only_with_the_published_weights() -> None:
    assert not is_published(LOCK.model("toy-qwen3-embedder"))
    published = load_lock(None).model("qwen3-embedding-0.6b")
    assert is_published(published)
    assert not is_published(dataclasses.replace(published, max_tokens=512))
    unchecked = gate("embed")
    assert not any(cell.level == "golden" for cell in unchecked.cells)
    gap = "the model card's golden values: these are not the published weights of the packaged lock"
    assert gap in unchecked.not_measured
    # The fake session is not the toy model, so that the values its lock states are wrong for it.
    checked = gate("embed", golden=True)
    assert any(failure.startswith("golden/cosines: ") for failure in checked.failures)
    assert not any("golden" in words for words in checked.not_measured)
    assert any(line.startswith("golden, cosines") for line in plain_lines(checked))
