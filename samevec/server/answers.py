"""Arrays in, response bodies out."""

from __future__ import annotations

import base64
import uuid
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import orjson

from samevec.runtime.reranker import rank_scores

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from samevec.server.schemas import RerankRequest
    from samevec.server.service import Embedded, Scored

__all__ = ["encode_array", "encode_embeddings", "encode_rerank"]


def encode_array(values: NDArray[np.float32]) -> str:
    """Return an array's values as base64 of little-endian float32, whatever the machine's own order."""
    return base64.b64encode(np.ascontiguousarray(values, dtype="<f4").tobytes()).decode("ascii")


def encode_embeddings(embedded: Embedded, *, encoding_format: Literal["float", "base64"]) -> bytes:
    """Return the body of an embeddings response.

    Parameters
    ----------
    embedded : Embedded
        Finite: orjson would write NaN as null.
    encoding_format : {"float", "base64"}

    Returns
    -------
    bytes
        JSON. Floats are the shortest decimals that read back as the same float32.

    Notes
    -----
    Encoded item by item: one call for thousands of vectors would hold the interpreter lock, and so the event loop, for
    a good part of a second even from another thread.
    """
    parts = []
    for i, vector in enumerate(embedded.vectors):
        values: Any = encode_array(vector) if encoding_format == "base64" else vector
        item = {"object": "embedding", "index": i, "embedding": values}
        parts.append(orjson.dumps(item, option=orjson.OPT_SERIALIZE_NUMPY))
    tail = {"model": embedded.model, "usage": {"prompt_tokens": embedded.n_tokens, "total_tokens": embedded.n_tokens}}
    return b'{"object":"list","data":[' + b",".join(parts) + b"]," + orjson.dumps(tail)[1:]


def encode_rerank(scored: Scored, request: RerankRequest) -> bytes:
    """Return the body of a rerank response: best first, ties in request order.

    Parameters
    ----------
    scored : Scored
    request : RerankRequest

    Returns
    -------
    bytes
        JSON. Without ``return_documents`` there is no ``document`` key, rather than a null one.
    """
    results: list[dict[str, Any]] = []
    for ranked in rank_scores(scored.scores, top_n=request.top_n):
        result: dict[str, Any] = {"index": ranked.index, "relevance_score": scored.scores[ranked.index]}
        if request.return_documents:
            result["document"] = {"text": request.documents[ranked.index]}
        results.append(result)
    body = {
        "id": uuid.uuid4().hex,
        "model": scored.model,
        "results": results,
        "usage": {"prompt_tokens": scored.n_tokens, "total_tokens": scored.n_tokens},
    }
    return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
