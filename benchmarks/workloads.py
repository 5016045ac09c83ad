"""Texts and pairs to measure with: made here from words, fixed by seed and digest, exact in token counts.

Every word's token count is known for both tokenizers and both split at spaces, so a text of n tokens is put together
word by word without asking a tokenizer; the tests ask the real ones. One word in a few is a long one: otherwise
characters would be proportional to tokens, and sorting by characters, as some peers do, as good as sorting by tokens.
"""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass
from typing import Any

__all__ = ["EMBEDDER", "RERANKER", "WORKLOADS", "Workload", "Writer", "make_workload"]

EMBEDDER = "qwen3-embedding-0.6b"
RERANKER = "gte-reranker-modernbert-base"

# One token each in both vocabularies, with and without a space before them.
_SHORT_WORDS = """
the of and to in is that for it was on are as with they be at this have from or one had by word but not what all
were we when your can said there use an each which she do how their if will up other about out many then them
these so some her would make like him into time has look two more write go see number no way could people my
than first water been call who oil its now find long down day did get come made may part over new sound take
only little work know place year live me back give most very after thing our just name good sentence man think
say great where help through much before line right too mean old any same tell boy follow came want show also
around form three small set put end does another well large must big even such because turn here why ask went
men read need land different home us move try kind hand picture again change off play air away animal house
point page letter mother answer found study still learn should world high every near add food between own below
country plant last school father keep tree never start city earth eye light thought head under story left few
while along might close something next hard open example begin life always those both paper got group often run
important until children side car mile night walk white sea grow took river four state once book stop without
second late miss idea eat face watch far really almost let above girl sometimes cut young talk soon list song
being leave family
"""
_SHORT = tuple(_SHORT_WORDS.split())
# Tokens with a space before the word: the embedder's vocabulary, the reranker's.
_LONG: dict[str, tuple[int, int]] = {
    "embankment": (3, 3),
    "photosynthesis": (2, 2),
    "quarterly-report": (2, 3),
    "wharfinger": (3, 3),
    "1,299.50": (9, 5),
    "2021-03-01": (11, 5),
    "thermodynamically": (3, 3),
    "lighthouse-keeper": (4, 4),
    "reimbursement": (1, 1),
    "Kilimanjaro": (4, 4),
    "10.0.0.1": (9, 7),
    "counterintuitive": (3, 3),
    "hydroelectricity": (3, 3),
    "x86-64": (6, 4),
    "ISO-8601": (6, 4),
    "unsalted": (2, 2),
    "windowsill": (2, 2),
    "gooseberries": (2, 2),
    "fjords": (2, 3),
    "retroactively": (2, 2),
    "archipelago's": (4, 4),
    "overwintering": (3, 4),
    "marginalia": (2, 2),
    "photovoltaics": (3, 4),
}
# Added by the tokenizers: the embedder's terminal token; [CLS], [SEP], [SEP] around a pair.
_SPECIAL_TOKENS = {"embed": 1, "rerank": 3}

# Drawn once: 64 lengths, 4,039 tokens, median 41, a long tail.
_MIXED64 = (
    *(6, 6, 7, 7, 9, 12, 12, 14, 15, 15, 15, 18, 19, 20, 22, 22, 24, 24, 25, 26, 26, 28, 29, 31, 31, 32, 33, 35),
    *(36, 37, 38, 41, 41, 44, 45, 45, 46, 47, 50, 51, 51, 52, 53, 54, 63, 74, 77, 80, 86, 87, 87, 95, 107, 113),
    *(116, 131, 139, 150, 150, 159, 221, 238, 268, 304),
)
_SPREAD50 = tuple(48 + round(i * 256 / 49) for i in range(50))
_LONG64_SHORT36 = (*(640 + 2 * i for i in range(64)), *(48 + (2 * i) // 3 for i in range(36)))
_SHORT2000 = tuple(12 + i % 9 for i in range(2000))


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """Items of one task, in the order in which a caller would hand them over.

    Attributes
    ----------
    name : str
    task : str
        ``"embed"`` (items are texts) or ``"rerank"`` (items are pairs).
    items : tuple of str, or of (str, str)
        All different.
    lengths_tokens : tuple of int
        Of each item, special tokens included.
    compared : tuple of int
        Positions whose outputs are compared with PyTorch: all, except where that would take longer than the run.
    """

    name: str
    task: str
    items: tuple[Any, ...]
    lengths_tokens: tuple[int, ...]
    compared: tuple[int, ...]

    @property
    def model(self) -> str:
        """The product model that computes it."""
        return EMBEDDER if self.task == "embed" else RERANKER

    @property
    def useful_tokens(self) -> int:
        """Tokens without any padding."""
        return sum(self.lengths_tokens)

    @property
    def digest(self) -> str:
        """``sha256:...`` of task, items and compared positions."""
        record = json.dumps([self.task, self.items, self.compared], ensure_ascii=False, separators=(",", ":"))
        return "sha256:" + hashlib.sha256(record.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class _Recipe:
    task: str
    lengths: tuple[int, ...]
    compare_every: int = 1
    extra: bool = False


_RECIPES = {
    "mixed64": _Recipe("embed", _MIXED64),
    "query16": _Recipe("embed", (16,)),
    "text2048": _Recipe("embed", (2048,)),
    "text4096": _Recipe("embed", (4096,)),
    "pairs50": _Recipe("rerank", _SPREAD50),
    "pairs100": _Recipe("rerank", _LONG64_SHORT36),
    "pair16": _Recipe("rerank", (16,)),
    "short2000": _Recipe("embed", _SHORT2000, compare_every=8),
    # How time grows with length, the targets' last rows: samevec only, unless asked for by name.
    "texts4x1024": _Recipe("embed", (1024,) * 4, extra=True),
    "pair4096": _Recipe("rerank", (4096,), extra=True),
    "pairs4x1024": _Recipe("rerank", (1024,) * 4, extra=True),
}

#: Names of all workloads, in table order; True for those that only samevec's own profiles run by default.
WORKLOADS: dict[str, bool] = {name: recipe.extra for name, recipe in _RECIPES.items()}


class Writer:
    """Writes texts of exact token counts from one stream of random numbers.

    Parameters
    ----------
    seed : str
    task : str
        Whose tokenizer counts: ``"embed"`` or ``"rerank"``.
    """

    def __init__(self, seed: str, task: str) -> None:
        self._random = random.Random(seed)
        self._column = 0 if task == "embed" else 1

    def below(self, limit: int) -> int:
        """Return a number from 0 to `limit` - 1; only ``random()`` is the same on every Python."""
        return int(self._random.random() * limit)

    def text(self, n_tokens: int) -> str:
        """Return a text of `n_tokens` content tokens, at least 1; some texts are plain, some full of long words."""
        long_share = 0.4 * self._random.random()
        words, left = [_SHORT[self.below(len(_SHORT))]], n_tokens - 1
        long_words = tuple(_LONG)
        while left:
            word, size = _SHORT[self.below(len(_SHORT))], 1
            if self._random.random() < long_share:
                candidate = long_words[self.below(len(long_words))]
                if _LONG[candidate][self._column] <= left:
                    word, size = candidate, _LONG[candidate][self._column]
            words.append(word)
            left -= size
        return " ".join(words)

    def pair(self, n_tokens: int) -> tuple[str, str]:
        """Return a short query and a document, `n_tokens` content tokens together, at least 2."""
        n_query = min(n_tokens // 2, 6 + self.below(12))
        return self.text(n_query), self.text(n_tokens - n_query)

    def shuffled(self, values: tuple[int, ...]) -> list[int]:
        """Return the values in another order."""
        order = list(values)
        for i in range(len(order) - 1, 0, -1):
            j = self.below(i + 1)
            order[i], order[j] = order[j], order[i]
        return order


def make_workload(name: str) -> Workload:
    """Make a workload; the same on every machine.

    Parameters
    ----------
    name : str
        One of :data:`WORKLOADS`.

    Returns
    -------
    Workload

    Raises
    ------
    KeyError
        No such workload.
    """
    recipe = _RECIPES[name]
    writer = Writer(f"samevec benchmark {name}", recipe.task)
    lengths = writer.shuffled(recipe.lengths)
    items: list[Any] = []
    for n_tokens in lengths:
        content = n_tokens - _SPECIAL_TOKENS[recipe.task]
        items.append(writer.text(content) if recipe.task == "embed" else writer.pair(content))
    return Workload(
        name=name,
        task=recipe.task,
        items=tuple(items),
        lengths_tokens=tuple(lengths),
        compared=tuple(range(0, len(items), recipe.compare_every)),
    )
