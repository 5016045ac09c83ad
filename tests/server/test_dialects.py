"""Each dialect's own shapes: answers, usage, errors, truncation, and one rule for all of them."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from stand_ins import (
    EMBEDDER,
    NAN,
    RERANKER,
    InProcess,
    Script,
    alone,
    embedder,
    in_process,
    reranker,
    scores_alone,
    text_ids,
    tokenizer,
)

from samevec.lock import load_lock
from samevec.server.settings import ServedModel, ServerSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

QUERY = "which"
DOCUMENTS = ["one", "three", "two", "three"]
LONG = "x" * 3000
#: Every computing route with the least it takes, and the key that holds its items.
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"input": ["a", "b"]},
    "/v1/rerank": {"query": "q", "documents": ["a", "b"]},
    "/v2/rerank": {"query": "q", "documents": ["a", "b"]},
    "/rerank jina": {"query": "q", "documents": ["a", "b"]},
    "/rerank tei": {"query": "q", "texts": ["a", "b"]},
    "/embed": {"inputs": ["a", "b"]},
    "/tokenize": {"inputs": ["a", "b"]},
}
EMBEDDING = ("/v1/embeddings", "/embed")
RANKING = ("/v1/rerank", "/v2/rerank", "/rerank jina", "/rerank tei")
STRICT = ("/v2/rerank", "/rerank tei", "/embed")


def ask(server: InProcess, route: str, change: dict[str, Any] | None = None, **options: Any) -> httpx.Response:
    return server.post(route.partition(" ")[0], {**ROUTES[route], **(change or {})}, **options)


def items_key(route: str) -> str:
    return list(ROUTES[route])[-1]


def error_of(response: httpx.Response, route: str, status: int) -> str:
    """Return the message of an error after checking that it has the dialect's shape and nothing more."""
    assert response.status_code == status, response.text
    body = response.json()
    if route == "/v1/embeddings":
        assert set(body) == {"error"}
        assert set(body["error"]) == {"message", "type", "param", "code"}
        return str(body["error"]["message"])
    if route in ("/v1/rerank", "/v2/rerank"):
        assert set(body) == {"message"}
        return str(body["message"])
    if route == "/rerank jina":
        assert set(body) == {"detail"}
        return str(body["detail"])
    assert set(body) == {"error", "error_type"}
    kind = {429: "Overloaded", 503: "Unhealthy"}.get(status, "Backend" if status >= 500 else "Validation")
    assert body["error_type"] in ((kind, "Empty") if status == 400 else (kind,))
    return str(body["error"])


def ranks(response: httpx.Response) -> list[tuple[int, np.float32]]:
    assert response.status_code == 200, response.text
    body = response.json()
    items = body if isinstance(body, list) else body["results"]
    return [(item["index"], np.float32(item.get("score", item.get("relevance_score")))) for item in items]


@pytest.fixture(scope="module")
def server() -> Iterator[InProcess]:
    with in_process() as made:
        yield made


def expected_ranks(*, raw: bool = False) -> list[tuple[int, np.float32]]:
    scores = scores_alone(QUERY, DOCUMENTS, raw=raw)
    return [(int(i), scores[i]) for i in np.argsort(-scores, kind="stable")]


@pytest.mark.parametrize("route", RANKING)
def test_rankings_agree_and_ties_stay_in_request_order(server: InProcess, route: str) -> None:
    found = ranks(ask(server, route, {"query": QUERY, items_key(route): DOCUMENTS}))
    assert found == expected_ranks()
    tied = [index for index, _ in found if DOCUMENTS[index] == "three"]
    assert tied == [1, 3]


@pytest.mark.parametrize("route", [route for route in RANKING if route != "/v2/rerank"])
def test_raw_scores(server: InProcess, route: str) -> None:
    body = {"query": QUERY, items_key(route): DOCUMENTS, "raw_scores": True}
    assert ranks(ask(server, route, body)) == expected_ranks(raw=True)


@pytest.mark.parametrize("route", ["/v1/rerank", "/v2/rerank", "/rerank jina"])
def test_top_n_and_documents(server: InProcess, route: str) -> None:
    for top_n in (1, 3, 4, 1_000_000):
        assert (
            ranks(ask(server, route, {"query": QUERY, "documents": DOCUMENTS, "top_n": top_n}))
            == (expected_ranks()[:top_n])
        )
    shown = ask(server, route, {"query": QUERY, "documents": DOCUMENTS, "return_documents": True}).json()["results"]
    assert [item["document"] for item in shown] == [{"text": DOCUMENTS[item["index"]]} for item in shown]
    hidden = ask(server, route, {"query": QUERY, "documents": DOCUMENTS, "return_documents": False}).json()["results"]
    assert all(set(item) == {"index", "relevance_score"} for item in hidden)
    default = ask(server, route, {"query": QUERY, "documents": DOCUMENTS}).json()["results"]
    assert default == (shown if route == "/rerank jina" else hidden)  # Jina gives them unless told not to


def pair_tokens(documents: list[str]) -> int:
    return sum(row.n_tokens for row in tokenizer(RERANKER).encode_pairs([(QUERY, text) for text in documents]))


def test_cohere_v2_body(server: InProcess) -> None:
    body = ask(server, "/v2/rerank", {"query": QUERY, "documents": DOCUMENTS, "priority": 7}).json()
    assert set(body) == {"id", "results", "meta"}
    assert body["meta"] == {"api_version": {"version": "2"}, "tokens": {"input_tokens": pair_tokens(DOCUMENTS)}}
    other = ask(server, "/v2/rerank", {"query": QUERY, "documents": DOCUMENTS, "priority": 0}).json()
    assert (other["id"] != body["id"], other["results"]) == (True, body["results"])
    for change, message in (
        ({"priority": 1000}, "priority: 1000 given, at most 999 is possible"),
        ({"priority": -1}, "priority: -1 given, at least 0 is needed"),
        ({"max_tokens_per_doc": 0}, "max_tokens_per_doc: 0 given, at least 1 is needed"),
    ):
        assert error_of(ask(server, "/v2/rerank", change), "/v2/rerank", 400) == message
    for extension in ("raw_scores", "truncate", "batch_size", "relevant_spans"):
        message = error_of(ask(server, "/v2/rerank", {extension: {}}), "/v2/rerank", 400)
        assert message.startswith(f"{extension}: unknown option; the options are: documents, max_tokens_per_doc, model")


@pytest.mark.parametrize("route", ["/v1/rerank", "/v2/rerank"])
def test_documents_are_cut_to_max_tokens_per_doc(server: InProcess, route: str) -> None:
    body = {"query": QUERY, "documents": ["abcdefgh", "abc", "abcd"], "max_tokens_per_doc": 4}
    answer = ask(server, route, body)
    scores = scores_alone(QUERY, ["abcd", "abc", "abcd"])
    assert ranks(answer) == [(int(i), scores[i]) for i in np.argsort(-scores, kind="stable")]
    assert answer.headers["x-samevec-truncated"] == "1"
    if route == "/v2/rerank":
        assert answer.json()["meta"]["warnings"] == ["documents[0]: 4 tokens were cut"]
    else:
        assert answer.json()["samevec"] == {"truncated": [{"index": 0, "cut_tokens": 4}]}
        refused = ask(server, route, {**body, "truncate": False})
        assert error_of(refused, route, 400).startswith("documents[0]: 8 tokens, the limit is 4")


def test_cohere_v2_names_some_of_many_cut_documents(server: InProcess) -> None:
    body = {"query": QUERY, "documents": ["abcd"] * 30, "max_tokens_per_doc": 2}
    warnings = ask(server, "/v2/rerank", body).json()["meta"]["warnings"]
    assert (len(warnings), warnings[-1]) == (21, "10 more documents were cut")


def test_jina_body(server: InProcess) -> None:
    body = ask(server, "/rerank jina", {"query": QUERY, "documents": DOCUMENTS}).json()
    n_tokens = pair_tokens(DOCUMENTS)
    assert set(body) == {"object", "model", "usage", "results"}
    assert (body["object"], body["model"]) == ("list", RERANKER)
    assert body["usage"] == {"total_tokens": n_tokens, "prompt_tokens": n_tokens}


def test_tei_rerank_body(server: InProcess) -> None:
    answer = ask(server, "/rerank tei", {"query": QUERY, "texts": DOCUMENTS})
    assert all(set(item) == {"index", "score"} for item in answer.json())
    assert answer.headers["x-compute-tokens"] == str(pair_tokens(DOCUMENTS))
    shown = ask(server, "/rerank tei", {"query": QUERY, "texts": DOCUMENTS, "return_text": True}).json()
    assert [item["text"] for item in shown] == [DOCUMENTS[item["index"]] for item in shown]


def test_rerank_speaks_tei_only_where_texts_are_given(server: InProcess) -> None:
    both = server.post("/rerank", {"query": "q", "documents": ["d"], "texts": ["d"]})
    assert error_of(both, "/rerank jina", 400).startswith("texts: given beside documents")
    neither = server.post("/rerank", {"query": "q"})
    assert error_of(neither, "/rerank jina", 400) == "documents: missing"
    assert error_of(server.post("/rerank", [1]), "/rerank jina", 400).startswith("body: a list given")
    assert error_of(server.post("/rerank", {"texts": 7}), "/rerank tei", 400) == "query: missing"


def tei_vectors(response: httpx.Response) -> np.ndarray[Any, np.dtype[np.float32]]:
    assert response.status_code == 200, response.text
    return np.array(response.json(), dtype=np.float32)


def test_embed_gives_bare_vectors(server: InProcess) -> None:
    texts = ["a", "b" * 40, ""]
    answer = ask(server, "/embed", {"inputs": texts})
    assert np.array_equal(tei_vectors(answer), alone(texts))
    assert answer.headers["x-compute-tokens"] == str(2 + 41 + 1)
    assert np.array_equal(tei_vectors(ask(server, "/embed", {"inputs": "a"})), alone(["a"]))
    ids = [list(text_ids("a")), list(text_ids("bb"))]
    assert np.array_equal(tei_vectors(ask(server, "/embed", {"inputs": ids})), alone(["a", "bb"]))
    short = tei_vectors(ask(server, "/embed", {"inputs": texts, "dimensions": 32}))
    assert np.array_equal(short, alone(texts, dimensions=32))


def test_embed_can_leave_vectors_as_they_are(server: InProcess) -> None:
    raw = tei_vectors(ask(server, "/embed", {"inputs": ["a", "bb"], "normalize": False}))
    model = embedder()
    expected = model.run_microbatch(model.tokenize(["a", "bb"]))
    assert np.array_equal(raw, expected)
    assert not np.allclose(np.linalg.norm(raw, axis=1), 1)


def test_embed_prompts(server: InProcess) -> None:
    prompt = load_lock("toy").model(EMBEDDER).prompts["query"]
    answer = ask(server, "/embed", {"inputs": "a", "prompt_name": "query"})
    assert np.array_equal(tei_vectors(answer), alone([prompt + "a"]))
    assert answer.headers["x-compute-tokens"] == str(len(prompt) + 2)
    refused = ask(server, "/embed", {"prompt_name": "passage"})
    assert error_of(refused, "/embed", 400) == "prompt_name: 'passage' given, it must be one of: query, document"


@pytest.mark.parametrize("route", ["/embed", "/rerank tei"])
@pytest.mark.parametrize("side", ["Right", "right", None])
def test_only_the_right_side_can_be_cut(server: InProcess, route: str, side: str | None) -> None:
    assert ask(server, route, {"truncation_direction": side}).status_code == 200
    for wrong in ("Left", "left", "middle"):
        message = error_of(ask(server, route, {"truncation_direction": wrong}), route, 400)
        assert message == f"truncation_direction: {wrong!r} given, it must be one of: Right, right"


def test_what_was_cut_is_reported(server: InProcess) -> None:
    for route in ROUTES:
        if route == "/tokenize":
            continue
        whole, cut = ask(server, route), ask(server, route, {items_key(route): ["a", LONG]})
        assert (whole.status_code, cut.status_code) == (200, 200)
        assert "x-samevec-truncated" not in whole.headers
        assert cut.headers["x-samevec-truncated"] == "1"
        n_cut = 3001 - 2048 if route in EMBEDDING else 3000 + 1 + 3 - 2048
        if route in STRICT:
            assert "samevec" not in cut.json()
        else:
            assert cut.json()["samevec"] == {"truncated": [{"index": 1, "cut_tokens": n_cut}]}
            assert "samevec" not in whole.json()
        if route != "/v2/rerank":
            refused = ask(server, route, {items_key(route): ["a", LONG], "truncate": False})
            assert error_of(refused, route, 400).startswith(f"{items_key(route)}[1]: 300")


def test_tokenize(server: InProcess) -> None:
    answer = ask(server, "/tokenize", {"inputs": ["hi", "é"]})
    assert answer.status_code == 200
    first, second = answer.json()
    ids = [list(text_ids("hi")), list(text_ids("é"))]
    assert [[token["id"] for token in row] for row in (first, second)] == ids
    assert [(token["text"], token["special"], token["start"], token["stop"]) for token in first[:2]] == [
        ("h", False, 0, 1),
        ("i", False, 1, 2),
    ]
    end = first[-1]
    assert (end["special"], end["start"], end["stop"]) == (True, None, None)
    assert end["text"] == tokenizer(EMBEDDER).raw.id_to_token(end["id"])
    # Two bytes, two tokens, one character: each stands for the whole of it.
    assert [(token["text"], token["start"], token["stop"]) for token in second[:-1]] == [("é", 0, 1)] * 2
    assert answer.headers["x-compute-tokens"] == str(sum(map(len, ids)))
    one = ask(server, "/tokenize", {"inputs": "hi"}).json()
    assert one == [first]
    plain = ask(server, "/tokenize", {"inputs": "hi", "add_special_tokens": False}).json()
    assert plain == [first[:-1]]


def test_tokenize_with_prompts_and_models(server: InProcess) -> None:
    prompt = load_lock("toy").model(EMBEDDER).prompts["query"]
    (row,) = ask(server, "/tokenize", {"inputs": "hi", "prompt_name": "query"}).json()
    assert [token["id"] for token in row] == list(text_ids(prompt + "hi"))
    assert row[-2]["stop"] == len(prompt) + 2
    (ranker,) = ask(server, "/tokenize", {"inputs": "hi", "model": RERANKER}).json()
    expected = tokenizer(RERANKER).encode_texts(["hi"])[0].ids
    assert [token["id"] for token in ranker] == list(expected)
    assert [token["special"] for token in ranker] == [True, False, False, True]
    refused = ask(server, "/tokenize", {"model": RERANKER, "prompt_name": "query"})
    assert error_of(refused, "/tokenize", 400) == f"prompt_name: 'query' is not a prompt of {RERANKER} (it has: none)"
    assert error_of(ask(server, "/tokenize", {"model": "other"}), "/tokenize", 404).startswith("model: 'other'")
    huge = ask(server, "/tokenize", {"inputs": ["x" * 600_000] * 2})
    assert error_of(huge, "/tokenize", 413).startswith("inputs: 1200000 characters, the limit is 1000000")


def test_info_for_tei_clients(server: InProcess) -> None:
    info = server.ask("GET", "/info").json()
    entry = load_lock("toy").model(EMBEDDER)
    assert (info["model_id"], info["model_sha"]) == (entry.source.removeprefix("hf:"), entry.revision)
    assert (info["model_dtype"], info["model_type"]) == ("float32", {"embedding": {"pooling": "last_token"}})
    assert (info["max_input_length"], info["max_client_batch_size"]) == (2048, 4096)
    assert info["max_batch_tokens"] == embedder().engine.token_budget
    assert info["models"][0]["name"] == EMBEDDER
    with in_process(ServedModel(model=reranker())) as alone_served:
        kind = alone_served.ask("GET", "/info").json()["model_type"]
        assert kind == {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}}


@pytest.mark.parametrize("route", ROUTES)
def test_refusals_in_every_dialect(server: InProcess, route: str) -> None:
    items = items_key(route)
    assert error_of(ask(server, route, {"nope": 1}), route, 400).startswith("nope: unknown option; the options are: ")
    assert error_of(ask(server, route, {items: []}), route, 400) == f"{items}: empty list, at least one item is needed"
    assert error_of(ask(server, route, {items: ["a", 1]}), route, 400).startswith(f"{items}[1]: a whole number given")
    assert error_of(ask(server, route, {"model": "other"}), route, 404).startswith("model: 'other' is not served")
    assert error_of(ask(server, route, {items: None}), route, 400).startswith(f"{items}: null given, a ")
    late = {"X-Request-Timeout-S": "0"}
    assert "deadline" in error_of(ask(server, route, headers=late), route, 504)
    # What cannot be read yet is answered in the path's own dialect.
    path = route.partition(" ")[0]
    by_path = "/rerank jina" if path == "/rerank" else route
    assert error_of(server.ask("POST", path, content=b"{"), by_path, 400).startswith("body: not JSON")
    assert error_of(server.ask("GET", path), by_path, 405) == f"GET {path}: Method Not Allowed"


def test_empty_is_empty_to_tei(server: InProcess) -> None:
    for route in ("/embed", "/rerank tei", "/tokenize"):
        assert ask(server, route, {items_key(route): []}).json()["error_type"] == "Empty"


def test_a_bad_output_in_every_dialect() -> None:
    with in_process() as server:
        for route in EMBEDDING:
            assert "item 1" in error_of(ask(server, route, {items_key(route): ["a", NAN]}), route, 500)


def test_options_are_those_of_the_schema(server: InProcess) -> None:
    document = server.ask("GET", "/openapi.json").json()
    paths = document["paths"]
    for route in ROUTES:
        path, _, kind = route.partition(" ")
        schema = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        if kind:
            schema = next(part for part in schema["oneOf"] if kind in part["$ref"].lower())
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        assert schema["additionalProperties"] is False
        known = error_of(ask(server, route, {"nope": 1}), route, 400).rpartition("the options are: ")[2]
        assert known == ", ".join(sorted(schema["properties"])), route


def test_the_pages_curls_are_answered(server: InProcess) -> None:
    page = (Path(__file__).parents[2] / "docs" / "http.md").read_text(encoding="utf-8")
    curls = re.findall(r"^curl -s localhost:8765(\S+) .*?-d '(.*?)'$", page, flags=re.MULTILINE | re.DOTALL)
    assert {path for path, _ in curls} == {route.partition(" ")[0] for route in ROUTES}
    assert len(curls) == len(ROUTES)
    for path, body in curls:
        response = server.post(path, json.loads(body))
        assert response.status_code == 200, response.text


def test_full_queue_is_429_in_every_dialect() -> None:
    script = Script(gate=threading.Event())
    models = (ServedModel(model=embedder(script)), ServedModel(model=reranker()))
    with in_process(*models, settings=ServerSettings(max_queue_items=1)) as server:

        async def run() -> dict[str, httpx.Response]:
            async with server.client() as client:
                first = asyncio.create_task(client.post("/v1/embeddings", json={"input": "first"}))
                while server.service.info()["queue"]["items"] < 1:
                    await asyncio.sleep(0.01)
                found = {}
                for route, body in ROUTES.items():
                    found[route] = await client.post(route.partition(" ")[0], json=body)
                assert script.gate is not None
                script.gate.set()
                assert (await first).status_code == 200
                return found

        for route, response in asyncio.run(run()).items():
            error_of(response, route, 429)
            assert int(response.headers["retry-after"]) >= 1


def test_draining_is_503_and_keys_are_asked_for_in_every_dialect() -> None:
    with in_process(api_keys=("secret",)) as server:
        for route in ROUTES:
            by_path = "/rerank jina" if route == "/rerank tei" else route  # refused before the body is read
            assert error_of(ask(server, route), by_path, 401).startswith("a valid API key is needed")
            assert ask(server, route, headers={"authorization": "Bearer secret"}).status_code == 200
        document = server.ask("GET", "/openapi.json").json()
        assert document["components"]["securitySchemes"] == {"key": {"type": "http", "scheme": "bearer"}}
        assert document["paths"]["/embed"]["post"]["security"] == [{"key": []}]
        assert "security" not in document["paths"]["/health"]["get"]
        server.service.begin_drain()
        for route in ROUTES:
            response = ask(server, route, headers={"authorization": "Bearer secret"})
            error_of(response, route, 503)
            assert response.headers["retry-after"] == "1"


@pytest.mark.parametrize("change", [{}, {"dimensions": 256, "prompt_name": "query"}], ids=["whole", "shortened"])
def test_the_digest_of_one_vector_is_told_alike_everywhere(server: InProcess, change: dict[str, Any]) -> None:
    body = {"input": "when does the ferry leave", **change}
    encoded = server.embed({**body, "encoding_format": "base64"})
    sent = base64.b64decode(encoded.json()["data"][0]["embedding"])
    digest = f"sha256:{hashlib.sha256(sent).hexdigest()}"
    assert encoded.headers["x-samevec-digest"] == digest
    assert server.embed({**body, "input": [body["input"]]}).headers["x-samevec-digest"] == digest
    prompt, dimensions = change.get("prompt_name"), change.get("dimensions")
    _, own = embedder().encode([body["input"]], prompt=prompt, dimensions=dimensions, return_digest=True)
    assert own == [digest]


def test_the_digest_of_tei_is_of_what_it_sends(server: InProcess) -> None:
    for normalize in (True, False):
        answer = server.post("/embed", {"inputs": "abc", "normalize": normalize})
        sent = np.array(answer.json()[0], dtype="<f4").tobytes()
        assert answer.headers["x-samevec-digest"] == f"sha256:{hashlib.sha256(sent).hexdigest()}"
    same = server.embed({"input": "abc"}).headers["x-samevec-digest"]
    assert server.post("/embed", {"inputs": ["abc"]}).headers["x-samevec-digest"] == same


@pytest.mark.parametrize("route", sorted(ROUTES))
def test_several_items_have_no_digest(server: InProcess, route: str) -> None:
    answer = ask(server, route)
    assert answer.status_code == 200
    assert "x-samevec-digest" not in answer.headers
