"""A deterministic Session for tests and for building on: no graph, no provider, no weights."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from samevec.runtime.sessions.base import Session

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from samevec.runtime.cancel import CancelToken
    from samevec.runtime.collate import Features

__all__ = ["FakeSession"]


class FakeSession(Session):
    """Gives each row a vector that depends on its real token ids and on nothing else.

    Parameters
    ----------
    width : int
        Components of a row.
    before_run : callable, optional
        Called with the features before each run; may raise, wait or record.

    Attributes
    ----------
    runs : list of tuple of int
        Shape (rows, tokens) of every run so far.
    """

    provider = "FakeExecutionProvider"

    def __init__(self, width: int = 8, *, before_run: Callable[[Features], None] | None = None) -> None:
        self.width = width
        self.runs: list[tuple[int, int]] = []
        self._before_run = before_run

    def run(
        self, features: Features, *, cancel: CancelToken | None = None, keep_memory: bool = False
    ) -> NDArray[np.float32]:
        """Return rows of float32 in (-1, 1), the same for the same ids in any company.

        A run that is cancelled meanwhile gives nothing and is listed all the same.
        """
        if cancel is not None:
            cancel.require_wanted()
        if self._before_run is not None:
            self._before_run(features)
        self.runs.append(features.shape)
        if cancel is not None:
            cancel.require_wanted()
        return np.stack(
            [
                self.row(ids[mask == 1].tolist())
                for ids, mask in zip(features.input_ids, features.attention_mask, strict=True)
            ]
        )

    def row(self, ids: list[int]) -> NDArray[np.float32]:
        """Return the vector of one row of token ids, shape (width,)."""
        seed = hashlib.sha256(np.asarray(ids, dtype="<i8").tobytes()).digest()
        stream = np.random.Generator(np.random.PCG64(int.from_bytes(seed[:8], "little")))
        return (stream.integers(-127, 128, self.width) / 128.0 + 1 / 256).astype(np.float32)
