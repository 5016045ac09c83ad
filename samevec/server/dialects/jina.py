"""Jina's rerank, with extensions (raw scores, truncation, batch size)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from samevec.server.answers import ranked_results, truncation_headers, truncation_record
from samevec.server.dialects.fields import Fields, read_documents
from samevec.server.dialects.records import Answer, RerankRequest

if TYPE_CHECKING:
    from samevec.server.service import Scored

__all__ = ["encode_rerank", "parse_rerank"]


def parse_rerank(body: object, *, max_items: int) -> RerankRequest:
    """Read the body of ``POST /rerank`` when it has ``documents``.

    Parameters
    ----------
    body : object
        Parsed JSON.
    max_items : int
        Documents of one request.

    Returns
    -------
    RerankRequest
        ``return_documents`` is true unless refused: Jina's default.

    Raises
    ------
    InputError, EmptyInputError, BatchTooLargeError
        As :func:`samevec.server.dialects.openai.parse_embeddings`.
    """
    fields = Fields(body)
    model, top_n, batch_size = fields.text("model", None), fields.count("top_n"), fields.count("batch_size")
    return_documents = fields.boolean("return_documents", default=True)
    raw_scores = fields.boolean("raw_scores", default=False)
    truncate = fields.boolean("truncate", default=True)
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
    )


def encode_rerank(scored: Scored, request: RerankRequest) -> Answer:
    """Return a rerank response: best first, ties in request order; ``samevec.truncated`` when something was cut."""
    shown = {"document": [{"text": text} for text in request.documents]} if request.return_documents else {}
    body = {
        "object": "list",
        "model": scored.model,
        "usage": {"total_tokens": scored.n_tokens, "prompt_tokens": scored.n_tokens},
        "results": ranked_results(scored.scores, top_n=request.top_n, score_key="relevance_score", shown=shown),
        **truncation_record(scored.cut),
    }
    return Answer(orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY), truncation_headers(scored.cut))
