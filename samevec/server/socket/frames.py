"""Requests of the socket protocol, read strictly."""

from __future__ import annotations

from dataclasses import dataclass

from samevec.errors import EmptyInputError, InputError
from samevec.server.http.dialects.fields import PROMPT_NAMES, Fields, json_kind, limit_items, read_texts

__all__ = ["EmbedFrame", "PingFrame", "RerankFrame", "parse_frame"]


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
        As :func:`samevec.server.http.dialects.openai.parse_embeddings`; also an unknown ``op`` or another ``protocol``.
    """
    fields = Fields(body)
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


def _embed_frame(fields: Fields, deadline: float | None, max_items: int) -> EmbedFrame:
    tier = fields.text("tier", "") or ""
    dimensions, batch_size = fields.count("dimensions"), fields.count("batch_size")
    prompt_name = fields.choice("prompt_name", PROMPT_NAMES, None)
    texts = fields.require("texts")
    fields.refuse_rest()
    return EmbedFrame(
        texts=read_texts(texts, field="texts", limit=max_items),
        tier=tier,
        dimensions=dimensions,
        prompt_name=prompt_name,
        batch_size=batch_size,
        deadline_epoch_s=deadline,
    )


def _rerank_frame(fields: Fields, deadline: float | None, max_items: int) -> RerankFrame:
    model_name, batch_size = fields.text("model_name", None), fields.count("batch_size")
    pairs = fields.require("pairs")
    fields.refuse_rest()
    if not isinstance(pairs, list):
        raise InputError(f"{json_kind(pairs)} given, a list is needed", field="pairs")
    if not pairs:
        raise EmptyInputError("empty list, at least one item is needed", field="pairs")
    limit_items(len(pairs), max_items, field="pairs")
    for i, pair in enumerate(pairs):
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(side, str) for side in pair):
            raise InputError("a list of two strings is needed, query and document", field="pairs", index=i)
    return RerankFrame(
        pairs=tuple((query, document) for query, document in pairs),
        model_name=model_name,
        batch_size=batch_size,
        deadline_epoch_s=deadline,
    )
