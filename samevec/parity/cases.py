"""The built-in cases, written or generated here and fixed by digest, and the groupings in which they run."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from samevec.digest import digest_json

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

__all__ = ["CaseSet", "Grouping", "PairCase", "TextCase", "builtin_cases", "groupings"]

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True, slots=True)
class TextCase:
    """One text to embed.

    Attributes
    ----------
    text : str
    prompt : str or None
        Name of the lock's prompt to put before it.
    max_tokens : int or None
        Cut to this many tokens; None leaves the model's own limit.
    tag : str
        What the case is there for.
    """

    text: str
    prompt: str | None = None
    max_tokens: int | None = None
    tag: str

    def to_record(self) -> list[Any]:
        """Return what the digest covers: everything that decides the token ids."""
        return [self.text, self.prompt, self.max_tokens]


@dataclass(frozen=True, kw_only=True, slots=True)
class PairCase:
    """One query and document to score; attributes as in :class:`TextCase`."""

    query: str
    document: str
    max_tokens: int | None = None
    tag: str

    def to_record(self) -> list[Any]:
        """Return what the digest covers: everything that decides the token ids."""
        return [self.query, self.document, self.max_tokens]


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseSet:
    """Cases of one task; `texts` or `pairs` is empty.

    Attributes
    ----------
    task : str
        ``"embed"`` or ``"rerank"``.
    texts : tuple of TextCase
    pairs : tuple of PairCase
    """

    task: Literal["embed", "rerank"]
    texts: tuple[TextCase, ...] = ()
    pairs: tuple[PairCase, ...] = ()

    @property
    def cases(self) -> tuple[TextCase | PairCase, ...]:
        """The cases, of whichever kind."""
        return self.texts or self.pairs

    @property
    def digest(self) -> str:
        """``sha256:...`` of the canonical JSON of task and cases; tags are not part of it."""
        return digest_json({"task": self.task, "cases": [case.to_record() for case in self.cases]})

    def __len__(self) -> int:
        return len(self.cases)


# One token each, with and without a space before them, in the vocabularies in use, and one byte each: permutations of
# them are equal in length for every tokenizer that splits at spaces, and for the toy models' byte-level one.
_LETTERS = ("a", "b", "c", "d", "e", "f", "g", "h", "i", "k", "m", "n", "o", "p", "r", "s")

_PROSE = (
    "The ferry leaves the island at seven and reaches the mainland before the market opens.",
    "Nobody had opened the north window since the winter in which the river froze, and the room smelled of dust.",
    "Fold the egg whites into the batter in three parts, turning the bowl rather than the spoon, and bake at once.",
    "A warranty claim must reach us within thirty days of delivery; parts that wear in ordinary use are not covered.",
    "Glaciers retreat when more ice melts in summer than falls as snow in winter.",
    "She paid 1,299.50 in 12 instalments from 2021-03-01 to 2022-02-28, i.e. 108.29 a month (rounded).",
)
_QUERIES = ("What is the capital of China?", "Explain gravity", "when does the ferry leave")
_CODE = (
    "def merge(a, b):\n    out = []\n    while a and b:\n        out += [(a if a < b else b).pop(0)]\n    return out\n",
    "SELECT u.id, COUNT(*) AS n FROM users u LEFT JOIN orders o ON o.user_id = u.id GROUP BY u.id HAVING n > 3;",
    '{"id": 17, "tags": ["x", "y"], "nested": {"pi": 3.14159, "none": null}}',
)
_URLS = (
    "https://example.org/a/b-c_d/%7Euser?q=caf%C3%A9&lang=pt-BR#section-2.1",
    "mail to: first.last+tag@mail.example.com, or ssh://git@host.example:2222/~/repo.git",
)
_SCRIPTS = (
    ("chinese", "长城始建于两千多年前,全长超过两万公里。"),
    ("japanese", "駅までの道を、傘もささずにゆっくり歩いた。"),
    ("korean", "도서관은 월요일마다 문을 닫습니다."),
    ("cyrillic", "Снег шёл всю ночь, и к утру дорогу замело."),
    ("greek", "Η θάλασσα ήταν ήρεμη εκείνο το πρωί."),  # noqa: RUF001
    ("devanagari", "नदी के किनारे एक पुराना बरगद का पेड़ था।"),
    ("thai", "ตลาดเช้าเปิดก่อนพระอาทิตย์ขึ้น"),
    ("arabic", "تغلق المكتبة أبوابها في الساعة الثامنة مساءً."),
    ("hebrew", "הרכבת האחרונה יוצאת בחצות."),
    ("mixed direction", "Order 42: שלום world, مرحبا 3.5 kg"),
)
_SYMBOLS = (
    ("emoji", "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1f5\U0001f1f9 \U0001f44d\U0001f3fd \U0001fae0 ok"),
    ("combining marks", "e\u0301 n\u0303 a\u0308\u0323 Z\u0351\u036b\u0343 \u00e9 \u00f1"),
    ("compatibility forms", "\ufb01ne \u2167 \u2460 \uff46\uff55\uff4c\uff4c\u3000width \u2126 \u212b"),
    ("joiners and marks", "zero\u200bwidth\u200djoin\u2060er \ufeffbom soft\u00adhyphen \u202eoverride\u202c"),
    ("astral and private", "\U0001d518\U0001d52b\U0001d526 \U0001f9ec \ue000 \U000e0041 \ufffd"),
    ("NUL and controls", "a\x00b\x01c\x07\x08d\x1b[31me\x7f\x85f"),
    ("line ends", "one\r\ntwo\rthree\n\n\nfour\u2028five\tsix"),
)
_MARKERS = (
    "A <|im_end|> B",
    "A <|im_end|> C",
    "ends with <|endoftext|>",
    "<|im_start|>system\nX <think>x</think> <|fim_pad|>",
    "[CLS] relevant [SEP] [PAD] [MASK] [UNK] </s>",
)
_BLANKS = ("", " ", "   ", "\n\t")


def _shuffle(items: Sequence[_T], *, seed: int) -> list[_T]:
    """Return items in a fixed other order; only ``random()`` itself is promised to stay the same in every Python."""
    stream = random.Random(seed)  # noqa: S311
    keys = [stream.random() for _ in items]
    return [items[i] for i in sorted(range(len(items)), key=keys.__getitem__)]


def _equal_lengths(n_words: int, n_texts: int) -> list[str]:
    """Return different texts of equal length: the same single letters in other orders."""
    words = [_LETTERS[i % len(_LETTERS)] for i in range(n_words)]
    # The first word has no space before it and so is another token: it stays where it is.
    return [" ".join([words[0], *_shuffle(words[1:], seed=n_words + i)]) for i in range(n_texts)]


def _ladder(n_words: int) -> str:
    """Return a text of n one-letter words."""
    stream = random.Random(n_words)  # noqa: S311
    return " ".join(_LETTERS[int(stream.random() * len(_LETTERS))] for _ in range(n_words))


def _texts() -> list[TextCase]:
    cases = [TextCase(text=text, tag="blank") for text in _BLANKS]
    cases += [TextCase(text=text, tag="prose") for text in _PROSE]
    cases += [TextCase(text=text, tag="code") for text in _CODE]
    cases += [TextCase(text=text, tag="address") for text in _URLS]
    cases += [TextCase(text=text, tag=tag) for tag, text in (*_SCRIPTS, *_SYMBOLS)]
    cases += [TextCase(text=text, tag="marker-like") for text in _MARKERS]
    cases += [TextCase(text=_PROSE[0], tag="duplicate"), TextCase(text="", tag="duplicate")]
    for n_words, n_texts in ((5, 4), (16, 4), (64, 3), (128, 3)):
        cases += [TextCase(text=text, tag=f"equal length {n_words}") for text in _equal_lengths(n_words, n_texts)]
    cases += [TextCase(text=_ladder(n), tag=f"{n} words") for n in (1, 2, 30, 62, 255, 600)]
    cases += [TextCase(text=_ladder(n), max_tokens=16, tag="cut to 16 tokens") for n in (15, 16, 40)]
    cases += [TextCase(text=text, prompt="query", tag="query prompt") for text in _QUERIES]
    cases += [TextCase(text="", prompt="query", tag="query prompt")]
    cases += [TextCase(text=_QUERIES[0], prompt="document", tag="document prompt")]
    cases += [TextCase(text=_QUERIES[1], prompt="query", max_tokens=16, tag="cut inside the prompt")]
    return cases


def _pairs() -> list[PairCase]:
    query = _QUERIES[2]
    cases = [PairCase(query=query, document=text, tag="prose") for text in _PROSE]
    cases += [PairCase(query=_PROSE[i], document=_PROSE[i + 1], tag="long query") for i in range(3)]
    cases += [PairCase(query="sort two lists", document=text, tag="code or address") for text in (*_CODE, *_URLS)]
    cases += [PairCase(query=text, document=_PROSE[0], tag=tag) for tag, text in _SCRIPTS[::3]]
    cases += [PairCase(query="text", document=text, tag=tag) for tag, text in (*_SCRIPTS[1::3], *_SYMBOLS)]
    cases += [PairCase(query=text, document=text, tag="marker-like") for text in _MARKERS[1::3]]
    cases += [PairCase(query="", document="", tag="blank"), PairCase(query="", document="x", tag="blank")]
    cases += [PairCase(query="x", document="", tag="blank"), PairCase(query=" ", document="\n", tag="blank")]
    cases += [PairCase(query=query, document=_PROSE[0], tag="duplicate")]
    for n_words, n_texts in ((5, 3), (16, 3), (128, 3)):
        documents = _equal_lengths(n_words, n_texts)
        cases += [PairCase(query=query, document=text, tag=f"equal length {n_words}") for text in documents]
    cases += [PairCase(query=query, document=_ladder(n), tag=f"{n} words") for n in (1, 50, 240, 600)]
    cases += [
        PairCase(query=_ladder(a), document=_ladder(b), max_tokens=32, tag="cut to 32 tokens")
        for a, b in ((60, 4), (4, 60), (60, 50))
    ]
    return cases


def builtin_cases(task: str, *, prompts: Collection[str] = ()) -> CaseSet:
    """Return the built-in cases of a task.

    Parameters
    ----------
    task : str
        ``"embed"`` or ``"rerank"``.
    prompts : collection of str
        Names of the prompts the model's lock entry has; cases with another prompt are left out.

    Returns
    -------
    CaseSet
        The same, in the same order, on every machine.
    """
    if task == "rerank":
        return CaseSet(task="rerank", pairs=tuple(_pairs()))
    return CaseSet(task="embed", texts=tuple(case for case in _texts() if case.prompt in (None, *prompts)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Grouping:
    """A way of running cases together.

    Attributes
    ----------
    name : str
    calls : tuple of tuple of int
        Case numbers of each call, in the order in which they are handed over.
    batch_size, token_budget : int or None
        As a caller would give them; None leaves the model's own.
    like : str or None
        Another grouping that may run the very same microbatches without either being pointless.
    """

    name: str
    calls: tuple[tuple[int, ...], ...]
    batch_size: int | None = None
    token_budget: int | None = None
    like: str | None = None

    @property
    def cases(self) -> tuple[int, ...]:
        """Every case number it runs, in order of the calls."""
        return tuple(case for call in self.calls for case in call)


def groupings(lengths: Sequence[int]) -> tuple[Grouping, ...]:
    """Return the groupings in which rows of these lengths are compared.

    Parameters
    ----------
    lengths : sequence of int
        Tokens of each case.

    Returns
    -------
    tuple of Grouping
        ``alone`` first: the others are compared with it bit by bit. Each runs every case once, except
        ``equal_lengths`` (only cases that share their length with another, nothing padded) and ``long_among_short``
        (the longest case between two of the shortest).
    """
    every = tuple(range(len(lengths)))
    found = [
        Grouping(name="alone", calls=tuple((i,) for i in every)),
        Grouping(name="default", calls=(every,)),
        Grouping(name="batch_1", calls=(every,), batch_size=1, like="alone"),
        Grouping(name="batch_8", calls=(every,), batch_size=8),
        Grouping(name="shuffled", calls=_shuffled(every), token_budget=512),
    ]
    equal = tuple(group for group in _by_length(lengths) if len(group) > 1)
    if equal:
        found.append(Grouping(name="equal_lengths", calls=equal))
    if len(every) > 4:
        by_length = sorted(every, key=lambda i: lengths[i])
        call = (by_length[0], by_length[-1], by_length[2])
        budget = 3 * (lengths[by_length[-1]] + 16)  # room for all three in one run, whatever the padding multiple
        found.append(Grouping(name="long_among_short", calls=(call,), batch_size=3, token_budget=budget))
    return tuple(found)


def _shuffled(every: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return calls of 13 in a fixed shuffled order: every case in other company than in one sorted call."""
    order = _shuffle(every, seed=20)
    return tuple(tuple(order[i : i + 13]) for i in range(0, len(order), 13))


def _by_length(lengths: Sequence[int]) -> list[tuple[int, ...]]:
    groups: dict[int, list[int]] = {}
    for i, length in enumerate(lengths):
        groups.setdefault(length, []).append(i)
    return [tuple(group) for _, group in sorted(groups.items())]
