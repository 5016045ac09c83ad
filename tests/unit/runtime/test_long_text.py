"""Long texts in pieces: where they are cut, what is kept, and that little is alive at a time."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest
from makers import toy_tokenizer, toy_tokenizer_path

from samevec.errors import InputError, InputTooLongError
from samevec.export.toy.checkpoint import TOY_EMBEDDER, TOY_RERANKER
from samevec.runtime.long_text import (
    CALL_CHARACTERS,
    CALL_TEXTS,
    MAX_UNBROKEN_CHARACTERS,
    UnbrokenTextError,
    call_groups,
    encode_long,
)

if TYPE_CHECKING:
    from tokenizers import Encoding
    from tokenizers import Tokenizer as RawTokenizer

WORDS = ("ferry", "market", "Öl", "naïve", "日本語", "x1", "don't", "3.14", "https://example.org/a?b=c", "\u202eright")
SPACES = (" ", " ", " ", "  ", "\n", "\n\n", ", ", ". ", "\t", "\u3000", "。", "")


def prose(n_characters: int, seed: int = 0) -> str:
    draw = random.Random(seed)
    parts: list[str] = []
    length = 0
    while length < n_characters:
        parts.append(draw.choice(WORDS) + draw.choice(SPACES))
        length += len(parts[-1])
    return "".join(parts)


class Calls:
    """A tokenizer's batch call that keeps how much it was given."""

    def __init__(self) -> None:
        self.raw = toy_tokenizer(TOY_EMBEDDER).raw
        self.n_characters: list[int] = []

    def __call__(self, texts: list[str]) -> list[Encoding]:
        self.n_characters.append(sum(map(len, texts)))
        return [self.raw.encode(text, add_special_tokens=False) for text in texts]

    def ids(self, text: str) -> list[int]:
        return list(self.raw.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize(
    ("lengths", "groups"),
    [
        ([], []),
        ([0], [(0, 1)]),
        ([5] * (CALL_TEXTS + 1), [(0, CALL_TEXTS), (CALL_TEXTS, CALL_TEXTS + 1)]),
        ([CALL_CHARACTERS, 1], [(0, 1), (1, 2)]),
        ([CALL_CHARACTERS - 1, 1, 1], [(0, 2), (2, 3)]),
        ([3, CALL_CHARACTERS + 1, 3, 3], [(0, 1), (1, 2), (2, 4)]),
    ],
)
def test_groups_hold_so_many_texts_and_characters(lengths: list[int], groups: list[tuple[int, int]]) -> None:
    assert [(group.start, group.stop) for group in call_groups(lengths)] == groups


@pytest.mark.parametrize("seed", range(3))
def test_the_tokens_are_those_of_the_whole_text(seed: int) -> None:
    calls, text = Calls(), prose(400_000, seed)
    content = encode_long(calls, text, keep_tokens=10**9)
    assert content.ids == calls.ids(text)
    assert content.n_tokens == len(content.ids)
    assert max(calls.n_characters) <= CALL_CHARACTERS
    assert len([n for n in calls.n_characters if n > 1000]) >= 4


def test_no_more_is_kept_than_was_asked_for() -> None:
    calls, text = Calls(), prose(400_000)
    content = encode_long(calls, text, keep_tokens=100)
    assert content.n_tokens == len(calls.ids(text)) > 400_000
    assert content.ids == calls.ids(text)[:100]


def test_a_text_without_a_seam_is_tokenised_at_once_or_refused() -> None:
    calls, longest = Calls(), "-" * MAX_UNBROKEN_CHARACTERS
    assert encode_long(calls, longest, keep_tokens=5).n_tokens == MAX_UNBROKEN_CHARACTERS
    words = prose(50_000)
    for text in (longest + "-", words + " word " + longest):
        with pytest.raises(UnbrokenTextError) as caught:
            encode_long(calls, text, keep_tokens=5)
        assert MAX_UNBROKEN_CHARACTERS < caught.value.n_characters <= len(text)
    some = longest[:-1000]
    assert encode_long(calls, some + words + some, keep_tokens=5).n_tokens == len((some + words + some).encode())


def test_a_seam_that_changes_tokens_is_not_used() -> None:
    calls = Calls()

    def merging(texts: list[str]) -> list[Encoding]:
        """Like a tokenizer that makes one token of a space and the letter before it, but not of a stop."""
        return calls([text.replace("a ", "b") for text in texts])

    text = "a a. a a " * 20_000
    content = encode_long(merging, text, keep_tokens=10**9)
    assert content.ids == calls.ids(text.replace("a ", "b"))
    with pytest.raises(UnbrokenTextError):
        encode_long(merging, "a a " * 300_000, keep_tokens=1)


def test_long_texts_among_short_ones() -> None:
    tokenizer, long = toy_tokenizer(TOY_EMBEDDER), prose(300_000)
    rows = tokenizer.encode_texts(["a", long, "", long], prompt="p: ", max_tokens=50)
    (whole,) = tokenizer.encode_texts([long[:60]], prompt="p: ", max_tokens=50)
    assert [row.n_tokens for row in rows] == [5, 50, 4, 50]
    assert rows[1].ids == rows[3].ids == whole.ids
    assert rows[1].cut_tokens == len(("p: " + long).encode()) - 49
    with pytest.raises(InputTooLongError) as caught:
        tokenizer.encode_texts(["a", long], truncate=False)
    assert caught.value.n_tokens == len(long.encode()) + 1
    assert caught.value.index == 1


def test_long_sides_of_pairs() -> None:
    tokenizer, long = toy_tokenizer(TOY_RERANKER, max_tokens=40), prose(300_000)
    pairs = [("q", "d"), ("q", long), (long, "d"), (long, long)]
    short = [(query[:200], document[:200]) for query, document in pairs]
    rows = tokenizer.encode_pairs(pairs)
    assert [row.ids for row in rows] == [row.ids for row in tokenizer.encode_pairs(short)]
    n_long = len(long.encode())
    assert [row.cut_tokens for row in rows] == [0, n_long + 1 - 37, n_long + 1 - 37, 2 * n_long - 37]
    (row,) = tokenizer.encode_pairs([("q", long)], max_document_tokens=7)
    assert row.n_tokens == 1 + 7 + 3
    assert row.cut_tokens == n_long - 7


def test_what_cannot_be_cut_is_named() -> None:
    tokenizer = toy_tokenizer(TOY_EMBEDDER)
    with pytest.raises(InputError, match="1048577 characters in which no word ends, the limit is 1048576") as caught:
        tokenizer.encode_texts(["a", "-" * (MAX_UNBROKEN_CHARACTERS + 1)], field="texts")
    assert (caught.value.field, caught.value.index) == ("texts", 1)
    with pytest.raises(InputError, match="not valid Unicode text") as caught:
        tokenizer.encode_texts(["a", prose(300_000) + "\ud800"])
    assert caught.value.index == 1


PEAK = """
import resource, sys
from pathlib import Path
from samevec.runtime.tokenization import Tokenizer
tokenizer = Tokenizer.from_file(Path(sys.argv[1]), max_tokens=2048)
tokenizer.encode_texts(["a b"])
text = "a b " * (1 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
(row,) = tokenizer.encode_texts([text])
assert (row.n_tokens, row.cut_tokens) == (2048, len(text) - 2047)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts kilobytes")
def test_a_long_text_takes_little_memory() -> None:
    """Tokenised at once, these 4 MB take 1 GB."""
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(toy_tokenizer_path(TOY_EMBEDDER))],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert int(done.stdout) < 150_000


class Counted:
    """A tokenizer that counts what its batch calls are given."""

    def __init__(self, raw: RawTokenizer) -> None:
        self._raw = raw
        self.texts: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def encode_batch_fast(self, texts: list[str], *, add_special_tokens: bool) -> Any:
        self.texts += texts
        return self._raw.encode_batch_fast(texts, add_special_tokens=add_special_tokens)


def test_a_query_is_tokenised_once_for_all_its_documents() -> None:
    tokenizer = toy_tokenizer(TOY_RERANKER)
    counted = Counted(tokenizer.raw)
    pairs = [(f"query {i % 3}", f"document {i}") for i in range(600)]
    rows = replace(tokenizer, raw=cast("RawTokenizer", counted)).encode_pairs(pairs)
    assert sorted(counted.texts) == sorted({query for query, _ in pairs} | {document for _, document in pairs})
    assert rows == [tokenizer.encode_pairs([pair])[0] for pair in pairs]


def test_errors_name_the_first_pair_with_a_query() -> None:
    pairs = [("good", "d"), ("bad\ud800", "d"), ("bad\ud800", "d"), ("other\ud800", "d")]
    with pytest.raises(InputError, match="not valid Unicode") as caught:
        toy_tokenizer(TOY_RERANKER).encode_pairs(pairs)
    assert caught.value.index == 1
    long = [("q", "d"), ("q" * 100, "d"), ("q", "d" * 100)]
    with pytest.raises(InputTooLongError) as too_long:
        toy_tokenizer(TOY_RERANKER, max_tokens=20).encode_pairs(long, truncate=False)
    assert (too_long.value.index, too_long.value.n_tokens) == (1, 104)
