"""Real clients, unmodified, against a running server."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import openai
import pytest
from live_server import live
from stand_ins import EMBEDDER, RERANKER, alone, embedder, reranker, scores_alone, tokenizer

from samevec.lock import load_lock
from samevec.server.lifecycle import running_server
from samevec.server.settings import ServedModel, ServerSettings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

pytestmark = pytest.mark.server

TEXTS = ["The capital of China is Beijing.", "", "short", "x" * 300]

# truememory's own __init__ imports its whole engine; its client needs nothing of it. An empty package with the right
# path lets the client's module be imported as it is.
TRUEMEMORY_CLIENT = """
import importlib.util, json, subprocess, sys, types
subprocess.Popen = None  # it starts its own server when it finds none: never in a test
package = types.ModuleType("truememory")
package.__path__ = list(importlib.util.find_spec("truememory").submodule_search_locations)
sys.modules["truememory"] = package
from truememory import model_client
texts, pairs = json.load(sys.stdin)
result = {
    "in_use": model_client.use_model_server(),
    "ensured": model_client.ensure_server_running(),
    "ping": model_client.ping(),
}
for tier in ("", "base", "pro"):
    result[f"vectors {tier}"] = model_client.EmbeddingProxy(tier=tier).encode(texts, timeout=30).tolist()
for name in (None, "Alibaba-NLP/gte-reranker-modernbert-base"):
    scores = model_client.RerankerProxy(model_name=name).predict(pairs, batch_size=8, show_progress_bar=False)
    result[f"scores {name}"] = scores.tolist()
try:
    model_client.EmbeddingProxy(tier="edge").encode(texts)
except RuntimeError as error:
    result["edge"] = str(error)
try:
    model_client.EmbeddingProxy(tier="base").encode([])
except RuntimeError as error:
    result["empty"] = str(error)
json.dump(result, sys.stdout)
"""


COHERE_CLIENT = """
import json, sys
import cohere
url, query, documents = json.load(sys.stdin)
result = {}
with cohere.ClientV2(api_key="unused", base_url=url) as client:
    answer = client.rerank(model="toy-modernbert-reranker", query=query, documents=documents, top_n=3, priority=1)
    result["v2"] = [[item.index, item.relevance_score] for item in answer.results]
    result["tokens"], result["has id"] = answer.meta.tokens.input_tokens, bool(answer.id)
    cut = client.rerank(model="toy-modernbert-reranker", query=query, documents=["abcdef"], max_tokens_per_doc=2)
    result["warnings"] = cut.meta.warnings
    for name, options in {
        "missing": {"model": "other", "documents": documents},
        "wrong": {"model": "toy-modernbert-reranker", "documents": []},
    }.items():
        try:
            client.rerank(query=query, **options)
        except cohere.core.ApiError as error:
            result[name] = [type(error).__name__, error.status_code, error.body["message"]]
with cohere.Client(api_key="unused", base_url=url) as client:
    mixed = [documents[0], *({"text": text} for text in documents[1:])]
    answer = client.rerank(model="toy-modernbert-reranker", query=query, documents=mixed, return_documents=True)
    result["v1"] = [[item.index, item.relevance_score, item.document.text] for item in answer.results]
json.dump(result, sys.stdout)
"""

# The URL goes into huggingface_hub's client, which LangChain's class holds: its own `model` takes names on the hub.
LANGCHAIN_CLIENTS = """
import asyncio, json, sys
from huggingface_hub import InferenceClient
from langchain_huggingface import HuggingFaceEndpointEmbeddings
from langchain_openai import OpenAIEmbeddings
url, texts = json.load(sys.stdin)
openai = OpenAIEmbeddings(
    model="toy-qwen3-embedder", base_url=url + "/v1", api_key="unused", check_embedding_ctx_length=False,
    dimensions=64, max_retries=0, chunk_size=3,
)
hub = HuggingFaceEndpointEmbeddings(
    model="any/name", model_kwargs={"normalize": True, "truncate": True, "truncation_direction": "right"}
)
hub.client = InferenceClient(model=url + "/embed")
queries = HuggingFaceEndpointEmbeddings(model="any/name", model_kwargs={"prompt_name": "query"})
queries.client = hub.client
result = {
    "openai documents": openai.embed_documents(texts),
    "openai later": asyncio.run(openai.aembed_documents(texts)),
    "openai query": openai.embed_query(texts[0]),
    "hub documents": hub.embed_documents(texts),
    "hub query": queries.embed_query(texts[0]),
}
try:
    hub.client.feature_extraction("x", prompt_name="other")
except Exception as error:
    result["wrong"] = [type(error).__name__, str(error)]
json.dump(result, sys.stdout)
"""

LLAMA_INDEX_CLIENT = """
import asyncio, json, sys
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference
url, texts = json.load(sys.stdin)
model = TextEmbeddingsInference(model_name="any", base_url=url, text_instruction=" ", query_instruction=" ")
json.dump({
    "documents": model.get_text_embedding_batch(texts),
    "query": model.get_query_embedding(texts[0]),
    "later": asyncio.run(model.aget_text_embedding(texts[2])),
}, sys.stdout)
"""


def run_client(code: str, given: Any, *, python: str = sys.executable) -> Any:
    """Run a client in a process of its own, give it JSON, and return its JSON."""
    done = subprocess.run(
        [python, "-c", code], input=json.dumps(given), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def float32(values: Any) -> NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    models = [ServedModel(model=embedder()), ServedModel(model=reranker())]
    with running_server(models, ServerSettings(port=0)) as endpoints:
        yield endpoints.url


@pytest.mark.parametrize("options", [{}, {"encoding_format": "float"}, {"encoding_format": "base64"}])
@pytest.mark.parametrize("dimensions", [None, 256, 32])
def test_openai_client(url: str, options: dict[str, Any], dimensions: int | None) -> None:
    if dimensions is not None:
        options = {**options, "dimensions": dimensions}
    with openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
        answer = client.embeddings.create(model=EMBEDDER, input=TEXTS, **options)
    vectors: list[Any] = [item.embedding for item in answer.data]
    if options.get("encoding_format") == "base64":  # asked for by the caller, the client leaves it as it is
        vectors = [np.frombuffer(base64.b64decode(item), dtype="<f4") for item in vectors]
    got = np.array(vectors, dtype=np.float32)
    assert np.array_equal(got, alone(TEXTS, dimensions=dimensions))
    assert np.abs(np.linalg.norm(got, axis=1) - 1).max() < 1e-5
    assert answer.usage.prompt_tokens == sum(len(text) + 1 for text in TEXTS)


def test_openai_client_understands_errors(url: str) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
        with pytest.raises(openai.NotFoundError) as missing:
            client.embeddings.create(model="other", input="x")
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as wrong:
            client.embeddings.create(model=EMBEDDER, input="x", dimensions=0)
        assert wrong.value.param == "dimensions"
        assert next(model.id for model in client.models.list()) == EMBEDDER


def test_cohere_clients(url: str) -> None:
    result = run_client(COHERE_CLIENT, [url, "which?", TEXTS])
    scores = scores_alone("which?", TEXTS)
    order = [int(i) for i in np.argsort(-scores, kind="stable")]
    assert [(index, np.float32(score)) for index, score in result["v2"]] == [(i, scores[i]) for i in order[:3]]
    rows = tokenizer(RERANKER).encode_pairs([("which?", text) for text in TEXTS])
    assert (result["tokens"], result["has id"]) == (sum(row.n_tokens for row in rows), True)
    assert result["warnings"] == ["documents[0]: 4 tokens were cut"]
    missing, wrong = result["missing"], result["wrong"]
    assert missing == ["NotFoundError", 404, f"model: 'other' is not served (for this task: {RERANKER})"]
    assert wrong == ["BadRequestError", 400, "documents: empty list, at least one item is needed"]
    assert [(i, np.float32(score), text) for i, score, text in result["v1"]] == [
        (i, scores[i], TEXTS[i]) for i in order
    ]


def test_langchain_clients(url: str) -> None:
    result = run_client(LANGCHAIN_CLIENTS, [url, TEXTS])
    short = alone(TEXTS, dimensions=64)
    for name in ("openai documents", "openai later"):
        assert np.array_equal(float32(result[name]), short)
    assert np.array_equal(float32(result["openai query"]), short[0])
    assert np.array_equal(float32(result["hub documents"]), alone(TEXTS))
    prompt = load_lock("toy").model(EMBEDDER).prompts["query"]
    assert np.array_equal(float32(result["hub query"]), alone([prompt + TEXTS[0]])[0])
    kind, message = result["wrong"]
    assert kind == "BadRequestError"
    assert "prompt_name: 'other' given, it must be one of: query, document" in message


# LlamaIndex brings 190 MB: it lives in an environment of its own, see CONTRIBUTING.md.
@pytest.mark.skipif("LLAMA_INDEX_PYTHON" not in os.environ, reason="LLAMA_INDEX_PYTHON names no interpreter")
def test_llama_index_client(url: str) -> None:
    result = run_client(LLAMA_INDEX_CLIENT, [url, TEXTS], python=os.environ["LLAMA_INDEX_PYTHON"])
    # It puts its instruction and a space before each text, and strips the whole.
    asked = [f"  {text}".strip() for text in TEXTS]
    assert np.array_equal(float32(result["documents"]), alone(asked))
    assert np.array_equal(float32(result["query"]), alone(asked[:1])[0])
    assert np.array_equal(float32(result["later"]), alone(asked[2:3])[0])


@pytest.mark.skipif(importlib.util.find_spec("truememory") is None, reason="truememory is not installed")
def test_truememory_client(tmp_path: Path) -> None:
    pairs = [["which?", text] for text in TEXTS]
    environment = {**os.environ, "HOME": str(tmp_path), "TRUEMEMORY_NO_MODEL_SERVER": ""}
    with live({"port": 0, "truememory": True}, home=tmp_path) as server:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", TRUEMEMORY_CLIENT],
            input=json.dumps([TEXTS, pairs]),
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert server.stop() == 0
    result = json.loads(done.stdout)
    assert (result["in_use"], result["ensured"], result["ping"]) == (True, True, True)
    # truncate_dim: normalised first, then cut, and not normalised again.
    for tier in ("", "base", "pro"):
        assert np.array_equal(np.array(result[f"vectors {tier}"], dtype=np.float32), alone(TEXTS)[:, :256])
    for name in (None, "Alibaba-NLP/gte-reranker-modernbert-base"):
        assert np.array_equal(np.array(result[f"scores {name}"], dtype=np.float32), scores_alone("which?", TEXTS))
    assert result["edge"].startswith("Model server error: tier: tier 'edge' is not served here")
    assert result["empty"] == "Model server error: texts: empty list, at least one item is needed"
