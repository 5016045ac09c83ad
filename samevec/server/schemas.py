"""Request records: what each route and operation takes, read strictly. A key that nobody reads is refused by name."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from samevec.errors import BatchTooLargeError, EmptyInputError, InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "EmbedFrame",
    "EmbeddingsRequest",
    "PingFrame",
    "RerankFrame",
    "RerankRequest",
    "parse_embeddings",
    "parse_frame",
    "parse_rerank",
]

_ABSENT: Any = object()
_PROMPT_NAMES = ("query", "document")


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingsRequest:
    """Body of ``POST /v1/embeddings``.

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
    prompt_field : str
        The key the caller chose for the prompt, for messages.
    """

    model: str | None
    texts: tuple[str, ...]
    token_ids: tuple[tuple[int, ...], ...]
    dimensions: int | None
    encoding_format: Literal["float", "base64"]
    prompt_name: str | None
    prompt_field: str
    truncate: bool
    batch_size: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class RerankRequest:
    """Body of ``POST /v1/rerank``."""

    model: str | None
    query: str
    documents: tuple[str, ...]
    top_n: int | None
    return_documents: bool
    raw_scores: bool
    truncate: bool
    batch_size: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PingFrame:
    """Socket operation ``ping``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbedFrame:
    """Socket operation ``embed``; `deadline_epoch_s` is wall-clock time, as TrueMemory's client sends it."""

    texts: tuple[str, ...]
    tier: str
    dimensions: int | None
    prompt_name: str | None
    batch_size: int | None
    deadline_epoch_s: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class RerankFrame:
    """Socket operation ``rerank``."""

    pairs: tuple[tuple[str, str], ...]
    model_name: str | None
    batch_size: int | None
    deadline_epoch_s: float | None


class _Fields:
    """Hands out a body's values by key, each checked, and knows which keys nobody asked for."""

    def __init__(self, body: object) -> None:
        if not isinstance(body, dict):
            raise InputError(f"{_kind(body)} given, a JSON object is needed", field="body")
        self._body = body
        self._known: list[str] = []

    def take(self, name: str) -> object:
        """Return a value as it is; null counts as left out."""
        self._known.append(name)
        value = self._body.get(name, _ABSENT)
        return _ABSENT if value is None else value

    def require(self, name: str) -> object:
        """Return a value that must be there."""
        value = self.take(name)
        if value is _ABSENT:
            raise InputError("missing" if name not in self._body else "null given, a value is needed", field=name)
        return value

    def text(self, name: str, default: str | None) -> str | None:
        value = self.take(name)
        if value is _ABSENT:
            return default
        if not isinstance(value, str):
            raise InputError(f"{_kind(value)} given, a string is needed", field=name)
        return value

    def choice(self, name: str, options: Sequence[str], default: str | None) -> str | None:
        value = self.text(name, default)
        if value is not default and value not in options:
            raise InputError(f"{value!r} given, it must be one of: {', '.join(options)}", field=name)
        return value

    def boolean(self, name: str, *, default: bool) -> bool:
        value = self.take(name)
        if value is _ABSENT:
            return default
        if not isinstance(value, bool):
            raise InputError(f"{_kind(value)} given, true or false is needed", field=name)
        return value

    def count(self, name: str) -> int | None:
        """Return a whole number of at least 1; 2.0 is none, and neither is true."""
        value = self.take(name)
        if value is _ABSENT:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise InputError(f"{_kind(value)} given, a whole number is needed", field=name)
        if value < 1:
            raise InputError(f"{value} given, at least 1 is needed", field=name)
        return value

    def seconds(self, name: str) -> float | None:
        value = self.take(name)
        if value is _ABSENT:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise InputError(f"{_kind(value)} given, a number of seconds is needed", field=name)
        return float(value)

    def refuse_rest(self) -> None:
        """Refuse the keys nobody asked for: an option that is dropped in silence changes results."""
        for name in self._body:
            if name not in self._known:
                raise InputError(f"unknown option; the options are: {', '.join(sorted(self._known))}", field=str(name))


def _kind(value: object) -> str:
    """Return JSON's name for a value's type."""
    names = {
        bool: "a boolean",
        int: "a whole number",
        float: "a fraction",
        str: "a string",
        list: "a list",
        dict: "an object",
    }
    return "null" if value is None else names.get(type(value), type(value).__name__)


def _limit_items(n_items: int, limit: int, *, field: str) -> None:
    if n_items > limit:
        raise BatchTooLargeError(f"{n_items} items, the limit of one request is {limit}; send several", field=field)


def _texts(value: object, *, field: str, limit: int) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise InputError(f"{_kind(value)} given, a list is needed", field=field)
    if not value:
        raise EmptyInputError("empty list, at least one item is needed", field=field)
    _limit_items(len(value), limit, field=field)
    for i, item in enumerate(value):
        if not isinstance(item, str):
            raise InputError(f"{_kind(item)} given, a string is needed", field=field, index=i)
    return tuple(value)


def _token_ids(value: list[object], *, field: str) -> tuple[int, ...]:
    """Check that a list holds whole numbers; whether they are ids of the vocabulary, the tokenizer knows."""
    for i, item in enumerate(value):
        if isinstance(item, bool) or not isinstance(item, int):
            raise InputError(f"{_kind(item)} given among token ids, a whole number is needed", field=field, index=i)
    return cast("tuple[int, ...]", tuple(value))


def _embeddings_input(value: object, limit: int) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
    """Return texts and token-id lists, of which one is empty."""
    field = "input"
    if isinstance(value, str):
        return (value,), ()
    if isinstance(value, list) and value:
        first = value[0]
        if isinstance(first, list):
            _limit_items(len(value), limit, field=field)
            for i, item in enumerate(value):
                if not isinstance(item, list):
                    raise InputError(f"{_kind(item)} given, a list of token ids is needed", field=field, index=i)
            return (), tuple(_token_ids(item, field=f"{field}[{i}]") for i, item in enumerate(value))
        if isinstance(first, int | float):
            return (), (_token_ids(value, field=field),)
    elif not isinstance(value, list):
        raise InputError(f"{_kind(value)} given, a string, a list of strings or token ids are needed", field=field)
    return _texts(value, field=field, limit=limit), ()


def _prompt(fields: _Fields) -> tuple[str | None, str]:
    """Return the prompt's name and the key it came under; both keys may stand if they agree."""
    chosen, chosen_field = fields.choice("prompt_name", _PROMPT_NAMES, None), "prompt_name"
    alias = fields.choice("input_type", _PROMPT_NAMES, None)
    if alias is not None:
        if chosen not in (None, alias):
            raise InputError(f"{alias!r} contradicts prompt_name {chosen!r}; send one of them", field="input_type")
        chosen, chosen_field = alias, "input_type"
    return chosen, chosen_field


def parse_embeddings(body: object, *, max_items: int) -> EmbeddingsRequest:
    """Read the body of ``POST /v1/embeddings``.

    Parameters
    ----------
    body : object
        Parsed JSON.
    max_items : int
        Items of one request.

    Returns
    -------
    EmbeddingsRequest

    Raises
    ------
    InputError
        A value has the wrong type or range, or a key is unknown; names the key, and the item in lists.
    EmptyInputError, BatchTooLargeError
        No items, or more than `max_items`.
    """
    fields = _Fields(body)
    model = fields.text("model", None)
    dimensions, batch_size = fields.count("dimensions"), fields.count("batch_size")
    encoding_format = fields.choice("encoding_format", ("float", "base64"), "float")
    fields.text("user", None)  # OpenAI's label for the end user: read, checked, and of no use here
    truncate = fields.boolean("truncate", default=True)
    prompt_name, prompt_field = _prompt(fields)
    given = fields.require("input")
    fields.refuse_rest()
    texts, token_ids = _embeddings_input(given, max_items)
    return EmbeddingsRequest(
        model=model,
        texts=texts,
        token_ids=token_ids,
        dimensions=dimensions,
        encoding_format="base64" if encoding_format == "base64" else "float",
        prompt_name=prompt_name,
        prompt_field=prompt_field,
        truncate=truncate,
        batch_size=batch_size,
    )


def _documents(value: object, limit: int) -> tuple[str, ...]:
    """Read documents given as strings or as objects with a text."""
    if isinstance(value, list):
        texts = []
        for i, item in enumerate(value[: limit + 1]):
            if isinstance(item, dict):
                unknown = sorted(str(key) for key in item if key != "text")
                if unknown:
                    raise InputError(f"unknown key {unknown[0]!r}, only text is read", field="documents", index=i)
                texts.append(item.get("text"))
            else:
                texts.append(item)
        value = texts + value[limit + 1 :]
    return _texts(value, field="documents", limit=limit)


def parse_rerank(body: object, *, max_items: int) -> RerankRequest:
    """Read the body of ``POST /v1/rerank``, see :func:`parse_embeddings`."""
    fields = _Fields(body)
    model, top_n, batch_size = fields.text("model", None), fields.count("top_n"), fields.count("batch_size")
    return_documents = fields.boolean("return_documents", default=False)
    raw_scores = fields.boolean("raw_scores", default=False)
    truncate = fields.boolean("truncate", default=True)
    query, documents = fields.require("query"), fields.require("documents")
    fields.refuse_rest()
    if not isinstance(query, str):
        raise InputError(f"{_kind(query)} given, a string is needed", field="query")
    return RerankRequest(
        model=model,
        query=query,
        documents=_documents(documents, max_items),
        top_n=top_n,
        return_documents=return_documents,
        raw_scores=raw_scores,
        truncate=truncate,
        batch_size=batch_size,
    )


def parse_frame(body: object, *, max_items: int) -> PingFrame | EmbedFrame | RerankFrame:
    """Read one request of the socket protocol.

    Parameters
    ----------
    body : object
        Parsed JSON.
    max_items : int
        Items of one request.

    Returns
    -------
    PingFrame, EmbedFrame or RerankFrame

    Raises
    ------
    InputError
        As :func:`parse_embeddings`; also an unknown ``op`` or another ``protocol``.
    """
    fields = _Fields(body)
    op = fields.choice("op", ("ping", "embed", "rerank"), None)
    if op is None:
        raise InputError("missing; it must be one of: ping, embed, rerank", field="op")
    protocol = fields.count("protocol")
    if protocol not in (None, 1):
        raise InputError(f"{protocol} is not spoken here, only 1", field="protocol")
    deadline = fields.seconds("deadline")
    if op == "ping":
        fields.refuse_rest()
        return PingFrame()
    if op == "embed":
        return _embed_frame(fields, deadline, max_items)
    return _rerank_frame(fields, deadline, max_items)


def _embed_frame(fields: _Fields, deadline: float | None, max_items: int) -> EmbedFrame:
    tier = fields.text("tier", "") or ""
    dimensions, batch_size = fields.count("dimensions"), fields.count("batch_size")
    prompt_name = fields.choice("prompt_name", _PROMPT_NAMES, None)
    texts = fields.require("texts")
    fields.refuse_rest()
    return EmbedFrame(
        texts=_texts(texts, field="texts", limit=max_items),
        tier=tier,
        dimensions=dimensions,
        prompt_name=prompt_name,
        batch_size=batch_size,
        deadline_epoch_s=deadline,
    )


def _rerank_frame(fields: _Fields, deadline: float | None, max_items: int) -> RerankFrame:
    model_name, batch_size = fields.text("model_name", None), fields.count("batch_size")
    pairs = fields.require("pairs")
    fields.refuse_rest()
    if not isinstance(pairs, list):
        raise InputError(f"{_kind(pairs)} given, a list is needed", field="pairs")
    if not pairs:
        raise EmptyInputError("empty list, at least one item is needed", field="pairs")
    _limit_items(len(pairs), max_items, field="pairs")
    for i, pair in enumerate(pairs):
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(side, str) for side in pair):
            raise InputError("a list of two strings is needed, query and document", field="pairs", index=i)
    return RerankFrame(
        pairs=tuple((query, document) for query, document in pairs),
        model_name=model_name,
        batch_size=batch_size,
        deadline_epoch_s=deadline,
    )
