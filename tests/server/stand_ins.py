"""Models without weights, with the toy pair's real tokenizers and lock entries, and ways to ask a server."""

from __future__ import annotations

import asyncio
import functools
import json
import socket
import struct
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np

from samevec.export.toy.checkpoint import build_toy
from samevec.lock import load_lock
from samevec.runtime.embedder import Embedder
from samevec.runtime.engine import Engine
from samevec.runtime.reranker import Reranker
from samevec.runtime.sessions.fake import FakeSession
from samevec.runtime.tokenization import Tokenizer
from samevec.server.http.app import create_app
from samevec.server.service import Service
from samevec.server.settings import ServedModel, ServerSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from samevec.runtime.collate import Features

EMBEDDER, RERANKER = "toy-qwen3-embedder", "toy-modernbert-reranker"
#: The byte-level toy tokenizer gives one token a byte, and the end token.
POISON, NAN = "poison", "not a number"


@functools.cache
def tokenizer(name: str) -> Tokenizer:
    folder = Path(tempfile.mkdtemp(prefix="samevec-test-"))
    build_toy(name, folder)
    return Tokenizer.from_file(folder / "tokenizer.json", max_tokens=load_lock("toy").model(name).max_tokens)


@dataclass
class Script:
    """What a fake model does beside computing: waits, fails, records."""

    gate: threading.Event | None = None
    steps: threading.Semaphore | None = None  # every run takes one
    entered: threading.Event = field(default_factory=threading.Event)
    delay_s: float = 0.0
    broken: bool = False
    runs: list[list[tuple[int, ...]]] = field(default_factory=list)
    poison: set[tuple[int, ...]] = field(default_factory=set)
    nan: set[tuple[int, ...]] = field(default_factory=set)

    def shapes(self) -> list[tuple[int, int]]:
        """Rows and longest row of every run but the first, which is the canary's."""
        return [(len(run), max(map(len, run))) for run in self.runs[1:]]


class ScriptedSession(FakeSession):
    """A FakeSession that follows a script."""

    def __init__(self, width: int, script: Script) -> None:
        super().__init__(width)
        self.script = script

    def run(self, features: Features, **how: Any) -> NDArray[np.float32]:
        script = self.script
        rows = [
            tuple(ids[mask == 1].tolist())
            for ids, mask in zip(features.input_ids, features.attention_mask, strict=True)
        ]
        first = not script.runs
        script.runs.append(rows)
        if not first:
            script.entered.set()
            if script.gate is not None:
                assert script.gate.wait(20)
            if script.steps is not None:
                assert script.steps.acquire(timeout=20)
            if script.delay_s:
                threading.Event().wait(script.delay_s)
        if script.broken or script.poison.intersection(rows):
            raise RuntimeError("the device is gone, secret detail")
        raw = super().run(features, **how)
        for i, row in enumerate(rows):
            if row in script.nan:
                raw[i, 0] = np.nan
        return raw


def text_ids(text: str) -> tuple[int, ...]:
    return tokenizer(EMBEDDER).encode_texts([text])[0].ids


def embedder(script: Script | None = None, *, max_rows: int = 32) -> Embedder:
    entry = load_lock("toy").model(EMBEDDER)
    script = script or Script()
    script.poison.add(text_ids(POISON))
    script.nan.add(text_ids(NAN))
    session = ScriptedSession(entry.dimensions or 0, script)
    return Embedder(
        entry=entry,
        tokenizer=tokenizer(EMBEDDER),
        engine=Engine(session=session, width=session.width, max_rows=max_rows),
    )


def reranker(script: Script | None = None) -> Reranker:
    entry = load_lock("toy").model(RERANKER)
    session = ScriptedSession(1, script or Script())
    return Reranker(entry=entry, tokenizer=tokenizer(RERANKER), engine=Engine(session=session, width=1, max_rows=64))


def alone(texts: Sequence[str], *, dimensions: int | None = None) -> NDArray[np.float32]:
    """Each text's own vector, computed alone."""
    model = embedder()
    rows = [model.finish(model.run_microbatch(model.tokenize([text])), dimensions=dimensions) for text in texts]
    return np.concatenate(rows)


def scores_alone(query: str, documents: Sequence[str], *, raw: bool = False) -> NDArray[np.float32]:
    model = reranker()
    return np.concatenate([model.score([(query, document)], raw=raw) for document in documents])


class InProcess:
    """The application without a network; every call runs its own event loop."""

    def __init__(self, service: Service, api_keys: Sequence[str] = ()) -> None:
        self.service = service
        self.app = create_app(service, api_keys=api_keys)

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def run() -> httpx.Response:
            async with self.client() as client:
                return await client.request(method, path, **options)

        return asyncio.run(run())

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return self.ask("POST", path, json=body, **options)

    def embed(self, body: Any, **options: Any) -> httpx.Response:
        return self.post("/v1/embeddings", body, **options)

    def rerank(self, body: Any, **options: Any) -> httpx.Response:
        return self.post("/v1/rerank", body, **options)

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.ASGITransport(app=self.app), base_url="http://test", timeout=30)


@contextmanager
def in_process(
    *models: ServedModel,
    settings: ServerSettings | None = None,
    api_keys: Sequence[str] = (),
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[InProcess]:
    chosen = models or (ServedModel(model=embedder()), ServedModel(model=reranker()))
    service = Service(chosen, settings or ServerSettings(), clock=clock)
    asyncio.run(service.start())
    try:
        yield InProcess(service, api_keys)
    finally:
        service.stop()


def vectors_of(response: httpx.Response) -> NDArray[np.float32]:
    assert response.status_code == 200, response.text
    data = response.json()["data"]
    assert [item["index"] for item in data] == list(range(len(data)))
    return np.array([item["embedding"] for item in data], dtype=np.float32)


class FrameClient:
    """A plain blocking client of the framed protocol."""

    def __init__(self, path: Path, *, timeout_s: float = 20) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(timeout_s)
        try:
            self.sock.connect(str(path))
        except OSError:
            self.sock.close()
            raise

    def __enter__(self) -> FrameClient:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.sock.close()

    def send(self, body: bytes) -> None:
        self.sock.sendall(struct.pack(">I", len(body)) + body)

    def receive(self) -> dict[str, Any]:
        (n_bytes,) = struct.unpack(">I", self._exactly(4))
        record = json.loads(self._exactly(n_bytes))
        assert isinstance(record, dict)
        assert record["protocol"] == 1
        return record

    def ask(self, request: Any) -> dict[str, Any]:
        self.send(json.dumps(request).encode())
        return self.receive()

    def is_closed(self) -> bool:
        """Whether the server has hung up; it resets the connection when it has not read everything."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True

    def _exactly(self, n_bytes: int) -> bytes:
        received = b""
        while len(received) < n_bytes:
            part = self.sock.recv(n_bytes - len(received))
            if not part:
                raise EOFError(received)
            received += part
        return received


def queued(url: str) -> int:
    """Return how many items a running server has accepted and not finished."""
    return int(httpx.get(f"{url}/info", timeout=20).json()["queue"]["items"])


def wait_until(condition: Callable[[], bool], *, timeout_s: float = 30) -> None:
    pause = threading.Event()
    for _ in range(int(timeout_s / 0.01)):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("the condition did not come true in time")
