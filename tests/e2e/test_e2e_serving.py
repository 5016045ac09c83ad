"""Serving processes on the exported toy pair, asked by the clients people use."""

from __future__ import annotations

import base64
import importlib.util
import json
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import openai
import pytest
from e2e_tools import EMBEDDER, LOCK, RERANKER, Live, environment, serving

from samevec.parity.compare import compare

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from e2e_tools import ToyHome
    from numpy.typing import NDArray

pytestmark = [pytest.mark.model, pytest.mark.server]

TEXTS = ["The ferry leaves at seven.", "", "short", "Ω ≈ 3,14 \U0001f44d", "a b c d e f g h " * 40, "short"]
QUERY = "when does the ferry leave"
DOCUMENTS = ["at seven", "", "Glaciers retreat when more ice melts than falls as snow.", "x y z " * 120]
HEAVY = ("torch", "transformers", "optimum", "sentence_transformers", "onnx", "huggingface_hub", "scipy", "sklearn")


def same(reference: Any, candidate: Any) -> None:
    expected, found = (np.asarray(values, dtype=np.float32) for values in (reference, candidate))
    outcome = compare(expected.reshape(len(expected), -1), found.reshape(len(found), -1), LOCK.tolerance)
    assert outcome.passed, outcome.words


@pytest.fixture(scope="module")
def onnx(exported: ToyHome, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """``samevec serve --truememory`` with HOME in a folder of its own."""
    folder = tmp_path_factory.mktemp("onnx")
    with serving("--lock", "toy", "--home", exported.path, "--truememory", folder=folder, timeout_s=600) as server:
        yield server


@pytest.fixture(scope="module")
def torch(exported: ToyHome, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """The PyTorch reference behind the same front."""
    folder = tmp_path_factory.mktemp("torch")
    where = ("--lock", "toy", "--home", exported.path, "--backend", "torch")
    with serving(*where, folder=folder, timeout_s=600) as server:
        yield server


def embed(server: Live, **body: Any) -> NDArray[np.float32]:
    answer = httpx.post(f"{server.url}/v1/embeddings", json={"model": EMBEDDER, **body}, timeout=60)
    assert answer.status_code == 200, answer.text
    return np.array([item["embedding"] for item in answer.json()["data"]], dtype=np.float32)


def rerank(server: Live, **body: Any) -> list[tuple[int, float]]:
    answer = httpx.post(f"{server.url}/v1/rerank", json={"model": RERANKER, **body}, timeout=60)
    assert answer.status_code == 200, answer.text
    return [(item["index"], item["relevance_score"]) for item in answer.json()["results"]]


def test_a_serving_process_has_no_torch(exported: ToyHome, tmp_path: Path) -> None:
    modules_file = tmp_path / "modules.json"
    where = ("--lock", "toy", "--home", exported.path)
    with serving(*where, folder=tmp_path, modules_file=modules_file) as server:
        assert httpx.get(f"{server.url}/health").status_code == 200
        assert httpx.get(f"{server.url}/ready").status_code == 200
        embed(server, input=TEXTS, input_type="query", dimensions=64)
        rerank(server, query=QUERY, documents=DOCUMENTS)
        mapped = server.mapped_files()
        assert server.stop() == 0
    assert "onnxruntime" in mapped
    for name in ("torch", *HEAVY[1:]):
        assert f"/{name}/" not in mapped
    assert "libtorch" not in mapped
    loaded = {name.partition(".")[0] for name in json.loads(modules_file.read_text())}
    assert {"samevec", "onnxruntime", "numpy", "tokenizers"} <= loaded
    assert not loaded.intersection(HEAVY)


def test_weights_are_mapped_files(onnx: Live, exported: ToyHome) -> None:
    assert str(exported.path / "artifacts") in onnx.mapped_files()


@pytest.mark.parametrize("options", [{}, {"input_type": "query"}, {"dimensions": 64}, {"batch_size": 1}])
def test_backends_agree_on_vectors(options: dict[str, Any], onnx: Live, torch: Live) -> None:
    same(embed(torch, input=TEXTS, **options), embed(onnx, input=TEXTS, **options))


def test_backends_agree_on_scores(onnx: Live, torch: Live) -> None:
    expected, found = (rerank(server, query=QUERY, documents=DOCUMENTS) for server in (torch, onnx))
    assert [index for index, _ in expected] == [index for index, _ in found]
    same([score for _, score in expected], [score for _, score in found])


def test_info_says_which_is_which(onnx: Live, torch: Live) -> None:
    for server, backend, gate in ((onnx, "onnx", "passed"), (torch, "torch", "reference")):
        text = httpx.get(f"{server.url}/info").text
        assert f'"{backend}"' in text
        assert f'"{gate}"' in text


@pytest.mark.parametrize("encoding", [None, "float", "base64"])
@pytest.mark.parametrize("dimensions", [None, 64])
def test_openai_client(encoding: Any, dimensions: int | None, onnx: Live) -> None:
    options: dict[str, Any] = {"encoding_format": encoding} if encoding else {}
    options |= {"dimensions": dimensions} if dimensions else {}
    with openai.OpenAI(base_url=f"{onnx.url}/v1", api_key="unused", max_retries=0) as client:
        answer = client.embeddings.create(model=EMBEDDER, input=TEXTS, **options)
    vectors: list[Any] = [item.embedding for item in answer.data]
    if encoding == "base64":  # asked for by the caller, the client leaves it as it is
        vectors = [np.frombuffer(base64.b64decode(item), dtype="<f4") for item in vectors]
    found = np.array(vectors, dtype=np.float32)
    assert found.shape == (len(TEXTS), dimensions or 384)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=0, atol=1e-5)
    assert answer.usage.prompt_tokens == sum(len(text.encode()) + 1 for text in TEXTS)


TRUEMEMORY_CLIENT = """
import importlib.util, json, subprocess, sys, types
subprocess.Popen = None  # it starts a server of its own where it finds none: never in a test
package = types.ModuleType("truememory")  # its own __init__ imports its whole engine
package.__path__ = list(importlib.util.find_spec("truememory").submodule_search_locations)
sys.modules["truememory"] = package
from truememory import model_client
texts, pairs = json.load(sys.stdin)
json.dump({
    "in_use": model_client.use_model_server(),
    "vectors": {tier: model_client.EmbeddingProxy(tier=tier).encode(texts).tolist() for tier in ("base", "pro")},
    "scores": model_client.RerankerProxy("Alibaba-NLP/gte-reranker-modernbert-base").predict(pairs).tolist(),
}, sys.stdout)
"""


def sentence_transformers_answers(home: Path) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """What TrueMemory would have computed itself: truncate_dim=256, and CrossEncoder.predict."""
    library: Any = pytest.importorskip("sentence_transformers", reason="needs the export extra")
    snapshots = {name: home / "snapshots" / name / LOCK.model(name).revision for name in (EMBEDDER, RERANKER)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        embedder = library.SentenceTransformer(str(snapshots[EMBEDDER]), truncate_dim=256, device="cpu")
        reranker = library.CrossEncoder(str(snapshots[RERANKER]), device="cpu")
        options = {"show_progress_bar": False}
        pairs = [(QUERY, document) for document in DOCUMENTS]
        return embedder.encode(TEXTS, **options), reranker.predict(pairs, **options)


@pytest.mark.skipif(importlib.util.find_spec("truememory") is None, reason="truememory is not installed")
def test_truememory_client(onnx: Live, exported: ToyHome) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", TRUEMEMORY_CLIENT],
        input=json.dumps([TEXTS, [[QUERY, document] for document in DOCUMENTS]]),
        env=environment(onnx.folder),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert answers["in_use"] is True
    vectors, scores = sentence_transformers_answers(exported.path)
    for tier in ("base", "pro"):
        assert np.shape(answers["vectors"][tier]) == (len(TEXTS), 256)
        same(vectors, answers["vectors"][tier])
    same(scores, answers["scores"])
    assert (np.linalg.norm(answers["vectors"]["base"], axis=1) < 0.999).all()  # cut, and not made longer again
