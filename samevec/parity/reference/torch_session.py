"""The PyTorch reference behind the Session protocol, for ``--backend torch`` and for comparing the two live."""

from __future__ import annotations

import importlib
import threading
from typing import TYPE_CHECKING, Any, cast

from samevec.errors import SessionRunError
from samevec.runtime.sessions.base import Session

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from samevec.parity.reference.pytorch import ReferenceModel
    from samevec.runtime.cancel import CancelToken
    from samevec.runtime.collate import Features

__all__ = ["TorchSession"]


class TorchSession(Session):
    """Runs sentence-transformers' own modules up to the pooled vector or the logit.

    Parameters
    ----------
    reference : ReferenceModel
        Float32, on the CPU.
    """

    provider = "PyTorch"

    def __init__(self, reference: ReferenceModel) -> None:
        self._reference = reference
        self._torch = importlib.import_module("torch")
        self._lock = threading.Lock()  # the modules pass features on by changing them in place

    @property
    def provider_options(self) -> dict[str, str]:
        """Device and dtype."""
        return {"device": "cpu", "dtype": "float32"}

    def run(
        self, features: Features, *, cancel: CancelToken | None = None, keep_memory: bool = False
    ) -> NDArray[np.float32]:
        """Compute one microbatch, see :class:`samevec.runtime.sessions.base.Session`; it runs to its end."""
        pipeline = self._reference.pipeline
        names = ["input_ids", "attention_mask"] + (["token_type_ids"] if features.token_type_ids is not None else [])
        tensors = {name: self._torch.from_numpy(array) for name, array in features.as_feed(names).items()}
        try:
            with self._lock, self._torch.inference_mode():
                return self._raw(pipeline, tensors)
        except RuntimeError as error:
            out_of_memory = "memory" in str(error).lower()
            raise SessionRunError(f"PyTorch could not run: {error}", out_of_memory=out_of_memory) from error

    def _raw(self, pipeline: Any, tensors: dict[str, Any]) -> NDArray[np.float32]:
        key = "sentence_embedding" if self._reference.entry.task == "embed" else "scores"
        output: Any = tensors
        for module in pipeline:
            output = module(output)
            if key in output:  # raw rows: what follows (normalisation, activation) is the runtime's part
                break
        rows = output[key].float().numpy()
        return cast("NDArray[np.float32]", rows.reshape(len(rows), -1))
