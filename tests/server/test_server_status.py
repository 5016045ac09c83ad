"""The error table: complete, and in the words of each dialect."""

from __future__ import annotations

import inspect

import pytest

from samevec import errors
from samevec.server import error_map as status
from samevec.server.error_map import (
    HTTP_STATUS,
    BodyTooLargeError,
    UnauthorizedError,
    UnknownModelError,
    error_body,
    error_headers,
    error_status,
    path_dialect,
    public_message,
    refusal_body,
)

CLASSES = [
    cls
    for module in (errors, status)
    for _, cls in inspect.getmembers(module, inspect.isclass)
    if issubclass(cls, errors.SamevecError)
]


def test_every_class_has_its_own_row() -> None:
    assert set(HTTP_STATUS) == set(CLASSES)
    assert len(CLASSES) > 25


def test_statuses() -> None:
    found = {cls.__name__: row.status for cls, row in HTTP_STATUS.items()}
    assert found["InputError"] == found["EmptyInputError"] == found["InputTooLongError"] == 400
    assert found["BatchTooLargeError"] == found["BodyTooLargeError"] == 413
    assert (found["UnknownModelError"], found["UnauthorizedError"]) == (404, 401)
    assert (found["OverloadedError"], found["DeadlineExceededError"], found["NotReadyError"]) == (429, 504, 503)
    assert {found[cls.__name__] for cls in CLASSES if issubclass(cls, errors.ParityError)} == {503}
    assert set(found.values()) == {400, 401, 404, 413, 429, 500, 503, 504}


def test_subclasses_and_strangers() -> None:
    class LaterError(errors.InputError):
        pass

    assert error_status(LaterError("x", field="y")).status == 400
    assert error_status(RuntimeError("x")).status == 500


def test_strangers_stay_private() -> None:
    assert public_message(RuntimeError("/home/somebody/secret")) == "internal error; the server's log says more"


def test_openai_body() -> None:
    assert error_body(errors.InputError("is wrong", field="input", index=3), "openai") == {
        "error": {"message": "input[3]: is wrong", "type": "invalid_request_error", "param": "input", "code": None}
    }


def test_cohere_body() -> None:
    assert error_body(errors.EmptyInputError("is empty", field="documents"), "cohere") == {
        "message": "documents: is empty"
    }


def test_jina_body() -> None:
    assert error_body(errors.InputError("is wrong", field="query"), "jina") == {"detail": "query: is wrong"}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.InputError("x", field="inputs"), "Validation"),
        (errors.EmptyInputError("x", field="inputs"), "Empty"),
        (UnknownModelError("x", field="model"), "Validation"),
        (errors.OverloadedError("x", retry_after_s=1), "Overloaded"),
        (errors.NotReadyError("x"), "Unhealthy"),
        (errors.DeadlineExceededError("x"), "Backend"),
        (RuntimeError("x"), "Backend"),
    ],
)
def test_tei_bodies(error: Exception, kind: str) -> None:
    assert error_body(error, "tei") == {"error": public_message(error), "error_type": kind}


@pytest.mark.parametrize(
    ("path", "dialect"),
    [("/v1/embeddings", "openai"), ("/v2/rerank", "cohere"), ("/rerank", "jina"), ("/embed", "tei"), ("/x", "openai")],
)
def test_paths_have_dialects(path: str, dialect: str) -> None:
    assert path_dialect(path) == dialect
    assert "not here" in str(refusal_body("not here", path_dialect(path)))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnknownModelError("x", field="model"), "model_not_found"),
        (errors.InputTooLongError(field="input", index=0, n_tokens=9, limit_tokens=8), "context_length_exceeded"),
        (UnauthorizedError("x"), "invalid_api_key"),
        (errors.OverloadedError("x", retry_after_s=1), "rate_limit_exceeded"),
        (BodyTooLargeError("x", field="body"), None),
    ],
)
def test_openai_codes(error: errors.SamevecError, code: str | None) -> None:
    assert error_body(error, "openai")["error"]["code"] == code


def test_headers() -> None:
    assert error_headers(errors.OverloadedError("x", retry_after_s=2.2)) == {"retry-after": "3"}
    assert error_headers(errors.NotReadyError("x")) == {"retry-after": "1"}
    assert error_headers(UnauthorizedError("x")) == {"www-authenticate": "Bearer"}
    assert error_headers(errors.InputError("x", field="y")) == {}
