"""CASES.md at stand-in scale where the socket must do as HTTP does; each test is named after its case."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
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
    reranker,
    scores_alone,
    text_ids,
    tokenizer,
)

from samevec.errors import SessionRunError
from samevec.lock import load_lock
from samevec.runtime.embedder import Embedder
from samevec.server.lifecycle import running_server
from samevec.server.settings import ServedModel, ServerSettings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from samevec.runtime.collate import Features

pytestmark = pytest.mark.server

LIMIT = 2048  # of both toy models
QUERY_PROMPT = load_lock("toy").model(EMBEDDER).prompts["query"]
BAD_PAIR = ("q", "bad document")
#: One for all, since each of its own would load the machine's certificates.
_CLIENT = httpx.Client(timeout=60)


@dataclass(frozen=True)
class Refused(Exception):
    """A clean refusal, whichever way it came."""

    status: int | None
    kind: str
    message: str


@dataclass(frozen=True)
class Http:
    """The server over HTTP."""

    url: str
    path: Path

    def ask(self, route: str, body: dict[str, Any]) -> Any:
        answer = _CLIENT.post(self.url + route, json=body)
        record = answer.json()
        if answer.status_code == 200:
            return record
        assert "Traceback" not in answer.text
        error = record.get("error", record)
        raise Refused(answer.status_code, error.get("type", ""), error["message"])

    def embed(self, texts: Sequence[str], **options: Any) -> NDArray[np.float32]:
        data = self.ask("/v1/embeddings", {"model": EMBEDDER, "input": list(texts), **options})["data"]
        assert [item["index"] for item in data] == list(range(len(data)))
        return np.array([item["embedding"] for item in data], dtype=np.float32)

    def score(self, query: str, documents: Sequence[str], **options: Any) -> list[np.float32]:
        body = {"model": RERANKER, "query": query, "documents": list(documents), **options}
        results = self.ask("/v1/rerank", body)["results"]
        scores = {item["index"]: np.float32(item["relevance_score"]) for item in results}
        return [scores[i] for i in range(len(documents))]


@dataclass(frozen=True)
class Socket(Http):
    """The same server over its Unix socket."""

    def frame(self, **request: Any) -> Any:
        with FrameClient(self.path) as client:
            answer = client.ask(request)
        if not answer["ok"]:
            assert "Traceback" not in answer["error"]
            raise Refused(None, answer["type"], answer["error"])
        return answer

    def embed(self, texts: Sequence[str], **options: Any) -> NDArray[np.float32]:
        record = self.frame(op="embed", tier=EMBEDDER, texts=list(texts), **options)["vectors"]
        return np.frombuffer(base64.b64decode(record["__ndarray__"]), dtype="<f4").reshape(record["shape"])

    def score(self, query: str, documents: Sequence[str], **options: Any) -> list[np.float32]:
        pairs = [[query, document] for document in documents]
        record = self.frame(op="rerank", model_name=RERANKER, pairs=pairs, **options)["scores"]
        return list(np.frombuffer(base64.b64decode(record["__ndarray__"]), dtype="<f4"))


@pytest.fixture(scope="module", autouse=True)
def _closed_at_the_end() -> Iterator[None]:
    yield
    _CLIENT.close()


WAYS = {"http": Http, "socket": Socket}


def both(folder: Path, *models: ServedModel, **settings: Any) -> Any:
    return running_server(list(models), ServerSettings(port=0, socket=folder / "s.sock", **settings))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    folder = tmp_path_factory.mktemp("both")
    nan = {tokenizer(RERANKER).encode_pairs([BAD_PAIR])[0].ids}
    models = ServedModel(model=embedder()), ServedModel(model=reranker(Script(nan=nan)))
    with both(folder, *models) as endpoints:
        yield endpoints.url, folder / "s.sock"


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, place: tuple[str, Path]) -> Iterator[Http]:
    """A way to the server, with the canary looked at before and after each test."""
    made: Http = WAYS[request.param](*place)
    canary = made.embed(["canary"]).tobytes(), made.score("canary", ["pair"])
    yield made
    assert (made.embed(["canary"]).tobytes(), made.score("canary", ["pair"])) == canary


def refusal(call: Any, *arguments: Any, **options: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        call(*arguments, **options)
    assert caught.value.status in (None, 400, 413, 422, 429, 503), caught.value
    return caught.value


def test_o02_the_end_token_stays_where_pooling_reads_it(way: Http) -> None:
    texts = ["a" * (n - 1) for n in (LIMIT - 1, LIMIT, LIMIT + 1, 2 * LIMIT, 100_001)]
    cut = [text[: LIMIT - 1] for text in texts]
    assert np.array_equal(way.embed(texts), alone(cut))
    assert np.array_equal(way.embed(texts[:2]), alone(texts[:2]))  # nothing of these is cut


def test_o02_without_truncation_limit_and_count_are_told(place: tuple[str, Path]) -> None:
    http, socket = Http(*place), Socket(*place)
    for n in (LIMIT + 1, 100_001):
        told = refusal(http.embed, ["short", "a" * (n - 1)], truncate=False)
        assert told.message == f"input[1]: {n} tokens, the limit is {LIMIT}; shorten it or allow truncation"
    assert http.embed(["a" * (LIMIT - 1)], truncate=False).shape == (1, 384)
    usage = http.ask("/v1/embeddings", {"model": EMBEDDER, "input": ["a" * 5000, "b"]})["usage"]
    assert usage["prompt_tokens"] == LIMIT + 2
    # The socket has no such option: TrueMemory's own server always cuts.
    assert refusal(socket.embed, ["a"], truncate=False).message.startswith("truncate: unknown option")


def test_o03_usage_counts_the_end_token_once_a_text_and_padding_never(place: tuple[str, Path]) -> None:
    http = Http(*place)
    for texts in (["test"], ["test", "test again"], ["", "x" * 300, "é"]):
        usage = http.ask("/v1/embeddings", {"model": EMBEDDER, "input": texts})["usage"]
        assert usage == dict.fromkeys(("prompt_tokens", "total_tokens"), sum(len(t.encode()) + 1 for t in texts))
    assert np.array_equal(http.embed(["test"]), Socket(*place).embed(["test"]))


def shuffled_texts(seed: int) -> list[str]:
    rng = random.Random(seed)
    texts = [f"{seed}{i:04}".ljust(n, "x")[-n:] if n > 8 else f"{i:0{n}}"[-n:] for i, n in enumerate(range(1, 258))]
    rng.shuffle(texts)
    for _ in range(5):
        texts.insert(rng.randrange(len(texts)), rng.choice(texts))
    return texts


def test_o04_position_i_is_text_i_both_ways(way: Http) -> None:
    texts = shuffled_texts(1)
    assert np.array_equal(way.embed(texts), alone(texts))
    assert np.array_equal(way.score("which", texts), scores_alone("which", texts))

    def one_client(seed: int) -> bool:
        own = shuffled_texts(seed)[:60]
        return np.array_equal(way.embed(own), alone(own))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one_client, range(2, 10)))


def test_o05_sizes_and_names_both_ways(way: Http) -> None:
    full = alone(["text"])
    for dimensions in (384, 256, 32):
        found, prefix = way.embed(["text"], dimensions=dimensions), full[:, :dimensions]
        # Over the socket it is sentence-transformers' truncate_dim, which scales no prefix.
        scaled = prefix if isinstance(way, Socket) else prefix / np.linalg.norm(prefix.astype(np.float64))
        assert np.abs(found - scaled).max() < 1e-6
    assert np.array_equal(way.embed(["text"], dimensions=None), full)
    for wrong in (0, -1, 385, 2.5, "256", True, 10**30):
        assert refusal(way.embed, ["text"], dimensions=wrong).message.startswith("dimensions: ")


def test_o05_an_unknown_model_is_refused_on_every_route(place: tuple[str, Path]) -> None:
    http, socket = Http(*place), Socket(*place)
    bodies: dict[str, dict[str, Any]] = {
        "/v1/embeddings": {"input": "a"},
        "/embed": {"inputs": "a"},
        "/tokenize": {"inputs": "a"},
        "/v1/rerank": {"query": "q", "documents": ["d"]},
        "/v2/rerank": {"query": "q", "documents": ["d"]},
        "/rerank": {"query": "q", "documents": ["d"]},
    }
    for route, body in bodies.items():
        answer = _CLIENT.post(http.url + route, json={**body, "model": "other"})
        assert (answer.status_code, "'other' is not served" in answer.text) == (404, True), route
    assert "'other' is not served here" in refusal(socket.frame, op="embed", texts=["a"], tier="other").message
    unknown = refusal(socket.frame, op="rerank", pairs=[["q", "d"]], model_name="other")
    assert unknown.message.startswith("model_name: 'other' is not served here")


def test_o07_what_is_not_finite_is_an_error_naming_the_item_and_counted(way: Http) -> None:
    def counted() -> float:
        lines = _CLIENT.get(f"{way.url}/metrics").text.splitlines()
        found = [line for line in lines if line.startswith("samevec_errors_total") and "non_finite_output" in line]
        return sum(float(line.rpartition(" ")[2]) for line in found)

    before = counted()
    with pytest.raises(Refused) as vectors:
        way.embed(["fine", "also fine", NAN])
    with pytest.raises(Refused) as scores:
        way.score(BAD_PAIR[0], ["fine", BAD_PAIR[1]])
    for caught, position in ((vectors, 2), (scores, 1)):
        assert caught.value.status in (None, 500)
        assert caught.value.kind in ("non_finite_output", "")  # Cohere's errors have no type
        assert caught.value.message.startswith(f"the output for item {position} is zero or not finite")
    assert counted() == before + 2


def test_o09_the_socket_has_no_top_n(place: tuple[str, Path]) -> None:
    told = refusal(Socket(*place).score, "q", ["d"], top_n=1)
    assert told.message.startswith("top_n: unknown option; the options are: ")


def pair_ids(query: str, document: str) -> tuple[int, ...]:
    return tokenizer(RERANKER).encode_pairs([(query, document)])[0].ids


@pytest.mark.parametrize(
    ("query", "document"),
    [("q" * 3000, "d" * 10), ("q" * 10, "d" * 5000), ("q" * 3000, "d" * 3000)],
    ids=["query", "document", "both"],
)
def test_o10_a_pair_over_the_budget_is_cut_on_its_longer_side(way: Http, query: str, document: str) -> None:
    cut = pair_ids(query, document)
    assert len(cut) == LIMIT
    room = LIMIT - 3
    kept = {
        (3000, 10): (room - 10, 10),
        (10, 5000): (10, room - 10),
        (3000, 3000): (room // 2, room - room // 2),
    }[len(query), len(document)]
    # The same ids as for texts that need no cutting: both sides and every separator stay.
    assert cut == pair_ids(query[: kept[0]], document[: kept[1]])
    found = way.score(query, [document])
    assert np.array_equal(found, scores_alone(query[: kept[0]], [document[: kept[1]]]))


def test_o10_a_giant_document_changes_no_other_score(way: Http) -> None:
    short = [f"document {i}" for i in range(19)]
    with_giant = way.score("which", [*short[:9], "g" * 50_000, *short[9:]])
    assert np.array_equal(with_giant[:9] + with_giant[10:], scores_alone("which", short))
    assert np.isfinite(with_giant[9])


def test_o10_without_truncation_the_item_is_named(place: tuple[str, Path]) -> None:
    documents = [*(f"document {i}" for i in range(12)), "g" * 5000]
    told = refusal(Http(*place).score, "which", documents, truncate=False)
    assert told.message == (
        f"documents[12]: {5000 + 5 + 3} tokens, the limit is {LIMIT}; shorten it or allow truncation"
    )


def test_o11_empty_texts_and_empty_lists_both_ways(way: Http) -> None:
    empty = alone([""])
    assert np.array_equal(way.embed([""]), empty)
    assert np.array_equal(way.embed(["ok", ""])[1:], empty)
    assert np.array_equal(way.embed([" ", "\n\t"]), alone([" ", "\n\t"]))
    assert not np.array_equal(way.embed([" "]), way.embed(["   "]))
    assert np.array_equal(way.score("", ["", "d"]), scores_alone("", ["", "d"]))
    for call in (way.embed, lambda given: way.score("q", given)):
        told = refusal(call, [])
        assert told.status in (None, 400)
        assert told.message.endswith(": empty list, at least one item is needed")


@pytest.mark.parametrize("given", [None, {}, [[]], "text", [7], [None]])
def test_o11_what_is_no_list_of_texts_is_refused_on_the_socket(place: tuple[str, Path], given: Any) -> None:
    socket = Socket(*place)
    assert refusal(socket.frame, op="embed", texts=given).message.startswith("texts")
    assert refusal(socket.frame, op="rerank", pairs=given).message.startswith("pairs")
    assert refusal(socket.frame, op="embed").message == "texts: missing"


MARKED = ["A <|im_end|> B", "A <|im_end|> C", "<|im_start|>system\nX", "<think>x</think>", "a <|fim_pad|> b"]


def test_o12_markers_are_the_oracles_and_never_an_error(way: Http) -> None:
    padded = [*MARKED, "x" * 90, "[SEP] relevant [CLS]", "<|endoftext|>", ""]
    together = way.embed(padded)
    assert np.array_equal(together, alone(padded))
    assert len(np.unique(together, axis=0)) == len(padded)
    # <|im_end|> is one id, as transformers parses it.
    assert len(text_ids("A <|im_end|> B")) == len("A  B") + 2
    stuffed = ["[SEP] relevant [CLS]", "[SEP]" * 20, "[PAD] [MASK]", "plain"]
    assert np.array_equal(way.score("[SEP] relevant [CLS]", stuffed), scores_alone("[SEP] relevant [CLS]", stuffed))


def test_o13_the_socket_wants_text_and_says_so(place: tuple[str, Path]) -> None:
    for given in ([1944, 151643], [[1944, 151643]]):
        told = refusal(Socket(*place).frame, op="embed", texts=given)
        assert told.message.startswith("texts[0]: ")
        assert "string" in told.message


def test_o15_one_failing_item_stops_nobody_else_both_ways(way: Http) -> None:
    def ask(text: str) -> Any:
        try:
            return way.embed([text, text + "!"])
        except Refused as refused:
            return refused

    texts = [f"text {i}" for i in range(20)]
    with ThreadPoolExecutor(21) as pool:
        bad, *good = pool.map(ask, [POISON, *texts])
        more = [f"more {i}" for i in range(100)]
        good += pool.map(ask, more)
    assert isinstance(bad, Refused)
    assert bad.message.endswith("[0]: could not be computed: RuntimeError")
    for text, found in zip([*texts, *more], good, strict=True):
        assert np.array_equal(found, alone([text, text + "!"]))
    assert _CLIENT.get(f"{way.url}/ready").status_code == 200


def test_o15_nobody_is_served_before_weights_and_gate(tmp_path: Path) -> None:
    script = Script()
    shut = ServedModel(model=embedder(script), gate="stale")
    with both(tmp_path, shut) as endpoints:
        http, socket = Http(endpoints.url, tmp_path / "s.sock"), Socket(endpoints.url, tmp_path / "s.sock")
        assert _CLIENT.get(f"{endpoints.url}/ready").status_code == 503
        told = [refusal(call, ["a"]) for call in (http.embed, socket.embed)]
        assert [(one.status, one.kind) for one in told] == [(503, "not_ready"), (None, "not_ready")]
        assert script.shapes() == []


def cut_at_128(model: Any) -> ServedModel:
    return ServedModel(model=replace(model, tokenizer=replace(model.tokenizer, max_tokens=128)))


def test_o16_settings_of_one_request_never_reach_another(tmp_path: Path) -> None:
    short = replace(tokenizer(EMBEDDER), max_tokens=128)
    expected = embedder()

    def serial(text: str) -> tuple[bytes, int]:
        row = short.encode_texts([text])[0]
        return expected.finish(expected.run_microbatch([row])).tobytes(), row.n_tokens

    with both(tmp_path, cut_at_128(embedder()), cut_at_128(reranker())) as endpoints:

        def one_thread(seed: int) -> int:
            rng, n_seen = random.Random(seed), 0
            with httpx.Client(base_url=endpoints.url, timeout=60, verify=False) as client:
                for i in range(12):
                    text = f"{seed} {i} ".ljust(rng.randrange(1, 600), "y")
                    truncate, many = rng.random() < 0.5, rng.random() < 0.5
                    # More than 2,048 characters are tokenised by threads, fewer by the event loop.
                    given = [text] * (8 if many else 1)
                    body = {"model": EMBEDDER, "input": given, "truncate": truncate}
                    answer = client.post("/v1/embeddings", json=body)
                    if not truncate and len(text) + 1 > 128:
                        assert answer.status_code == 400
                        assert answer.json()["error"]["message"].startswith(
                            f"input[0]: {len(text) + 1} tokens, the limit is 128"
                        )
                    else:
                        bits, n_tokens = serial(text)
                        assert answer.status_code == 200
                        assert answer.json()["usage"]["prompt_tokens"] == n_tokens * len(given)
                        vectors = [np.array(item["embedding"], np.float32) for item in answer.json()["data"]]
                        assert {vector.tobytes() for vector in vectors} == {bits}
                    pair = {"model": RERANKER, "query": "q", "documents": [text], "truncate": truncate}
                    ranked = client.post("/v1/rerank", json=pair)
                    assert ranked.status_code == (400 if not truncate and len(text) + 4 > 128 else 200)
                    n_seen += 2
            return n_seen

        with ThreadPoolExecutor(32) as pool:
            assert sum(pool.map(one_thread, range(32))) == 32 * 24


def test_o19_a_large_request_runs_in_bounded_pieces(way: Http, place: tuple[str, Path], tmp_path: Path) -> None:
    script, pairs = Script(), Script()
    models = ServedModel(model=embedder(script)), ServedModel(model=reranker(pairs))
    with both(tmp_path, *models) as endpoints:
        other = type(way)(endpoints.url, tmp_path / "s.sock")
        assert np.isfinite(other.score("q", ["five"])[0])
        assert pairs.shapes() == [(1, 8)]  # the tokenizer file's own padding would have made it 64, the real one 8,000
        texts = [f"{i:04} of two thousand texts, " for i in range(2000)]
        texts[1234] = "l" * 1999
        vectors = other.embed(texts)
        other.score("which", [f"document {i}" for i in range(500)])
    assert vectors.shape == (2000, 384)
    engine = embedder().engine
    assert sum(rows for rows, _ in script.shapes()) == 2000
    for rows, longest in (*script.shapes(), *pairs.shapes()):
        padded = rows * -(-longest // engine.pad_to_multiple) * engine.pad_to_multiple
        assert padded <= max(engine.token_budget, 2000)


def test_o22_a_run_that_finds_no_memory_goes_in_smaller_pieces(way: Http, tmp_path: Path) -> None:
    model = embedder()
    run = model.engine.session.run

    def small_device(features: Features, **how: Any) -> NDArray[np.float32]:
        if features.shape[0] > 3:
            raise SessionRunError("cannot allocate", out_of_memory=True)
        return run(features, **how)

    model.engine.session.run = small_device  # type: ignore[method-assign]
    with both(tmp_path, ServedModel(model=model)) as endpoints:
        other = type(way)(endpoints.url, tmp_path / "s.sock")
        canary = other.embed(["canary"])
        texts = [f"text {i}" for i in range(40)]
        assert np.array_equal(other.embed(texts), alone(texts))
        assert np.array_equal(other.embed(["canary"]), canary)


def test_o24_over_the_limit_every_form_is_refused_alike_and_nothing_is_lost(tmp_path: Path) -> None:
    script = Script(gate=threading.Event())
    assert script.gate is not None
    with both(tmp_path, ServedModel(model=embedder(script)), max_queue_items=100) as endpoints:
        socket = Socket(endpoints.url, tmp_path / "s.sock")

        async def run() -> tuple[list[httpx.Response], list[Any]]:
            async with AsyncExitStack() as stack:
                # Several, since the time httpx takes grows with the square of a client's connections.
                new = [httpx.AsyncClient(base_url=endpoints.url, timeout=60, verify=False) for _ in range(10)]
                clients = [await stack.enter_async_context(client) for client in new]

                async def ask(i: int) -> httpx.Response:
                    given: Any = f"text {i}" if i % 2 else [f"text {i}"]
                    return await clients[i % 10].post("/v1/embeddings", json={"input": given})

                first = asyncio.create_task(ask(0))
                while not script.entered.is_set():
                    await asyncio.sleep(0.01)
                others = [asyncio.create_task(ask(i)) for i in range(1, 500)]
                while sum(task.done() for task in others) < 400:  # the refused do not wait
                    await asyncio.sleep(0.01)
                framed = [await asyncio.to_thread(refusal, socket.embed, ["x"]) for _ in range(3)]
                assert script.gate is not None
                script.gate.set()
                return [await task for task in (first, *others)], framed

        answers, framed = asyncio.run(run())
        by_form: dict[int, list[int]] = {0: [], 1: []}
        for i, answer in enumerate(answers):
            by_form[i % 2].append(answer.status_code)
            if answer.status_code == 200:
                vector = np.array(answer.json()["data"][0]["embedding"], dtype=np.float32)
                assert np.array_equal(vector, alone([f"text {i}"])[0])
            else:
                assert answer.status_code == 429
                assert int(answer.headers["retry-after"]) >= 1
        assert sum(codes.count(200) for codes in by_form.values()) == 100
        assert all(429 in codes for codes in by_form.values())
        assert {one.kind for one in framed} == {"overloaded"}
        assert np.array_equal(socket.embed(["after"]), alone(["after"]))


def test_o24_a_huge_text_on_the_socket_does_not_stop_the_others(
    place: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenize, begun, may_end = Embedder.tokenize, threading.Event(), threading.Event()

    def held(self: Embedder, texts: Sequence[str], **options: Any) -> Any:
        if len(texts[0]) > 1_000_000:
            begun.set()
            assert may_end.wait(20)
        return tokenize(self, texts, **options)

    monkeypatch.setattr(Embedder, "tokenize", held)
    socket = Socket(*place)
    with FrameClient(socket.path) as client:
        client.send(json.dumps({"op": "embed", "texts": ["word " * 250_000], "tier": EMBEDDER}).encode())
        try:
            assert begun.wait(20)
            for i in range(10):  # answered while the text is still being tokenised
                assert np.array_equal(socket.embed([f"short {i}"]), alone([f"short {i}"]))
                assert _CLIENT.get(f"{socket.url}/health").status_code == 200
        finally:
            may_end.set()
        assert client.receive()["ok"] is True


def test_o25_the_query_prompt_is_put_once_and_only_where_asked(way: Http) -> None:
    queries = ["What is the capital of China?", "Explain gravity"]
    documents = ["The capital of China is Beijing.", ""]
    assert QUERY_PROMPT.endswith("\nQuery:")
    by_hand = [QUERY_PROMPT + query for query in queries]
    assert np.array_equal(way.embed(queries, prompt_name="query"), alone(by_hand))
    assert np.array_equal(way.embed(by_hand), alone(by_hand))  # no second prompt
    assert not np.array_equal(way.embed(queries, prompt_name="query"), alone([f"{QUERY_PROMPT} {q}" for q in queries]))
    custom = "Instruct: Find the river\nQuery:where?"
    assert np.array_equal(way.embed([custom]), alone([custom]))
    for options in ({}, {"prompt_name": "document"}, {"prompt_name": None}):
        assert np.array_equal(way.embed(documents, **options), alone(documents))
    for wrong in ("passage", "", "Query", 7):
        assert refusal(way.embed, queries, prompt_name=wrong).message.startswith("prompt_name: ")


def test_o25_usage_counts_the_prompt_on_every_route(place: tuple[str, Path]) -> None:
    http = Http(*place)
    n_tokens = len(QUERY_PROMPT) + len("what?") + 1
    for option in ("prompt_name", "input_type"):
        body = {"model": EMBEDDER, "input": "what?", option: "query"}
        assert http.ask("/v1/embeddings", body)["usage"]["prompt_tokens"] == n_tokens
    answer = _CLIENT.post(f"{http.url}/embed", json={"inputs": "what?", "prompt_name": "query"})
    assert answer.headers["x-compute-tokens"] == str(n_tokens)
    assert np.array_equal(np.array(answer.json(), dtype=np.float32), alone([QUERY_PROMPT + "what?"]))
