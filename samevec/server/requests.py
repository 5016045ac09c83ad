"""What a request asks for: the one record from the dialect or socket that read it to the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["EmbedRequest", "Request", "RerankRequest", "TokenizeRequest"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbedRequest:
    """Texts or token ids to embed.

    Attributes
    ----------
    model : str or None
        A served name; None for the only embedder.
    texts : tuple of str
        Empty when token ids were sent.
    token_ids : tuple of tuple of int
        Empty when texts were sent.
    prompt_name, dimensions, batch_size
        None: no prompt, the full width, no cap.
    normalize : bool
        Give vectors of unit length.
    renormalize : bool
        With `dimensions`: unit length after cutting (OpenAI), or before it only (sentence-transformers).
    encoding_format : {"float", "base64"}
        For the answer.
    deadline_s : float or None
        In the time of the service's clock.
    field, prompt_field : str
        The keys the caller chose for the items and the prompt, for messages.
    """

    model: str | None = None
    texts: tuple[str, ...] = ()
    token_ids: tuple[tuple[int, ...], ...] = ()
    prompt_name: str | None = None
    dimensions: int | None = None
    normalize: bool = True
    renormalize: bool = True
    truncate: bool = True
    batch_size: int | None = None
    encoding_format: Literal["float", "base64"] = "float"
    deadline_s: float | None = None
    field: str = "input"
    prompt_field: str = "prompt_name"

    @property
    def n_items(self) -> int:
        """Texts, or rows of token ids."""
        return len(self.texts) or len(self.token_ids)

    @property
    def n_characters(self) -> int:
        """Characters of the texts; a token id counts as one."""
        return sum(map(len, self.texts)) + sum(map(len, self.token_ids))


@dataclass(frozen=True, kw_only=True, slots=True)
class RerankRequest:
    """Pairs of query and document to score, see :class:`EmbedRequest`.

    Attributes
    ----------
    max_document_tokens : int or None
        Most content tokens of each document; the model's limit alone when None.
    top_n, return_documents
        For the answer.
    """

    model: str | None = None
    pairs: tuple[tuple[str, str], ...]
    raw_scores: bool = False
    truncate: bool = True
    batch_size: int | None = None
    max_document_tokens: int | None = None
    top_n: int | None = None
    return_documents: bool = False
    deadline_s: float | None = None
    field: str = "documents"

    @property
    def documents(self) -> list[str]:
        """The second of each pair."""
        return [document for _, document in self.pairs]

    @property
    def n_items(self) -> int:
        """Pairs."""
        return len(self.pairs)

    @property
    def n_characters(self) -> int:
        """Characters of queries and documents."""
        return sum(len(query) + len(document) for query, document in self.pairs)


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizeRequest:
    """Texts whose tokens are to be listed, see :class:`EmbedRequest`; without a model, by the first one served."""

    model: str | None = None
    texts: tuple[str, ...]
    prompt_name: str | None = None
    add_special_tokens: bool = True
    deadline_s: float | None = None
    field: str = "inputs"
    prompt_field: str = "prompt_name"

    @property
    def n_items(self) -> int:
        """Texts."""
        return len(self.texts)

    @property
    def n_characters(self) -> int:
        """Characters of the texts."""
        return sum(map(len, self.texts))


Request: TypeAlias = EmbedRequest | RerankRequest | TokenizeRequest
