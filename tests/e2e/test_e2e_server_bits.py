"""Real toy models behind a server: the library's bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import numpy as np
import pytest
from e2e_tools import EMBEDDER, RERANKER, serving

from samevec import load_embedder, load_reranker

if TYPE_CHECKING:
    from pathlib import Path

    from e2e_tools import ToyHome

pytestmark = [pytest.mark.model, pytest.mark.server]

TEXTS = [f"{i} and so on, " * (1 + i * 13 % 97) for i in range(48)]
DOCUMENTS = [f"document {i} " * (1 + i * 7 % 60) for i in range(40)]


def test_bits_through_the_server_are_the_librarys(exported: ToyHome, tmp_path: Path) -> None:
    embedder = load_embedder(EMBEDDER, home=exported.path, lock="toy")
    reranker = load_reranker(RERANKER, home=exported.path, lock="toy")
    where = ("--lock", "toy", "--home", exported.path)
    with serving(*where, folder=tmp_path) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        assert server.ready.endswith(f"({EMBEDDER}, {RERANKER})\n")
        records = [model["worker"] for model in client.get("/info").json()["models"]]
        assert [(record["token_budget"], record["interactive_beside_bulk"]) for record in records] == [(4096, True)] * 2
        for size in (None, 1, 8):
            data = client.post("/v1/embeddings", json={"model": EMBEDDER, "input": TEXTS, "batch_size": size}).json()
            found = np.array([item["embedding"] for item in data["data"]], dtype=np.float32)
            assert found.tobytes() == embedder.encode(TEXTS, batch_size=size).tobytes()
            body = {"model": RERANKER, "query": "which", "documents": DOCUMENTS, "batch_size": size}
            results = client.post("/v1/rerank", json=body).json()["results"]
            scores = {item["index"]: np.float32(item["relevance_score"]) for item in results}
            own = reranker.score([("which", document) for document in DOCUMENTS], batch_size=size)
            assert [scores[i] for i in range(len(DOCUMENTS))] == own.tolist()
        assert server.stop() == 0
