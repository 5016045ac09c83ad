"""What the routes take and give, as OpenAPI 3.0 (the bundled Swagger UI reads no later version)."""

from __future__ import annotations

from typing import Any

__all__ = ["EMBEDDINGS", "INFO", "MODELS", "OPENAPI_VERSION", "READY", "RERANK"]

OPENAPI_VERSION = "3.0.3"

_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 1, "nullable": True}
_TOKEN_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_USAGE = {
    "type": "object",
    "description": "Tokens as the model sees them: prompt and special tokens included, padding never.",
    "properties": {"prompt_tokens": {"type": "integer"}, "total_tokens": {"type": "integer"}},
}


def _object(required: list[str], properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


def _flag(description: str, *, default: bool) -> dict[str, Any]:
    return {"type": "boolean", "default": default, "nullable": True, "description": description}


def _named(description: str) -> dict[str, Any]:
    return {"type": "string", "nullable": True, "description": description}


def _prompt(description: str) -> dict[str, Any]:
    return {"type": "string", "enum": ["query", "document", None], "nullable": True, "description": description}


_TRUNCATE = _flag("Cut what exceeds the model's limit (the end token stays); false refuses it.", default=True)
_BATCH_SIZE = {**_COUNT, "description": "Most rows of any session run that holds an item of this request."}
_MODEL = _named("A served model; may be left out when only one fits.")

_EMBEDDINGS_BODY = _object(
    ["input"],
    {
        "input": {
            "description": "One text, several texts, token ids, or several lists of token ids.",
            "oneOf": [
                _TEXT,
                {"type": "array", "items": _TEXT, "minItems": 1},
                _TOKEN_IDS,
                {"type": "array", "items": _TOKEN_IDS, "minItems": 1},
            ],
        },
        "model": _MODEL,
        "dimensions": {**_COUNT, "description": "Length of the vector; cut, then scaled to unit length again."},
        "encoding_format": {
            "type": "string",
            "enum": ["float", "base64", None],
            "nullable": True,
            "default": "float",
            "description": "base64 is little-endian float32.",
        },
        "user": _named("Read and ignored."),
        "prompt_name": _prompt("Which of the model's own prompts is put before each text; none unless asked for."),
        "input_type": _prompt("Another name of prompt_name."),
        "truncate": _TRUNCATE,
        "batch_size": _BATCH_SIZE,
    },
)
_RERANK_BODY = _object(
    ["query", "documents"],
    {
        "query": _TEXT,
        "documents": {
            "type": "array",
            "minItems": 1,
            "items": {"oneOf": [_TEXT, _object(["text"], {"text": _TEXT})]},
        },
        "model": _MODEL,
        "top_n": {**_COUNT, "description": "Give the best so many; all when left out."},
        "return_documents": _flag("Give each document's text back.", default=False),
        "raw_scores": _flag("Give logits instead of activated scores.", default=False),
        "truncate": _TRUNCATE,
        "batch_size": _BATCH_SIZE,
    },
)
_EMBEDDINGS_ANSWER = {
    "type": "object",
    "properties": {
        "object": {"type": "string", "enum": ["list"]},
        "data": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "object": {"type": "string", "enum": ["embedding"]},
                    "index": {"type": "integer"},
                    "embedding": {"oneOf": [{"type": "array", "items": {"type": "number"}}, _TEXT]},
                },
            },
        },
        "model": _TEXT,
        "usage": _USAGE,
    },
}
_RERANK_ANSWER = {
    "type": "object",
    "properties": {
        "id": _TEXT,
        "model": _TEXT,
        "results": {
            "type": "array",
            "description": "Best first; equal scores in request order.",
            "items": {
                "type": "object",
                "properties": {
                    "index": {"type": "integer", "description": "Position of the document in the request."},
                    "relevance_score": {"type": "number"},
                    "document": {"type": "object", "properties": {"text": _TEXT}},
                },
            },
        },
        "usage": _USAGE,
    },
}
_OPENAI_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": _TEXT,
                "type": _TEXT,
                "param": {"type": "string", "nullable": True},
                "code": {"type": "string", "nullable": True},
            },
        }
    },
}
_COHERE_ERROR = {"type": "object", "properties": {"message": _TEXT}}
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


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _post(body: dict[str, Any], answer: dict[str, Any], error: dict[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of a route that takes a JSON body."""
    failures = {status: {"description": words, "content": _content(error)} for status, words in _FAILURES.items()}
    timeout = {
        "name": "X-Request-Timeout-S",
        "in": "header",
        "description": "Seconds after which the client stops waiting.",
        "schema": {"type": "number", "minimum": 0},
    }
    return {
        "responses": {200: {"description": "The answer.", "content": _content(answer)}, **failures},
        "openapi_extra": {"requestBody": {"required": True, "content": _content(body)}, "parameters": [timeout]},
    }


def _get(description: str, *, failures: dict[int, str] | None = None) -> dict[str, Any]:
    answer = _content({"type": "object"})
    responses: dict[int, Any] = {200: {"description": description, "content": answer}}
    responses |= {status: {"description": words, "content": answer} for status, words in (failures or {}).items()}
    return {"responses": responses}


EMBEDDINGS = _post(_EMBEDDINGS_BODY, _EMBEDDINGS_ANSWER, _OPENAI_ERROR)
RERANK = _post(_RERANK_BODY, _RERANK_ANSWER, _COHERE_ERROR)
READY = _get("Requests are served.", failures={503: "They are not; reasons says why."})
INFO = _get("Models, profiles, receipts, limits and versions.", failures={401: "No valid key."})
MODELS = _get("The served models, as OpenAI lists them.", failures={401: "No valid key."})
