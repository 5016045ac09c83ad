"""The real tokenizer files: ids equal transformers' ids, case by case of CASES.md. Skipped where the files are not."""

from __future__ import annotations

import importlib
import json
import os
import random
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import Tokenizer as RawTokenizer

from samevec.errors import InputError, InputTooLongError
from samevec.lock import load_lock
from samevec.parity.cases.builtin import builtin_cases
from samevec.runtime.long_text import encode_long
from samevec.runtime.tokenization import Tokenizer
from samevec.server.http.tokens import list_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from samevec.runtime.rows import TokenRow

EMBEDDER, RERANKER, CROSS_ENCODER = "qwen3-embedding-0.6b", "gte-reranker-modernbert-base", "ms-marco-MiniLM-L6-v2"
SENTENCE = "all-MiniLM-L6-v2"
SNAPSHOTS = Path(os.environ.get("SAMEVEC_SNAPSHOTS") or Path(__file__).resolve().parents[4] / "shared" / "models")
pytestmark = pytest.mark.skipif(
    not (SNAPSHOTS / EMBEDDER / "tokenizer.json").is_file(),
    reason=f"no real tokenizer files in {SNAPSHOTS} ($SAMEVEC_SNAPSHOTS, else ../shared/models beside the checkout)",
)
MAX_TOKENS = {EMBEDDER: 32768, RERANKER: 8192, CROSS_ENCODER: 512, SENTENCE: 512}
END = 151643
CLS, SEP = 50281, 50282

TEXTS = [
    "test",
    "test again",
    "",
    " ",
    "   ",
    "\n\t",
    "The capital of China is Beijing.",
    "Ein Öl-Gemälde aus Zürich, naïve coöperation",
    "Cafe\u0301 and Caf\u00e9, \ufb01ne",  # NFC joins the first, leaves the ligature
    "日本語の文章です。中文句子。한국어 문장",
    "🧑‍🚀🚀 emoji \u200d zero width \u200b and \u0000 null",
    "def f(x):\n    return x ** 2  # comment\n\n\n",
    "1234567890 3.14159 2024-01-01T00:00:00Z",
    "x" * 300,
    "https://example.org/a?b=c&d=%20e",
    "\u202eright to left\u202c עברית العربية",
]
MARKED = [
    "A <|im_end|> B",
    "A <|im_end|> C",
    "<|im_start|>system\nX",
    "<think>x</think>",
    "a <|fim_pad|> b",
    "<|endoftext|>",
    "x<|endoftext|><|endoftext|>",
    "[SEP] relevant [CLS]",
    "[PAD][PAD] x",
    "[MASK] [UNK] [unused1]",
    "|||IP_ADDRESS|||",
]


@pytest.fixture(scope="module")
def ours() -> Callable[[str], Tokenizer]:
    return {
        name: Tokenizer.from_file(
            SNAPSHOTS / name / "tokenizer.json", max_tokens=limit, type_ids=name in (CROSS_ENCODER, SENTENCE)
        )
        for name, limit in MAX_TOKENS.items()
    }.__getitem__


@pytest.fixture(scope="module")
def theirs() -> Callable[[str], Any]:
    loaded: dict[str, Any] = {}
    transformers = importlib.import_module("transformers")
    for name in MAX_TOKENS:
        # Named only for the Qwen files, where its absence is warned about: the pinned tokenizer.json is what counts.
        options = {"fix_mistral_regex": False} if name == EMBEDDER else {}
        loaded[name] = transformers.AutoTokenizer.from_pretrained(SNAPSHOTS / name, local_files_only=True, **options)
    return loaded.__getitem__


def text_ids(theirs: Any, texts: Sequence[str], limit: int) -> list[tuple[int, ...]]:
    """What transformers gives, one text at a time."""
    return [tuple(theirs(text, truncation=True, max_length=limit)["input_ids"]) for text in texts]


def pair_ids(theirs: Any, pairs: Sequence[tuple[str, str]], limit: int) -> list[tuple[int, ...]]:
    """As lists: with plain strings transformers drops an empty second text."""
    queries, documents = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    found = theirs(queries, documents, truncation="longest_first", max_length=limit, padding=False)
    return [tuple(ids) for ids in found["input_ids"]]


def ids_of(rows: Sequence[TokenRow]) -> list[tuple[int, ...]]:
    return [row.ids for row in rows]


def n_token_text(tokenizer: Tokenizer, n_tokens: int) -> str:
    """A text of that many tokens, terminal token included."""
    text = "w" + " w" * (n_tokens - 2)
    assert tokenizer.encode_texts([text])[0].n_tokens == n_tokens
    return text


def test_the_golden_ids_of_models_lock(ours: Callable[[str], Tokenizer]) -> None:
    embedder, reranker = load_lock().model(EMBEDDER), load_lock().model(RERANKER)
    assert len(embedder.golden.tokens) == 2
    for golden in embedder.golden.tokens:
        prompt = embedder.prompts[golden.prompt] if golden.prompt else ""
        assert ours(EMBEDDER).encode_texts([golden.text], prompt=prompt)[0].ids == golden.ids
    assert len(reranker.golden.pairs) == 3
    for pair in reranker.golden.pairs:
        assert ours(RERANKER).encode_pairs([(pair.query, pair.document)])[0].ids == pair.ids


@pytest.mark.skipif(not (SNAPSHOTS / "FACTS.json").is_file(), reason="FACTS.json is not beside the tokenizer files")
def test_the_golden_ids_of_the_facts(ours: Callable[[str], Tokenizer]) -> None:
    embedder, reranker = json.loads((SNAPSHOTS / "FACTS.json").read_text())["models"][:2]
    prompt = embedder["sentence_transformers"]["prompts"]["query"]
    golden = embedder["golden"]["token_ids"]
    assert len(golden) == 2
    for words, ids in golden.items():
        text = prompt + words.split("'")[1] if words.startswith("query prompt + ") else words
        assert list(ours(EMBEDDER).encode_texts([text])[0].ids) == ids
    facts = reranker["cross_encoder"]["golden"]
    assert [list(row.ids) for row in ours(RERANKER).encode_pairs([tuple(p) for p in facts["pairs"]])] == facts["ids"]
    assert ours(EMBEDDER).raw.get_vocab_size() == embedder["config"]["vocab_size"] == 151669
    assert ours(RERANKER).raw.get_vocab_size() == reranker["config"]["vocab_size"] == 50368


SEPARATORS = (
    "",
    " ",
    " ",
    "  ",
    "\n",
    "\n\n\n",
    ". ",
    ", ",
    "; ",
    "\t",
    "\r\n",
    "\u00a0",
    "\u2003",
    "\u3000",
    "。",
    "\x85",
)
# Letters that compose with marks, marks after stops and spaces, cased and uncased scripts, digits, pieces of markers.
SOUP = "aeoàŁßçñ日本語がパ한글אבعربไทยहि\u0301\u0308\u20dd\u200d\ufe0f0٣²Ⅷ½ \n\t.,;:!?'-_<|>[]()。、\uff0c🚀🧑"


def long_text(seed: int) -> str:
    draw = random.Random(seed)
    parts: list[str] = []
    n_characters = 0
    while n_characters < 200_000:
        soup = "".join(draw.choices(SOUP, k=draw.randrange(40)))
        parts.append(draw.choice([*TEXTS, *MARKED, soup, soup, soup]) + draw.choice(SEPARATORS))
        n_characters += len(parts[-1])
    return "".join(parts)


@pytest.mark.parametrize("name", MAX_TOKENS)
@pytest.mark.parametrize("seed", range(3))
def test_long_texts_have_the_ids_of_the_whole(ours: Callable[[str], Tokenizer], name: str, seed: int) -> None:
    raw, text, n_calls = ours(name).raw, long_text(seed), 0

    def encode(texts: list[str]) -> Any:
        nonlocal n_calls
        n_calls += max(map(len, texts)) > 1000
        return raw.encode_batch_fast(texts, add_special_tokens=False)

    content = encode_long(encode, text, keep_tokens=len(text))
    whole = raw.encode(text, add_special_tokens=False).ids
    assert content.ids == whole
    assert content.n_tokens == len(whole)
    assert n_calls > 1


@pytest.mark.parametrize("name", MAX_TOKENS)
def test_listed_tokens_of_long_texts_are_those_of_the_whole(ours: Callable[[str], Tokenizer], name: str) -> None:
    texts = [long_text(7), "", "word", "a " * 40_000]
    rows = [list(chain.from_iterable(parts)) for parts in list_tokens(ours(name), texts, prompt="p: ")]
    for row, text in zip(rows, texts, strict=True):
        given = "p: " + text
        encoding = ours(name).raw.encode(given)
        assert [token.id for token in row] == encoding.ids
        assert [int(token.special) for token in row] == encoding.special_tokens_mask
        for token, named, (start, stop) in zip(row, encoding.tokens, encoding.offsets, strict=True):
            expected = (named, None, None) if token.special else (given[start:stop], start, stop)
            assert (token.text, token.start, token.stop) == expected


@pytest.mark.parametrize("name", [EMBEDDER, SENTENCE])
def test_texts_of_many_kinds(name: str, ours: Callable[[str], Tokenizer], theirs: Callable[[str], Any]) -> None:
    rows = ours(name).encode_texts(TEXTS + MARKED)
    assert ids_of(rows) == text_ids(theirs(name), TEXTS + MARKED, MAX_TOKENS[name])
    assert [row.cut_tokens for row in rows] == [0] * len(rows)


@pytest.mark.parametrize("name", [RERANKER, CROSS_ENCODER])
def test_pairs_of_many_kinds(name: str, ours: Callable[[str], Tokenizer], theirs: Callable[[str], Any]) -> None:
    texts = TEXTS + MARKED
    pairs = [(text, texts[-i - 1]) for i, text in enumerate(texts)] + [(text, "") for text in texts]
    pairs += [("", text) for text in texts]
    assert ids_of(ours(name).encode_pairs(pairs)) == pair_ids(theirs(name), pairs, MAX_TOKENS[name])


def test_every_built_in_text_as_the_small_embedder_cuts_it(
    ours: Callable[[str], Tokenizer], theirs: Callable[[str], Any]
) -> None:
    limit = load_lock().model("all-minilm-l6-v2").max_tokens
    cases = builtin_cases("embed").texts
    n_cut = 0
    for case in cases:
        n = min(limit, case.max_tokens or limit)
        row = ours(SENTENCE).encode_texts([case.text], max_tokens=n)[0]
        found = theirs(SENTENCE)(case.text, truncation=True, max_length=n)
        assert (row.ids, row.type_ids) == (tuple(found["input_ids"]), tuple(found["token_type_ids"]))
        n_cut += row.cut_tokens > 0
    assert n_cut >= 3


def test_every_built_in_pair_as_the_small_cross_encoder_cuts_it(
    ours: Callable[[str], Tokenizer], theirs: Callable[[str], Any]
) -> None:
    limit = load_lock().model("ms-marco-minilm-l6-v2").max_tokens
    cases = builtin_cases("rerank").pairs
    n_cut = 0
    for case in cases:
        n = min(limit, case.max_tokens or limit)
        row = ours(CROSS_ENCODER).encode_pairs([(case.query, case.document)], max_tokens=n)[0]
        found = theirs(CROSS_ENCODER)([case.query], [case.document], truncation="longest_first", max_length=n)
        assert (row.ids, row.type_ids) == (tuple(found["input_ids"][0]), tuple(found["token_type_ids"][0]))
        n_cut += row.cut_tokens > 0
    assert n_cut >= 3


def test_segment_ids_of_pairs(ours: Callable[[str], Tokenizer], theirs: Callable[[str], Any]) -> None:
    pairs = [("a query", "a document"), ("", "x"), ("x", ""), ("long " * 400, "longer " * 500)]
    rows = ours(CROSS_ENCODER).encode_pairs(pairs, max_tokens=64)
    found = theirs(CROSS_ENCODER)(
        [pair[0] for pair in pairs], [pair[1] for pair in pairs], truncation="longest_first", max_length=64
    )
    assert [row.ids for row in rows] == [tuple(ids) for ids in found["input_ids"]]
    assert [row.type_ids for row in rows] == [tuple(ids) for ids in found["token_type_ids"]]


def test_o02_truncation_keeps_the_terminal_token(
    ours: Callable[[str], Tokenizer], theirs: Callable[[str], Any]
) -> None:
    tokenizer = ours(EMBEDDER)
    for limit in (2, 3, 8, 64, 129):
        texts = [n_token_text(tokenizer, max(2, n)) for n in (limit - 1, limit, limit + 1, 2 * limit)]
        texts.append("Some words, over and over. " * 3800)  # more than 100,000 characters
        rows = tokenizer.encode_texts(texts, max_tokens=limit)
        assert ids_of(rows) == text_ids(theirs(EMBEDDER), texts, limit)
        for text, row in zip(texts, rows, strict=True):
            whole = tokenizer.encode_texts([text])[0]
            assert row.ids == (*whole.ids[:-1][: limit - 1], END)
            assert row.cut_tokens == max(0, whole.n_tokens - limit)


def test_o02_at_exactly_the_limit_nothing_is_cut(ours: Callable[[str], Tokenizer]) -> None:
    tokenizer = ours(EMBEDDER)
    text = n_token_text(tokenizer, 64)
    assert tokenizer.encode_texts([text], max_tokens=64, truncate=False) == tokenizer.encode_texts([text])


def test_o02_without_truncation_limit_and_count_are_stated(ours: Callable[[str], Tokenizer]) -> None:
    tokenizer = ours(EMBEDDER)
    with pytest.raises(InputTooLongError) as caught:
        tokenizer.encode_texts(["ok", n_token_text(tokenizer, 65)], max_tokens=64, truncate=False)
    assert str(caught.value) == "input[1]: 65 tokens, the limit is 64; shorten it or allow truncation"
    long_text = "Some words, over and over. " * 3800
    n_tokens = tokenizer.encode_texts([long_text])[0].n_tokens
    with pytest.raises(InputTooLongError) as caught:
        tokenizer.encode_texts([long_text], max_tokens=64, truncate=False)
    assert (caught.value.n_tokens, caught.value.limit_tokens) == (n_tokens, 64)


def test_o02_a_text_of_100000_characters(ours: Callable[[str], Tokenizer], theirs: Callable[[str], Any]) -> None:
    letters = random.Random(5)
    texts = ["".join(letters.choice("abcdefg hij\nklm. 0123é漢") for _ in range(100_000)), "x" * 100_000]
    rows = ours(EMBEDDER).encode_texts(texts)
    assert ids_of(rows) == text_ids(theirs(EMBEDDER), texts, MAX_TOKENS[EMBEDDER])
    assert all(row.n_tokens <= MAX_TOKENS[EMBEDDER] and row.ids[-1] == END for row in rows)
    assert rows[0].cut_tokens > 0  # the model's own limit holds when none is given


def test_o03_the_terminal_token_is_added_once(ours: Callable[[str], Tokenizer]) -> None:
    rows = ours(EMBEDDER).encode_texts(["test", "test again"])
    assert ids_of(rows) == [(1944, END), (1944, 1549, END)]
    assert [row.n_tokens for row in rows] == [2, 3]


def test_o10_pairs_over_the_budget_keep_both_sides_and_every_separator(
    ours: Callable[[str], Tokenizer], theirs: Callable[[str], Any]
) -> None:
    def words(n: int) -> str:
        return " word" * n

    giants = [(words(10), words(50_000 if i == 7 else 10)) for i in range(20)]
    pairs = [(words(200), words(10)), (words(10), words(5000)), (words(200), words(200)), *giants]
    rows = ours(RERANKER).encode_pairs(pairs, max_tokens=128)
    assert ids_of(rows) == pair_ids(theirs(RERANKER), pairs, 128)
    for row in rows:
        assert row.n_tokens <= 128
        first_sep = row.ids.index(SEP)
        assert (row.ids[0], row.ids[-1], row.ids.count(SEP)) == (CLS, SEP, 2)
        assert first_sep > 1
        assert row.n_tokens - first_sep > 2
    untouched = [pair for i, pair in enumerate(giants) if i != 7]
    assert [row for i, row in enumerate(rows[3:]) if i != 7] == ours(RERANKER).encode_pairs(untouched)
    for index in (0, 1, 2, 10):
        with pytest.raises(InputTooLongError) as caught:
            ours(RERANKER).encode_pairs([("a", "b"), pairs[index]], max_tokens=128, truncate=False)
        assert (caught.value.index, caught.value.limit_tokens) == (1, 128)


@pytest.mark.parametrize("name", [RERANKER, CROSS_ENCODER])
def test_o10_longest_first_with_random_lengths(
    name: str, ours: Callable[[str], Tokenizer], theirs: Callable[[str], Any]
) -> None:
    numbers = random.Random(10)

    def text() -> str:
        words = ["one", " two", " dreizehn", ", ", "\n", " Größe", " 漢字", " internationalisation", " [SEP]"]
        return "".join(numbers.choices(words, k=numbers.choice([0, 1, 2, 5, 20, 60])))

    for _ in range(30):
        limit = numbers.choice([5, 6, 7, 8, 16, 31, 64, 100])
        pairs = [(text(), text()) for _ in range(8)]
        rows = ours(name).encode_pairs(pairs, max_tokens=limit)
        assert ids_of(rows) == pair_ids(theirs(name), pairs, limit), limit
        for row, whole in zip(rows, ours(name).encode_pairs(pairs), strict=True):
            assert row.cut_tokens == whole.n_tokens - row.n_tokens


def test_o11_empty_text_is_the_terminal_token_and_white_space_is_text(ours: Callable[[str], Tokenizer]) -> None:
    rows = ours(EMBEDDER).encode_texts(["", " ", "   ", "\n\t", "ok"])
    assert rows[0].ids == (END,)
    assert [row.n_tokens for row in rows[1:3]] == [2, 2]
    assert len({row.ids for row in rows}) == 5
    assert all(row.ids[-1] == END for row in rows)
    assert ours(EMBEDDER).encode_texts([""]) == rows[:1]


def test_o11_empty_sides_of_a_pair_keep_every_separator(
    ours: Callable[[str], Tokenizer], theirs: Callable[[str], Any]
) -> None:
    pairs = [("", ""), ("x", ""), ("", "x"), (" ", "\n")]
    rows = ours(RERANKER).encode_pairs(pairs)
    assert rows[0].ids == (CLS, SEP, SEP)
    assert all(row.ids.count(SEP) == 2 for row in rows)
    assert ids_of(rows) == pair_ids(theirs(RERANKER), pairs, 8192)


def test_o12_markers_in_texts_are_parsed_as_transformers_parses_them(
    ours: Callable[[str], Tokenizer], theirs: Callable[[str], Any]
) -> None:
    rows = ours(EMBEDDER).encode_texts(MARKED)
    assert ids_of(rows) == text_ids(theirs(EMBEDDER), MARKED, 32768)
    assert 151645 in rows[0].ids
    assert rows[0].ids[:-2] == rows[1].ids[:-2]
    assert rows[0].ids != rows[1].ids
    assert all(row.ids[-1] == END for row in rows)
    assert rows[5].ids == (END, END)  # the text's own marker, then the terminal token


def test_o12_markers_are_parsed_alike_when_cut(ours: Callable[[str], Tokenizer], theirs: Callable[[str], Any]) -> None:
    texts = [text + " <|im_end|> and more [SEP] words" * 20 for text in MARKED]
    for limit in (2, 7, 50):
        assert ids_of(ours(EMBEDDER).encode_texts(texts, max_tokens=limit)) == text_ids(theirs(EMBEDDER), texts, limit)


def test_o12_documents_stuffed_with_separators(ours: Callable[[str], Tokenizer], theirs: Callable[[str], Any]) -> None:
    pairs = [(a, b) for a in ("[SEP] relevant [CLS]", "q") for b in ("[SEP] relevant [CLS]", "[SEP]" * 300, "d")]
    for limit in (16, 8192):
        rows = ours(RERANKER).encode_pairs(pairs, max_tokens=limit)
        assert ids_of(rows) == pair_ids(theirs(RERANKER), pairs, limit)
        assert all(row.ids[0] == CLS and row.ids[-1] == SEP for row in rows)


def test_o16_threads_do_not_disturb_each_other(ours: Callable[[str], Tokenizer]) -> None:
    embedder, reranker = ours(EMBEDDER), ours(RERANKER)
    numbers = random.Random(16)

    def call() -> Callable[[], object]:
        limit = numbers.choice([None, 16, 64, 128])
        truncate = numbers.random() < 0.7
        texts = [" w" * numbers.randint(1, 200) for _ in range(numbers.randint(1, 4))]
        if numbers.random() < 0.5:
            return lambda: embedder.encode_texts(texts, max_tokens=limit, truncate=truncate)
        return lambda: reranker.encode_pairs([("q", t) for t in texts], max_tokens=limit, truncate=truncate)

    def answer(call: Callable[[], object]) -> object:
        try:
            return call()
        except InputTooLongError as error:
            return str(error)

    calls = [[call() for _ in range(50)] for _ in range(8)]
    serial = [[answer(call) for call in chain] for chain in calls]
    assert sum(isinstance(found, str) for chain in serial for found in chain) > 20  # refusals are among them
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda chain: [answer(call) for call in chain], calls)) == serial


def test_o19_the_rerankers_fixed_padding_is_reset(ours: Callable[[str], Tokenizer]) -> None:
    raw = RawTokenizer.from_file(str(SNAPSHOTS / RERANKER / "tokenizer.json"))
    assert len(raw.encode("a", "b").ids) == 8000  # the trap is still there
    assert ours(RERANKER).encode_pairs([("a", "b")])[0].n_tokens == 5
    assert ours(RERANKER).encode_pairs([("a", " b" * 9000)])[0].n_tokens == 8192  # nor does its 8,000 limit hold
    raw = RawTokenizer.from_file(str(SNAPSHOTS / SENTENCE / "tokenizer.json"))
    assert len(raw.encode("a").ids) == 128
    assert ours(SENTENCE).encode_texts(["a", "b " * 300])[0].n_tokens == 3
    assert ours(SENTENCE).encode_texts(["a", "b " * 300])[1].n_tokens == 302


def test_o25_the_query_prompt_is_exact(ours: Callable[[str], Tokenizer], theirs: Callable[[str], Any]) -> None:
    prompts = load_lock().model(EMBEDDER).prompts
    queries = ["What is the capital of China?", "Explain gravity", ""]
    tokenizer = ours(EMBEDDER)
    rows = tokenizer.encode_texts(queries, prompt=prompts["query"])
    by_hand = [
        f"Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:{query}"
        for query in queries
    ]
    assert rows == tokenizer.encode_texts(by_hand)
    assert ids_of(rows) == text_ids(theirs(EMBEDDER), by_hand, 32768)
    spaced = tokenizer.encode_texts(queries, prompt=prompts["query"] + " ")
    assert all(a.ids != b.ids for a, b in zip(rows, spaced, strict=True))
    assert tokenizer.encode_texts(queries, prompt=prompts["document"]) == tokenizer.encode_texts(queries)
    assert rows[0].n_tokens == 27  # usage counts the prompt


def test_o25_a_prompt_and_a_text_meet_as_one_string(
    ours: Callable[[str], Tokenizer], theirs: Callable[[str], Any]
) -> None:
    texts = ["\u0301accent", " space", "\nline", "<think>", "漢"]
    for prompt in ("e", "Query:", "x ", "\n"):
        joined = text_ids(theirs(EMBEDDER), [prompt + text for text in texts], 32768)
        assert ids_of(ours(EMBEDDER).encode_texts(texts, prompt=prompt)) == joined


@pytest.mark.parametrize("bad", ["a\ud800", "\udfff", None, 3, b"x", ("a", "b"), ["a"]])
def test_what_is_not_text_is_refused_by_position(bad: Any, ours: Callable[[str], Tokenizer]) -> None:
    with pytest.raises(InputError) as caught:
        ours(EMBEDDER).encode_texts(["fine", "fine", bad])
    assert (caught.value.field, caught.value.index) == ("input", 2)
    with pytest.raises(InputError) as caught:
        ours(RERANKER).encode_pairs([("a", "b"), ("a", bad)])
    assert (caught.value.field, caught.value.index) == ("pairs", 1)
