"""The routes that compute: each one's dialect, how its body is read, what is asked of the service, what is answered."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastapi import Request, Response

from samevec.errors import InputError
from samevec.server.error_map import path_dialect
from samevec.server.http.bodies import error_response, read_deadline, read_json, run_while_connected
from samevec.server.http.dialects import cohere, jina, openai, tei
from samevec.server.http.openapi import describe_routes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fastapi import FastAPI

    from samevec.server.error_map import Dialect
    from samevec.server.http.dialects.records import Answer
    from samevec.server.requests import EmbedRequest, RerankRequest
    from samevec.server.service import Embedded, Scored, Service

    Handler = Callable[[Service, Any, float | None], Awaitable[Answer]]

__all__ = ["add_routes"]

# Numbers of an answer that are written on the event loop; more go to a thread.
_INLINE_VALUES = 1 << 14


@dataclass(frozen=True, slots=True)
class _Spoken:
    """One dialect of a route."""

    dialect: Dialect
    handle: Handler


def _embed(parse: Callable[..., EmbedRequest], encode: Callable[[Embedded, EmbedRequest], Answer]) -> Handler:
    async def handle(service: Service, body: Any, deadline_s: float | None) -> Answer:
        request = parse(body, max_items=service.settings.max_batch_items, deadline_s=deadline_s)
        embedded = await service.embed(request)
        if embedded.vectors.size <= _INLINE_VALUES:
            return encode(embedded, request)
        return await asyncio.to_thread(encode, embedded, request)

    return handle


def _rerank(parse: Callable[..., RerankRequest], encode: Callable[[Scored, RerankRequest], Answer]) -> Handler:
    async def handle(service: Service, body: Any, deadline_s: float | None) -> Answer:
        request = parse(body, max_items=service.settings.max_batch_items, deadline_s=deadline_s)
        return encode(await service.rerank(request), request)

    return handle


async def _tokenize(service: Service, body: Any, deadline_s: float | None) -> Answer:
    request = tei.parse_tokenize(body, max_items=service.settings.max_batch_items, deadline_s=deadline_s)
    return await service.list_tokens(request, tei.encode_tokenize)


_JINA = _Spoken("jina", _rerank(jina.parse_rerank, jina.encode_rerank))
_TEI_RERANK = _Spoken("tei", _rerank(tei.parse_rerank, tei.encode_rerank))


def _choose_rerank(body: Any) -> _Spoken:
    """Tell Jina's rerank from TEI's by the key that holds the documents."""
    keys = body if isinstance(body, dict) else {}
    if "documents" in keys and "texts" in keys:
        raise InputError("given beside documents; send documents (Jina) or texts (TEI)", field="texts")
    return _TEI_RERANK if "texts" in keys else _JINA


def _always(dialect: Dialect, handle: Handler) -> Callable[[Any], _Spoken]:
    spoken = _Spoken(dialect, handle)
    return lambda _: spoken


_ROUTES: dict[str, Callable[[Any], _Spoken]] = {
    "/v1/embeddings": _always("openai", _embed(openai.parse_embeddings, openai.encode_embeddings)),
    "/v1/rerank": _always("cohere", _rerank(cohere.parse_rerank_v1, cohere.encode_rerank_v1)),
    "/v2/rerank": _always("cohere", _rerank(cohere.parse_rerank_v2, cohere.encode_rerank_v2)),
    "/rerank": _choose_rerank,
    "/embed": _always("tei", _embed(tei.parse_embed, tei.encode_embed)),
    "/tokenize": _always("tei", _tokenize),
}


def add_routes(app: FastAPI, service: Service) -> None:
    """Add every route that computes.

    Parameters
    ----------
    app : FastAPI
    service : Service
    """
    described = describe_routes(service)
    for path, choose in _ROUTES.items():
        app.add_api_route(
            path, _endpoint(service, path, choose), methods=["POST"], tags=["inference"], **described[path]
        )


def _endpoint(
    service: Service, path: str, choose: Callable[[Any], _Spoken]
) -> Callable[[Request], Awaitable[Response]]:
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
                spoken = choose(body)
                dialect = spoken.dialect

                async def work() -> Response:
                    answer = await spoken.handle(service, body, deadline_s)
                    return Response(answer.body, headers=answer.headers, media_type="application/json")

                return await run_while_connected(request, work())
        except Exception as error:
            return error_response(error, dialect)

    endpoint.__name__ = path.strip("/").replace("/", "_")  # FastAPI names operations after it
    return endpoint
