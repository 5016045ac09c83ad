"""What the routes take and give, as OpenAPI 3.0 (the bundled Swagger UI reads no later version).

Limits that depend on what is served (vector lengths, vocabulary, items of a request) are those of the running server.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from samevec.server.http.answers import DIGEST_HEADER, TRUNCATED_HEADER
from samevec.server.http.dialects.fields import MOST_COUNT, PROMPT_NAMES
from samevec.server.http.dialects.rerank import COHERE_V1, COHERE_V2, JINA, LAST_PRIORITY
from samevec.server.http.dialects.tei import TOKENS_HEADER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from samevec.server.http.dialects.rerank import RerankBody, RerankOption
    from samevec.server.service import Service

__all__ = ["HEALTH", "INFO", "METRICS", "MODELS", "OPENAPI_VERSION", "READY", "add_security", "describe_routes"]

OPENAPI_VERSION = "3.0.3"

_TEXT = {"type": "string"}
_INTEGER = {"type": "integer"}
_NUMBER = {"type": "number"}
_NULLABLE_TEXT = {"type": "string", "nullable": True}
_COUNT = {"type": "integer", "minimum": 1, "maximum": MOST_COUNT, "nullable": True}
_DIGEST_WORDS = "The sha256 of the vector's little-endian float32 bytes; absent where an answer has several vectors."
_USAGE_WORDS = "Tokens as the model sees them: prompt and special tokens included, padding never."


def _object(required: Sequence[str], properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    described = {"type": "object", "properties": properties, "additionalProperties": False, **more}
    return {**described, "required": list(required)} if required else described


def _list(items: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **more}


def _flag(description: str, *, default: bool) -> dict[str, Any]:
    return {"type": "boolean", "default": default, "nullable": True, "description": description}


def _named(description: str) -> dict[str, Any]:
    return {**_NULLABLE_TEXT, "description": description}


def _prompt(description: str) -> dict[str, Any]:
    return {"type": "string", "enum": [*PROMPT_NAMES, None], "nullable": True, "description": description}


# Parts of request bodies.

_TRUNCATE = _flag("Cut what exceeds the model's limit (the end token stays); false refuses it.", default=True)
_SIDE = {
    "type": "string",
    "enum": ["Right", "right", None],
    "nullable": True,
    "description": "Which side is cut. Left would cut off the start; it is refused.",
}
_BATCH_SIZE = {**_COUNT, "description": "Most rows of any session run that holds an item of this request."}
_MODEL = _named("A served model, by its name in the lock or on the hub; may be left out when only one fits.")
_PROMPT_NAME = _prompt("Which of the model's own prompts is put before each text; none unless asked for.")
_RAW_SCORES = _flag("Give logits instead of activated scores.", default=False)
_TOP_N = {**_COUNT, "description": "Give the best so many; all when left out."}
_RERANK_OPTIONS: dict[RerankOption, dict[str, Any]] = {
    "batch_size": _BATCH_SIZE,
    "raw_scores": _RAW_SCORES,
    "truncate": _TRUNCATE,
    "max_tokens_per_doc": {
        **_COUNT,
        "description": "Cut each document to so many tokens; the model's limit alone otherwise.",
    },
    "priority": {
        "type": "integer",
        "nullable": True,
        "minimum": 0,
        "maximum": LAST_PRIORITY,
        "description": "Read and ignored.",
    },
}

# Parts of answers.

_USAGE = _object(
    ["prompt_tokens", "total_tokens"], {"prompt_tokens": _INTEGER, "total_tokens": _INTEGER}, description=_USAGE_WORDS
)
_CUT = _object(["index", "cut_tokens"], {"index": _INTEGER, "cut_tokens": _INTEGER})
_EXTENSION = _object(
    ["truncated"], {"truncated": _list(_CUT)}, description="Which items were cut; not there when none was."
)


def _ranks(score: str, more: dict[str, Any]) -> dict[str, Any]:
    index = {**_INTEGER, "description": "Position of the document in the request."}
    item = _object(["index", score], {"index": index, score: _NUMBER, **more})
    return _list(item, description="Best first; equal scores in request order.")


_DOCUMENT = {"document": _object(["text"], {"text": _TEXT})}
_RELEVANCE = _ranks("relevance_score", _DOCUMENT)
_EMBEDDING = _object(
    ["object", "index", "embedding"],
    {
        "object": {"type": "string", "enum": ["embedding"]},
        "index": _INTEGER,
        "embedding": {"oneOf": [_list(_NUMBER), _TEXT]},
    },
)
_LIST_OBJECT = {"type": "string", "enum": ["list"]}
_EMBEDDINGS_ANSWER = _object(
    ["object", "data", "model", "usage"],
    {"object": _LIST_OBJECT, "data": _list(_EMBEDDING), "model": _TEXT, "usage": _USAGE, "samevec": _EXTENSION},
)
_COHERE_V1_ANSWER = _object(
    ["id", "model", "results", "usage"],
    {"id": _TEXT, "model": _TEXT, "results": _RELEVANCE, "usage": _USAGE, "samevec": _EXTENSION},
)
_META = _object(
    ["api_version", "tokens"],
    {
        "api_version": _object(["version"], {"version": _TEXT}),
        "tokens": _object(["input_tokens"], {"input_tokens": _INTEGER}, description=_USAGE_WORDS),
        "warnings": _list(_TEXT, description="Which documents were cut."),
    },
)
_COHERE_V2_ANSWER = _object(["id", "results", "meta"], {"id": _TEXT, "results": _RELEVANCE, "meta": _META})
_JINA_ANSWER = _object(
    ["object", "model", "results", "usage"],
    {"object": _LIST_OBJECT, "model": _TEXT, "results": _RELEVANCE, "usage": _USAGE, "samevec": _EXTENSION},
)
_TEI_RANKS = _ranks("score", {"text": _TEXT})
_POSITION = {"type": "integer", "nullable": True}
_TOKEN = _object(
    ["id", "text", "special", "start", "stop"],
    {"id": _INTEGER, "text": _TEXT, "special": {"type": "boolean"}, "start": _POSITION, "stop": _POSITION},
)

# Errors.

_OPENAI_ERROR = _object(
    ["error"],
    {
        "error": _object(
            ["message", "type", "param", "code"],
            {"message": _TEXT, "type": _TEXT, "param": _NULLABLE_TEXT, "code": _NULLABLE_TEXT},
        )
    },
)
_COHERE_ERROR = _object(["message"], {"message": _TEXT})
_JINA_ERROR = _object(["detail"], {"detail": _TEXT})
_TEI_ERROR = _object(
    ["error", "error_type"],
    {
        "error": _TEXT,
        "error_type": {"type": "string", "enum": ["Unhealthy", "Backend", "Overloaded", "Validation", "Empty"]},
    },
)
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
_HEADERS = {
    TRUNCATED_HEADER: {"description": "How many items were cut; absent when none was.", "schema": _INTEGER},
}
_TIMEOUT = {
    "name": "X-Request-Timeout-S",
    "in": "header",
    "description": "Seconds after which the client stops waiting.",
    "schema": {"type": "number", "minimum": 0},
}


def describe_routes(service: Service) -> dict[str, dict[str, Any]]:
    """Return the keyword arguments that describe each computing route to FastAPI.

    Parameters
    ----------
    service : Service

    Returns
    -------
    dict of str to dict
        By path.
    """
    max_items = service.settings.max_batch_items
    documents = _list({"oneOf": [_TEXT, _object(["text"], {"text": _TEXT})]}, minItems=1, maxItems=max_items)
    jina_or_tei = {"oneOf": [_rerank_body(documents, JINA, title="Jina"), _tei_rerank_body(max_items)]}
    digest = {DIGEST_HEADER: {"description": _DIGEST_WORDS, "schema": _TEXT}}
    tokens = {TOKENS_HEADER: {"description": _USAGE_WORDS, "schema": _INTEGER}}
    return {
        "/v1/embeddings": _post(
            "Embed texts (OpenAI)", _embeddings_body(service), _EMBEDDINGS_ANSWER, _OPENAI_ERROR, headers=digest
        ),
        "/v1/rerank": _post(
            "Rank documents for a query (Cohere v1)",
            _rerank_body(documents, COHERE_V1),
            _COHERE_V1_ANSWER,
            _COHERE_ERROR,
        ),
        "/v2/rerank": _post(
            "Rank documents for a query (Cohere v2)",
            _rerank_body(documents, COHERE_V2),
            _COHERE_V2_ANSWER,
            _COHERE_ERROR,
        ),
        "/rerank": _post(
            "Rank documents (Jina) or texts (TEI) for a query",
            jina_or_tei,
            {"oneOf": [_JINA_ANSWER, _TEI_RANKS]},
            {"oneOf": [_JINA_ERROR, _TEI_ERROR]},
            headers=tokens,
        ),
        "/embed": _post(
            "Embed texts (TEI)",
            _tei_embed_body(service),
            _list(_list(_NUMBER)),
            _TEI_ERROR,
            headers={**tokens, **digest},
        ),
        "/tokenize": _post(
            "List the tokens of texts (TEI)",
            _tokenize_body(service),
            _list(_list(_TOKEN)),
            _TEI_ERROR,
            headers=tokens,
        ),
    }


def _inputs(service: Service) -> dict[str, Any]:
    """Describe what can be embedded, within the bounds of the served embedders."""
    max_items = service.settings.max_batch_items
    models = [served.model for served in service.embedders()]
    ids: dict[str, Any] = {"type": "integer", "minimum": 0}
    bounds: dict[str, Any] = {"minItems": 1}
    if models:
        ids["maximum"] = max(model.tokenizer.raw.get_vocab_size(with_added_tokens=True) for model in models) - 1
        bounds["maxItems"] = max(model.max_tokens for model in models)
    row = _list(ids, **bounds)
    many = {"minItems": 1, "maxItems": max_items}
    return {
        "description": "One text, several texts, token ids, or several lists of token ids.",
        "oneOf": [_TEXT, _list(_TEXT, **many), row, _list(row, **many)],
    }


def _dimensions(service: Service) -> dict[str, Any]:
    infos = [info for info in service.info()["models"] if "dimensions" in info]
    bounds: dict[str, Any] = {"minimum": 1}
    if infos:
        bounds = {
            "minimum": min(info["min_dimensions"] for info in infos),
            "maximum": max(info["dimensions"] for info in infos),
        }
    words = "Length of the vector; cut, then scaled to unit length again."
    return {"type": "integer", "nullable": True, **bounds, "description": words}


def _both(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    return {"required": [*first, *second], "properties": {**first, **second}}


def _one_of(names: Sequence[str]) -> dict[str, Any]:
    return {"type": "string", "enum": list(names)}


def _never(cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"not": {"anyOf": list(cases)}} if cases else {}


def _forbidden(service: Service, items: str, prompts: Sequence[str]) -> dict[str, Any]:
    """Describe what no single key shows: prompts that contradict each other, and prompts before token ids."""
    texts = {name: text for served in service.embedders() for name, text in served.model.entry.prompts.items() if text}
    ids = {items: _list({"oneOf": [_INTEGER, _list(_INTEGER)]})}
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


def _embeddings_body(service: Service) -> dict[str, Any]:
    formats = {
        "type": "string",
        "enum": ["float", "base64", None],
        "nullable": True,
        "default": "float",
        "description": "base64 is little-endian float32.",
    }
    return _object(
        ["input"],
        {
            "input": _inputs(service),
            "model": _MODEL,
            "dimensions": _dimensions(service),
            "encoding_format": formats,
            "user": _named("Read and ignored."),
            "prompt_name": _PROMPT_NAME,
            "input_type": _prompt("Another name of prompt_name; both must agree where both are given."),
            "truncate": _TRUNCATE,
            "batch_size": _BATCH_SIZE,
        },
        **_forbidden(service, "input", ("prompt_name", "input_type")),
    )


def _tei_embed_body(service: Service) -> dict[str, Any]:
    return _object(
        ["inputs"],
        {
            "inputs": _inputs(service),
            "model": _MODEL,
            "normalize": _flag("Give vectors of unit length.", default=True),
            "truncate": _TRUNCATE,
            "truncation_direction": _SIDE,
            "prompt_name": _PROMPT_NAME,
            "dimensions": _dimensions(service),
            "batch_size": _BATCH_SIZE,
        },
        **_forbidden(service, "inputs", ("prompt_name",)),
    )


def _rerank_body(documents: dict[str, Any], allowed: RerankBody, **more: Any) -> dict[str, Any]:
    """Describe what :func:`samevec.server.http.dialects.rerank.read_rerank` reads."""
    options: dict[str, Any] = {name: _RERANK_OPTIONS[name] for name in allowed.options}
    returned = _flag("Give each document's text back.", default=allowed.returns_documents)
    common = {"query": _TEXT, "documents": documents, "model": _MODEL, "top_n": _TOP_N, "return_documents": returned}
    return _object(["query", "documents"], {**common, **options}, **more)


def _tei_rerank_body(max_items: int) -> dict[str, Any]:
    return _object(
        ["query", "texts"],
        {
            "query": _TEXT,
            "texts": _list(_TEXT, minItems=1, maxItems=max_items),
            "model": _MODEL,
            "raw_scores": _RAW_SCORES,
            "return_text": _flag("Give each text back.", default=False),
            "truncate": _TRUNCATE,
            "truncation_direction": _SIDE,
            "batch_size": _BATCH_SIZE,
        },
        title="TEI",
    )


def _tokenize_body(service: Service) -> dict[str, Any]:
    return _object(
        ["inputs"],
        {
            "inputs": {"oneOf": [_TEXT, _list(_TEXT, minItems=1, maxItems=service.settings.max_batch_items)]},
            "model": _named("Whose tokenizer; the first served model's when left out."),
            "add_special_tokens": _flag("List the special tokens too.", default=True),
            "prompt_name": _PROMPT_NAME,
        },
        **_promptless(service),
    )


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _post(
    summary: str,
    body: dict[str, Any],
    answer: dict[str, Any],
    error: dict[str, Any],
    *,
    headers: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the keyword arguments of a route that takes a JSON body."""
    failures = {status: {"description": words, "content": _content(error)} for status, words in _FAILURES.items()}
    good = {"description": "The answer.", "content": _content(answer), "headers": {**_HEADERS, **(headers or {})}}
    return {
        "summary": summary,
        "responses": {200: good, **failures},
        "openapi_extra": {"requestBody": {"required": True, "content": _content(body)}, "parameters": [_TIMEOUT]},
    }


def _get(description: str, answer: dict[str, Any], *, failures: dict[int, tuple[str, Any]] | None = None) -> Any:
    responses: dict[int, Any] = {200: {"description": description, "content": _content(answer)}}
    for status, (words, schema) in (failures or {}).items():
        responses[status] = {"description": words, "content": _content(schema)}
    return {"responses": responses}


_NO_KEY = {401: ("No valid key.", _OPENAI_ERROR)}
_READINESS = _object(
    ["status", "reasons", "models"],
    {
        "status": {"type": "string", "enum": ["ready", "not ready"]},
        "reasons": _list(_TEXT),
        "models": {"type": "object", "additionalProperties": {"type": "string", "enum": ["loaded", "unloaded"]}},
    },
)
_LISTED_MODEL = _object(
    ["id", "object", "created", "owned_by"],
    {"id": _TEXT, "object": {"type": "string", "enum": ["model"]}, "created": _INTEGER, "owned_by": _TEXT},
)
#: More is there than is listed: versions add to it.
_INFO_ANSWER = {
    "type": "object",
    "required": ["service", "version", "ready", "models", "limits", "queue", "versions"],
    "properties": {
        "service": _TEXT,
        "version": _TEXT,
        "ready": {"type": "boolean"},
        "models": _list({"type": "object"}),
        "limits": {"type": "object"},
        "queue": {"type": "object"},
        "versions": {"type": "object"},
        "model_id": {**_TEXT, "description": "As TEI tells it, of the first served model."},
        "model_sha": _TEXT,
        "model_dtype": _TEXT,
        "model_type": {"type": "object"},
        "max_concurrent_requests": _INTEGER,
        "max_input_length": _INTEGER,
        "max_batch_tokens": _INTEGER,
        "max_batch_requests": _INTEGER,
        "max_client_batch_size": _INTEGER,
        "auto_truncate": {"type": "boolean"},
    },
}

HEALTH = _get("The process answers.", _object(["status"], {"status": {"type": "string", "enum": ["ok"]}}))
READY = _get("Requests are served.", _READINESS, failures={503: ("They are not; reasons says why.", _READINESS)})
INFO = _get("Models, profiles, receipts, limits and versions.", _INFO_ANSWER, failures=_NO_KEY)
METRICS: dict[str, Any] = {
    "responses": {
        200: {"description": "Every metric, version 0.0.4.", "content": {"text/plain": {"schema": _TEXT}}},
        401: {"description": "No valid key.", "content": _content(_OPENAI_ERROR)},
    }
}
MODELS = _get(
    "The served models, as OpenAI lists them.",
    _object(["object", "data"], {"object": _LIST_OBJECT, "data": _list(_LISTED_MODEL)}),
    failures=_NO_KEY,
)


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
