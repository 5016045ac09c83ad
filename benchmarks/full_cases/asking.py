"""HTTP requests of the cases, each over a connection of its own, and texts of a known number of tokens."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np

from benchmarks.answers import openai_vectors
from benchmarks.workloads import EMBEDDER, RERANKER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float32]

__all__ = ["WORDS", "Answer", "ask", "embed", "rerank", "words"]

#: One token each for the embedder, with and without a space before them.
WORDS = (
    *("time", "people", "way", "day", "man", "thing", "child", "world", "school"),
    *("family", "story", "night", "water", "room", "area", "money", "right", "book"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """One HTTP answer."""

    status: int
    retry_after: str | None
    record: Any

    @property
    def vectors(self) -> Array:
        """What the OpenAI route gave, in request order."""
        if self.status != 200:
            raise RuntimeError(f"{self.status}: {json.dumps(self.record)[:200]}")
        try:
            return openai_vectors(self.record)
        except ValueError as error:
            raise RuntimeError(f"200: {error}") from error

    @property
    def scores(self) -> Array:
        """What a rerank route gave, in request order."""
        if self.status != 200:
            raise RuntimeError(f"{self.status}: {json.dumps(self.record)[:200]}")
        scores = {item["index"]: item["relevance_score"] for item in self.record["results"]}
        return np.array([scores[i] for i in range(len(scores))], dtype=np.float32)

    @property
    def message(self) -> str:
        """What a refusal says."""
        return str(self.record.get("error", self.record)["message"])


def ask(url: str, path: str, body: dict[str, Any] | None = None, *, timeout_s: float | None = None) -> Answer:
    """Send one request over a connection of its own; `timeout_s` is told to the server."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=900)
    headers = {"Content-Type": "application/json"}
    if timeout_s is not None:
        headers["X-Request-Timeout-S"] = str(timeout_s)
    try:
        content = None if body is None else json.dumps(body).encode()
        connection.request("GET" if body is None else "POST", path, content, headers)
        response = connection.getresponse()
        raw = response.read()
    finally:
        connection.close()
    return Answer(status=response.status, retry_after=response.getheader("retry-after"), record=json.loads(raw))


def embed(url: str, texts: Sequence[str] | str, **options: Any) -> Answer:
    """Embed by the OpenAI route."""
    given = texts if isinstance(texts, str) else list(texts)
    return ask(url, "/v1/embeddings", {"model": EMBEDDER, "input": given, "encoding_format": "base64", **options})


def rerank(url: str, query: str, documents: Sequence[str], **options: Any) -> Answer:
    """Rank by the Cohere route."""
    return ask(url, "/v1/rerank", {"model": RERANKER, "query": query, "documents": list(documents), **options})


def words(n: int, *, first: int = 0) -> str:
    """Return a text of `n` one-token words."""
    return " ".join(WORDS[(first + i) % len(WORDS)] for i in range(n))
