"""The tokenizer's rules on the toy pair, whose byte-level tokenizers keep the real ones' special tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from makers import toy_tokenizer, toy_tokenizer_path
from tokenizers import Tokenizer as RawTokenizer

from samevec.errors import ArtifactCorruptError, InputError, InputTooLongError
from samevec.export.toy.checkpoint import TOY_EMBEDDER, TOY_RERANKER
from samevec.runtime.tokenization import Tokenizer, split_longest_first

if TYPE_CHECKING:
    from pathlib import Path

END = toy_tokenizer(TOY_EMBEDDER).encode_texts([""])[0].ids[-1]
CLS, SEP = toy_tokenizer(TOY_RERANKER).encode_texts([""])[0].ids


def toy_ids(text: str) -> tuple[int, ...]:
    """One token a byte, special tokens left out."""
    return toy_tokenizer(TOY_EMBEDDER).encode_texts([text])[0].ids[:-1]


def test_the_terminal_token_is_added_once_and_survives_truncation() -> None:
    tokenizer = toy_tokenizer(TOY_EMBEDDER)
    for n_bytes, limit, cut in [(9, 10, 0), (10, 10, 1), (11, 10, 2), (100_000, 10, 99_991), (1, 2, 0), (5, 2, 4)]:
        (row,) = tokenizer.encode_texts(["x" * n_bytes], max_tokens=limit)
        assert row.ids == (*toy_ids("x" * n_bytes)[: limit - 1], END)
        assert row.cut_tokens == cut
        assert row.type_ids is None


def test_the_models_own_limit_holds_when_none_is_given() -> None:
    (row,) = toy_tokenizer(TOY_EMBEDDER, max_tokens=8).encode_texts(["x" * 20])
    assert (row.n_tokens, row.cut_tokens) == (8, 13)


def test_without_truncation_a_long_text_is_refused_by_name_and_count() -> None:
    tokenizer = toy_tokenizer(TOY_EMBEDDER)
    with pytest.raises(InputTooLongError) as caught:
        tokenizer.encode_texts(["ok", "x" * 10], max_tokens=10, truncate=False)
    error = caught.value
    assert (error.field, error.index, error.n_tokens, error.limit_tokens) == ("input", 1, 11, 10)
    assert str(error) == "input[1]: 11 tokens, the limit is 10; shorten it or allow truncation"
    assert tokenizer.encode_texts(["x" * 9], max_tokens=10, truncate=False)[0].n_tokens == 10


def test_the_prompt_counts_and_comes_first() -> None:
    tokenizer = toy_tokenizer(TOY_EMBEDDER)
    (row,) = tokenizer.encode_texts(["abc"], prompt="q: ", max_tokens=5)
    assert row.ids == (*toy_ids("q: a"), END)
    assert row.cut_tokens == 2


def test_pairs_keep_every_separator() -> None:
    tokenizer = toy_tokenizer(TOY_RERANKER)
    rows = tokenizer.encode_pairs([("ab", "c"), ("", ""), ("a" * 50, "b" * 50), ("a", "b" * 50)], max_tokens=12)
    assert rows[0].ids == (CLS, *toy_ids("ab"), SEP, *toy_ids("c"), SEP)
    assert rows[1].ids == (CLS, SEP, SEP)
    assert rows[2].ids == (CLS, *toy_ids("aaaa"), SEP, *toy_ids("bbbbb"), SEP)
    assert rows[3].ids == (CLS, *toy_ids("a"), SEP, *toy_ids("b" * 8), SEP)
    assert [row.cut_tokens for row in rows] == [0, 0, 91, 42]


def test_a_long_pair_is_refused_without_truncation_by_position() -> None:
    tokenizer = toy_tokenizer(TOY_RERANKER)
    with pytest.raises(InputTooLongError) as caught:
        tokenizer.encode_pairs([("a", "b"), ("a", "b" * 9)], max_tokens=12, truncate=False, field="texts")
    assert str(caught.value) == "texts[1]: 13 tokens, the limit is 12; shorten it or allow truncation"
    assert tokenizer.encode_pairs([("a", "b" * 8)], max_tokens=12, truncate=False)[0].n_tokens == 12


@pytest.mark.parametrize(
    ("max_tokens", "problem"),
    [
        (1, "1 given, 2 to 64 is possible"),
        (65, "65 given, 2 to 64 is possible"),
        (-1, "-1 given, 2 to 64 is possible"),
        (8.0, "8.0 is not a whole number"),
        (True, "True is not a whole number"),
    ],
)
def test_a_limit_must_leave_room_and_stay_below_the_models(max_tokens: Any, problem: str) -> None:
    with pytest.raises(InputError) as caught:
        toy_tokenizer(TOY_EMBEDDER, max_tokens=64).encode_texts(["x"], max_tokens=max_tokens)
    assert str(caught.value) == f"max_tokens: {problem}"


def test_a_pair_needs_room_for_a_token_of_each_side() -> None:
    tokenizer = toy_tokenizer(TOY_RERANKER, max_tokens=64)
    with pytest.raises(InputError, match=r"^max_tokens: 4 given, 5 to 64 is possible$"):
        tokenizer.encode_pairs([("a", "b")], max_tokens=4)
    assert tokenizer.encode_pairs([("aaa", "bbb")], max_tokens=5)[0].ids == (
        CLS,
        *toy_ids("a"),
        SEP,
        *toy_ids("b"),
        SEP,
    )


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (None, "NoneType given, text is needed"),
        (3, "int given, text is needed"),
        (b"x", "bytes given, text is needed"),
        (("a", "b"), "tuple given, text is needed"),  # the library itself would take it for a pair
        (["a", "b"], "list given, text is needed"),
        ("a\ud800b", "not valid Unicode text: surrogates not allowed"),
        ("\udcff", "not valid Unicode text: surrogates not allowed"),
    ],
)
@pytest.mark.parametrize("index", [0, 1, 300])
def test_what_is_not_text_is_refused_by_position(bad: Any, problem: str, index: int) -> None:
    texts = ["fine"] * index + [bad, "fine"]
    with pytest.raises(InputError) as caught:
        toy_tokenizer(TOY_EMBEDDER).encode_texts(texts, prompt="q: ")
    assert str(caught.value) == f"input[{index}]: {problem}"
    for pair in ((bad, "x"), ("x", bad)):
        with pytest.raises(InputError) as caught:
            toy_tokenizer(TOY_RERANKER).encode_pairs([("a", "b")] * index + [pair])
        assert str(caught.value) == f"pairs[{index}]: {problem}"


def test_more_texts_than_one_chunk_stay_in_order() -> None:
    texts = [f"text {i}" * (i % 7) for i in range(700)]
    tokenizer = toy_tokenizer(TOY_EMBEDDER)
    assert tokenizer.encode_texts(texts) == [tokenizer.encode_texts([text])[0] for text in texts]
    pairs = [(text, texts[-i]) for i, text in enumerate(texts)]
    reranker = toy_tokenizer(TOY_RERANKER)
    assert reranker.encode_pairs(pairs) == [reranker.encode_pairs([pair])[0] for pair in pairs]


def test_nothing_gives_nothing() -> None:
    assert toy_tokenizer(TOY_EMBEDDER).encode_texts([]) == []
    assert toy_tokenizer(TOY_RERANKER).encode_pairs([]) == []


def test_segment_ids_are_kept_when_the_model_reads_them() -> None:
    (row,) = toy_tokenizer(TOY_RERANKER, type_ids=True).encode_pairs([("ab", "c")])
    assert row.type_ids is not None
    assert len(row.type_ids) == row.n_tokens


def test_ids_from_callers_are_taken_as_they_are() -> None:
    tokenizer = toy_tokenizer(TOY_EMBEDDER)
    rows = tokenizer.rows_from_ids([[5, 6, END], [7]])
    assert [row.ids for row in rows] == [(5, 6, END), (7,)]
    assert [row.type_ids for row in rows] == [None, None]
    assert toy_tokenizer(TOY_RERANKER, type_ids=True).rows_from_ids([[5, 6]])[0].type_ids == (0, 0)


def test_o13_bad_ids_are_refused_by_position() -> None:
    tokenizer = toy_tokenizer(TOY_EMBEDDER)
    top = tokenizer.raw.get_vocab_size() - 1
    assert tokenizer.rows_from_ids([[top]])[0].ids == (top,)
    for bad in (-1, top + 1, 999_999_999, 1.5, True, "a", None):
        with pytest.raises(InputError) as caught:
            tokenizer.rows_from_ids([[1], [1, bad]])  # type: ignore[list-item]
        assert str(caught.value) == f"input[1]: {bad!r} is not a token id (0 to {top})"
    with pytest.raises(InputError, match=r"^input\[1\]: no token ids$"):
        tokenizer.rows_from_ids([[1], []])
    with pytest.raises(InputTooLongError) as too_long:
        toy_tokenizer(TOY_EMBEDDER, max_tokens=4).rows_from_ids([[1] * 4, [1] * 5])
    assert (too_long.value.index, too_long.value.n_tokens, too_long.value.limit_tokens) == (1, 5, 4)


def test_padding_and_truncation_of_the_file_are_switched_off(tmp_path: Path) -> None:
    raw = RawTokenizer.from_file(str(toy_tokenizer_path(TOY_RERANKER)))
    raw.enable_padding(length=100)
    raw.enable_truncation(6)
    raw.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_file(tmp_path / "tokenizer.json", max_tokens=2048)
    assert tokenizer.encode_pairs([("abc", "defg")])[0].n_tokens == 10
    assert tokenizer.encode_texts(["x" * 300])[0].n_tokens == 302
    assert tokenizer.raw.padding is None
    assert tokenizer.raw.truncation is None


def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path) -> None:
    for content in (None, b"", b"{}", b"\xff"):
        path = tmp_path / "tokenizer.json"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ArtifactCorruptError) as caught:
            Tokenizer.from_file(path, max_tokens=8)
        assert str(caught.value).startswith(f"{path}: not a readable tokenizer (")


@pytest.mark.parametrize(
    ("n_query", "n_document", "room", "kept"),
    [
        (3, 4, 7, (3, 4)),
        (0, 0, 1, (0, 0)),
        (3, 100, 10, (3, 7)),
        (100, 3, 10, (7, 3)),
        (100, 100, 10, (5, 5)),
        (100, 100, 11, (5, 6)),  # equal: the odd token is the document's
        (101, 100, 11, (6, 5)),
        (5, 6, 10, (5, 5)),
        (0, 100, 10, (0, 10)),
    ],
)
def test_longest_first(n_query: int, n_document: int, room: int, kept: tuple[int, int]) -> None:
    assert split_longest_first(n_query, n_document, room) == kept


def test_longest_first_follows_the_library() -> None:
    raw = RawTokenizer.from_file(str(toy_tokenizer_path(TOY_RERANKER)))
    raw.no_padding()
    numbers = np.random.default_rng(11)
    for _ in range(400):
        n_query, n_document = numbers.integers(0, 40, 2).tolist()
        room = int(numbers.integers(2, 50))
        raw.enable_truncation(room + 3, strategy="longest_first")
        ids = raw.encode("q" * n_query, "d" * n_document).ids
        kept = (ids.index(SEP) - 1, len(ids) - ids.index(SEP) - 2)
        assert split_longest_first(n_query, n_document, room) == kept, (n_query, n_document, room)
