"""The routes that compute: each one's dialect, how its body is read, what is asked of the service, what is answered."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastapi import Request, Response

from samevec.errors import InputError
from samevec.server.error_map import path_dialect
from samevec.server.hang_up import run_unless_gone
from samevec.server.http.bodies import error_response, read_deadline, read_json, wait_disconnected
from samevec.server.http.dialects import cohere_jina, openai, tei
from samevec.server.http.dialects.models import parse_body
from samevec.server.http.openapi import ROUTES
from samevec.server.telemetry.records import CLIENT_GONE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fastapi import FastAPI

    from samevec.server.error_map import Dialect
    from samevec.server.http.dialects.models import Answer, RequestBody
    from samevec.server.requests import EmbedRequest, RerankRequest, TokenizeRequest
    from samevec.server.service import Embedded, Scored, Service

__all__ = ["add_routes"]

# Numbers of an answer that are written on the event loop; more go to a thread.
_INLINE_VALUES = 1 << 14


@dataclass(frozen=True, slots=True)
class _Spoken:
    """One dialect of a route: its name, the body it takes, and what answers a request."""

    dialect: Dialect
    body: type[RequestBody]
    answer: Callable[[Service, Any], Awaitable[Answer]]


def _embed(encode: Callable[[Embedded, EmbedRequest], Answer]) -> Callable[[Service, Any], Awaitable[Answer]]:
    async def answer(service: Service, request: EmbedRequest) -> Answer:
        embedded = await service.embed(request)
        if embedded.vectors.size <= _INLINE_VALUES:
            return encode(embedded, request)
        return await asyncio.to_thread(encode, embedded, request)

    return answer


def _rerank(encode: Callable[[Scored, RerankRequest], Answer]) -> Callable[[Service, Any], Awaitable[Answer]]:
    async def answer(service: Service, request: RerankRequest) -> Answer:
        return encode(await service.rerank(request), request)

    return answer


async def _tokenize(service: Service, request: TokenizeRequest) -> Answer:
    return await service.list_tokens(request, tei.encode_tokenize)


_JINA = _Spoken("jina", cohere_jina.JinaBody, _rerank(cohere_jina.encode_jina))
_TEI_RERANK = _Spoken("tei", tei.TeiRerankBody, _rerank(tei.encode_rerank))
_ROUTES: dict[str, _Spoken] = {
    "/v1/embeddings": _Spoken("openai", openai.EmbeddingsBody, _embed(openai.encode_embeddings)),
    "/v1/rerank": _Spoken("cohere", cohere_jina.CohereV1Body, _rerank(cohere_jina.encode_cohere_v1)),
    "/v2/rerank": _Spoken("cohere", cohere_jina.CohereV2Body, _rerank(cohere_jina.encode_cohere_v2)),
    "/rerank": _JINA,
    "/embed": _Spoken("tei", tei.EmbedBody, _embed(tei.encode_embed)),
    "/tokenize": _Spoken("tei", tei.TokenizeBody, _tokenize),
}


def _spoken(path: str, body: Any) -> _Spoken:
    """Return the dialect of a request; TEI's rerank differs from Jina's by the key that holds the documents."""
    spoken = _ROUTES[path]
    if spoken is _JINA and isinstance(body, dict) and "texts" in body:
        if "documents" in body:
            raise InputError("given beside documents; send documents (Jina) or texts (TEI)", field="texts")
        return _TEI_RERANK
    return spoken


def add_routes(app: FastAPI, service: Service) -> None:
    """Add every route that computes.

    Parameters
    ----------
    app : FastAPI
    service : Service
    """
    for path in _ROUTES:
        app.add_api_route(path, _endpoint(service, path), methods=["POST"], tags=["inference"], **ROUTES[path])


def _endpoint(service: Service, path: str) -> Callable[[Request], Awaitable[Response]]:
    settings = service.settings

    async def endpoint(request: Request) -> Response:
        """Read, compute and answer; every exception becomes a body of the dialect."""
        dialect = path_dialect(path)
        try:
            deadline_s = read_deadline(request, service.clock)
            with service.receive() as received:
                body = await read_json(
                    request,
                    max_bytes=settings.max_body_bytes,
                    timeout_s=settings.client_timeout_s,
                    count=received.add,
                )
                spoken = _spoken(path, body)
                dialect = spoken.dialect
                asked = parse_body(spoken.body, body, max_items=settings.max_batch_items).request(deadline_s)
                del body  # the texts are held by what is asked
                answer = await run_unless_gone(spoken.answer(service, asked), wait_disconnected(request))
                if answer is None:
                    return Response(status_code=CLIENT_GONE)
                return Response(answer.body, headers=answer.headers, media_type="application/json")
        except Exception as error:
            return error_response(error, dialect)

    endpoint.__name__ = path.strip("/").replace("/", "_")  # FastAPI names operations after it
    return endpoint
