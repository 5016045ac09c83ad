"""Texts in, their tokens with positions out: what ``POST /tokenize`` lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from samevec.runtime.tokenization import Tokenizer

__all__ = ["Token", "TokenLists", "list_tokens"]


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


@dataclass(frozen=True, slots=True)
class TokenLists:
    """The tokens of some texts, and the model whose tokenizer made them."""

    model: str
    rows: list[list[Token]]


def list_tokens(
    tokenizer: Tokenizer, texts: Sequence[str], *, prompt: str = "", add_special_tokens: bool = True
) -> list[list[Token]]:
    """List the tokens of texts; nothing is cut.

    Parameters
    ----------
    tokenizer : Tokenizer
    texts : sequence of str
    prompt : str
        Put before each text as it is.
    add_special_tokens : bool

    Returns
    -------
    list of list of Token
        In the order of `texts`. A character of several tokens stands with each of them.
    """
    given = [prompt + text for text in texts]
    encodings = tokenizer.raw.encode_batch(given, add_special_tokens=add_special_tokens)
    rows = []
    for text, encoding in zip(given, encodings, strict=True):
        parts = zip(encoding.ids, encoding.tokens, encoding.special_tokens_mask, encoding.offsets, strict=True)
        rows.append([
            Token(id_, name, True, None, None) if special else Token(id_, text[start:stop], False, start, stop)
            for id_, name, special, (start, stop) in parts
        ])  # fmt: skip
    return rows
