"""Requests are read strictly, and refusals say what to send instead."""

from __future__ import annotations

from typing import Any

import pytest

from samevec.errors import InputError
from samevec.server.http.dialects.cohere_jina import CohereV1Body, CohereV2Body, JinaBody
from samevec.server.http.dialects.models import parse_body
from samevec.server.http.dialects.openai import EmbeddingsBody
from samevec.server.requests import EmbedRequest, RerankRequest
from samevec.server.socket.frames import EmbedFrame, PingFrame, RerankFrame, parse_frame

EMBED = {"model": "m", "input": "x"}
RERANK = {"query": "q", "documents": ["d"]}


def read(model: Any, body: object) -> Any:
    return parse_body(model, body, max_items=3).request()


def problem(model: Any, body: object) -> str:
    with pytest.raises(InputError) as caught:
        read(model, body)
    return str(caught.value)


def test_embeddings_defaults() -> None:
    request = read(EmbeddingsBody, EMBED)
    assert (request.texts, request.token_ids, request.dimensions, request.prompt_name) == (("x",), (), None, None)
    assert (request.encoding_format, request.truncate, request.batch_size) == ("float", True, None)


def test_null_options_count_as_left_out() -> None:
    nulls = dict.fromkeys(
        ("dimensions", "encoding_format", "user", "prompt_name", "input_type", "truncate", "batch_size", "model")
    )
    assert (
        read(EmbeddingsBody, {**nulls, "input": "x"})
        == read(EmbeddingsBody, {"input": "x"})
        == EmbedRequest(texts=("x",))
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "body: a list given, a JSON object is needed"),
        (None, "body: null given, a JSON object is needed"),
        ({}, "input: missing"),
        ({"input": None}, "input: null given, a string, a list of strings or token ids are needed"),
        ({"input": {}}, "input: an object given, a string, a list of strings or token ids are needed"),
        ({"input": True}, "input: a boolean given, a string, a list of strings or token ids are needed"),
        ({"input": []}, "input: empty list, at least one item is needed"),
        ({"input": ["a"] * 4}, "input: 4 items, the limit of one request is 3; send several"),
        ({"input": [[1]] * 4}, "input: 4 items, the limit of one request is 3; send several"),
        ({"input": ["a", 1]}, "input[1]: a whole number given, a string is needed"),
        ({"input": ["a", None]}, "input[1]: null given, a string is needed"),
        ({"input": [1.5]}, "input[0]: a fraction given, a whole number is needed"),
        ({"input": [True]}, "input[0]: a boolean given, a whole number is needed"),
        ({"input": [1, "a"]}, "input[1]: a string given, a whole number is needed"),
        ({"input": [[1], []]}, "input[1]: empty list, at least one item is needed"),
        ({"input": [[1], "a"]}, "input[1]: a string given, a list is needed"),
        ({"input": [[1], [2, None]]}, "input[1][1]: null given, a whole number is needed"),
        ({**EMBED, "dimensions": 0}, "dimensions: 0 given, at least 1 is needed"),
        ({**EMBED, "dimensions": "256"}, "dimensions: a string given, a whole number is needed"),
        ({**EMBED, "dimensions": 2.5}, "dimensions: a fraction given, a whole number is needed"),
        ({**EMBED, "dimensions": True}, "dimensions: a boolean given, a whole number is needed"),
        ({**EMBED, "batch_size": 2**31}, "batch_size: 2147483648 given, at most 2147483647 is possible"),
        ({**EMBED, "batch_size": 2.0**64}, "batch_size: a fraction given, a whole number is needed"),
        ({**EMBED, "batch_size": 0}, "batch_size: 0 given, at least 1 is needed"),
        ({**EMBED, "model": 7}, "model: a whole number given, a string is needed"),
        ({**EMBED, "user": {}}, "user: an object given, a string is needed"),
        ({**EMBED, "truncate": 1}, "truncate: a whole number given, true or false is needed"),
        ({**EMBED, "encoding_format": "hex"}, "encoding_format: 'hex' given, it must be one of: float, base64"),
        ({**EMBED, "input_type": "passage"}, "input_type: 'passage' given, it must be one of: query, document"),
        (
            {**EMBED, "input_type": "query", "prompt_name": "document"},
            "input_type: 'query' contradicts prompt_name 'document'; send one of them",
        ),
        (
            {**EMBED, "normalize": True},
            (
                "normalize: unknown option; the options are: batch_size, dimensions, encoding_format, input,"
                " input_type, model, prompt_name, truncate, user"
            ),
        ),
    ],
)
def test_embeddings_refusals(body: object, message: str) -> None:
    assert problem(EmbeddingsBody, body) == message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"documents": []}, "documents: empty list, at least one item is needed"),
        ({"documents": "d"}, "documents: a string given, a list is needed"),
        ({"documents": ["d"] * 4}, "documents: 4 items, the limit of one request is 3; send several"),
        ({"documents": ["d", 1]}, "documents[1]: a whole number given, a string is needed"),
        ({"documents": ["d", {}]}, "documents[1].text: missing"),
        ({"documents": [{"text": "d", "title": "t"}]}, "documents[0].title: unknown option; the options are: text"),
        ({"query": 1}, "query: a whole number given, a string is needed"),
        ({"top_n": 0}, "top_n: 0 given, at least 1 is needed"),
        ({"top_n": "1"}, "top_n: a string given, a whole number is needed"),
        ({"return_documents": "yes"}, "return_documents: a string given, true or false is needed"),
    ],
)
def test_rerank_refusals(change: dict[str, Any], message: str) -> None:
    assert problem(CohereV1Body, {**RERANK, **change}) == message
    assert problem(CohereV2Body, {**RERANK, **change}) == message
    assert problem(JinaBody, {**RERANK, **change}) == message


WRONG: dict[str, Any] = {
    "surprise": 7,
    "model": 7,
    "top_n": 0,
    "return_documents": 1,
    "query": 7,
    "documents": 7,
    "batch_size": 0,
    "raw_scores": 1,
    "truncate": 1,
    "max_tokens_per_doc": 0,
    "priority": 1000,
}
#: An unknown key first, then in the order of the fields.
ORDERS = {
    CohereV1Body: [name for name in WRONG if name != "priority"],
    CohereV2Body: [name for name in WRONG if name not in ("batch_size", "raw_scores", "truncate")],
    JinaBody: [name for name in WRONG if name not in ("max_tokens_per_doc", "priority")],
}


@pytest.mark.parametrize("model", ORDERS)
def test_of_several_mistakes_the_first_is_told(model: Any) -> None:
    body, told = {name: WRONG[name] for name in reversed(ORDERS[model])}, []
    while any(body.get(name) == WRONG[name] for name in WRONG):
        told.append(problem(model, body).partition(":")[0])
        del body[told[-1]]
        body |= {name: value for name, value in RERANK.items() if name == told[-1]}
    assert told == ORDERS[model]
    assert read(model, body).documents == ["d"]


@pytest.mark.parametrize("model", ORDERS)
def test_options_of_the_other_dialects_are_unknown(model: Any) -> None:
    for name in set(WRONG) - set(ORDERS[model]):
        assert problem(model, {**RERANK, name: 1}).startswith(f"{name}: unknown option; the options are: ")


def test_rerank_defaults() -> None:
    for model, returned in (
        (CohereV1Body, False),
        (CohereV2Body, False),
        (JinaBody, True),
    ):
        request = read(model, RERANK)
        assert request == RerankRequest(pairs=(("q", "d"),), return_documents=returned)


def test_frames() -> None:
    assert parse_frame({"op": "ping"}, max_items=3) == PingFrame(op="ping")
    embed = parse_frame({"op": "embed", "texts": ["x"], "tier": "pro", "deadline": 5, "protocol": 1}, max_items=3)
    assert isinstance(embed, EmbedFrame)
    assert (embed.texts, embed.tier, embed.deadline) == (["x"], "pro", 5.0)
    rerank = parse_frame({"op": "rerank", "pairs": [["q", "d"]], "model_name": None}, max_items=3)
    assert isinstance(rerank, RerankFrame)
    assert rerank.pairs == [("q", "d")]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (7, "body: a whole number given, a JSON object is needed"),
        ({}, "op: missing"),
        ({"op": "train"}, "op: 'train' given, it must be one of: ping, embed, rerank"),
        ({"op": "ping", "protocol": 2}, "protocol: 2 given, it must be one of: 1"),
        ({"op": "ping", "texts": []}, "texts: unknown option; the options are: deadline, op, protocol"),
        ({"op": "embed", "texts": []}, "texts: empty list, at least one item is needed"),
        (
            {"op": "embed", "texts": ["a"], "deadline": "soon"},
            "deadline: a string given, a number is needed",
        ),
        (
            {"op": "embed", "texts": ["a"], "normalize": True},
            (
                "normalize: unknown option; the options are: batch_size, deadline, dimensions, op, prompt_name,"
                " protocol, texts, tier"
            ),
        ),
        ({"op": "rerank", "pairs": []}, "pairs: empty list, at least one item is needed"),
        ({"op": "rerank", "pairs": [["q"]]}, "pairs[0][1]: missing"),
        ({"op": "rerank", "pairs": [["q", "d", "d"]]}, "pairs[0]: 3 items given, 2 are needed"),
        ({"op": "rerank", "pairs": ["qd"]}, "pairs[0]: a string given, a list of two strings is needed"),
        (
            {"op": "rerank", "pairs": [["q", "d"], ["q", 1]]},
            "pairs[1][1]: a whole number given, a string is needed",
        ),
        ({"op": "rerank", "pairs": [["q", "d"]] * 4}, "pairs: 4 items, the limit of one request is 3; send several"),
    ],
)
def test_frame_refusals(body: object, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_frame(body, max_items=3)
    assert str(caught.value) == message
