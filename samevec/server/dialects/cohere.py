"""Cohere's rerank: version 2 as it is, and version 1 with extensions (raw scores, truncation, batch size)."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import orjson

from samevec.errors import InputError
from samevec.server.answers import ranked_results, truncation_headers, truncation_record
from samevec.server.dialects.fields import Fields, read_documents
from samevec.server.dialects.records import Answer, RerankRequest

if TYPE_CHECKING:
    from samevec.server.service import Scored

__all__ = ["encode_rerank_v1", "encode_rerank_v2", "parse_rerank_v1", "parse_rerank_v2"]

# Cohere's scale: 0 is the most urgent.
_LAST_PRIORITY = 999
# A warning for each of thousands of documents helps nobody.
_MAX_WARNINGS = 20


def parse_rerank_v1(body: object, *, max_items: int) -> RerankRequest:
    """Read the body of ``POST /v1/rerank``.

    Parameters
    ----------
    body : object
        Parsed JSON.
    max_items : int
        Documents of one request.

    Returns
    -------
    RerankRequest

    Raises
    ------
    InputError, EmptyInputError, BatchTooLargeError
        As :func:`samevec.server.dialects.openai.parse_embeddings`.
    """
    fields = Fields(body)
    model, top_n, batch_size = fields.text("model", None), fields.count("top_n"), fields.count("batch_size")
    return_documents = fields.boolean("return_documents", default=False)
    raw_scores = fields.boolean("raw_scores", default=False)
    truncate = fields.boolean("truncate", default=True)
    max_document_tokens = fields.count("max_tokens_per_doc")
    query, documents = fields.require_text("query"), fields.require("documents")
    fields.refuse_rest()
    return RerankRequest(
        model=model,
        query=query,
        documents=read_documents(documents, limit=max_items),
        top_n=top_n,
        return_documents=return_documents,
        raw_scores=raw_scores,
        truncate=truncate,
        batch_size=batch_size,
        max_document_tokens=max_document_tokens,
    )


def parse_rerank_v2(body: object, *, max_items: int) -> RerankRequest:
    """Read the body of ``POST /v2/rerank``, see :func:`parse_rerank_v1`.

    Notes
    -----
    ``priority`` orders Cohere's own queue. It is checked and not used: it cannot change a score, and the queue here
    lets short requests pass already.
    """
    fields = Fields(body)
    model, top_n = fields.text("model", None), fields.count("top_n")
    return_documents = fields.boolean("return_documents", default=False)
    max_document_tokens = fields.count("max_tokens_per_doc")
    priority = fields.count("priority", least=0)
    if priority is not None and priority > _LAST_PRIORITY:
        raise InputError(f"{priority} given, at most {_LAST_PRIORITY} is possible", field="priority")
    query, documents = fields.require_text("query"), fields.require("documents")
    fields.refuse_rest()
    return RerankRequest(
        model=model,
        query=query,
        documents=read_documents(documents, limit=max_items),
        top_n=top_n,
        return_documents=return_documents,
        max_document_tokens=max_document_tokens,
    )


def encode_rerank_v1(scored: Scored, request: RerankRequest) -> Answer:
    """Return a rerank response: best first, ties in request order.

    Parameters
    ----------
    scored : Scored
    request : RerankRequest

    Returns
    -------
    Answer
        Without ``return_documents`` there is no ``document`` key, rather than a null one. ``samevec.truncated`` is
        there when something was cut.
    """
    body = {
        "id": uuid.uuid4().hex,
        "model": scored.model,
        "results": _results(scored, request),
        "usage": {"prompt_tokens": scored.n_tokens, "total_tokens": scored.n_tokens},
        **truncation_record(scored.cut),
    }
    return Answer(orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY), truncation_headers(scored.cut))


def encode_rerank_v2(scored: Scored, request: RerankRequest) -> Answer:
    """Return a rerank response of version 2, see :func:`encode_rerank_v1`; what was cut is among its warnings."""
    meta: dict[str, Any] = {"api_version": {"version": "2"}, "tokens": {"input_tokens": scored.n_tokens}}
    if scored.cut:
        meta["warnings"] = _warnings(scored.cut)
    body = {"id": str(uuid.uuid4()), "results": _results(scored, request), "meta": meta}
    return Answer(orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY), truncation_headers(scored.cut))


def _results(scored: Scored, request: RerankRequest) -> list[dict[str, Any]]:
    return ranked_results(
        scored.scores,
        top_n=request.top_n,
        score_key="relevance_score",
        shown={"document": [{"text": text} for text in request.documents]} if request.return_documents else {},
    )


def _warnings(cut: tuple[tuple[int, int], ...]) -> list[str]:
    named = [f"documents[{index}]: {n_tokens} tokens were cut" for index, n_tokens in cut[:_MAX_WARNINGS]]
    left = len(cut) - len(named)
    return [*named, f"{left} more documents were cut"] if left else named
