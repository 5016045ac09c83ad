"""``samevec.client`` against a running server: what is sent, what is refused, and what happens without a server."""

from __future__ import annotations

import inspect
import socket
import struct
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from stand_ins import EMBEDDER, POISON, RERANKER, Script, alone, embedder, reranker, scores_alone

from samevec import client
from samevec.client import EmbeddingProxy, ModelServerError, ProtocolMismatchError, RerankerProxy
from samevec.lock import load_lock
from samevec.server.lifecycle import running_server
from samevec.server.settings import ServedModel, ServerSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.server

TEXTS = ["The capital of China is Beijing.", "", "short", "x" * 300]


@contextmanager
def served(path: Path, script: Script | None = None) -> Iterator[Path]:
    models = [ServedModel(model=embedder(script)), ServedModel(model=reranker())]
    with running_server(models, ServerSettings(port=0, socket=path)):
        yield path


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with served(tmp_path_factory.mktemp("client") / "s.sock") as path:
        yield path


def test_signatures_are_truememorys() -> None:
    encode, predict = (inspect.signature(f).parameters for f in (EmbeddingProxy.encode, RerankerProxy.predict))
    assert list(encode)[:3] == ["self", "texts", "timeout"]
    assert list(predict)[:3] == ["self", "pairs", "timeout"]
    assert next(iter(inspect.signature(EmbeddingProxy).parameters)) == "tier"
    assert next(iter(inspect.signature(RerankerProxy).parameters)) == "model_name"


def test_vectors(address: Path) -> None:
    for tier in ("", "base", "pro"):
        found = EmbeddingProxy(tier, address=address).encode(TEXTS)
        assert np.array_equal(found, alone(TEXTS)[:, :256])
        assert found.dtype == np.float32
        assert found.flags.writeable
    full = EmbeddingProxy(EMBEDDER, address=str(address))
    assert np.array_equal(full.encode(TEXTS, show_progress_bar=False, convert_to_numpy=True), alone(TEXTS))
    assert np.array_equal(full.encode("one text"), alone(["one text"]))
    assert np.array_equal(full.encode(text for text in TEXTS), alone(TEXTS))


def test_scores(address: Path) -> None:
    pairs = [("which?", text) for text in TEXTS]
    for name in (None, RERANKER, "Alibaba-NLP/gte-reranker-modernbert-base"):
        found = RerankerProxy(name, address=address).predict(pairs, batch_size=8, show_progress_bar=False)
        assert np.array_equal(found, scores_alone("which?", TEXTS))


def test_options_are_sent(tmp_path: Path) -> None:
    script = Script()
    with served(tmp_path / "s.sock", script) as path:
        proxy = EmbeddingProxy(EMBEDDER, address=path)
        assert np.array_equal(proxy.encode(TEXTS, dimensions=64), alone(TEXTS)[:, :64])  # cut, not scaled again
        prompt = load_lock("toy").model(EMBEDDER).prompts["query"]
        assert np.array_equal(proxy.encode(["a"], prompt_name="query"), alone([prompt + "a"]))
        before = len(script.shapes())
        proxy.encode([f"text {i}" for i in range(5)], 30, batch_size=2)
        assert [rows for rows, _ in script.shapes()[before:]] == [2, 2, 1]


@pytest.mark.parametrize(
    "options",
    [
        {"convert_to_tensor": True},
        {"show_progress_bar": True},
        {"convert_to_numpy": False},
        {"normalize_embeddings": True},
        {"precision": "int8", "device": "cpu"},
    ],
)
def test_unknown_options_are_refused_by_name(options: dict[str, Any], tmp_path: Path) -> None:
    nowhere = tmp_path / "nothing"
    calls: list[Callable[..., Any]] = [EmbeddingProxy(address=nowhere).encode, RerankerProxy(address=nowhere).predict]
    for call in calls:
        with pytest.raises(TypeError) as caught:
            call([], **options)
        assert all(name in str(caught.value) for name in options)
    with pytest.raises(TypeError, match="prompt_name='query'"):
        RerankerProxy(address=nowhere).predict([], prompt_name="query")


def test_errors_of_the_server(address: Path) -> None:
    with pytest.raises(ModelServerError, match=r"^Model server error: tier: tier 'edge' is not served here") as caught:
        EmbeddingProxy("edge", address=address).encode(["a"])
    assert caught.value.kind == "invalid_request_error"
    with pytest.raises(ModelServerError, match="texts: empty list"):
        EmbeddingProxy(address=address).encode([])
    with pytest.raises(RuntimeError, match=r"texts\[1\]: could not be computed"):
        EmbeddingProxy(EMBEDDER, address=address).encode(["a", POISON])
    with pytest.raises(ModelServerError, match="dimensions"):
        EmbeddingProxy(address=address).encode(["a"], dimensions=5)


def test_a_deadline_is_kept_and_told_to_the_server(tmp_path: Path) -> None:
    script = Script(gate=threading.Event())
    assert script.gate is not None
    with served(tmp_path / "s.sock", script) as path:
        proxy = EmbeddingProxy(EMBEDDER, address=path)
        with ThreadPoolExecutor(1) as pool:
            held = pool.submit(proxy.encode, ["held"], 60)
            assert script.entered.wait(20)
            with pytest.raises(TimeoutError, match=r"did not answer within 0\.1 s"):
                proxy.encode(["queued behind it"], timeout=0.1)
            script.gate.set()
            assert np.array_equal(held.result(20), alone(["held"]))
        assert np.array_equal(proxy.encode(["after"], timeout=float("inf")), alone(["after"]))
        assert len(script.shapes()) == 2  # what waited past its deadline never ran
        with pytest.raises(TimeoutError, match="passed before the request was sent"):
            proxy.encode(["late"], timeout=0)


def test_no_server(tmp_path: Path) -> None:
    path = tmp_path / "nothing.sock"
    with pytest.raises(ConnectionError, match=r"no model server at .*nothing\.sock .*; start: samevec serve"):
        EmbeddingProxy(address=path).encode(["a"])
    assert not client.ping(path)


def test_ping(address: Path) -> None:
    assert client.ping(address)
    assert client.ping(str(address), timeout=20)


def test_a_request_that_is_too_large_is_not_sent(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="send several"):
        EmbeddingProxy(address=tmp_path / "nothing").encode(["x" * (11 << 20)])


@contextmanager
def answering(path: Path, answer: bytes) -> Iterator[None]:
    """A program that is no model server: it answers whatever comes with the same bytes."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join(10)


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        frame(b"\x80\x04pickle"),
        frame(b"[1]"),
        frame(b'{"ok": true, "protocol": 2}'),
        frame(b'{"ok": true, "protocol": 1, "vectors": [[1.0]]}'),
        frame(b'{"ok": true, "protocol": 1, "vectors": {"__ndarray__": "AAA=", "shape": [1]}}'),
    ],
)
def test_another_program_is_told_apart(answer: bytes, tmp_path: Path) -> None:
    with answering(tmp_path / "s", answer), pytest.raises(ProtocolMismatchError):
        EmbeddingProxy(address=tmp_path / "s").encode(["a"], timeout=10)


def test_half_an_answer_is_an_error(tmp_path: Path) -> None:
    with answering(tmp_path / "s", frame(b"x" * 100)[:50]), pytest.raises(ConnectionError, match="before its answer"):
        EmbeddingProxy(address=tmp_path / "s").encode(["a"], timeout=10)


def test_default_address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert client.default_address() == tmp_path / ".truememory" / "model.sock"


def test_the_client_needs_little() -> None:
    watched = ("torch", "transformers", "onnxruntime", "fastapi", "uvicorn", "samevec.server")
    code = f"import sys, samevec.client; print([name for name in {watched!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
