"""The toy pair for the whole folder, made by the export's own code.

Not a conftest.py: mypy, which reads all tests at once, allows only one of that name.
"""

from __future__ import annotations

import pytest
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
