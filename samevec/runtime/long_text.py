"""Long texts in pieces: the tokens are those of the whole text, the memory is that of a few pieces.

An Encoding takes some 100 bytes a token, and up to 280 a character where every character is a word: 8 GB for a text of
32 MB, of which a model reads the first few thousand tokens.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tokenizers import Encoding

__all__ = [
    "CALL_CHARACTERS",
    "CALL_TEXTS",
    "MAX_UNBROKEN_CHARACTERS",
    "Content",
    "UnbrokenTextError",
    "call_groups",
    "encode_long",
    "pieces",
]

#: Texts, and characters, tokenised per call into the library: enough to use its threads, few enough that the Encoding
#: objects of a large request are not all alive at once. Longer texts are tokenised in pieces.
CALL_TEXTS = 256
CALL_CHARACTERS = 1 << 17
_PIECES_PER_CALL = 4
#: Characters without a seam that are tokenised at once all the same.
MAX_UNBROKEN_CHARACTERS = 1 << 20

# Where a text may be cut: after a letter or digit and before what ends a word. Byte-level and WordPiece tokenizers make
# no token of both; each seam is tried out all the same, on this number of characters at either side.
_SEAM = re.compile(r"(?<=[^\W_])(?=[\s.,;:!?\u3001\u3002\uff0c])")
_TRIED_CHARACTERS = 128
_LOOK_BACK_CHARACTERS = 2048
_MOST_TRIES = 32


@dataclass(frozen=True, slots=True)
class Content:
    """The tokens of a text before anything is cut.

    Attributes
    ----------
    ids : list of int
        As many of the first ones as were asked for, or all.
    n_tokens : int
        Of the whole text.
    """

    ids: list[int]
    n_tokens: int


class UnbrokenTextError(Exception):
    """A text cannot be tokenised in pieces.

    Attributes
    ----------
    n_characters : int
        From the last seam on.
    """

    def __init__(self, n_characters: int) -> None:
        self.n_characters = n_characters
        super().__init__(f"{n_characters} characters without a seam")


def call_groups(lengths: Sequence[int], *, call_characters: int = CALL_CHARACTERS) -> Iterator[range]:
    """Group texts for calls into the library; a text of more than `call_characters` is alone.

    Parameters
    ----------
    lengths : sequence of int
        Characters.

    Yields
    ------
    range
        Positions, in order and without gaps.
    """
    start, n_characters = 0, 0
    for i, length in enumerate(lengths):
        if i > start and (i - start == CALL_TEXTS or n_characters + length > call_characters):
            yield range(start, i)
            start, n_characters = i, 0
        n_characters += length
    if lengths:
        yield range(start, len(lengths))


def encode_long(
    encode: Callable[[list[str]], list[Encoding]],
    text: str,
    *,
    keep_tokens: int,
    call_characters: int = CALL_CHARACTERS,
) -> Content:
    """Tokenise a text in pieces.

    Parameters
    ----------
    encode : callable
        Texts to Encodings, without special tokens.
    text : str
    keep_tokens : int
        How many of the first tokens are wanted.
    call_characters : int
        Most characters of a call, at least 4; the probe makes seams in short texts with it.

    Returns
    -------
    Content

    Raises
    ------
    UnbrokenTextError
        More than `MAX_UNBROKEN_CHARACTERS` have no seam.
    """
    ids: list[int] = []
    n_tokens = 0
    waiting = pieces(encode, text, call_characters=call_characters)
    while call := list(islice(waiting, _PIECES_PER_CALL)):
        for encoding in encode(call):
            if len(ids) < keep_tokens:
                ids += encoding.ids[: keep_tokens - len(ids)]
            n_tokens += len(encoding)
    return Content(ids, n_tokens)


def pieces(
    encode: Callable[[list[str]], list[Encoding]], text: str, *, call_characters: int = CALL_CHARACTERS
) -> Iterator[str]:
    """Cut a text where no token is cut; the arguments and errors are those of :func:`encode_long`.

    Yields
    ------
    str
        In order, without gaps, mostly of `call_characters` / 4. A text that is not longer is the only one.
    """
    start, size = 0, call_characters // _PIECES_PER_CALL
    while len(text) - start > size:
        stop = _seam(encode, text, start, size)
        if stop is None:
            if len(text) - start > MAX_UNBROKEN_CHARACTERS:
                raise UnbrokenTextError(len(text) - start)
            break
        yield text[start:stop]
        start = stop
    yield text[start:]


def _seam(encode: Callable[[list[str]], list[Encoding]], text: str, start: int, size: int) -> int | None:
    """Return where a piece that begins at `start` may end: the last seam before its size is full, else the next one."""
    full = start + size
    for begin in (max(full - _LOOK_BACK_CHARACTERS, start + 1), start + 1):  # near the end as a rule
        back = [match.start() for match in _SEAM.finditer(text, begin, full)]
        for at in back[: -_MOST_TRIES - 1 : -1]:
            if _holds(encode, text, at):
                return at
    ahead = (match.start() for match in _SEAM.finditer(text, full, start + MAX_UNBROKEN_CHARACTERS))
    return next((at for at in islice(ahead, _MOST_TRIES) if _holds(encode, text, at)), None)


def _holds(encode: Callable[[list[str]], list[Encoding]], text: str, at: int) -> bool:
    """Try whether both sides of a seam have the tokens alone that they have together."""
    left, right = text[max(0, at - _TRIED_CHARACTERS) : at], text[at : at + _TRIED_CHARACTERS]
    whole, first, second = encode([left + right, left, right])
    return bool(whole.ids == first.ids + second.ids)
