"""What a request asks for, whichever dialect it came in, and what is sent back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Answer", "EmbedRequest", "RerankRequest", "TokenizeRequest"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbedRequest:
    """Texts or token ids to embed.

    Attributes
    ----------
    model : str or None
        None when left out.
    texts : tuple of str
        Empty when token ids were sent.
    token_ids : tuple of tuple of int
        Empty when texts were sent.
    dimensions, prompt_name, batch_size
        None when left out.
    normalize : bool
        Give vectors of unit length.
    prompt_field, field : str
        The keys the caller chose for the prompt and the items, for messages.
    """

    model: str | None
    texts: tuple[str, ...]
    token_ids: tuple[tuple[int, ...], ...]
    dimensions: int | None = None
    encoding_format: Literal["float", "base64"] = "float"
    prompt_name: str | None = None
    prompt_field: str = "prompt_name"
    normalize: bool = True
    truncate: bool = True
    batch_size: int | None = None
    field: str = "input"


@dataclass(frozen=True, kw_only=True, slots=True)
class RerankRequest:
    """Documents to rank for a query, see :class:`EmbedRequest`.

    Attributes
    ----------
    max_document_tokens : int or None
        Most content tokens of each document; the model's limit alone when None.
    """

    model: str | None
    query: str
    documents: tuple[str, ...]
    top_n: int | None = None
    return_documents: bool = False
    raw_scores: bool = False
    truncate: bool = True
    batch_size: int | None = None
    max_document_tokens: int | None = None
    field: str = "documents"


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizeRequest:
    """Texts whose tokens are to be listed."""

    model: str | None
    texts: tuple[str, ...]
    add_special_tokens: bool = True
    prompt_name: str | None = None
    field: str = "inputs"


@dataclass(frozen=True, slots=True)
class Answer:
    """A JSON body, and headers that go with it."""

    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
