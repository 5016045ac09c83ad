"""Texts and token ids at the model's limit and one past it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
from gate_stand_ins import EXACT, LOCK, REFERENCES, SWEPT, limit_cases, make_model

from samevec.errors import InputError
from samevec.parity.gate import run_gate
from samevec.parity.limit import limit_cell
from samevec.runtime.tokenization import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gate_stand_ins import Model

    from samevec.parity.verdict import Verdict
    from samevec.runtime.rows import TokenRow

TASKS = ("embed", "rerank")


def judged(model: Model, *, swept: bool = True) -> Verdict:
    reference = (SWEPT if swept else REFERENCES)[model.entry.task]
    return run_gate(model, reference, tolerance=LOCK.tolerance, profile=EXACT, golden=False, quick=True)


@pytest.mark.parametrize("task", TASKS)
def test_the_right_limit_passes(task: str) -> None:
    cell = limit_cell(make_model(task), limit_cases(task))
    assert cell.passed
    assert (cell.name, cell.comparison and cell.comparison.components) == ("ids/limit", 4096)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("off_by", [-1, 1])
def test_A7_a_limit_off_by_one_is_refused(task: str, off_by: int) -> None:
    model = make_model(task)
    wrong = dataclasses.replace(model, tokenizer=Tokenizer(model.tokenizer.raw, model.max_tokens + off_by))
    assert judged(wrong, swept=False).passed
    verdict = judged(wrong)
    assert verdict.failures[0].startswith("ids/limit: a text of 20")
    assert f"gives {2048 + off_by} ids, which are not the 2048 that PyTorch reads" in verdict.failures[0]


class CutsWhatFits(Tokenizer):
    """Cuts a text that reaches the limit as if it were past it."""

    def encode_texts(
        self, texts: Sequence[str], *, truncate: bool = True, max_tokens: int | None = None, **settings: Any
    ) -> list[TokenRow]:
        rows = Tokenizer.encode_texts(self, texts, truncate=truncate, max_tokens=max_tokens, **settings)
        limit = max_tokens or self.max_tokens
        return [
            dataclasses.replace(row, ids=(*row.ids[:-2], row.ids[-1])) if row.n_tokens == limit > 100 else row
            for row in rows
        ]


class TakesTooMany(Tokenizer):
    """Takes a token id more than the model has positions for."""

    def rows_from_ids(self, id_lists: Sequence[Sequence[int]], *, field: str = "input") -> list[TokenRow]:
        wider = Tokenizer(self.raw, self.max_tokens + 1)
        return wider.rows_from_ids(id_lists, field=field)


@pytest.mark.parametrize(
    ("kind", "words"), [(CutsWhatFits, "gives 2047 ids"), (TakesTooMany, "2049 token ids must be refused: the limit")]
)
def test_A7_a_boundary_off_by_one_is_refused(kind: type[Tokenizer], words: str) -> None:
    model = make_model("embed")
    wrong = dataclasses.replace(model, tokenizer=kind(model.tokenizer.raw, model.max_tokens))
    assert words in str(limit_cell(wrong, limit_cases("embed")).failures)


def test_a_text_that_is_refused_fails_in_words() -> None:
    class Refuses(Tokenizer):
        def encode_texts(self, texts: Sequence[str], **_settings: Any) -> list[TokenRow]:
            raise InputError("no", field="input")

    model = make_model("embed")
    wrong = dataclasses.replace(model, tokenizer=Refuses(model.tokenizer.raw, model.max_tokens))
    assert limit_cell(wrong, limit_cases("embed")).failures == ("ids/limit: a case was refused: input: no",)
