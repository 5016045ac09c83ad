"""A real vector table: SQLite with the sqlite-vec extension, searched exactly."""

from __future__ import annotations

import importlib
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["SqliteSearch", "cosine_distances", "distance_rounding", "open_sqlite_search"]


@dataclass(frozen=True, slots=True)
class SqliteSearch:
    """Searches through a ``vec0`` table that is made for each call, in memory.

    Attributes
    ----------
    connect : callable
        Gives a connection with the extension loaded.
    name : str
        Versions, for the record.
    """

    connect: Callable[[], Any]
    name: str

    def __call__(self, documents: NDArray[np.float32], queries: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the cosine distances the table reports.

        Parameters
        ----------
        documents : ndarray of float32, shape (n_documents, width)
            At most 4,096, the most neighbours one query of sqlite-vec gives.
        queries : ndarray of float32, shape (n_queries, width)

        Returns
        -------
        ndarray of float32, shape (n_queries, n_documents)
            Infinite for a document that a query did not return.

        Notes
        -----
        Every neighbour is asked for and cut afterwards: sqlite-vec 0.1.9 sorts by distance alone and refuses a second
        key, and which of several documents at one distance makes the last place would be left to its heap.
        """
        found = np.full((len(queries), len(documents)), np.inf, dtype=np.float32)
        with closing(self.connect()) as connection:
            width = documents.shape[1]
            connection.execute(
                f"CREATE VIRTUAL TABLE documents USING vec0(embedding float[{width}] distance_metric=cosine)"
            )
            for i, vector in enumerate(documents):
                connection.execute("INSERT INTO documents(rowid, embedding) VALUES (?, ?)", (i, _blob(vector)))
            for i, query in enumerate(queries):
                rows = connection.execute(
                    "SELECT rowid, distance FROM documents WHERE embedding MATCH ? AND k = ? ORDER BY distance",
                    (_blob(query), len(documents)),
                )
                for rowid, distance in rows:
                    found[i, rowid] = distance
        return found


def _blob(vector: NDArray[np.float32]) -> bytes:
    return np.ascontiguousarray(vector, dtype="<f4").tobytes()


def open_sqlite_search() -> SqliteSearch | str:
    """Return a search through SQLite, or why there is none here.

    Returns
    -------
    SqliteSearch or str
        Python's own sqlite3 is used where it can load extensions. Many builds cannot (pyenv, python.org for macOS);
        then apsw is, if it is installed, which brings an SQLite that can.
    """
    try:
        path = importlib.import_module("sqlite_vec").loadable_path()
    except ImportError as error:  # also where Python itself has no sqlite3
        return f"sqlite-vec cannot be imported ({error})"
    reasons = []
    for library in ("sqlite3", "apsw"):
        try:
            connect = _connector(importlib.import_module(library), path)
            with closing(connect()) as connection:
                (versions,) = connection.execute("SELECT vec_version(), sqlite_version()")
        except Exception as error:  # each library has a base class of its own, and a build may lack the method
            reasons.append(f"{library}: {error}")
        else:
            return SqliteSearch(connect, f"sqlite-vec {versions[0].lstrip('v')} in SQLite {versions[1]} ({library})")
    return f"no SQLite here loads extensions ({'; '.join(reasons)}); install apsw"


def _connector(library: Any, extension: str) -> Callable[[], Any]:
    def connect() -> Any:
        connection = library.Connection(":memory:")
        connection.enable_load_extension(True)
        connection.load_extension(extension)
        connection.enable_load_extension(False)
        return connection

    return connect


def cosine_distances(documents: NDArray[np.float32], queries: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return ``1 - cosine`` of every query with every document, in float64.

    Parameters
    ----------
    documents : ndarray of float32, shape (n_documents, width)
    queries : ndarray of float32, shape (n_queries, width)

    Returns
    -------
    ndarray of float64, shape (n_queries, n_documents)
    """
    rows, columns = (
        vectors.astype(np.float64) / np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
        for vectors in (queries, documents)
    )
    distances: NDArray[np.float64] = 1 - rows @ columns.T
    return distances


def distance_rounding(width: int) -> float:
    """Return how far a cosine distance summed in float32 may be from the exact one.

    Parameters
    ----------
    width : int
        Components.

    Notes
    -----
    ``n * u`` for each of the three sums of n products, u = 2**-24, in whatever order (Higham, Accuracy and Stability of
    Numerical Algorithms, section 3.1); the two norms count half each under their square roots. A few roundings follow.
    """
    return float((2 * width + 8) * 2.0**-24)
