"""The HTTP front in process: every error row, readiness, limits, deadlines, keys, documentation."""

from __future__ import annotations

import asyncio
import re
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from stand_ins import (
    EMBEDDER,
    NAN,
    POISON,
    RERANKER,
    Script,
    alone,
    embedder,
    in_process,
    reranker,
    scores_alone,
    vectors_of,
    wait_until,
)

from samevec.runtime.embedder import Embedder
from samevec.server.settings import ServedModel, ServerSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    import httpx

    from samevec.runtime.rows import TokenRow

TEXT = {"model": EMBEDDER, "input": "hello"}


def openai_error(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    error: dict[str, Any] = body["error"]
    return error


def cohere_message(response: httpx.Response, status: int) -> str:
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"message"}
    return str(body["message"])


def test_prompts() -> None:
    with in_process() as server:
        query = server.embed({**TEXT, "input_type": "query"})
        prompt = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
        assert np.array_equal(vectors_of(query), alone([prompt + "hello"]))
        assert query.json()["usage"]["prompt_tokens"] == len(prompt + "hello") + 1
        for body in (TEXT, {**TEXT, "prompt_name": "document"}, {**TEXT, "input_type": None}):
            assert np.array_equal(vectors_of(server.embed(body)), alone(["hello"]))
        error = openai_error(server.embed({**TEXT, "input": [5, 6], "input_type": "query"}), 400)
        assert error["message"] == "input_type: 'query' cannot be put before token ids; send text"


def test_model_names() -> None:
    with in_process() as server:
        assert server.embed({"input": "hello"}).status_code == 200
        assert server.rerank({"query": "q", "documents": ["d"]}).json()["model"] == RERANKER
        error = openai_error(server.embed({**TEXT, "model": "gpt-x"}), 404)
        assert error == {
            "message": "model: 'gpt-x' is not served (for this task: toy-qwen3-embedder)",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
        error = openai_error(server.embed({**TEXT, "model": RERANKER}), 404)
        assert "not for this task" in error["message"]
        message = cohere_message(server.rerank({"query": "q", "documents": ["d"], "model": "gpt-x"}), 404)
        assert message == "model: 'gpt-x' is not served (for this task: toy-modernbert-reranker)"


def test_truncation() -> None:
    long = "x" * 3000
    with in_process() as server:
        answer = server.embed({**TEXT, "input": ["a", long]})
        assert answer.json()["usage"]["prompt_tokens"] == 2 + 2048
        assert np.array_equal(vectors_of(answer), alone(["a", "x" * 2047]))
        error = openai_error(server.embed({**TEXT, "input": ["a", long], "truncate": False}), 400)
        assert error["message"] == "input[1]: 3001 tokens, the limit is 2048; shorten it or allow truncation"
        assert error["code"] == "context_length_exceeded"
        message = cohere_message(server.rerank({"query": "q", "documents": ["d", long], "truncate": False}), 400)
        assert message.startswith("documents[1]: 3004 tokens")


def test_bodies_that_are_no_json() -> None:
    with in_process() as server:
        for content in (b"", b"{", b"\xff\xfe", b'{"input": NaN}', b"[" * 100_000, b'{"input": "\\ud800"}'):
            response = server.ask("POST", "/v1/embeddings", content=content)
            assert openai_error(response, 400)["message"].startswith("body: not JSON")
        form = server.ask("POST", "/v1/rerank", content=b"{}", headers={"content-type": "text/plain"})
        assert cohere_message(form, 400) == "content-type: text/plain given, application/json is needed"
        assert vectors_of(server.embed(TEXT)).shape == (1, 384)


def test_body_limit_holds_before_parsing() -> None:
    with in_process(settings=ServerSettings(max_body_bytes=1000)) as server:
        declared = openai_error(server.embed({**TEXT, "input": "x" * 1000}), 413)
        assert declared["message"].endswith("or more, the limit is 1000; send several requests")

        async def parts() -> Any:
            for _ in range(5):
                yield b"x" * 300

        streamed = server.ask("POST", "/v1/embeddings", content=parts())
        assert openai_error(streamed, 413)["param"] == "body"
        assert server.embed(TEXT).status_code == 200


def test_too_many_items() -> None:
    with in_process(settings=ServerSettings(max_batch_items=2)) as server:
        assert openai_error(server.embed({**TEXT, "input": ["a", "b", "c"]}), 413)["param"] == "input"
        assert cohere_message(server.rerank({"query": "q", "documents": ["a", "b", "c"]}), 413).startswith(
            "documents: 3"
        )


@pytest.mark.parametrize("given", ["soon", "-1", "nan", "inf", ""])
def test_timeout_header_is_checked(given: str) -> None:
    with in_process() as server:
        error = openai_error(server.embed(TEXT, headers={"X-Request-Timeout-S": given}), 400)
        assert error["param"] == "x-request-timeout-s"


def test_expired_deadline_is_504_before_running() -> None:
    script = Script()
    with in_process(ServedModel(model=embedder(script))) as server:
        error = openai_error(server.embed(TEXT, headers={"X-Request-Timeout-S": "0"}), 504)
        assert error["type"] == "deadline_exceeded"
        assert script.shapes() == []
        assert server.embed(TEXT, headers={"X-Request-Timeout-S": "20"}).status_code == 200


def test_a_deadline_ends_the_wait_for_a_slow_run() -> None:
    script = Script(gate=threading.Event())
    with in_process(ServedModel(model=embedder(script))) as server:
        openai_error(server.embed(TEXT, headers={"X-Request-Timeout-S": "0.1"}), 504)
        assert script.gate is not None
        script.gate.set()
        assert server.embed(TEXT).status_code == 200


def test_bodies_together_are_bounded() -> None:
    script, settings = Script(gate=threading.Event()), ServerSettings(max_queue_bytes=10_000, max_queue_items=20)
    with in_process(ServedModel(model=embedder(script)), settings=settings) as server:

        def held() -> int:
            return int(server.service.info()["queue"]["bytes"])

        async def run() -> tuple[list[httpx.Response], httpx.Response]:
            async with server.client() as client:

                async def ask(n_characters: int) -> httpx.Response:
                    return await client.post("/v1/embeddings", json={"input": "a" * n_characters})

                accepted = [asyncio.create_task(ask(20_000))]  # more than all may have, and the first
                while not script.entered.is_set():
                    await asyncio.sleep(0.01)
                assert 20_000 < held() < 20_100
                refused = await ask(1000)
                accepted.append(asyncio.create_task(ask(400)))  # within an item's share
                while server.service.info()["queue"]["items"] < 2:
                    await asyncio.sleep(0.01)
                assert held() > 20_400
                assert script.gate is not None
                script.gate.set()
                return [await task for task in accepted], refused

        accepted, refused = asyncio.run(run())
        assert [response.status_code for response in accepted] == [200, 200]
        assert openai_error(refused, 429)["type"] == "overloaded"
        assert int(refused.headers["retry-after"]) >= 1
        assert held() == 0
        assert server.embed({"input": "a" * 1000}).status_code == 200


def test_full_queue_is_429_with_retry_after() -> None:
    script = Script(gate=threading.Event())
    with in_process(ServedModel(model=embedder(script)), settings=ServerSettings(max_queue_items=3)) as server:

        async def run() -> list[httpx.Response]:
            async with server.client() as client:

                async def ask(text: Any) -> httpx.Response:
                    return await client.post("/v1/embeddings", json={"input": text})

                accepted = [asyncio.create_task(ask(f"text {i}")) for i in range(3)]
                while server.service.info()["queue"]["items"] < 3:
                    await asyncio.sleep(0.01)
                refused = [await ask("x"), await ask(["x"])]
                assert script.gate is not None
                script.gate.set()
                return refused + [await task for task in accepted]

        *refused, a, b, c = asyncio.run(run())
        assert [r.status_code for r in (a, b, c)] == [200, 200, 200]
        for response in refused:
            assert openai_error(response, 429)["code"] == "rate_limit_exceeded"
            assert int(response.headers["retry-after"]) >= 1
        assert refused[0].json() == refused[1].json()
        assert server.embed(TEXT).status_code == 200


def test_a_client_that_goes_away_takes_its_work_along() -> None:
    script = Script(gate=threading.Event())
    with in_process(ServedModel(model=embedder(script))) as server:

        async def run() -> None:
            body = b'{"input": ["%s", "%s"]}' % (b"x" * 900, b"y" * 900)
            sent: list[Any] = []
            messages = [{"type": "http.request", "body": body, "more_body": False}]
            left = asyncio.Event()

            async def receive() -> Any:
                if messages:
                    return messages.pop()
                await left.wait()
                return {"type": "http.disconnect"}

            async def send(message: Any) -> None:
                sent.append(message)

            scope = {
                "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
                "path": "/v1/embeddings", "raw_path": b"/v1/embeddings", "query_string": b"", "root_path": "",
                "headers": [], "server": ("test", 80), "client": ("test", 1),
            }  # fmt: skip
            holder = asyncio.create_task(asyncio.to_thread(server.embed, TEXT))
            while not script.entered.is_set():
                await asyncio.sleep(0.01)
            task = asyncio.create_task(server.app(scope, receive, send))
            while server.service.info()["queue"]["items"] < 3:
                await asyncio.sleep(0.01)
            left.set()
            await task
            assert server.service.info()["queue"]["items"] == 1
            assert script.gate is not None
            script.gate.set()
            assert (await holder).status_code == 200

        asyncio.run(run())
        assert server.embed({**TEXT, "input": "after"}).status_code == 200
        assert script.shapes() == [(1, 6), (1, 6)]


def test_tokenising_a_huge_text_does_not_stop_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenize, begun, may_end = Embedder.tokenize, threading.Event(), threading.Event()

    def held(self: Embedder, texts: Sequence[str], **options: Any) -> list[TokenRow]:
        if len(texts[0]) > 1_000_000:
            begun.set()
            assert may_end.wait(20)
        return tokenize(self, texts, **options)

    monkeypatch.setattr(Embedder, "tokenize", held)
    with in_process() as server:

        async def run() -> None:
            async with server.client() as client:
                huge = asyncio.create_task(client.post("/v1/embeddings", json={"input": "word " * 400_000}))
                try:
                    while not begun.is_set():
                        await asyncio.sleep(0.005)
                    for _ in range(20):  # answered while the text is still being tokenised
                        assert (await client.get("/health")).status_code == 200
                    assert not huge.done()
                finally:
                    may_end.set()
                assert (await huge).status_code == 200

        asyncio.run(run())


def test_readiness_follows_gate_worker_and_drain() -> None:
    with in_process() as server:
        assert server.ask("GET", "/ready").json() == {
            "status": "ready",
            "reasons": [],
            "models": {EMBEDDER: "loaded", RERANKER: "loaded"},
        }
        server.service.begin_drain()
        answer = server.ask("GET", "/ready")
        assert (answer.status_code, answer.json()["reasons"]) == (503, ["shutting down"])
        refused = server.embed(TEXT)
        assert openai_error(refused, 503)["type"] == "not_ready"
        assert refused.headers["retry-after"] == "1"
        assert server.ask("GET", "/health").status_code == 200
    for gate in ("failed", "stale", "missing", "reference"):
        with in_process(ServedModel(model=embedder(), gate=gate)) as server:
            assert server.ask("GET", "/ready").json()["reasons"] == [f"{EMBEDDER}: the parity gate is {gate}"]
            openai_error(server.embed(TEXT), 503)
    with in_process(ServedModel(model=embedder(), gate="reference", backend="torch")) as server:
        assert server.embed(TEXT).status_code == 200


def test_a_dead_worker_is_seen_and_refuses() -> None:
    script = Script()
    with in_process(ServedModel(model=embedder(script)), ServedModel(model=reranker())) as server:
        script.broken = True
        assert server.embed(TEXT).status_code in (500, 503)
        # Its one restart fails at the canary.
        given_up = [f"{EMBEDDER}: its worker died (RuntimeError); restart the server"]
        wait_until(lambda: server.ask("GET", "/ready").json()["reasons"] == given_up)
        assert server.ask("GET", "/ready").status_code == 503
        openai_error(server.embed(TEXT), 503)
        assert server.rerank({"query": "q", "documents": ["d"]}).status_code == 200
        assert server.ask("GET", "/health").status_code == 200


def test_failures_name_the_item_and_keep_details_private() -> None:
    with in_process() as server:
        error = openai_error(server.embed({**TEXT, "input": ["a", POISON]}), 500)
        assert error["message"] == "input[1]: could not be computed: RuntimeError"
        error = openai_error(server.embed({**TEXT, "input": ["a", "b", NAN]}), 500)
        assert error["message"].startswith("the output for item 2 is zero or not finite")
        assert error["type"] == "non_finite_output"
        assert server.embed(TEXT).status_code == 200


def test_an_unforeseen_error_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with in_process() as server:

        async def explode(work: object) -> None:
            raise ZeroDivisionError("/home/somebody")

        monkeypatch.setattr(server.service, "embed", explode)
        error = openai_error(server.embed(TEXT), 500)
        assert error["message"] == "internal error; the server's log says more"


def test_unknown_routes_and_methods() -> None:
    with in_process() as server:
        assert openai_error(server.ask("GET", "/nope"), 404)["message"] == "GET /nope: Not Found"
        wrong = server.ask("GET", "/v1/embeddings")
        openai_error(wrong, 405)
        assert wrong.headers["allow"] == "POST"
        cohere_message(server.ask("PUT", "/v1/rerank"), 405)


def test_info_and_models() -> None:
    with in_process() as server:
        info = server.ask("GET", "/info").json()
        assert info["ready"] is True
        assert [model["name"] for model in info["models"]] == [EMBEDDER, RERANKER]
        first = info["models"][0]
        assert first["provider"] == "FakeExecutionProvider"
        assert first["receipt"] == {"state": "passed", "created_at": None, "bound_to": {}}
        assert (first["backend"], first["profile"]) == ("onnx", "cpu")
        assert (first["dimensions"], first["min_dimensions"], first["max_tokens"]) == (384, 32, 2048)
        assert first["prompts"] == ["document", "query"]
        assert info["limits"]["max_batch_items"] == 4096
        assert info["versions"]["tokenizers"]
        models = server.ask("GET", "/v1/models").json()
        assert [model["id"] for model in models["data"]] == [EMBEDDER, RERANKER]


def test_documentation_works_offline() -> None:
    with in_process() as server:
        page = server.ask("GET", "/docs").text
        assert not re.search(r"(?:src|href)=\"(?:https?:)?//", page)
        for path in re.findall(r"(?:src|href)=\"([^\"]+)\"", page):
            assert server.ask("GET", path).status_code == 200, path
        document = server.ask("GET", "/openapi.json").json()
        assert document["openapi"] == "3.0.3"
        body = document["components"]["schemas"]["EmbeddingsBody"]
        assert body["additionalProperties"] is False
        # The schema and the reader know the same options.
        error = openai_error(server.embed({"input": "x", "nope": 1}), 400)
        known = error["message"].removeprefix("nope: unknown option; the options are: ")
        assert known == ", ".join(sorted(body["properties"]))


def test_keys() -> None:
    with in_process(api_keys=("first", "second")) as server:
        for path in ("/health", "/ready", "/docs", "/openapi.json"):
            assert server.ask("GET", path).status_code == 200
        for headers in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": "Basic first"},
            {"authorization": "first"},
        ):
            refused = server.embed(TEXT, headers=headers)
            assert openai_error(refused, 401)["code"] == "invalid_api_key"
            assert refused.headers["www-authenticate"] == "Bearer"
        cohere_message(server.rerank({"query": "q", "documents": ["d"]}), 401)
        assert server.ask("GET", "/info").status_code == 401
        for key in ("first", "second"):
            assert server.embed(TEXT, headers={"authorization": f"Bearer {key}"}).status_code == 200


def test_rerank_answers_with_activated_or_raw_scores() -> None:
    documents = ["one", "two", "three"]
    with in_process() as server:
        for raw in (False, True):
            body = {"query": "q", "documents": documents, "raw_scores": raw}
            results = server.rerank(body).json()["results"]
            expected = scores_alone("q", documents, raw=raw)
            assert [np.float32(item["relevance_score"]) for item in results] == sorted(expected, reverse=True)


def test_batch_size_caps_session_runs() -> None:
    script = Script()
    with in_process(ServedModel(model=embedder(script, max_rows=2))) as server:
        texts = [f"text {i}" for i in range(5)]
        assert np.array_equal(vectors_of(server.embed({"input": texts, "batch_size": 8})), alone(texts))
        assert [rows for rows, _ in script.shapes()] == [2, 2, 1]
        server.embed({"input": texts, "batch_size": 1})
        assert [rows for rows, _ in script.shapes()][3:] == [1] * 5


def test_many_clients_at_once_get_their_own() -> None:
    with in_process() as server:

        async def run() -> None:
            async with server.client() as client:

                async def ask(i: int) -> None:
                    texts = [f"{i}:{j}" * (1 + (i * j) % 9) for j in range(1 + i % 4)]
                    dimensions = [384, 256, 32][i % 3]
                    body = {"input": texts, "dimensions": dimensions}
                    got = vectors_of(await client.post("/v1/embeddings", json=body))
                    assert np.array_equal(got, alone(texts, dimensions=dimensions))

                await asyncio.gather(*map(ask, range(40)))

        asyncio.run(run())
