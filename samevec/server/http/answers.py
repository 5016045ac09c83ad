"""Arrays in, the parts of response bodies out that several dialects share."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import numpy as np

from samevec.digest import array_digest
from samevec.runtime.reranker import rank_scores

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

__all__ = [
    "DIGEST_HEADER",
    "TRUNCATED_HEADER",
    "digest_headers",
    "encode_array",
    "ranked_results",
    "truncation_headers",
    "truncation_record",
]

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
