"""Vectors out of a server's answers."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["framed_array", "openai_vectors"]


def openai_vectors(answer: Any) -> NDArray[np.float32]:
    """Return the vectors of an answer of OpenAI's embeddings route, as base64 or as numbers.

    Returns
    -------
    ndarray of float32, shape (n_texts, width)
        In request order.

    Raises
    ------
    ValueError
        The indexes are not 0, 1, 2, ... in order.
    """
    data = answer["data"]
    if [item["index"] for item in data] != list(range(len(data))):
        raise ValueError("indexes are not 0, 1, 2, ... in order")
    values = [item["embedding"] for item in data]
    if isinstance(values[0], str):
        return np.stack([np.frombuffer(base64.b64decode(value), dtype="<f4") for value in values])
    return np.array(values, dtype=np.float32)


def framed_array(record: Any) -> NDArray[np.float32]:
    """Return an array of an answer of the framed protocol, of the shape it states."""
    return np.frombuffer(base64.b64decode(record["__ndarray__"]), dtype="<f4").reshape(record["shape"])
