"""The framed protocol: what it answers, and what it survives."""

from __future__ import annotations

import base64
import json
import os
import random
import select
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest
from stand_ins import (
    EMBEDDER,
    NAN,
    POISON,
    RERANKER,
    FrameClient,
    Script,
    alone,
    embedder,
    in_process,
    queued,
    reranker,
    scores_alone,
    wait_until,
)

from samevec.client import EmbeddingProxy, ModelServerError
from samevec.errors import InputError
from samevec.server.lifecycle import running_server
from samevec.server.settings import ServedModel, ServerSettings
from samevec.server.socket.truememory import resolve_reranker, resolve_tier

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

MIB = 1 << 20


def settings(path: Path, **changes: Any) -> ServerSettings:
    return ServerSettings(**{"port": 0, "socket": path, "client_timeout_s": 1.0, "drain_s": 5.0, **changes})


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    chosen = tmp_path / "s.sock"
    with running_server([ServedModel(model=embedder()), ServedModel(model=reranker())], settings(chosen)):
        yield chosen
    assert not chosen.exists()


@pytest.fixture
def client(path: Path) -> Iterator[FrameClient]:
    with FrameClient(path) as made:
        yield made


def array(record: Any) -> NDArray[np.float32]:
    assert record["dtype"] == "float32"
    return np.frombuffer(base64.b64decode(record["__ndarray__"]), dtype="<f4").reshape(record["shape"])


def truncated(texts: list[str], dimensions: int = 256) -> NDArray[np.float32]:
    """What sentence-transformers' truncate_dim gives: cut after normalising, norms below 1."""
    return alone(texts)[:, :dimensions]


def error_of(answer: dict[str, Any]) -> str:
    assert answer["ok"] is False
    return str(answer["error"])


def test_operations_on_one_connection(client: FrameClient) -> None:
    assert client.ask({"op": "ping"}) == {"ok": True, "protocol": 1}
    for tier in ("", "base", "pro", "qwen3_256"):
        vectors = array(client.ask({"op": "embed", "texts": ["a", "b"], "tier": tier})["vectors"])
        assert np.array_equal(vectors, truncated(["a", "b"]))
        assert (np.linalg.norm(vectors, axis=1) < 0.999).all()
    full = array(client.ask({"op": "embed", "texts": ["a"], "tier": EMBEDDER})["vectors"])
    assert np.array_equal(full, alone(["a"]))
    for name in (None, "Alibaba-NLP/gte-reranker-modernbert-base", RERANKER):
        request = {"op": "rerank", "pairs": [["q", "one"], ["q", "two"]], "model_name": name}
        assert np.array_equal(array(client.ask(request)["scores"]), scores_alone("q", ["one", "two"]))


def test_options(client: FrameClient) -> None:
    request = {
        "op": "embed",
        "texts": ["a"],
        "tier": "pro",
        "dimensions": 32,
        "batch_size": 1,
        "prompt_name": "document",
    }
    assert np.array_equal(array(client.ask(request)["vectors"]), truncated(["a"], 32))
    query = client.ask({"op": "embed", "texts": ["a"], "prompt_name": "query"})
    prompt = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
    assert np.array_equal(array(query["vectors"]), truncated([prompt + "a"]))
    late = client.ask({"op": "embed", "texts": ["a"], "deadline": time.time() - 1})
    assert late["type"] == "deadline_exceeded"
    assert client.ask({"op": "embed", "texts": ["a"], "deadline": time.time() + 9})["ok"] is True


def test_refusals_keep_the_connection(client: FrameClient) -> None:
    for tier in ("edge", "custom", "minilm"):
        assert error_of(client.ask({"op": "embed", "texts": ["a"], "tier": tier})) == (
            f"tier: tier '{tier}' is not served here (embedders: {EMBEDDER}; tiers: base, pro)"
        )
    unknown = {"op": "rerank", "pairs": [["q", "d"]], "model_name": "cross-encoder/ms-marco-MiniLM-L-6-v2"}
    assert error_of(client.ask(unknown)).startswith("model_name: 'cross-encoder/ms-marco-MiniLM-L-6-v2' is not served")
    assert error_of(client.ask({"op": "embed", "texts": ["a"], "normalize": True})).startswith(
        "normalize: unknown option"
    )
    assert error_of(client.ask({"op": "embed", "texts": ["a"], "dimensions": 9999})).startswith(
        "dimensions: 9999 given"
    )
    assert (
        error_of(client.ask({"op": "embed", "texts": ["a", POISON]})) == "texts[1]: could not be computed: RuntimeError"
    )
    assert error_of(client.ask({"op": "embed", "texts": [NAN]})).startswith(
        "the output for item 0 is zero or not finite"
    )
    assert client.ask({"op": "ping"})["ok"] is True


def test_requests_in_advance_and_half_close(client: FrameClient) -> None:
    for text in ("a", "b", "c"):
        client.send(json.dumps({"op": "embed", "texts": [text]}).encode())
    client.sock.shutdown(socket.SHUT_WR)
    for text in ("a", "b", "c"):
        assert np.array_equal(array(client.receive()["vectors"]), truncated([text]))
    assert client.is_closed()


def test_a_frame_may_come_in_pieces(client: FrameClient) -> None:
    body = json.dumps({"op": "ping"}).encode()
    for byte in struct.pack(">I", len(body)) + body:
        client.sock.sendall(bytes([byte]))
    assert client.receive()["ok"] is True


def test_an_answer_too_large_for_a_frame_is_an_error(client: FrameClient) -> None:
    # 4,096 vectors of 384 float32 in base64 are 8 MiB; with dtype and shape still below the cap.
    texts = [str(i) for i in range(4096)]
    assert client.ask({"op": "embed", "texts": texts, "tier": EMBEDDER})["ok"] is True


def test_an_answer_over_the_cap(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with (
        running_server([ServedModel(model=embedder())], settings(path, max_batch_items=6000)),
        FrameClient(path) as client,
    ):
        answer = client.ask({"op": "embed", "texts": [str(i) for i in range(6000)], "tier": EMBEDDER})
        assert error_of(answer).endswith(f"a frame may have {10 * MIB}; send fewer items at a time")
        assert client.ask({"op": "ping"})["ok"] is True


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:  # noqa: PTH123 - a test of this process alone
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_o17_the_frame_length_is_not_trusted(path: Path) -> None:
    before = resident_bytes()
    headers = [b"\xff\xff\xff\xff", struct.pack(">I", 10 * MIB + 1)]
    clients = [FrameClient(path) for _ in range(200)]
    try:
        for i, client in enumerate(clients):
            client.sock.sendall(headers[i % 2])
        with FrameClient(path) as other:
            assert other.ask({"op": "embed", "texts": ["a"]})["ok"] is True
        for client in clients:
            assert error_of(client.receive()).endswith(f"{10 * MIB} are allowed")
            assert client.is_closed()
        assert resident_bytes() - before < 50 * MIB
    finally:
        for client in clients:
            client.sock.close()


def test_o17_a_client_still_sending_an_oversized_frame_loses_the_connection(client: FrameClient) -> None:
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        client.sock.sendall(struct.pack(">I", 11 * MIB) + b" " * (11 * MIB))


def test_o17_slow_senders_time_out(path: Path) -> None:
    with FrameClient(path) as slow:
        slow.sock.sendall(struct.pack(">I", 100) + b"{")
        started = time.monotonic()
        assert error_of(slow.receive()) == "the frame did not come whole, or in time"
        assert slow.is_closed()
        assert time.monotonic() - started > 0.5


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8\xf7\xf6",
        b"{",
        b"[1, 2]",
        b"7",
        b"null",
        b"[" * 100_000,
        b'{"op": "embed", "texts": ["\\ud800"]}',
        b'{"op": "embed", "texts": ["a"], "deadline": NaN}',
    ],
)
def test_o17_bad_frames_get_error_frames(client: FrameClient, body: bytes) -> None:
    client.send(body)
    assert error_of(client.receive())
    assert client.ask({"op": "ping"})["ok"] is True


def test_o17_broken_off_frames_harm_nobody(path: Path) -> None:
    for sent in (b"\x00", b"\x00\x00\x00\x09", b"\x00\x00\x00\x09{}"):
        with FrameClient(path) as client:
            client.sock.sendall(sent)
    with FrameClient(path) as client:
        assert client.ask({"op": "ping"})["ok"] is True


def test_fuzzed_frames_never_hang_or_kill(path: Path) -> None:
    rng = random.Random(20)
    seeds = [
        json.dumps(request).encode()
        for request in (
            {"op": "ping"},
            {"op": "embed", "texts": ["a", "b"], "tier": "pro", "dimensions": 32},
            {"op": "rerank", "pairs": [["q", "d"]], "model_name": None, "deadline": 9e9},
        )
    ]
    with FrameClient(path) as client:
        for _ in range(1500):
            body = bytearray(rng.choice(seeds))
            for _ in range(rng.randrange(4)):
                kind, at = rng.randrange(3), rng.randrange(len(body))
                if kind == 0:
                    body[at] = rng.randrange(256)
                elif kind == 1:
                    del body[at : at + rng.randrange(1, 9)]
                else:
                    body[at:at] = rng.choice([b"[", b"{", b'"', b"1e999", b"null", b"\\u0000", rng.randbytes(3)])
                body = body or bytearray(b" ")
            client.send(bytes(body))
            answer = client.receive()
            assert isinstance(answer["ok"], bool)
        assert client.ask({"op": "ping"})["ok"] is True


def test_a_client_that_goes_away_takes_its_work_along(tmp_path: Path) -> None:
    path, script = tmp_path / "s.sock", Script(gate=threading.Event())
    with running_server([ServedModel(model=embedder(script))], settings(path, client_timeout_s=20)) as endpoints:
        with FrameClient(path) as first, FrameClient(path) as gone:
            first.send(b'{"op": "embed", "texts": ["a"]}')
            assert script.entered.wait(10)
            gone.send(json.dumps({"op": "embed", "texts": [f"{i}" * 900 for i in range(5)]}).encode())
            wait_until(lambda: queued(endpoints.url) == 6)
            gone.sock.close()
            wait_until(lambda: queued(endpoints.url) == 1)
            assert script.gate is not None
            script.gate.set()
            assert first.receive()["ok"] is True
            assert first.ask({"op": "embed", "texts": ["b"]})["ok"] is True
        assert script.shapes() == [(1, 2), (1, 2)]


def test_frames_together_are_bounded(tmp_path: Path) -> None:
    path, script = tmp_path / "s.sock", Script(gate=threading.Event())
    assert script.gate is not None
    limits = settings(path, max_queue_bytes=1 * MIB, max_queue_items=10, client_timeout_s=20.0)
    with (
        running_server([ServedModel(model=embedder(script))], limits) as endpoints,
        FrameClient(path) as first,
        FrameClient(path) as second,
    ):
        huge = json.dumps({"op": "embed", "texts": ["a " * MIB], "tier": EMBEDDER}).encode()
        first.send(huge)
        wait_until(lambda: queued(endpoints.url) == 1)
        second.send(huge)
        refused = second.receive()
        assert (refused["ok"], refused["type"], refused["retry_after_s"]) == (False, "overloaded", 1)
        assert "bytes are held" in refused["error"]
        assert second.ask({"op": "ping"})["ok"] is True  # the refused frame was read to its end
        script.gate.set()
        assert first.receive()["ok"] is True
        assert second.ask(json.loads(huge))["ok"] is True
        metrics = httpx.get(f"{endpoints.url}/metrics", timeout=20).text
        assert 'samevec_requests_total{route="socket/other",status="429"} 1.0' in metrics


def has_hung_up(sock: socket.socket) -> bool:
    """Whether the server has closed a connection, with whatever is left to read."""
    poll = select.poll()
    poll.register(sock, 0)
    return any(event & select.POLLHUP for _, event in poll.poll(0))


def test_a_client_that_does_not_read_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with running_server([ServedModel(model=embedder())], settings(path, client_timeout_s=0.5)):
        with FrameClient(path) as stuck:
            for _ in range(6):
                stuck.send(
                    json.dumps({"op": "embed", "texts": [str(i) for i in range(1500)], "tier": EMBEDDER}).encode()
                )
            wait_until(lambda: has_hung_up(stuck.sock))
            with pytest.raises((EOFError, ConnectionError)):
                all(stuck.receive()["ok"] for _ in range(6))
        with FrameClient(path) as client:
            assert client.ask({"op": "ping"})["ok"] is True


def test_a_full_queue_says_when_to_come_again(tmp_path: Path) -> None:
    path, script = tmp_path / "s.sock", Script(gate=threading.Event())
    assert script.gate is not None
    with (
        running_server([ServedModel(model=embedder(script))], settings(path, max_queue_items=2)) as endpoints,
        FrameClient(path) as first,
        FrameClient(path) as second,
    ):
        first.send(b'{"op": "embed", "texts": ["a", "b"]}')
        wait_until(lambda: queued(endpoints.url) == 2)
        refused = second.ask({"op": "embed", "texts": ["c"]})
        assert (refused["ok"], refused["type"], refused["retry_after_s"]) == (False, "overloaded", 1)
        with pytest.raises(ModelServerError, match="the queue is full") as caught:
            EmbeddingProxy(address=str(path)).encode(["c"])
        assert (caught.value.kind, caught.value.retry_after_s) == ("overloaded", 1)
        script.gate.set()
        assert first.receive()["ok"] is True
        assert "retry_after_s" not in second.ask({"op": "embed", "texts": [1]})


def test_tiers_are_never_served_by_another_model() -> None:
    with in_process(ServedModel(model=reranker())) as server:
        with pytest.raises(InputError, match=r"^tier: tier 'base' is not served here \(embedders: none"):
            resolve_tier("base", server.service.embedders())
        assert resolve_reranker(None, server.service.rerankers()) == RERANKER


def test_stopping_finishes_what_was_accepted(tmp_path: Path) -> None:
    path, script = tmp_path / "s.sock", Script(gate=threading.Event())
    answers: list[dict[str, Any]] = []

    def ask() -> None:
        with FrameClient(path) as client:
            answers.append(client.ask({"op": "embed", "texts": ["a"]}))

    with running_server([ServedModel(model=embedder(script))], settings(path)):
        thread = threading.Thread(target=ask)
        thread.start()
        assert script.entered.wait(10)
        idle = FrameClient(path)
        assert script.gate is not None
        threading.Timer(0.5, script.gate.set).start()
    thread.join(5)
    idle.sock.close()
    assert answers[0]["ok"] is True
    wait_until(lambda: not path.exists())
