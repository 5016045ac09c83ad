"""The document against the server: schemathesis asks what the schema allows and what it forbids, with a fixed seed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from stand_ins import embedder, in_process, reranker

from samevec.server.lifecycle import running_server
from samevec.server.settings import ServedModel, ServerSettings

HERE = Path(__file__).parent
#: What the fuzzing phase makes for each route; raise it to look further: SCHEMATHESIS_EXAMPLES=500.
EXAMPLES = os.environ.get("SCHEMATHESIS_EXAMPLES", "40")


@pytest.mark.server
def test_schemathesis(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("secret")
    # Few items a request: the boundaries are the same, and their requests smaller.
    settings = ServerSettings(port=0, max_batch_items=8, api_key_file=keys)
    with running_server([ServedModel(model=embedder()), ServedModel(model=reranker())], settings) as endpoints:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(HERE / "schemathesis.toml")),
                *("run", f"{endpoints.url}/openapi.json", "--header", "Authorization: Bearer secret"),
                *("--phases", "coverage,fuzzing", "--max-examples", EXAMPLES, "--seed", "20260720"),
                *("--generation-database", "none", "--workers", "1", "--no-color", "--request-timeout", "60"),
            ],
            env={**os.environ, "PYTHONPATH": str(HERE), "SCHEMATHESIS_HOOKS": "schemathesis_checks"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]
    assert re.search(r"(\d+) selected / \1 total", done.stdout)  # every operation


def test_every_computing_route_is_described() -> None:
    with in_process() as server:
        document = server.ask("GET", "/openapi.json").json()
    posts = {path for path, methods in document["paths"].items() if "post" in methods}
    assert posts == {"/v1/embeddings", "/v1/rerank", "/v2/rerank", "/rerank", "/embed", "/tokenize"}
    for path in posts:
        operation = document["paths"][path]["post"]
        assert {"200", "400", "401", "404", "413", "429", "500", "503", "504"} == set(operation["responses"])
        assert operation["requestBody"]["required"] is True


def test_bounds_are_those_of_the_served_models() -> None:
    with in_process(settings=ServerSettings(max_batch_items=7)) as server:
        document = server.ask("GET", "/openapi.json").json()
    body = document["components"]["schemas"]["EmbeddingsBody"]
    dimensions = body["properties"]["dimensions"]
    assert (dimensions["minimum"], dimensions["maximum"]) == (32, 384)
    _, texts, ids, many = body["properties"]["input"]["oneOf"]
    assert (texts["maxItems"], many["maxItems"], ids["maxItems"]) == (7, 7, 2048)
    assert ids["items"]["maximum"] == embedder().tokenizer.raw.get_vocab_size(with_added_tokens=True) - 1
    with in_process(ServedModel(model=reranker())) as server:
        assert server.ask("GET", "/openapi.json").status_code == 200
