"""Cohere's rerank: version 2 as it is, and version 1 with extensions (raw scores, truncation, batch size)."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import orjson

from samevec.server.http.answers import ranked_results, truncation_headers, truncation_record
from samevec.server.http.dialects.records import Answer
from samevec.server.http.dialects.rerank import COHERE_V1, COHERE_V2, read_rerank

if TYPE_CHECKING:
    from samevec.server.requests import RerankRequest
    from samevec.server.service import Scored

__all__ = ["encode_rerank_v1", "encode_rerank_v2", "parse_rerank_v1", "parse_rerank_v2"]

# A warning for each of thousands of documents helps nobody.
_MAX_WARNINGS = 20


def parse_rerank_v1(body: object, *, max_items: int, deadline_s: float | None = None) -> RerankRequest:
    """Read the body of ``POST /v1/rerank``, see :func:`samevec.server.http.dialects.rerank.read_rerank`."""
    return read_rerank(body, COHERE_V1, max_items=max_items, deadline_s=deadline_s)


def parse_rerank_v2(body: object, *, max_items: int, deadline_s: float | None = None) -> RerankRequest:
    """Read the body of ``POST /v2/rerank``, see :func:`samevec.server.http.dialects.rerank.read_rerank`."""
    return read_rerank(body, COHERE_V2, max_items=max_items, deadline_s=deadline_s)


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
