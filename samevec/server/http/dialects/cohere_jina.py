"""Cohere's rerank, versions 1 and 2, and Jina's; v1 and Jina with extensions (raw scores, truncation, batch size)."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Annotated, Any, Literal

import orjson
from pydantic import Discriminator, Field, Tag

from samevec.server.http.bodies import ranked_results, truncation_headers, truncation_record
from samevec.server.http.dialects.models import (
    Answer,
    BatchSize,
    Count,
    Items,
    RawScores,
    RequestBody,
    Strict,
    Truncate,
)
from samevec.server.http.dialects.openai import Truncated, Usage  # noqa: TC001 - pydantic reads them
from samevec.server.requests import RerankRequest

if TYPE_CHECKING:
    from samevec.server.service import Scored

__all__ = [
    "CohereV1Answer",
    "CohereV1Body",
    "CohereV2Answer",
    "CohereV2Body",
    "JinaAnswer",
    "JinaBody",
    "encode_cohere_v1",
    "encode_cohere_v2",
    "encode_jina",
]

# A warning for each of thousands of documents helps no one.
_MAX_WARNINGS = 20


class Document(Strict):
    """A document that is an object."""

    text: str


_Document = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[Document, Tag("<object>")],
    Discriminator(lambda item: "<object>" if isinstance(item, dict | Document) else "<text>"),
]
_DocumentTokens = Annotated[
    Count | None,
    Field(alias="max_tokens_per_doc", description="Cut each document to N tokens; the model's limit alone otherwise."),
]
_ReturnDocuments = Annotated[bool | None, Field(description="Give each document's text back.")]


class _RerankBody(RequestBody):
    top_n: Annotated[Count | None, Field(description="Give the best N; all when left out.")] = None
    return_documents: _ReturnDocuments = False
    query: Annotated[str, Field(exclude=True)]
    documents: Annotated[Items[_Document], Field(exclude=True)]

    def request(self, deadline_s: float | None = None) -> RerankRequest:
        """Return what is asked for."""
        texts = (item.text if isinstance(item, Document) else item for item in self.documents)
        return RerankRequest(**self.options(), pairs=tuple((self.query, text) for text in texts), deadline_s=deadline_s)


class CohereV1Body(_RerankBody):
    """The body of ``POST /v1/rerank``."""

    batch_size: BatchSize = None
    raw_scores: RawScores = False
    truncate: Truncate = True
    max_document_tokens: _DocumentTokens = None


class CohereV2Body(_RerankBody):
    """The body of ``POST /v2/rerank``."""

    max_document_tokens: _DocumentTokens = None
    # It orders Cohere's own queue, 0 first; it cannot change a score, and the queue here lets short requests pass.
    priority: Annotated[int | None, Field(ge=0, le=999, exclude=True, description="Read and ignored.")] = None


class JinaBody(_RerankBody):
    """The body of ``POST /rerank`` when it has documents, which are sent back unless refused: Jina's default."""

    return_documents: _ReturnDocuments = True
    batch_size: BatchSize = None
    raw_scores: RawScores = False
    truncate: Truncate = True

    def options(self) -> dict[str, Any]:
        """Return what was sent, and Jina's default."""
        return {"return_documents": True, **super().options()}


class _Rank(Strict):
    index: Annotated[int, Field(description="Position of the document in the request.")]
    relevance_score: float
    document: Document | None = None


_Ranks = Annotated[list[_Rank], Field(description="Best first; equal scores in request order.")]


class CohereV1Answer(Strict):
    """The answer of ``POST /v1/rerank``."""

    id: str
    model: str
    results: _Ranks
    usage: Usage
    samevec: Truncated | None = None


class _Version(Strict):
    version: str


class _InputTokens(Strict):
    input_tokens: int


class _Meta(Strict):
    api_version: _Version
    tokens: _InputTokens
    warnings: Annotated[list[str] | None, Field(description="Which documents were cut.")] = None


class CohereV2Answer(Strict):
    """The answer of ``POST /v2/rerank``."""

    id: str
    results: _Ranks
    meta: _Meta


class JinaAnswer(Strict):
    """The answer of ``POST /rerank`` to documents."""

    object: Literal["list"]
    model: str
    results: _Ranks
    usage: Usage
    samevec: Truncated | None = None


def encode_cohere_v1(scored: Scored, request: RerankRequest) -> Answer:
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
    return _answer({"id": uuid.uuid4().hex, **_body(scored, request)}, scored)


def encode_jina(scored: Scored, request: RerankRequest) -> Answer:
    """Return a rerank response, see :func:`encode_cohere_v1`."""
    return _answer({"object": "list", **_body(scored, request)}, scored)


def encode_cohere_v2(scored: Scored, request: RerankRequest) -> Answer:
    """Return a rerank response of version 2, see :func:`encode_cohere_v1`; what was cut is among its warnings."""
    meta: dict[str, Any] = {"api_version": {"version": "2"}, "tokens": {"input_tokens": scored.n_tokens}}
    if scored.cut:
        meta["warnings"] = _warnings(scored.cut)
    return _answer({"id": str(uuid.uuid4()), "results": _results(scored, request), "meta": meta}, scored)


def _answer(body: dict[str, Any], scored: Scored) -> Answer:
    return Answer(orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY), truncation_headers(scored.cut))


def _body(scored: Scored, request: RerankRequest) -> dict[str, Any]:
    return {
        "model": scored.model,
        "results": _results(scored, request),
        "usage": {"prompt_tokens": scored.n_tokens, "total_tokens": scored.n_tokens},
        **truncation_record(scored.cut),
    }


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
