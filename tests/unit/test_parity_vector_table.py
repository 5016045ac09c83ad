"""The vector table: what SQLite returns is what numpy computes; where there is no SQLite, it says why."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from samevec.parity.rankings.vector_table import SqliteSearch, cosine_distances, distance_rounding, open_sqlite_search

if TYPE_CHECKING:
    from numpy.typing import NDArray


def vectors(n: int, width: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((n, width)).astype(np.float32)


def real_search() -> SqliteSearch:
    found = open_sqlite_search()
    assert isinstance(found, SqliteSearch), found  # the development requirements bring an SQLite that loads it
    return found


@pytest.mark.parametrize("width", [1, 3, 16, 384, 1024])
def test_the_table_returns_every_document_at_its_distance(width: int) -> None:
    documents, queries = vectors(256, width), vectors(5, width, seed=1)
    found = real_search()(documents, queries)
    np.testing.assert_allclose(found, cosine_distances(documents, queries), rtol=0, atol=distance_rounding(width))


def test_equal_documents_have_equal_distances() -> None:
    # sqlite-vec alone would give those of one distance in any order: callers sort by position.
    documents = np.tile(vectors(1, 16), (9, 1))
    found = real_search()(documents, vectors(1, 16, seed=1))
    assert len(set(found[0].tolist())) == 1


def test_its_name_has_the_versions() -> None:
    assert real_search().name.startswith("sqlite-vec 0.")
    assert " in SQLite 3." in real_search().name


class NoExtensions:
    """A build of sqlite3 without loadable extensions has no such method."""

    def __init__(self, _path: str) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ({"sqlite_vec"}, "sqlite-vec cannot be imported (no sqlite_vec)"),
        ({"apsw"}, "no SQLite here loads extensions (sqlite3: 'NoExtensions' object has no attribute "),
        ({"sqlite3", "apsw"}, "no SQLite here loads extensions (sqlite3: no sqlite3; apsw: no apsw); install apsw"),
    ],
)
def test_without_a_table_it_says_why(monkeypatch: pytest.MonkeyPatch, missing: set[str], words: str) -> None:
    modules = {
        "sqlite_vec": SimpleNamespace(loadable_path=lambda: "vec0"),
        "sqlite3": SimpleNamespace(Connection=NoExtensions),
    }

    def import_module(name: str) -> Any:
        if name in missing:
            raise ImportError(f"no {name}")
        return modules[name]

    monkeypatch.setattr(importlib, "import_module", import_module)
    found = open_sqlite_search()
    assert isinstance(found, str)
    assert found.startswith(words)


def test_distances_are_one_minus_cosine() -> None:
    documents = np.asarray([[1, 0], [0, 2], [-3, 0], [1, 1]], np.float32)
    found = cosine_distances(documents, np.asarray([[5, 0]], np.float32))
    np.testing.assert_allclose(found, [[0, 1, 2, 1 - np.sqrt(0.5)]], atol=1e-12)
