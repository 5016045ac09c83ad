"""Bodies and headers of HTTP: limits, JSON, deadlines, disconnects, errors, and the parts that dialects share."""

from __future__ import annotations

import asyncio
import base64
import logging
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
from fastapi import Response

from samevec.digest import array_digest
from samevec.errors import DeadlineExceededError, InputError, SamevecError
from samevec.runtime.reranker import rank_scores
from samevec.server.error_map import BodyTooLargeError, error_body, error_headers, error_status
from samevec.server.telemetry.records import note_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fastapi import Request
    from numpy.typing import NDArray

    from samevec.server.error_map import Dialect

__all__ = [
    "DIGEST_HEADER",
    "TIMEOUT_HEADER",
    "TRUNCATED_HEADER",
    "digest_headers",
    "encode_array",
    "error_response",
    "json_response",
    "ranked_results",
    "read_deadline",
    "read_json",
    "truncation_headers",
    "truncation_record",
    "wait_disconnected",
]

_log = logging.getLogger(__name__)

TIMEOUT_HEADER = "x-request-timeout-s"


def json_response(record: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a record as a JSON response."""
    return Response(orjson.dumps(record), status_code=status, headers=headers, media_type="application/json")


def error_response(error: BaseException, dialect: Dialect) -> Response:
    """Return an error in the dialect of its route; what was not foreseen is logged, not told."""
    if not isinstance(error, SamevecError):
        _log.error("unforeseen error in a request", exc_info=error)
    status, kind = error_status(error)
    note_error(kind)
    return json_response(error_body(error, dialect), status=status, headers=error_headers(error))


async def read_json(request: Request, *, max_bytes: int, timeout_s: float, count: Callable[[int], None]) -> Any:
    """Read a request's JSON body.

    Parameters
    ----------
    request : Request
    max_bytes : int
        The declared length, or else the received one, may not exceed this; nothing larger is ever held.
    timeout_s : float
        For the whole body.
    count : callable
        Is told of bytes as they come, before they are kept; may raise.

    Returns
    -------
    Any

    Raises
    ------
    InputError
        Not JSON, or declared as something else.
    BodyTooLargeError, DeadlineExceededError
    """
    # A web page can make a browser post text to a local server without asking; it cannot do so with JSON.
    media_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise InputError(f"{media_type} given, application/json is needed", field="content-type")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise _too_large(int(declared), max_bytes)
    try:
        body = await asyncio.wait_for(_read_body(request, max_bytes, count), timeout_s)
    except TimeoutError:
        raise DeadlineExceededError(f"the body was not received within {timeout_s:g} s") from None
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InputError(f"not JSON: {error}", field="body") from error


async def _read_body(request: Request, max_bytes: int, count: Callable[[int], None]) -> bytearray:
    chunks = bytearray()
    async for chunk in request.stream():
        if len(chunks) + len(chunk) > max_bytes:
            raise _too_large(len(chunks) + len(chunk), max_bytes)
        count(len(chunk))
        chunks += chunk
    return chunks


def _too_large(n_bytes: int, max_bytes: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"{n_bytes} bytes or more, the limit is {max_bytes}; send several requests", field="body")


def read_deadline(request: Request, clock: Callable[[], float]) -> float | None:
    """Return when the client stops waiting, from its ``X-Request-Timeout-S`` header, in the time of a clock.

    Raises
    ------
    InputError
        Not a number of seconds.
    """
    given = request.headers.get(TIMEOUT_HEADER)
    if given is None:
        return None
    try:
        timeout_s = float(given)
    except ValueError:
        timeout_s = math.nan
    if not 0 <= timeout_s < math.inf:
        raise InputError(f"{given!r} given, a number of seconds is needed", field=TIMEOUT_HEADER)
    return clock() + timeout_s


async def wait_disconnected(request: Request) -> None:
    """Wait until the client of a request, whose body has been read, closes the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass  # an empty last part of the body


#: How many items of a request were cut; on every route, and absent when none was.
TRUNCATED_HEADER = "x-samevec-truncated"
#: The sha256 of the one vector of an answer, over its little-endian float32 bytes; absent where there are several.
DIGEST_HEADER = "x-samevec-digest"


def encode_array(values: NDArray[np.float32]) -> str:
    """Return an array's values as base64 of little-endian float32, whatever the machine's own order."""
    return base64.b64encode(np.ascontiguousarray(values, dtype="<f4").tobytes()).decode("ascii")


def ranked_results(
    scores: NDArray[np.float32], *, top_n: int | None, score_key: str, shown: Mapping[str, Sequence[Any]]
) -> list[dict[str, Any]]:
    """Return the items of a ranking: best first, ties in request order.

    Parameters
    ----------
    scores : ndarray of float32, shape (n,)
    top_n : int or None
        Keep this many; all when None.
    score_key : str
        What the dialect calls a score.
    shown : mapping of str to sequence
        More keys of each item; a sequence holds one value a document, in request order.

    Returns
    -------
    list of dict
        Scores are numpy's float32: serialised as they are, they keep their shortest decimals.
    """
    return [
        {"index": ranked.index, score_key: scores[ranked.index]}
        | {key: values[ranked.index] for key, values in shown.items()}
        for ranked in rank_scores(scores, top_n=top_n)
    ]


def truncation_record(cut: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Return the extension field that reports each cut item, or nothing when none was cut.

    Parameters
    ----------
    cut : sequence of (int, int)
        Position of an item in the request, and how many tokens it lost.
    """
    if not cut:
        return {}
    return {"samevec": {"truncated": [{"index": index, "cut_tokens": n_tokens} for index, n_tokens in cut]}}


def digest_headers(vectors: NDArray[np.float32]) -> dict[str, str]:
    """Return the header with the digest of the only vector; nothing where there are several."""
    return {DIGEST_HEADER: f"sha256:{array_digest(vectors[0])}"} if len(vectors) == 1 else {}


def truncation_headers(cut: Sequence[tuple[int, int]]) -> dict[str, str]:
    """Return the header that counts cut items: bodies of strict dialects have no place for more."""
    return {TRUNCATED_HEADER: str(len(cut))} if cut else {}
