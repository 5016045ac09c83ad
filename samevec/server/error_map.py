"""One table from exceptions to HTTP statuses, and the error bodies of each dialect."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

from samevec import errors

__all__ = [
    "HTTP_STATUS",
    "BodyTooLargeError",
    "Dialect",
    "ErrorStatus",
    "UnauthorizedError",
    "UnknownModelError",
    "error_body",
    "error_headers",
    "error_status",
    "path_dialect",
    "public_message",
    "refusal_body",
]

Dialect = Literal["openai", "cohere", "jina", "tei"]

# Where another dialect than OpenAI's is spoken. What the body of /rerank is decides more, once it has been read.
_DIALECTS: dict[str, Dialect] = {
    "/v1/rerank": "cohere",
    "/v2/rerank": "cohere",
    "/rerank": "jina",
    "/embed": "tei",
    "/tokenize": "tei",
}


def path_dialect(path: str) -> Dialect:
    """Return the dialect spoken at a path, before anything else of a request is known."""
    return _DIALECTS.get(path, "openai")


class UnknownModelError(errors.InputError):
    """No model of that name is served."""


class BodyTooLargeError(errors.InputError):
    """The request's body is larger than the server reads."""


class UnauthorizedError(errors.SamevecError):
    """The request carries no valid key."""


class ErrorStatus(NamedTuple):
    """HTTP status, and the error type that clients see beside it."""

    status: int
    kind: str


_REQUEST = "invalid_request_error"
_SERVER = "internal_error"
_UNAVAILABLE = "not_ready"

#: Every exception class samevec raises, listed one by one: a class that is missing here fails a test.
HTTP_STATUS: dict[type[errors.SamevecError], ErrorStatus] = {
    errors.SamevecError: ErrorStatus(500, _SERVER),
    errors.ConfigError: ErrorStatus(500, _SERVER),
    errors.LockError: ErrorStatus(500, _SERVER),
    errors.LockValidationError: ErrorStatus(500, _SERVER),
    errors.LockVersionError: ErrorStatus(500, _SERVER),
    errors.SourceError: ErrorStatus(500, _SERVER),
    errors.SourceMissingError: ErrorStatus(500, _SERVER),
    errors.DigestMismatchError: ErrorStatus(500, _SERVER),
    errors.ArtifactError: ErrorStatus(500, _SERVER),
    errors.ArtifactMissingError: ErrorStatus(500, _SERVER),
    errors.ArtifactCorruptError: ErrorStatus(500, _SERVER),
    errors.ExportError: ErrorStatus(500, _SERVER),
    errors.GraphContractError: ErrorStatus(500, _SERVER),
    errors.WeightsDifferError: ErrorStatus(500, _SERVER),
    errors.AnswersDifferError: ErrorStatus(500, _SERVER),
    errors.InputError: ErrorStatus(400, _REQUEST),
    errors.EmptyInputError: ErrorStatus(400, _REQUEST),
    errors.InputTooLongError: ErrorStatus(400, _REQUEST),
    errors.BatchTooLargeError: ErrorStatus(413, _REQUEST),
    UnknownModelError: ErrorStatus(404, _REQUEST),
    BodyTooLargeError: ErrorStatus(413, _REQUEST),
    UnauthorizedError: ErrorStatus(401, "authentication_error"),
    errors.OverloadedError: ErrorStatus(429, "overloaded"),
    errors.DeadlineExceededError: ErrorStatus(504, "deadline_exceeded"),
    errors.WorkCancelledError: ErrorStatus(503, "cancelled"),  # hardly read: its client is gone
    errors.NotReadyError: ErrorStatus(503, _UNAVAILABLE),
    errors.InferenceError: ErrorStatus(500, "inference_error"),
    errors.SessionLoadError: ErrorStatus(503, _UNAVAILABLE),
    errors.ProviderUnavailableError: ErrorStatus(503, _UNAVAILABLE),
    errors.NativeLibraryError: ErrorStatus(503, _UNAVAILABLE),
    errors.SessionRunError: ErrorStatus(500, "inference_error"),
    errors.ItemsFailedError: ErrorStatus(500, "inference_error"),
    errors.NonFiniteOutputError: ErrorStatus(500, "non_finite_output"),
    errors.ParityError: ErrorStatus(503, _UNAVAILABLE),
    errors.ReferenceMissingError: ErrorStatus(503, _UNAVAILABLE),
    errors.ParityFailedError: ErrorStatus(503, _UNAVAILABLE),
    errors.ReceiptMissingError: ErrorStatus(503, _UNAVAILABLE),
    errors.StaleReceiptError: ErrorStatus(503, _UNAVAILABLE),
}

#: OpenAI's ``code`` for the classes where clients look at it; null elsewhere.
_OPENAI_CODES: dict[type[BaseException], str] = {
    errors.InputTooLongError: "context_length_exceeded",
    UnknownModelError: "model_not_found",
    UnauthorizedError: "invalid_api_key",
    errors.OverloadedError: "rate_limit_exceeded",
}

# When nothing has been measured, or nothing queued explains the refusal.
_RETRY_AFTER_S = 1


def error_status(error: BaseException) -> ErrorStatus:
    """Return the status of an exception: of its class, or of the nearest listed base.

    Parameters
    ----------
    error : BaseException

    Returns
    -------
    ErrorStatus
        500 for anything samevec did not raise on purpose.
    """
    for cls in type(error).__mro__:
        if cls in HTTP_STATUS:
            return HTTP_STATUS[cls]
    return HTTP_STATUS[errors.SamevecError]


def public_message(error: BaseException) -> str:
    """Return what a client may read about an exception; nothing of one that was not foreseen."""
    if isinstance(error, errors.SamevecError):
        return str(error)
    return "internal error; the server's log says more"


def error_headers(error: BaseException) -> dict[str, str]:
    """Return the headers that go with an error: ``Retry-After`` in whole seconds, ``WWW-Authenticate``."""
    status = error_status(error).status
    if status in (429, 503):
        wait_s = error.retry_after_s if isinstance(error, errors.OverloadedError) else _RETRY_AFTER_S
        return {"retry-after": str(max(_RETRY_AFTER_S, math.ceil(wait_s)))}
    return {"www-authenticate": "Bearer"} if status == 401 else {}


def error_body(error: BaseException, dialect: Dialect) -> dict[str, Any]:
    """Return the JSON body of an error in the dialect of its route.

    Parameters
    ----------
    error : BaseException
    dialect : {"openai", "cohere", "jina", "tei"}

    Returns
    -------
    dict
        OpenAI: ``{"error": {"message", "type", "param", "code"}}``; Cohere: ``{"message"}``; Jina: ``{"detail"}``;
        TEI: ``{"error", "error_type"}``.
    """
    param = error.field if isinstance(error, errors.InputError) else None
    code = next((_OPENAI_CODES[cls] for cls in type(error).__mro__ if cls in _OPENAI_CODES), None)
    openai = {"type": error_status(error).kind, "param": param, "code": code}
    return _body(public_message(error), dialect, openai=openai, tei=_tei_error_type(error))


def refusal_body(message: str, dialect: Dialect) -> dict[str, Any]:
    """Return the JSON body of a refusal that is no exception of ours, such as an unknown path."""
    return _body(message, dialect, openai={"type": _REQUEST, "param": None, "code": None}, tei="Validation")


def _body(message: str, dialect: Dialect, *, openai: dict[str, Any], tei: str) -> dict[str, Any]:
    bodies: dict[Dialect, dict[str, Any]] = {
        "openai": {"error": {"message": message, **openai}},
        "cohere": {"message": message},
        "jina": {"detail": message},
        "tei": {"error": message, "error_type": tei},
    }
    return bodies[dialect]


def _tei_error_type(error: BaseException) -> str:
    """Return TEI's word for an error (``ErrorType`` in its ``router/src/lib.rs``)."""
    if isinstance(error, errors.EmptyInputError):
        return "Empty"
    status = error_status(error).status
    return {429: "Overloaded", 503: "Unhealthy"}.get(status, "Backend" if status >= 500 else "Validation")
