"""Texts in, their tokens with positions out: what ``POST /tokenize`` lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from samevec.runtime.long_text import pieces
from samevec.runtime.tokenization import Template

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
    before: list[Token] = []
    after: list[Token] = []
    if add_special_tokens:
        before, after = (
            [Token(id_, tokenizer.raw.id_to_token(id_), True, None, None) for id_, _ in special]
            for special in Template.of(tokenizer.raw, is_pair=False).special
        )
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
