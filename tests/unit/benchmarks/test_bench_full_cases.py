"""The texts of the cases on the full-shape pair: as many tokens as they say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.full_cases.__main__ import OWN, SHARED, main
from benchmarks.full_cases.asking import Answer, words
from samevec.lock import load_lock
from samevec.runtime.tokenization import Tokenizer

SNAPSHOTS = Path(os.environ.get("SAMEVEC_SNAPSHOTS") or Path(__file__).resolve().parents[4] / "shared" / "models")


def test_every_word_is_a_token() -> None:
    path = SNAPSHOTS / "qwen3-embedding-0.6b" / "tokenizer.json"
    if not path.is_file():
        pytest.skip(f"no real tokenizer at {path}")
    tokenizer = Tokenizer.from_file(path, max_tokens=load_lock().model("qwen3-embedding-0.6b").max_tokens)
    texts = [words(n, first=n) for n in (1, 4, 18, 63, 400)]
    assert [row.n_tokens for row in tokenizer.encode_texts(texts)] == [2, 5, 19, 64, 401]


def test_the_seven_cases_are_there() -> None:
    assert sorted([*SHARED, *OWN]) == ["O02", "O04", "O15", "O16", "O19", "O20", "O24"]


def test_an_answer_that_is_none_says_why() -> None:
    refused = Answer(status=429, retry_after="1", record={"error": {"message": "full"}})
    assert refused.message == "full"
    for values in ("vectors", "scores"):
        with pytest.raises(RuntimeError, match="429"):
            getattr(refused, values)
    swapped = Answer(status=200, retry_after=None, record={"data": [{"index": 1, "embedding": ""}]})
    with pytest.raises(RuntimeError, match="in order"):
        _ = swapped.vectors


def test_unknown_cases_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--cases", "O99"])
    assert "O99 is not here" in capsys.readouterr().err
