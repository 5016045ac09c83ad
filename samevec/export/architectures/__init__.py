"""One module an architecture: its pooled forward, written for export.

Adding an architecture is adding a module here that offers an
:class:`~samevec.export.architectures.base.Architecture`, and a line in the table below.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from samevec.errors import ExportError

if TYPE_CHECKING:
    from samevec.export.architectures.base import Architecture

__all__ = ["MODULES", "get_architecture"]

#: Lock value of ``architecture`` to the module that exports it. Imported only when used: each of them loads torch.
MODULES = {"qwen3": "qwen3", "modernbert": "modernbert"}


def get_architecture(name: str) -> Architecture:
    """Return how an architecture is exported.

    Raises
    ------
    ExportError
        No module here knows it.
    """
    if name not in MODULES:
        raise ExportError(f"architecture {name!r} cannot be exported yet; known: {', '.join(sorted(MODULES))}")
    module = importlib.import_module(f"samevec.export.architectures.{MODULES[name]}")
    architecture: Architecture = module.ARCHITECTURE
    return architecture
