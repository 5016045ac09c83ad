"""What the routes take and give, as OpenAPI 3.0 (the bundled Swagger UI reads no later version).

FastAPI writes the document from the models; limits that depend on what is served (vector lengths, vocabulary, items of
a request) are those of the running server.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Literal

from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, Field
from pydantic.json_schema import models_json_schema

from samevec.server.http.bodies import DIGEST_HEADER, TRUNCATED_HEADER
from samevec.server.http.dialects import cohere_jina, openai, tei
from samevec.server.http.dialects.models import PROMPT_NAMES, RequestBody, Strict
from samevec.server.http.dialects.tei import TOKENS_HEADER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from samevec.server.service import Service

__all__ = ["HEALTH", "INFO", "METRICS", "MODELS", "READY", "ROUTES", "add_security", "finish"]


class _OpenAIProblem(Strict):
    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(Strict):
    """An error as OpenAI writes it."""

    error: _OpenAIProblem


class CohereError(Strict):
    """An error as Cohere writes it."""

    message: str


class JinaError(Strict):
    """An error as Jina writes it."""

    detail: str


class TeiError(Strict):
    """An error as TEI writes it."""

    error: str
    error_type: Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Empty"]


class Health(Strict):
    """The process answers."""

    status: Literal["ok"]


class Readiness(Strict):
    """Whether requests are served, and why not."""

    status: Literal["ready", "not ready"]
    reasons: list[str]
    models: dict[str, Literal["loaded", "unloaded"]]


class Info(BaseModel):
    """Models, profiles, receipts, limits and versions; there is more than is listed: versions add to it."""

    service: str
    version: str
    ready: bool
    models: list[dict[str, Any]]
    limits: dict[str, Any]
    queue: dict[str, Any]
    versions: dict[str, Any]
    id_of_model: str = Field(alias="model_id", description="As TEI tells it, of the first served model.")


class _ListedModel(Strict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(Strict):
    """The served models, as OpenAI lists them."""

    object: Literal["list"]
    data: list[_ListedModel]


_FAILURES = {
    400: "Something in the request is wrong; the message names the key, and the item in lists.",
    401: "No valid key.",
    404: "The model is not served.",
    413: "The body is too large, or the request has too many items.",
    429: "The queue is full; Retry-After says when to come back.",
    500: "An item could not be computed; the message names it.",
    503: "Not ready, or shutting down.",
    504: "The deadline of X-Request-Timeout-S passed.",
}
_USAGE_WORDS = "Tokens as the model sees them: prompt and special tokens included, padding never."
_DIGEST_WORDS = "The sha256 of the vector's little-endian float32 bytes; absent where an answer has several vectors."
_CUT = {
    TRUNCATED_HEADER: {"description": "N of the items were cut; absent when N is 0.", "schema": {"type": "integer"}}
}
_TOKENS = {TOKENS_HEADER: {"description": _USAGE_WORDS, "schema": {"type": "integer"}}}
_DIGEST = {DIGEST_HEADER: {"description": _DIGEST_WORDS, "schema": {"type": "string"}}}
_TIMEOUT = {
    "name": "X-Request-Timeout-S",
    "in": "header",
    "description": "Seconds after which the client stops waiting.",
    "schema": {"type": "number", "minimum": 0},
}
_REF = "#/components/schemas/{model}"
_BODIES: dict[str, tuple[type[RequestBody], ...]] = {
    "/v1/embeddings": (openai.EmbeddingsBody,),
    "/v1/rerank": (cohere_jina.CohereV1Body,),
    "/v2/rerank": (cohere_jina.CohereV2Body,),
    "/rerank": (cohere_jina.JinaBody, tei.TeiRerankBody),
    "/embed": (tei.EmbedBody,),
    "/tokenize": (tei.TokenizeBody,),
}


def _post(path: str, summary: str, answer: Any, error: Any, headers: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the keyword arguments of a route that takes a JSON body."""
    failures = {status: {"description": words, "model": error} for status, words in _FAILURES.items()}
    good = {"description": "The answer.", "model": answer, "headers": {**_CUT, **(headers or {})}}
    refs = [{"$ref": _REF.format(model=body.__name__)} for body in _BODIES[path]]
    schema = refs[0] if len(refs) == 1 else {"oneOf": refs}
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {
        "summary": summary,
        "responses": {200: good, **failures},
        "openapi_extra": {"requestBody": body, "parameters": [_TIMEOUT]},
    }


#: The keyword arguments that describe each computing route to FastAPI.
ROUTES: dict[str, dict[str, Any]] = {
    path: _post(path, *words)
    for path, *words in (
        ("/v1/embeddings", "Embed texts (OpenAI)", openai.EmbeddingsAnswer, OpenAIError, _DIGEST),
        ("/v1/rerank", "Rank documents for a query (Cohere v1)", cohere_jina.CohereV1Answer, CohereError),
        ("/v2/rerank", "Rank documents for a query (Cohere v2)", cohere_jina.CohereV2Answer, CohereError),
        (
            "/rerank",
            "Rank documents (Jina) or texts (TEI) for a query",
            cohere_jina.JinaAnswer | list[tei.RankAnswer],
            JinaError | TeiError,
            _TOKENS,
        ),
        ("/embed", "Embed texts (TEI)", list[list[float]], TeiError, {**_TOKENS, **_DIGEST}),
        ("/tokenize", "List the tokens of texts (TEI)", list[list[tei.TokenAnswer]], TeiError, _TOKENS),
    )
}

_OPENAI_ERROR = _REF.format(model="OpenAIError")
_NO_KEY = {401: {"description": "No valid key.", "model": OpenAIError}}
HEALTH: dict[str, Any] = {"responses": {200: {"model": Health}}}
READY: dict[str, Any] = {
    "responses": {
        200: {"model": Readiness},
        503: {"description": "Not ready; reasons says why.", "model": Readiness},
    }
}
INFO: dict[str, Any] = {"responses": {200: {"model": Info}, **_NO_KEY}}
METRICS: dict[str, Any] = {
    "response_class": PlainTextResponse,
    "responses": {
        200: {"description": "Every metric, version 0.0.4."},
        401: {"description": "No valid key.", "content": {"application/json": {"schema": {"$ref": _OPENAI_ERROR}}}},
    },
}
MODELS: dict[str, Any] = {"responses": {200: {"model": ModelList}, **_NO_KEY}}


def finish(document: dict[str, Any], service: Service) -> dict[str, Any]:
    """Return FastAPI's document as OpenAPI 3.0, with the bodies and the limits of the served models.

    Parameters
    ----------
    document : dict
    service : Service
    """
    bodies = [body for one in _BODIES.values() for body in one]
    _, made = models_json_schema([(body, "validation") for body in bodies], ref_template=_REF)
    schemas = made["$defs"]
    for body in bodies:
        _bound(schemas[body.__name__]["properties"], service)
    schemas["EmbeddingsBody"] |= _forbidden(service, "input", ("prompt_name", "input_type"))
    schemas["EmbedBody"] |= _forbidden(service, "inputs", ("prompt_name",))
    schemas["TokenizeBody"] |= _promptless(service)
    document["components"]["schemas"] |= schemas
    finished: dict[str, Any] = _as_3_0({**document, "openapi": "3.0.3"})
    return finished


def _as_3_0(node: Any) -> Any:
    """Say what later versions say with the type null and const."""
    if isinstance(node, list):
        return [_as_3_0(one) for one in node]
    if not isinstance(node, dict):
        return node
    node = {key: _as_3_0(one) for key, one in node.items() if key != "default" or one is not None}
    if "const" in node:
        node["enum"] = [node.pop("const")]
    kinds = node.get("anyOf", [])
    if {"type": "null"} in kinds:
        del node["anyOf"]
        (kind,) = [one for one in kinds if one != {"type": "null"}]
        node = {**kind, **node, "nullable": True}
        if "enum" in node:
            node["enum"] = [*node["enum"], None]
    return node


def _bound(properties: dict[str, Any], service: Service) -> None:
    """Set the limits that the settings and the served embedders have."""
    models = [served.model for served in service.embedders()]
    ids: dict[str, Any] = {"minimum": 0}
    row: dict[str, Any] = {}
    if models:
        ids["maximum"] = max(model.tokenizer.raw.get_vocab_size(with_added_tokens=True) for model in models) - 1
        row["maxItems"] = max(model.max_tokens for model in models)
    for name in properties.keys() & {"input", "inputs", "documents", "texts"}:
        for one in properties[name].get("oneOf", [properties[name]]):
            _bound_list(one, {"maxItems": service.settings.max_batch_items}, row, ids)
    infos = [info for info in service.info()["models"] if "dimensions" in info]
    if "dimensions" in properties and infos:
        properties["dimensions"]["anyOf"][0] |= {
            "minimum": min(info["min_dimensions"] for info in infos),
            "maximum": max(info["dimensions"] for info in infos),
        }


def _bound_list(schema: dict[str, Any], many: dict[str, Any], row: dict[str, Any], ids: dict[str, Any]) -> None:
    items = schema.get("items", {})
    if items.get("type") == "integer":
        schema |= row
        items |= ids
    elif items:
        schema |= many
        _bound_list(items, many, row, ids)


def _both(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    return {"required": [*first, *second], "properties": {**first, **second}}


def _one_of(names: Sequence[str]) -> dict[str, Any]:
    return {"type": "string", "enum": list(names)}


def _never(cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"not": {"anyOf": list(cases)}} if cases else {}


def _forbidden(service: Service, items: str, prompts: Sequence[str]) -> dict[str, Any]:
    """Describe what no single key shows: prompts that contradict each other, and prompts before token ids."""
    texts = {name: text for served in service.embedders() for name, text in served.model.entry.prompts.items() if text}
    integer = {"type": "integer"}
    ids = {items: {"type": "array", "items": {"oneOf": [integer, {"type": "array", "items": integer}]}}}
    cases = [_both({key: _one_of([name])}, ids) for key in prompts for name in PROMPT_NAMES if name in texts]
    cases += [
        _both({a: _one_of([first])}, {b: _one_of([second])})
        for a, b in itertools.combinations(prompts, 2)
        for first, second in itertools.permutations(PROMPT_NAMES)
    ]
    return _never(cases)


def _promptless(service: Service) -> dict[str, Any]:
    """Describe which named models have which prompts not."""
    cases = []
    for served in service.models:
        entry = served.model.entry
        missing = [name for name in PROMPT_NAMES if name not in entry.prompts]
        if missing:
            names = _one_of([served.name, entry.source.removeprefix("hf:")])
            cases.append(_both({"model": names}, {"prompt_name": _one_of(missing)}))
    return _never(cases)


def add_security(document: dict[str, Any], *, open_paths: Sequence[str]) -> None:
    """Say in a finished document that every path but some needs a key.

    Parameters
    ----------
    document : dict
        Changed in place.
    open_paths : sequence of str
    """
    scheme = {"type": "http", "scheme": "bearer"}
    document.setdefault("components", {}).setdefault("securitySchemes", {})["key"] = scheme
    for path, methods in document["paths"].items():
        if path not in open_paths:
            for operation in methods.values():
                operation["security"] = [{"key": []}]
