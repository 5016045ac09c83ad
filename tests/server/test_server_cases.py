"""CASES.md at stand-in scale, over HTTP, each test named after its case."""

from __future__ import annotations

import asyncio
import base64
import random
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from stand_ins import (
    EMBEDDER,
    POISON,
    InProcess,
    Script,
    alone,
    embedder,
    in_process,
    scores_alone,
    text_ids,
    vectors_of,
    wait_until,
)

from samevec.server.settings import ServedModel

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx


@pytest.fixture
def server() -> Iterator[InProcess]:
    with in_process() as made:
        yield made


def refused(response: httpx.Response) -> str:
    """Return the message of a clean refusal, in whichever dialect."""
    assert response.status_code in (400, 404, 413, 422, 429, 503), response.text
    body = response.json()
    message = body["message"] if "message" in body else body["error"]["message"]
    assert "Traceback" not in message
    return str(message)


def shuffled_texts(seed: int) -> list[str]:
    rng = random.Random(seed)
    texts = [f"{seed}{i:04}".ljust(n, "x")[-n:] if n > 8 else f"{i:0{n}}"[-n:] for i, n in enumerate(range(1, 258))]
    rng.shuffle(texts)
    for _ in range(5):
        texts.insert(rng.randrange(len(texts)), rng.choice(texts))
    return texts


def test_o04_length_sorting_keeps_the_callers_order(server: InProcess) -> None:
    texts = shuffled_texts(1)
    assert np.array_equal(vectors_of(server.embed({"input": texts})), alone(texts))
    results = server.rerank({"query": "which", "documents": texts}).json()["results"]
    scores = {item["index"]: np.float32(item["relevance_score"]) for item in results}
    assert np.array_equal([scores[i] for i in range(len(texts))], scores_alone("which", texts))


def test_o04_also_with_eight_clients_at_once(server: InProcess) -> None:
    async def run() -> None:
        async with server.client() as client:

            async def ask(seed: int) -> None:
                texts = shuffled_texts(seed)
                got = vectors_of(await client.post("/v1/embeddings", json={"input": texts}))
                assert np.array_equal(got, alone(texts))

            await asyncio.gather(*map(ask, range(2, 10)))

    asyncio.run(run())


@pytest.mark.parametrize("dimensions", [384, 256, 32, None])
def test_o05_shortened_vectors_have_unit_length(server: InProcess, dimensions: int | None) -> None:
    got = vectors_of(server.embed({"input": "text", "dimensions": dimensions}))
    prefix = alone(["text"])[:, :dimensions].astype(np.float64)
    assert got.shape == prefix.shape
    assert np.abs(got - prefix / np.linalg.norm(prefix)).max() < 1e-6
    assert abs(np.linalg.norm(got) - 1) < 1e-5


@pytest.mark.parametrize("dimensions", [0, -1, 31, 385, 2.5, "256", True, 10**30, [256]])
def test_o05_bad_dimensions_are_refused(server: InProcess, dimensions: Any) -> None:
    assert refused(server.embed({"input": "text", "dimensions": dimensions})).startswith("dimensions: ")


def test_o05_unknown_model_is_refused_alike_everywhere(server: InProcess) -> None:
    embed = server.embed({"input": "text", "model": "other"})
    rerank = server.rerank({"query": "q", "documents": ["d"], "model": "other"})
    assert (embed.status_code, rerank.status_code) == (404, 404)
    assert refused(embed).startswith("model: 'other' is not served")
    assert refused(rerank).startswith("model: 'other' is not served")


def test_o05_co_batched_sizes_stay_apart() -> None:
    script = Script(gate=threading.Event())
    with in_process(ServedModel(model=embedder(script))) as server:

        async def run() -> list[httpx.Response]:
            async with server.client() as client:
                first = asyncio.create_task(client.post("/v1/embeddings", json={"input": "first"}))
                while not script.entered.is_set():
                    await asyncio.sleep(0.01)
                bodies = [{"input": f"text {d}", "dimensions": d} for d in (384, 256, 32)]
                tasks = [asyncio.create_task(client.post("/v1/embeddings", json=body)) for body in bodies]
                while server.service.info()["queue"]["items"] < 4:
                    await asyncio.sleep(0.01)
                assert script.gate is not None
                script.gate.set()
                await first
                return [await task for task in tasks]

        for dimensions, answer in zip((384, 256, 32), asyncio.run(run()), strict=True):
            assert np.array_equal(vectors_of(answer), alone([f"text {dimensions}"], dimensions=dimensions))
        assert script.shapes()[1][0] == 3


@pytest.mark.parametrize(("top_n", "n_results"), [(None, 3), (1, 1), (3, 3), (4, 3), (1_000_000, 3)])
def test_o09_top_n(server: InProcess, top_n: int | None, n_results: int) -> None:
    documents = ["one", "two", "three"]
    results = server.rerank({"query": "q", "documents": documents, "top_n": top_n}).json()["results"]
    scores = scores_alone("q", documents)
    order = sorted(range(3), key=lambda i: -scores[i])[:n_results]
    assert [item["index"] for item in results] == order
    assert [np.float32(item["relevance_score"]) for item in results] == [scores[i] for i in order]
    assert all("document" not in item for item in results)


@pytest.mark.parametrize("top_n", [0, -1, "1", 1.0, True])
def test_o09_bad_top_n_is_refused(server: InProcess, top_n: Any) -> None:
    assert refused(server.rerank({"query": "q", "documents": ["d"], "top_n": top_n})).startswith("top_n: ")


def test_o09_document_shapes(server: InProcess) -> None:
    plain = server.rerank({"query": "q", "documents": ["one", "two", ""], "return_documents": True}).json()["results"]
    mixed = {"query": "q", "documents": [{"text": "one"}, "two", {"text": ""}], "return_documents": True}
    assert server.rerank(mixed).json()["results"] == plain
    assert {item["document"]["text"] for item in plain} == {"one", "two", ""}
    assert np.isfinite([item["relevance_score"] for item in plain]).all()
    assert (
        refused(server.rerank({"query": "q", "documents": []})) == "documents: empty list, at least one item is needed"
    )


def test_o09_ties_stay_in_request_order(server: InProcess) -> None:
    results = server.rerank({"query": "q", "documents": ["same"] * 5}).json()["results"]
    assert [item["index"] for item in results] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("given", [[], [[]], None, {}])
def test_o11_nothing_to_embed_is_refused(server: InProcess, given: Any) -> None:
    response = server.embed({"input": given})
    assert response.status_code == 400
    assert refused(response).startswith("input")
    assert vectors_of(server.embed({"input": "canary"})).shape == (1, 384)


def test_o11_missing_input_is_refused(server: InProcess) -> None:
    assert refused(server.embed({"model": EMBEDDER})) == "input: missing"


def test_o11_the_empty_text_is_its_end_token_alone(server: InProcess) -> None:
    alone_vector = vectors_of(server.embed({"input": ""}))
    assert server.embed({"input": ""}).json()["usage"]["prompt_tokens"] == 1
    assert np.array_equal(alone_vector, alone([""]))
    assert np.array_equal(vectors_of(server.embed({"input": [""]})), alone_vector)
    assert np.array_equal(vectors_of(server.embed({"input": ["ok", ""]}))[1:], alone_vector)
    assert np.array_equal(vectors_of(server.embed({"input": [" ", "\n\t"]})), alone([" ", "\n\t"]))
    assert server.rerank({"query": "", "documents": ["", "d"]}).status_code == 200


def test_o13_token_ids_equal_their_text(server: InProcess) -> None:
    test, again = list(text_ids("test")), list(text_ids("test again"))
    one = server.embed({"input": test})
    assert np.array_equal(vectors_of(one), alone(["test"]))
    two = server.embed({"input": [test, again]})
    assert np.array_equal(vectors_of(two), alone(["test", "test again"]))
    assert (one.json()["usage"]["total_tokens"], two.json()["usage"]["total_tokens"]) == (5, 5 + 11)


@pytest.mark.parametrize(
    "given", [[1, -1], [1, 999_999_999], [1, 10**30], [1.5], [True], ["a", 1], [1, "a"], [[1], [-1]]]
)
def test_o13_bad_token_ids_are_refused(server: InProcess, given: Any) -> None:
    assert refused(server.embed({"input": given})).startswith("input[")
    assert vectors_of(server.embed({"input": "canary"})).shape == (1, 384)


def test_o14_base64_is_float32_of_the_same_values(server: InProcess) -> None:
    for body in ({"input": ["a", "b", "c"]}, {"input": "a", "dimensions": 256}):
        floats = vectors_of(server.embed({**body, "encoding_format": "float"}))
        assert np.array_equal(vectors_of(server.embed(body)), floats)
        data = server.embed({**body, "encoding_format": "base64"}).json()["data"]
        raw = [base64.b64decode(item["embedding"], validate=True) for item in data]
        assert {len(item) for item in raw} == {4 * floats.shape[1]}
        assert np.array_equal(np.stack([np.frombuffer(item, dtype="<f4") for item in raw]), floats)


@pytest.mark.parametrize("encoding_format", ["BASE64", "hex", 7])
def test_o14_unknown_formats_are_refused(server: InProcess, encoding_format: Any) -> None:
    assert refused(server.embed({"input": "a", "encoding_format": encoding_format})).startswith("encoding_format: ")


def test_o15_one_failing_item_stops_nobody_else(server: InProcess) -> None:
    async def run() -> None:
        async with server.client() as client:

            async def ask(text: str) -> httpx.Response:
                return await client.post("/v1/embeddings", json={"input": [text, text + "!"]})

            texts = [f"text {i}" for i in range(20)]
            bad, *good = await asyncio.gather(ask(POISON), *map(ask, texts))
            assert bad.status_code == 500
            assert bad.json()["error"]["message"] == "input[0]: could not be computed: RuntimeError"
            good += await asyncio.gather(*map(ask, (f"more {i}" for i in range(100))))
            for text, answer in zip([*texts, *(f"more {i}" for i in range(100))], good, strict=True):
                assert np.array_equal(vectors_of(answer), alone([text, text + "!"]))

    asyncio.run(run())
    assert server.ask("GET", "/ready").status_code == 200


def test_o15_a_dead_engine_shows(server: InProcess) -> None:
    script = Script()
    with in_process(ServedModel(model=embedder(script))) as dying:
        script.broken = True
        assert dying.embed({"input": "a"}).status_code in (500, 503)
        wait_until(lambda: dying.ask("GET", "/ready").status_code == 503)
        assert {dying.embed({"input": "a"}).status_code for _ in range(5)} == {503}


def test_o24_a_short_query_waits_for_one_microbatch_of_bulk_work_at_most() -> None:
    script = Script(steps=threading.Semaphore(0))
    assert script.steps is not None
    with in_process(ServedModel(model=embedder(script))) as server:

        async def begun(n_runs: int) -> None:
            while len(script.runs) < n_runs:
                await asyncio.sleep(0.005)

        async def run() -> None:
            assert script.steps is not None
            async with server.client() as client:
                texts = [f"{i:04}" * 100 for i in range(400)]
                bulk = asyncio.create_task(client.post("/v1/embeddings", json={"input": texts}))
                for i in range(10):
                    await begun(2 + 2 * i)  # the canary, then pairs of a bulk microbatch and a query
                    query = asyncio.create_task(client.post("/v1/embeddings", json={"input": f"q {i}"}))
                    while server.service.info()["queue"]["items"] < 401:
                        await asyncio.sleep(0.005)
                    script.steps.release()
                    await begun(3 + 2 * i)
                    assert script.runs[2 + 2 * i] == [text_ids(f"q {i}")]
                    script.steps.release()
                    assert np.array_equal(vectors_of(await query), alone([f"q {i}"]))
                    assert not bulk.done()
                script.steps.release(400)
                assert np.array_equal(vectors_of(await bulk), alone(texts))

        asyncio.run(run())
