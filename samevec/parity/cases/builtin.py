"""The built-in cases, written or generated here and fixed by digest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from samevec.digest import digest_json
from samevec.parity.cases.texts import (
    BLANKS,
    CODE,
    CODE_LINES,
    CONTROLS,
    LENGTH_EDGES,
    MARKERS,
    NEAR_TWINS,
    NOTES,
    NUMBERS,
    PROSE,
    QUERIES,
    RIGHT_TO_LEFT,
    SCRIPTS,
    SYMBOLS,
    URLS,
    WORDS,
    equal_length_texts,
    letters,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

__all__ = ["CaseSet", "PairCase", "TextCase", "builtin_cases", "quick_positions"]

#: Words of the one case beyond 1,024 tokens. The toy models' byte-level tokenizer cuts it at their limit.
_LONGEST_WORDS = 1030


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
    quick : bool
        Whether it is in the quick subset.
    """

    text: str
    prompt: str | None = None
    max_tokens: int | None = None
    tag: str
    quick: bool = False

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
    quick: bool = False

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
        """``sha256:...`` of the canonical JSON of task and cases; neither tags nor `quick` are part of it."""
        return digest_json({"task": self.task, "cases": [case.to_record() for case in self.cases]})

    def subset(self, positions: Sequence[int]) -> CaseSet:
        """Return the cases at these positions, in this order."""
        if self.texts:
            return replace(self, texts=tuple(self.texts[i] for i in positions))
        return replace(self, pairs=tuple(self.pairs[i] for i in positions))

    def __len__(self) -> int:
        return len(self.cases)


def _texts(tag: str, texts: Iterable[str], *, quick: int = 0, **settings: Any) -> list[TextCase]:
    """Return cases with one tag, of which the first few are quick."""
    return [TextCase(text=text, tag=tag, quick=i < quick, **settings) for i, text in enumerate(texts)]


def _pairs(tag: str, pairs: Iterable[tuple[str, str]], *, quick: int = 0, **settings: Any) -> list[PairCase]:
    return [
        PairCase(query=query, document=document, tag=tag, quick=i < quick, **settings)
        for i, (query, document) in enumerate(pairs)
    ]


def _tagged_texts(texts: Sequence[tuple[str, str]], *, quick: Collection[int] = ()) -> list[TextCase]:
    return [TextCase(text=text, tag=tag, quick=i in quick) for i, (tag, text) in enumerate(texts)]


def _text_cases() -> list[TextCase]:
    return [
        *_texts("blank", BLANKS, quick=2),
        *_texts("prose", PROSE, quick=1),
        *_texts("note", NOTES, quick=2),
        *_texts("near twin", NEAR_TWINS, quick=1),
        *_texts("word", WORDS, quick=1),
        *_texts("number", NUMBERS),
        *_texts("code", (*CODE, *CODE_LINES)),
        *_texts("address", URLS),
        *_tagged_texts(SCRIPTS, quick=(0, 2, 4)),
        *_texts("right to left", RIGHT_TO_LEFT),
        *_tagged_texts(SYMBOLS, quick=(0, 6)),
        *_texts("control", CONTROLS, quick=1),
        *_texts("marker-like", MARKERS, quick=3),
        # The embedder's artifact pads with 0, which is an exclamation mark: a mask made from ids would lose it.
        *_texts("pad id", ["Stop! Go!"], quick=1),
        *_texts("duplicate", (PROSE[0], "", NOTES[0], NOTES[0])),
        *_texts("equal length 2", equal_length_texts(2, 1)),
        *_texts("equal length 5", equal_length_texts(5, 4)),
        *_texts("equal length 8", equal_length_texts(8, 6), quick=3),
        *_texts("equal length 16", equal_length_texts(16, 4)),
        *_texts("letters", [letters(n) for n in (90, 1, 2, 3, 4, 6, 7, 9, 10, 11, 12, 20, 24, 40)], quick=1),
        *_texts("length edge", [letters(n - 1) for n in LENGTH_EDGES]),
        *_texts("longest", [letters(_LONGEST_WORDS)]),
        *_texts("cut to 16 tokens", [letters(n) for n in (40, 16, 15)], quick=2, max_tokens=16),
        *_texts("cut to 3 tokens", [PROSE[0], "Σ"], max_tokens=3),
        *_texts("query prompt", [*QUERIES, ""], quick=1, prompt="query"),
        *_texts("document prompt", QUERIES[:1], prompt="document"),
        *_texts("cut inside the prompt", QUERIES[1:2], quick=1, prompt="query", max_tokens=16),
    ]


def _length_pair(n_tokens: int) -> tuple[str, str]:
    """Return a pair of so many tokens with three special ones; every third has its length on the query's side."""
    n_short, n_long = 1, n_tokens - 4
    return (letters(n_long), letters(n_short)) if n_tokens % 3 == 0 else (letters(n_short), letters(n_long))


def _pair_cases() -> list[PairCase]:
    query, sources = QUERIES[2], ("ferry", "window", "cake", "claim", "ice", "price")
    symbols = [text for _, text in SYMBOLS]
    return [
        *_pairs("blank", [("", ""), ("", "x"), ("x", ""), (" ", "\n"), ("\u3000", "y")], quick=3),
        *_pairs("prose", zip(sources, PROSE, strict=True), quick=2),
        *_pairs("long query", [(PROSE[1], PROSE[4]), (PROSE[4], "ice")], quick=1),
        *_pairs("note", [(QUERIES[1], text) for text in NOTES[:8]], quick=2),
        *_pairs("near twin", [("bank", text) for text in NEAR_TWINS[:6]]),
        *_pairs("number", [("how many", text) for text in NUMBERS[:5]]),
        *_pairs("code", [("sort", CODE[0]), ("json", CODE[1]), *(("code", text) for text in CODE_LINES[:6])]),
        *_pairs("address", [("link", text) for text in URLS[:3]]),
        *_pairs("script", [("book", text) for _, text in SCRIPTS[:18]], quick=2),
        *_pairs("script in the query", [(text, "book") for _, text in SCRIPTS[:4]], quick=1),
        *_pairs("right to left", [("x", text) for text in RIGHT_TO_LEFT[:3]]),
        *_pairs("symbol", [("x", text) for text in symbols[::4]], quick=1),
        *_pairs("control", [("x", text) for text in CONTROLS[:4]], quick=1),
        *_pairs("marker-like", [("x", text) for text in MARKERS[2:8]], quick=2),
        *_pairs("marker-like", [(text, "x") for text in MARKERS[12:16]], quick=1),
        *_pairs("pad id", [("x", "[PAD] [PAD] x")], quick=1),
        *_pairs("duplicate", [(sources[0], PROSE[0]), ("", "")]),
        *_pairs("equal length", [(query, text) for text in equal_length_texts(5, 4)], quick=3),
        *_pairs("equal length 16", [(query, text) for text in equal_length_texts(16, 3)]),
        *_pairs("equal length 160", [("a", text) for text in equal_length_texts(156, 2)], quick=1),
        *_pairs("letters", [("a", letters(n)) for n in (1, 2, 3, 20, 40, 80)]),
        *_pairs("length edge", [_length_pair(n) for n in LENGTH_EDGES]),
        *_pairs("longest", [("a", letters(_LONGEST_WORDS))]),
        *_pairs(
            "cut to 32 tokens",
            [(letters(a), letters(b)) for a, b in ((60, 4), (4, 60), (60, 50))],
            quick=3,
            max_tokens=32,
        ),
    ]


def builtin_cases(task: str, *, prompts: Collection[str] = (), quick: bool = False) -> CaseSet:
    """Return the built-in cases of a task.

    Parameters
    ----------
    task : str
        ``"embed"`` or ``"rerank"``.
    prompts : collection of str
        Names of the prompts the model's lock entry has; cases with another prompt are left out.
    quick : bool
        Only the quick subset; :func:`quick_positions` says where in the full set its cases are.

    Returns
    -------
    CaseSet
        The same, in the same order, on every machine.
    """
    if task == "rerank":
        cases = CaseSet(task="rerank", pairs=tuple(_pair_cases()))
    else:
        cases = CaseSet(task="embed", texts=tuple(case for case in _text_cases() if case.prompt in (None, *prompts)))
    return cases.subset(quick_positions(cases)) if quick else cases


def quick_positions(case_set: CaseSet) -> tuple[int, ...]:
    """Return where the quick cases of a set are; every position of a set that marks none."""
    return tuple(i for i, case in enumerate(case_set.cases) if case.quick) or tuple(range(len(case_set)))
