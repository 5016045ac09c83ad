"""One module for each architecture, named as in the lock: its pooled forward, written for export.

A new one offers ``ARCHITECTURES``, and gets a line in the lock's table of poolings: docs/adding-a-model.md. Each loads
torch, so they are imported only when used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from samevec.errors import ExportError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from samevec.export.architectures.base import Architecture
    from samevec.lock import LockedModel

__all__ = ["get_architecture"]


def get_architecture(entry: LockedModel) -> Architecture:
    """Return how a model's architecture is exported for its task; ExportError if no module here knows both."""
    name = f"{__name__}.{entry.architecture}"
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ExportError(
            f"{entry.name}: architecture {entry.architecture!r} cannot be exported: it has no module here"
        ) from error
    found: Mapping[str, Architecture] = module.ARCHITECTURES
    if entry.task not in found:
        raise ExportError(
            f"{entry.name}: architecture {entry.architecture!r} cannot be exported for task {entry.task} yet, "
            f"only for {', '.join(found)}"
        )
    return found[entry.task]
