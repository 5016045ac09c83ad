"""Clients that ask a server for what they know already, over every dialect and the framed socket, many at a time.

Every answer is compared with what each text gives alone, bit by bit; every refusal must say when to come again; and
what was sent must have been answered. The clients are asyncio tasks over plain streams: they share the cores with the
server.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import urlsplit

import numpy as np
import orjson

from benchmarks.answers import framed_array, openai_vectors
from benchmarks.workloads import Writer
from samevec.machine import allow_open_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    Check = Callable[[Any], str | None]

__all__ = [
    "Channel",
    "FrameChannel",
    "HttpChannel",
    "Known",
    "Reply",
    "Request",
    "Tally",
    "ask_at_once",
    "ask_in_turn",
    "clients",
    "known_answers",
    "raise_open_files",
]

_HEADER = struct.Struct(">I")
# An answer that takes longer counts as lost.
_ANSWER_TIMEOUT_S = 240.0
# uvicorn closes a connection that rested for 5 s; a request sent at that moment would be lost by nobody's fault.
_REST_S = 2.0
_MOST_ITEMS = 4
_N_TEXTS, _N_QUERIES, _N_DOCUMENTS = 48, 4, 12
_LEAST_TOKENS, _MOST_TOKENS = 4, 60
# The socket's error types and the HTTP statuses that say the same.
_SOCKET_STATUSES = {"overloaded": 429, "not_ready": 503, "deadline_exceeded": 504, "invalid_request_error": 400}


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """Texts whose vectors, and pairs whose scores, are known: each was computed alone.

    Attributes
    ----------
    texts, queries, documents : tuple of str
    vectors : ndarray of float32, shape (n_texts, width)
    scores : ndarray of float32, shape (n_queries, n_documents)
    """

    texts: tuple[str, ...]
    vectors: NDArray[np.float32]
    queries: tuple[str, ...]
    documents: tuple[str, ...]
    scores: NDArray[np.float32]


def known_answers(embed: Callable[[str], Any], score: Callable[[str, str], Any]) -> Known:
    """Write short texts of 4 to 60 tokens, and compute each of them, and each pair, alone.

    Parameters
    ----------
    embed : callable
        Given a text, returns its vector.
    score : callable
        Given a query and a document, returns the pair's score.
    """
    texts, pairs = Writer("samevec load texts", "embed"), Writer("samevec load pairs", "rerank")
    spread = _MOST_TOKENS - _LEAST_TOKENS
    written = tuple(texts.text(_LEAST_TOKENS + spread * i // (_N_TEXTS - 1)) for i in range(_N_TEXTS))
    queries = tuple(pairs.text(4 + 3 * i) for i in range(_N_QUERIES))
    documents = tuple(pairs.text(_LEAST_TOKENS + spread * i // (_N_DOCUMENTS - 1)) for i in range(_N_DOCUMENTS))
    return Known(
        texts=written,
        vectors=np.stack([np.asarray(embed(text), dtype=np.float32).reshape(-1) for text in written]),
        queries=queries,
        documents=documents,
        scores=np.array([[float(score(query, one)) for one in documents] for query in queries], dtype=np.float32),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One request and what its answer must be.

    Attributes
    ----------
    kind : str
        Such as ``"/v1/embeddings base64"`` or ``"socket rerank"``.
    path : str
        Of the HTTP route; empty for the socket.
    body : bytes
        JSON.
    check : callable
        Given the parsed answer, returns what is wrong with it; None when nothing is.
    """

    kind: str
    path: str
    body: bytes
    check: Check


class Reply(NamedTuple):
    """An answer: HTTP's status, or the one that stands for the socket's error type; `retry_after_s` of a refusal."""

    status: int
    body: Any
    retry_after_s: float | None = None


def _vector_check(expected: NDArray[np.float32], read: Callable[[Any], NDArray[np.float32]]) -> Check:
    def check(answer: Any) -> str | None:
        found = read(answer)
        if found.shape != expected.shape:
            return f"{found.shape} instead of {expected.shape}"
        wrong = np.flatnonzero((found != expected).any(axis=1))
        return f"items {wrong.tolist()} are not their texts' own vectors" if wrong.size else None

    return check


def _ranking_check(expected: NDArray[np.float32], read: Callable[[Any], list[tuple[int, Any]]]) -> Check:
    ranked = sorted(range(len(expected)), key=lambda i: (-float(expected[i]), i))

    def check(answer: Any) -> str | None:
        found = read(answer)
        if [index for index, _ in found] != ranked:
            return f"ranked {[index for index, _ in found]} instead of {ranked}"
        wrong = [index for index, score in found if np.float32(score) != expected[index]]
        return f"pairs {wrong} have not their own scores" if wrong else None

    return check


def _results(key: str) -> Callable[[Any], list[tuple[int, Any]]]:
    def read(answer: Any) -> list[tuple[int, Any]]:
        items = answer if isinstance(answer, list) else answer["results"]
        return [(item["index"], item[key]) for item in items]

    return read


# Body of each HTTP kind, given its items; what the answer is read by.
_EMBEDS: dict[str, tuple[Callable[[list[str]], dict[str, Any]], Callable[[Any], NDArray[np.float32]]]] = {
    "/v1/embeddings base64": (lambda texts: {"input": texts, "encoding_format": "base64"}, openai_vectors),
    "/v1/embeddings float": (lambda texts: {"input": texts}, openai_vectors),
    "/embed": (lambda texts: {"inputs": texts}, lambda answer: np.array(answer, dtype=np.float32)),
}
_RERANKS: dict[str, tuple[str, str]] = {
    "/v1/rerank": ("documents", "relevance_score"),
    "/v2/rerank": ("documents", "relevance_score"),
    "/rerank jina": ("documents", "relevance_score"),
    "/rerank tei": ("texts", "score"),
}


def _embed_request(kind: str, known: Known, chosen: list[int], embedder: str) -> Request:
    texts, expected = [known.texts[i] for i in chosen], known.vectors[chosen]
    if kind == "socket embed":
        body = {"op": "embed", "texts": texts, "tier": embedder}
        check = _vector_check(expected, lambda answer: framed_array(answer["vectors"]))
        return Request(kind=kind, path="", body=orjson.dumps(body), check=check)
    make, read = _EMBEDS[kind]
    path = kind.partition(" ")[0]
    return Request(kind=kind, path=path, body=orjson.dumps(make(texts)), check=_vector_check(expected, read))


def _rerank_request(kind: str, known: Known, query: int, chosen: list[int]) -> Request:
    documents, expected = [known.documents[i] for i in chosen], known.scores[query, chosen]
    if kind == "socket rerank":
        body: dict[str, Any] = {"op": "rerank", "pairs": [(known.queries[query], document) for document in documents]}
        check = _vector_check(expected[:, None], lambda answer: framed_array(answer["scores"]).reshape(-1, 1))
        return Request(kind=kind, path="", body=orjson.dumps(body), check=check)
    documents_key, score_key = _RERANKS[kind]
    body = {"query": known.queries[query], documents_key: documents}
    check = _ranking_check(expected, _results(score_key))
    return Request(kind=kind, path=kind.partition(" ")[0], body=orjson.dumps(body), check=check)


def draw_requests(known: Known, *, seed: int, socket: bool, embedder: str) -> Iterator[Request]:
    """Give requests for ever, half of them embeddings; the same for the same seed.

    Parameters
    ----------
    known : Known
    seed : int
    socket : bool
        Of the framed protocol, else of HTTP's routes.
    embedder : str
        The embedder's name: the socket's tier for full vectors.
    """
    rng = random.Random(seed)
    embeds = ["socket embed"] if socket else list(_EMBEDS)
    reranks = ["socket rerank"] if socket else list(_RERANKS)
    while True:
        n_items = 1 + rng.randrange(_MOST_ITEMS)
        if rng.random() < 0.5:
            chosen = [rng.randrange(len(known.texts)) for _ in range(n_items)]
            yield _embed_request(rng.choice(embeds), known, chosen, embedder)
        else:
            chosen = rng.sample(range(len(known.documents)), n_items)
            yield _rerank_request(rng.choice(reranks), known, rng.randrange(len(known.queries)), chosen)


class Channel(Protocol):
    """One connection, opened again where the server has closed it between requests."""

    async def open(self) -> None:
        """Connect."""
        ...

    async def ask(self, request: Request) -> Reply:
        """Send a request and read its answer."""
        ...

    def close(self) -> None:
        """Hang up."""
        ...


class _Stream:
    """What both kinds of connection share."""

    def __init__(self) -> None:
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._used_s = 0.0

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        raise NotImplementedError

    async def open(self) -> None:
        """Connect."""
        self._streams, self._used_s = await self._connect(), time.monotonic()

    async def _fresh(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is None or time.monotonic() - self._used_s > _REST_S:
            self.close()
            await self.open()
        assert self._streams is not None
        return self._streams

    def close(self) -> None:
        """Hang up."""
        if self._streams is not None:
            self._streams[1].close()
        self._streams = None


class HttpChannel(_Stream):
    """One kept-alive HTTP connection.

    Parameters
    ----------
    url : str
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        self._address = urlsplit(url)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._address.hostname, self._address.port)

    async def ask(self, request: Request) -> Reply:
        """Send a request and read its answer."""
        reader, writer = await self._fresh()
        head = f"POST {request.path} HTTP/1.1\r\nhost: {self._address.netloc}\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(request.body)}\r\n\r\n".encode() + request.body)
        status_line, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers["content-length"]))
        self._used_s = time.monotonic()
        if headers.get("connection") == "close":
            self.close()
        retry_after = headers.get("retry-after", "")
        return Reply(
            int(status_line.split()[1]), orjson.loads(body), int(retry_after) if retry_after.isdecimal() else None
        )


class FrameChannel(_Stream):
    """One connection of the framed protocol.

    Parameters
    ----------
    path : Path
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection(str(self._path))

    async def ask(self, request: Request) -> Reply:
        """Send a request and read its answer."""
        reader, writer = await self._fresh()
        writer.write(_HEADER.pack(len(request.body)) + request.body)
        (n_bytes,) = _HEADER.unpack(await reader.readexactly(_HEADER.size))
        answer = orjson.loads(await reader.readexactly(n_bytes))
        self._used_s = time.monotonic()
        status = 200 if answer["ok"] else _SOCKET_STATUSES.get(answer["type"], 500)
        return Reply(status, answer, answer.get("retry_after_s"))


def channel_of(number: int, *, url: str, socket_path: Path) -> tuple[Channel, bool]:
    """Return the connection of one of many clients, and whether it is a socket: every third is."""
    is_socket = number % 3 == 2
    return (FrameChannel(socket_path) if is_socket else HttpChannel(url)), is_socket


def clients(
    n_clients: int, known: Known, *, url: str, socket_path: Path, embedder: str, seed: int
) -> Iterator[tuple[Channel, Iterator[Request]]]:
    """Give many clients, each a connection and what it asks; the arguments are those of the functions above."""
    for number in range(n_clients):
        channel, is_socket = channel_of(number, url=url, socket_path=socket_path)
        yield channel, draw_requests(known, seed=seed + number, socket=is_socket, embedder=embedder)


@dataclass(slots=True)
class Tally:
    """What became of requests.

    Attributes
    ----------
    sent : int
    statuses : Counter of int
        Of all that was answered.
    kinds : Counter of str
        Of what was answered with 200.
    faults : list of str
        Wrong answers, refusals that do not say when to come again, other errors, and requests that got no answer.
    seconds : list of float
        From sending to the answer, of what was answered with 200.
    n_lost : int
        Requests that got no answer at all.
    """

    sent: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    n_lost: int = 0

    async def ask(self, channel: Channel, request: Request) -> Reply | None:
        """Ask, compare and count; None when no answer came."""
        self.sent += 1
        started_s = time.perf_counter()
        try:
            reply = await asyncio.wait_for(channel.ask(request), _ANSWER_TIMEOUT_S)
        except (TimeoutError, OSError, EOFError, ValueError) as error:
            self.n_lost += 1
            self.faults.append(f"{request.kind}: no answer: {error!r}")
            channel.close()
            return None
        self._count(request, reply, time.perf_counter() - started_s)
        return reply

    def _count(self, request: Request, reply: Reply, seconds: float) -> None:
        self.statuses[reply.status] += 1
        if reply.status == 200:
            self.kinds[request.kind] += 1
            self.seconds.append(seconds)
            try:
                fault = request.check(reply.body)
            except (ArithmeticError, LookupError, TypeError, ValueError) as error:
                fault = f"cannot be read: {error!r}"
        elif reply.status == 429:
            wait_s = reply.retry_after_s
            fault = None if isinstance(wait_s, int) and wait_s >= 1 else f"429 says to come again after {wait_s!r} s"
        else:
            fault = f"status {reply.status}: {str(reply.body)[:200]}"
        if fault is not None:
            self.faults.append(f"{request.kind}: {fault}")

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.sent + other.sent,
            self.statuses + other.statuses,
            self.kinds + other.kinds,
            self.faults + other.faults,
            self.seconds + other.seconds,
            self.n_lost + other.n_lost,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return what results keep: counts, latency percentiles, the first faults."""
        percentiles = np.percentile(self.seconds, (50, 95, 99)) * 1e3 if self.seconds else np.zeros(3)
        return {
            "sent": self.sent,
            "answered": {str(status): n for status, n in sorted(self.statuses.items())},
            "answered_200_by_kind": dict(sorted(self.kinds.items())),
            "no_answer": self.n_lost,
            "faults": len(self.faults),
            "first_faults": self.faults[:5],
            "p50_ms": round(float(percentiles[0]), 1),
            "p95_ms": round(float(percentiles[1]), 1),
            "p99_ms": round(float(percentiles[2]), 1),
        }


async def ask_in_turn(channel: Channel, requests: Iterable[Request], tally: Tally, *, patience_s: float) -> None:
    """Send requests over one connection, one after another; the next comes at most `patience_s` after a refusal."""
    with contextlib.closing(channel):
        for request in requests:
            reply = await tally.ask(channel, request)
            if reply is not None and reply.status == 429:
                await asyncio.sleep(min(patience_s, reply.retry_after_s or 0.0))


async def ask_at_once(channels: Sequence[Channel], requests: Sequence[Request], tally: Tally) -> None:
    """Open every connection, then send one request over each without waiting for the others."""
    try:
        opened = await asyncio.gather(*(channel.open() for channel in channels), return_exceptions=True)
        tally.faults += [f"no connection: {error!r}" for error in opened if error is not None]
        await asyncio.gather(*(tally.ask(*one) for one in zip(channels, requests, strict=True)))
    finally:
        for channel in channels:
            channel.close()


def raise_open_files(n_files: int) -> None:
    """Let this process hold so many files and connections, as far as it may.

    Raises
    ------
    ValueError
        The hard limit is below.
    """
    allowed = allow_open_files(n_files)
    if allowed is not None and 0 <= allowed < n_files:  # below 0 where there is no limit
        raise ValueError(f"this process may hold {allowed} files, {n_files} are needed; raise the hard limit")
