"""Rankings computed in numpy are those of a real vector table: SQLite with sqlite-vec, searched exactly."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import apsw
import numpy as np
import pytest
import sqlite_vec
from ranking_stand_ins import REFERENCES

from samevec.parity.rankings.figures import cosine_distances, order_of
from samevec.parity.rankings.retrieval import builtin_fixture

if TYPE_CHECKING:
    from numpy.typing import NDArray


def table_distances(documents: NDArray[np.float32], queries: NDArray[np.float32]) -> NDArray[np.float32]:
    """What a vec0 table reports for every query and document; infinite for a document that it does not return."""
    found = np.full((len(queries), len(documents)), np.inf, dtype=np.float32)
    with closing(apsw.Connection(":memory:")) as table:
        table.enable_load_extension(True)
        table.load_extension(sqlite_vec.loadable_path())
        columns = f"embedding float[{documents.shape[1]}] distance_metric=cosine"
        table.execute(f"CREATE VIRTUAL TABLE documents USING vec0({columns})")
        for i, vector in enumerate(documents):
            table.execute("INSERT INTO documents(rowid, embedding) VALUES (?, ?)", (i, vector.tobytes()))
        for i, query in enumerate(queries):
            ask = "SELECT rowid, distance FROM documents WHERE embedding MATCH ? AND k = ? ORDER BY distance"
            for rowid, distance in table.execute(ask, (query.tobytes(), len(documents))):
                found[i, rowid] = distance
    return found


def rounding(width: int) -> float:
    """How far a cosine distance summed in float32 may be from the exact one.

    Three sums of n products, in any order: n * 2**-24 each (Higham, Accuracy and Stability of Numerical Algorithms,
    section 3.1); the two norms count half each under their square roots. A few roundings follow.
    """
    return float((2 * width + 8) * 2.0**-24)


def vectors(n: int, width: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((n, width)).astype(np.float32)


@pytest.mark.parametrize("width", [1, 3, 16, 384, 1024])
def test_the_table_returns_every_document_at_the_distance_numpy_computes(width: int) -> None:
    documents, queries = vectors(256, width), vectors(5, width, seed=1)
    found = table_distances(documents, queries)
    np.testing.assert_allclose(found, cosine_distances(documents, queries), rtol=0, atol=rounding(width))


def test_the_fixture_is_ranked_as_the_table_ranks_it() -> None:
    retrieval = REFERENCES["embed"].retrieval
    assert retrieval is not None
    n_queries = len(builtin_fixture().queries)
    queries, documents = retrieval.final[:n_queries], retrieval.final[n_queries:]
    exact, table = cosine_distances(documents, queries), table_distances(documents, queries)
    changed = 0
    for costs, found in zip(exact, table, strict=True):
        order, of_table = order_of(costs), order_of(found)
        changed += order != of_table
        # Only documents that float32 cannot hold apart may change places.
        np.testing.assert_allclose(costs[order], costs[of_table], rtol=0, atol=2 * rounding(documents.shape[1]))
    assert changed < n_queries / 2


def test_distances_are_one_minus_cosine() -> None:
    documents = np.asarray([[1, 0], [0, 2], [-3, 0], [1, 1]], np.float32)
    found = cosine_distances(documents, np.asarray([[5, 0]], np.float32))
    np.testing.assert_allclose(found, [[0, 1, 2, 1 - np.sqrt(0.5)]], atol=1e-12)
