"""What clients may call a served model: its name in the lock or on the hub, in any case, or one it once had there."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from samevec.server.settings import ServedModel

__all__ = ["find_served", "hub_name"]

#: Repositories that the hub has renamed and redirects since, in lower case. TrueMemory 0.7.6.2 (``reranker.py``) still
#: asks for the first.
_RENAMED = {"cross-encoder/ms-marco-minilm-l-6-v2": "cross-encoder/ms-marco-minilm-l6-v2"}


def hub_name(served: ServedModel) -> str:
    """Return the name of a model's repository; the source itself for models that are not on the hub."""
    return served.model.entry.source.removeprefix("hf:")


def find_served(name: str, candidates: Iterable[ServedModel]) -> ServedModel | None:
    """Find a model by any of its names.

    Parameters
    ----------
    name : str
        As a client spells it. The hub tells no case apart.
    candidates : iterable of ServedModel

    Returns
    -------
    ServedModel or None
    """
    asked = name.lower()
    asked = _RENAMED.get(asked, asked)
    for served in candidates:
        if asked in (served.name.lower(), hub_name(served).lower()):
            return served
    return None
