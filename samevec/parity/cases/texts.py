"""What the built-in cases are made of: texts of ours, and texts generated from letters. Pure; no model is asked."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "BLANKS",
    "CODE",
    "CODE_LINES",
    "CONTROLS",
    "LENGTH_EDGES",
    "MARKERS",
    "NEAR_TWINS",
    "NOTES",
    "NUMBERS",
    "PROSE",
    "QUERIES",
    "RIGHT_TO_LEFT",
    "SCRIPTS",
    "SYMBOLS",
    "URLS",
    "WORDS",
    "equal_length_texts",
    "letters",
    "shuffle",
]

_T = TypeVar("_T")

# One token each, with and without a space before them, in the vocabularies in use, and one byte each: permutations of
# them are equal in length for every tokenizer that splits at spaces, and for the toy models' byte-level one.
_LETTERS = ("a", "b", "c", "d", "e", "f", "g", "h", "i", "k", "m", "n", "o", "p", "r", "s")

#: Lengths in tokens, special tokens included, that must be hit: around the powers of two at which kernels, local
#: windows and blocks change.
LENGTH_EDGES = tuple(power + step for power in (32, 64, 128, 256, 512) for step in (-1, 0, 1))

PROSE = (
    "The ferry leaves the island at seven and reaches the mainland before the market opens.",
    "Nobody had opened the north window since the winter in which the river froze, and the room smelled of dust.",
    "Fold the egg whites into the batter in three parts, turning the bowl rather than the spoon, and bake at once.",
    "A warranty claim must reach us within thirty days of delivery; parts that wear in ordinary use are not covered.",
    "Glaciers retreat when more ice melts in summer than falls as snow in winter.",
    "She paid 1,299.50 in 12 instalments from 2021-03-01 to 2022-02-28, i.e. 108.29 a month (rounded).",
)
QUERIES = ("What is the capital of China?", "Explain gravity", "when does the ferry leave")
NOTES = (
    "buy milk",
    "dentist at nine",
    "Anna prefers tea",
    "rent is due on Friday",
    "the spare key is under the pot",
    "call the plumber back",
    "no nuts for Tom",
    "parked on level two",
    "the meeting moved",
    "water the ferns",
    "flight lands late",
    "password hint: first school",
    "return the ladder",
    "Mum's birthday",
    "the red one broke",
    "wifi is slow upstairs",
    "she said maybe",
    "book club, chapter 4",
    "left shoe squeaks",
    "ask about the deposit",
    "bins go out Tuesday",
    "he is allergic to cats",
    "soup needs salt",
    "train was cancelled",
    "shop shuts early",
    "paint it white",
    "two sugars",
    "gate sticks when wet",
    "never again",
    "turn left after the bridge",
    "lend Ivo the drill",
    "eggs, flour, yeast",
    "the lift is out of order",
    "renew passport by June",
    "cough since Sunday",
    "neighbour's dog again",
    "first snow today",
    "keep the receipt",
    "Aunt Rosa rang twice",
    "half past six, not seven",
    "blue folder, top shelf",
    "he hums when he lies",
    "no signal in the cellar",
    "sold the piano",
    "try the other door",
)
NEAR_TWINS = (
    "The bank opened",
    "the bank opened",
    "THE BANK OPENED",
    "The bank opened.",
    "The bank  opened",
    " The bank opened",
    "The bank opened ",
    "The bank opened\n",
    "The bank-opened",
    "Thebankopened",
    "not open",
    "open",
)
WORDS = (
    "a",
    "I",
    "ok",
    "No.",
    "why?",
    "hello",
    "antidisestablishmentarianism",
    "Donaudampfschiff",
    "naïve",
    "œuvre",
    "mañana",
    "fjord",
    "Łódź",
    "rock'n'roll",
    "COVID-19",
    "iPhone",
    "e.g.",
    "camelCaseName",
    "snake_case_name",
    "a/b",
    "qwrtzpsdf",
    "aaaaaaaaaaaaaaaaaaaaaaaa",
    "----------------",
    "!?!?!?",
    "...",
    "'",
    '"',
    "\\",
)
NUMBERS = (
    "0",
    "7",
    "42",
    "-17",
    "1e-9",
    "3.14159",
    "1,000,000",
    "2024-02-29",
    "0x7fff",
    "½",
    "٣٫١٤",  # noqa: RUF001
    "MCMXCIV",
    "50 %",
)
CODE = (
    "def merge(a, b):\n    out = []\n    while a and b:\n        out += [(a if a < b else b).pop(0)]\n    return out\n",
    '{"id": 17, "tags": ["x", "y"], "nested": {"pi": 3.14159, "none": null}}',
)
CODE_LINES = (
    "x += 1",
    "if (a && b) {",
    "SELECT 1;",
    "git rebase -i",
    "#include <stdio.h>",
    "lambda x: x",
    "<br/>",
    '{"k": [1]}',
    "```py",
    "$HOME/bin",
    "f'{x!r}'",
    "// TODO",
    "p->next[i]",
    "rm -- -f",
    "\tindented",
    "%s\\n",
)
URLS = (
    "https://example.org/a/b-c_d/%7Euser?q=caf%C3%A9&lang=pt-BR#section-2.1",
    "http://[::1]:8080/",
    "first.last+tag@mail.example.com",
    "ssh://git@host.example:2222/~/repo.git",
    "C:\\Users\\x",
    "../a/./b",
    "www.example.org",
    "urn:isbn:0",
)
SCRIPTS = (
    ("chinese", "长城始建于两千多年前。"),
    ("cyrillic", "Снег шёл всю ночь."),
    ("arabic", "تغلق المكتبة أبوابها"),
    ("thai", "ตลาดเช้า"),
    ("devanagari", "नदी के किनारे"),
    ("japanese", "傘もささずに歩いた。"),
    ("korean", "도서관은 문을 닫습니다."),
    ("greek", "Η θάλασσα ήρεμη"),  # noqa: RUF001
    ("hebrew", "הרכבת האחרונה"),
    ("traditional chinese", "圖書館"),
    ("katakana", "コーヒー"),
    ("half-width katakana", "ｶﾀｶﾅ"),
    ("vietnamese", "Tiếng Việt"),
    ("turkish", "ISPARTA ılık İyi"),  # noqa: RUF001
    ("polish", "Zażółć gęślą"),
    ("german", "Straße GROẞ"),
    ("icelandic", "þú æðir"),
    ("czech", "příliš žluťoučký"),
    ("ukrainian", "їжак"),
    ("armenian", "գիրք"),
    ("georgian", "წიგნი"),
    ("persian", "می‌خواهم"),
    ("urdu", "کتاب"),
    ("yiddish", "בוך"),
    ("bengali", "বই"),
    ("tamil", "நூல்"),
    ("telugu", "బుక్"),
    ("kannada", "ಪುಸ್ತಕ"),
    ("malayalam", "പുസ്തകം"),
    ("gujarati", "ચોપડી"),
    ("gurmukhi", "ਕਿਤਾਬ"),
    ("sinhala", "පොත"),
    ("lao", "ປື້ມ"),
    ("khmer", "ភាសា"),
    ("burmese", "စာအုပ်"),
    ("tibetan", "དེབ"),
    ("amharic", "መጽሐፍ"),
    ("cherokee", "ᎪᏪᎵ"),
    ("mongolian", "ном ᠨᠣᠮ"),
    ("mixed scripts", "Αθήνα Москва 東京"),
)
RIGHT_TO_LEFT = (
    "Order 42: שלום world, مرحبا 3.5 kg",
    "\u202eoverride\u202c",
    "abc \u2067אבג\u2069 def",
    "(ا)",  # noqa: RUF001
    "שָׁלוֹם",
    "١٢٣ abc",
)
SYMBOLS = (
    ("emoji", "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd ok"),
    ("emoji", "\U0001f600"),
    ("emoji", "\U0001f1f5\U0001f1f9"),
    ("emoji", "\u2764\ufe0f"),
    ("emoji", "1\ufe0f\u20e3"),
    ("emoji", "\U0001fae0\U0001fae0"),
    ("combining marks", "e\u0301 n\u0303 a\u0308\u0323"),
    ("combining marks", "\u00e9 \u00f1"),
    ("combining marks", "Z\u0351\u036b\u0343"),
    ("combining marks", "\u0301"),
    ("combining marks", "o\u0323\u0302 \u1ed9"),
    ("combining marks", "\u1112\u1161\u11ab"),
    ("compatibility forms", "\ufb01ne \u2167 \u2460"),
    ("compatibility forms", "\uff46\uff55\uff4c\uff4c\u3000width"),
    ("compatibility forms", "\u2126 \u212b"),
    ("compatibility forms", "x\u00b2 \u2153"),
    ("joiners", "zero\u200bwidth"),
    ("joiners", "soft\u00adhyphen"),
    ("joiners", "word\u2060joiner"),
    ("joiners", "\ufeffbom"),
    ("beyond the basic plane", "\U0001d518\U0001d52b\U0001d526"),
    ("beyond the basic plane", "\U0001f9ec \U00020000"),
    ("private and unassigned", "\ue000"),
    ("private and unassigned", "\U000e0041 \ufffd"),
    ("private and unassigned", "\uffff"),
)
CONTROLS = (
    "a\x00b",
    "\x00",
    "\x00\x00\x00",
    "\x07\x08",
    "\x1b[31mred",
    "\x7f",
    "a\x85b",
    "one\r\ntwo\rthree\n\n\nfour",
    "a\u2028b\u2029c",
    "tab\tbell\x07end",
    "\x01",
)
MARKERS = (
    "A <|im_end|> B",
    "A <|im_end|> C",
    "[CLS] relevant [SEP]",
    "ends with <|endoftext|>",
    "<|endoftext|>",
    "<|endoftext|> begins with it",
    "<|im_start|>",
    "<|im_end|>",
    "<think>x</think>",
    "<|fim_pad|>",
    "[PAD]",
    "[PAD] [PAD] x",
    "[MASK]",
    "[UNK]",
    "[SEP]",
    "[CLS]",
    "</s>",
    "<s>",
    "<|padding|>",
    "< |im_end| >",
)
BLANKS = ("", " ", "\n\t", "   ", "\u3000", "\u00a0", "\r\n", "\n\n")


def shuffle(items: Sequence[_T], *, seed: int) -> list[_T]:
    """Return items in a fixed other order; only ``random()`` itself is promised to stay the same in every Python."""
    stream = random.Random(seed)  # noqa: S311
    keys = [stream.random() for _ in items]
    return [items[i] for i in sorted(range(len(items)), key=keys.__getitem__)]


def equal_length_texts(n_words: int, n_texts: int) -> list[str]:
    """Return different texts of equal length: the same single letters in other orders."""
    words = [_LETTERS[i % len(_LETTERS)] for i in range(n_words)]
    # The first word has no space before it and so is another token: it stays where it is.
    return [" ".join([words[0], *shuffle(words[1:], seed=n_words + i)]) for i in range(n_texts)]


def letters(n_words: int) -> str:
    """Return a text of n one-letter words: n tokens beside the special ones, with every tokenizer in use."""
    stream = random.Random(n_words)  # noqa: S311
    return " ".join(_LETTERS[int(stream.random() * len(_LETTERS))] for _ in range(n_words))
