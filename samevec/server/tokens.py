"""Texts in, their tokens with positions out: what ``POST /tokenize`` lists."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from samevec.runtime.long_text import pieces

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokenizers import Encoding

    from samevec.runtime.tokenization import Tokenizer

__all__ = ["Token", "list_tokens"]


class Token(NamedTuple):
    """One token.

    Attributes
    ----------
    id : int
    text : str
        The characters it stands for; its name in the vocabulary when it is special.
    special : bool
        Whether the tokenizer added it.
    start, stop : int or None
        Characters of the prompt and text together; None when special.
    """

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


def list_tokens(
    tokenizer: Tokenizer, texts: Sequence[str], *, prompt: str = "", add_special_tokens: bool = True
) -> Iterator[Iterator[list[Token]]]:
    """List the tokens of texts; nothing is cut.

    Parameters
    ----------
    tokenizer : Tokenizer
    texts : sequence of str
    prompt : str
        Put before each text as it is.
    add_special_tokens : bool

    Yields
    ------
    iterator of list of Token
        Of each text in order, its tokens in parts: those of a long one would take hundreds of bytes each, all at once.
        A character of several tokens stands with each of them.
    """
    before, after = _special_tokens(tokenizer) if add_special_tokens else ([], [])
    for text in texts:
        yield _parts(tokenizer, prompt + text, before, after)


def _parts(tokenizer: Tokenizer, text: str, before: list[Token], after: list[Token]) -> Iterator[list[Token]]:
    def encode(some: list[str]) -> list[Encoding]:
        encodings: list[Encoding] = tokenizer.raw.encode_batch(some, add_special_tokens=False)
        return encodings

    yield before
    begin = 0
    for piece in pieces(encode, text):
        (encoding,) = encode([piece])
        yield [
            Token(id_, piece[start:stop], False, begin + start, begin + stop)
            for id_, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True)
        ]
        begin += len(piece)
    yield after


def _special_tokens(tokenizer: Tokenizer) -> tuple[list[Token], list[Token]]:
    """Return the tokens that the tokenizer puts before and after a text."""
    encoding = tokenizer.raw.encode("a")
    listed = zip(encoding.ids, encoding.tokens, encoding.special_tokens_mask, strict=True)
    runs = [(special, list(run)) for special, run in groupby(listed, key=lambda token: token[2])]
    before, after = ([Token(id_, name, True, None, None) for id_, name, _ in run] for run in _ends(runs))
    return before, after


def _ends(runs: list[tuple[int, list[tuple[int, str, int]]]]) -> tuple[list[tuple[int, str, int]], ...]:
    first, last = runs[0], runs[-1]
    return (first[1] if first[0] else []), (last[1] if last[0] else [])
