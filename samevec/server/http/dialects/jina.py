"""Jina's rerank, with extensions (raw scores, truncation, batch size)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from samevec.server.http.answers import ranked_results, truncation_headers, truncation_record
from samevec.server.http.dialects.records import Answer
from samevec.server.http.dialects.rerank import JINA, read_rerank

if TYPE_CHECKING:
    from samevec.server.requests import RerankRequest
    from samevec.server.service import Scored

__all__ = ["encode_rerank", "parse_rerank"]


def parse_rerank(body: object, *, max_items: int, deadline_s: float | None = None) -> RerankRequest:
    """Read the body of ``POST /rerank`` when it has documents.

    Documents are sent back unless refused: Jina's default.
    """
    return read_rerank(body, JINA, max_items=max_items, deadline_s=deadline_s)


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
