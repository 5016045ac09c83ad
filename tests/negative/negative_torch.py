"""Wrong uses of the PyTorch modules themselves, behind the Session protocol."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from samevec.parity.reference.torch_session import TorchSession
from samevec.runtime.collate import Features
from samevec.runtime.sessions.base import Session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from samevec.parity.reference.pytorch import ReferenceModel


def pad_left(features: Features) -> Features:
    """Move each row's padding to its left."""
    ids, mask = features.input_ids.copy(), features.attention_mask.copy()
    for i, n_padding in enumerate((features.attention_mask == 0).sum(axis=1).tolist()):
        ids[i], mask[i] = np.roll(ids[i], n_padding), np.roll(mask[i], n_padding)
    return Features(ids, mask)


class LeftPadding(Session):
    """Feeds another session rows that are padded on the left."""

    def __init__(self, session: Any) -> None:
        self._session = session

    @property
    def provider(self) -> str:
        return str(self._session.provider)

    def run(self, features: Features, **how: Any) -> NDArray[np.float32]:
        rows: NDArray[np.float32] = self._session.run(pad_left(features), **how)
        return rows


class CausalMaskLost(TorchSession):
    """A batch of several rows without padding needs no mask, and so loses the causal one with it."""

    def __init__(self, reference: ReferenceModel) -> None:
        super().__init__(reference)
        self._module = reference.module

    def run(self, features: Features, **how: Any) -> NDArray[np.float32]:
        if features.shape[0] == 1 or not features.attention_mask.all():
            return super().run(features, **how)
        with self._bidirectional():
            return super().run(features, **how)

    @contextmanager
    def _bidirectional(self) -> Iterator[None]:
        # transformers leaves the mask out where nothing is padded and goes by this attribute instead.
        attentions = [layer.self_attn for layer in self._module.layers]
        try:
            for attention in attentions:
                attention.is_causal = False
            yield
        finally:
            for attention in attentions:
                attention.is_causal = True


class MaskForPoolingOnly(TorchSession):
    """The transformer sees no attention mask; pooling has the right one."""

    def _raw(self, pipeline: Any, tensors: dict[str, Any]) -> NDArray[np.float32]:
        transformer, *others = pipeline
        mask = tensors["attention_mask"]
        output = transformer({**tensors, "attention_mask": self._torch.ones_like(mask)})
        return super()._raw(others, {**output, "attention_mask": mask})
