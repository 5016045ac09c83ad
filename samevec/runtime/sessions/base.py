"""The seam between policy and computation: what every session offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from samevec.runtime.cancel import CancelToken
    from samevec.runtime.collate import Features

__all__ = ["Session"]


class Session(ABC):
    """Computes raw rows: pooled vectors of an embedder, logits of a reranker. Safe between threads.

    A subclass needs `provider` and `run`; the defaults of the rest fit a session that keeps nothing between runs.
    """

    @property
    @abstractmethod
    def provider(self) -> str:
        """The execution provider that really computes."""

    @property
    def provider_options(self) -> dict[str, str]:
        """The provider's options as it reports them."""
        return {}

    @property
    def notice(self) -> str | None:
        """What ``/info`` tells about this session beside its provider."""
        return None

    @property
    def may_reopen(self) -> bool:
        """Whether opening the model again gives the same session."""
        return True

    @abstractmethod
    def run(
        self, features: Features, *, cancel: CancelToken | None = None, keep_memory: bool = False
    ) -> NDArray[np.float32]:
        """Compute one microbatch.

        Parameters
        ----------
        features : Features
        cancel : CancelToken, optional
            Ends this run early, other runs go on; a session that cannot end a run finishes it.
        keep_memory : bool
            Another run follows soon: leave the work memory to it, where the session has such memory.

        Returns
        -------
        ndarray of float32, shape (n_rows, width)
            Row i belongs to row i of the features.

        Raises
        ------
        SessionRunError
            The run failed.
        WorkCancelledError
            It was cancelled before or while it ran.
        """

    def release_memory(self) -> None:
        """Release work memory that earlier runs kept.

        Raises
        ------
        SessionRunError
            It takes a run to release it, which failed.
        """
        return
