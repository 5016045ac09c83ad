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
from stand_ins import EMBEDDER, alone, embedder, reranker, scores_alone

from samevec.server.config import ServedModel, ServerSettings
from samevec.server.serve import running_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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
