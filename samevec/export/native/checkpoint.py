"""A verified checkpoint's tensors one at a time, in their stored type, without arithmetic."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from samevec.errors import ExportError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["Checkpoint", "Stored", "widen"]


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor as the checkpoint stores it."""

    source: str  # its name in the file
    values: NDArray[Any]  # float32, or uint16 for the bits of bfloat16
    widened: bool = False  # from float16, which graphs do not hold; float32 has every value

    @property
    def is_bfloat16(self) -> bool:
        """Whether the values are the bits of bfloat16."""
        return bool(self.values.dtype == np.uint16)


class Checkpoint:
    """Tensors by the name of the module's parameter, as a context manager: the files stay open within.

    `prefix` is the base model's, such as ``"bert."``, which checkpoints may leave out or add. ExportError if a file
    cannot be read, or two hold a tensor of the same name.
    """

    def __init__(self, paths: Sequence[Path], *, prefix: str = "") -> None:
        self._prefix = prefix
        self._files: dict[str, Any] = {}
        self._open = ExitStack()
        for path in paths:
            try:
                file = self._open.enter_context(safe_open(path, framework="pt"))
            except (OSError, SafetensorError) as error:
                raise ExportError(f"{path}: cannot be read ({error})") from error
            for name in file.keys():  # noqa: SIM118  it is not a mapping
                if name in self._files:
                    raise ExportError(f"{path}: tensor {name} is in another file too")
                self._files[name] = file

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self._files = {}
        self._open.close()

    @property
    def names(self) -> list[str]:
        """Every tensor's name in the files."""
        return list(self._files)

    def __contains__(self, parameter: str) -> bool:
        return self._source(parameter) is not None

    def tensor(self, parameter: str) -> Stored:
        """Return a tensor, as a view of the file if possible; ExportError if missing or none of BF16, F32 and F16."""
        source = self._source(parameter)
        if source is None:
            raise ExportError(f"the checkpoint has no tensor {parameter}")
        values = self._files[source].get_tensor(source)
        if values.dtype == torch.bfloat16:
            return Stored(source, values.view(torch.uint16).numpy())
        if values.dtype == torch.float16:
            return Stored(source, values.numpy().astype(np.float32), widened=True)
        if values.dtype != torch.float32:
            raise ExportError(f"tensor {source} is stored as {values.dtype}; bfloat16, float32 and float16 are known")
        return Stored(source, values.numpy())

    def _source(self, parameter: str) -> str | None:
        names = (parameter, self._prefix + parameter, parameter.removeprefix(self._prefix))
        return next((name for name in names if name in self._files), None)


def widen(stored: Stored) -> Stored:
    """Return a tensor in float32: bfloat16 is the upper half of the same value's bits."""
    if not stored.is_bfloat16:
        return stored
    bits = stored.values.astype(np.uint32) << np.uint32(16)
    return Stored(stored.source, bits.view(np.float32), widened=True)
