"""Differences from an older report or receipt, cell by cell."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from samevec.errors import ConfigError
from samevec.parity.receipt import Binding, describe_changes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["moved_lines", "read_older"]


def read_older(path: Path) -> list[dict[str, Any]]:
    """Read the verdict records of a report, of ``samevec parity --json`` or of a receipt; ConfigError if it is none."""
    try:
        record = json.loads(path.read_bytes())
        if isinstance(record, dict) and "summary" in record:  # a receipt
            record = [{**record["summary"], "binding": record["binding"]}]
        models = record["models"] if isinstance(record, dict) else record
        for model in models:
            _figures(model)
            _ = (model["model"], model["profile"])
    except OSError as error:
        raise ConfigError(f"--compare: {path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"--compare: {path}: neither a report nor a receipt of samevec") from error
    return list(models)


def moved_lines(older: Sequence[Mapping[str, Any]], model: Mapping[str, Any]) -> list[str]:
    """Return changes of what a verdict depends on, then each cell whose greatest difference from PyTorch changed."""
    name = f"{model['model']} ({model['profile']})"
    before = next((one for one in older if (one["model"], one["profile"]) == (model["model"], model["profile"])), None)
    if before is None:
        return [f"{name}: the older file has no verdict about it"]
    old, new = _figures(before), _figures(model)
    both = [cell for cell in new if cell in old]
    moved = [cell for cell in both if old[cell] != new[cell]]
    lines = [f"{name}: changed since: {_changes(before, model)}"]
    lines += [f"  {cell}: {_shown(old[cell])} -> {_shown(new[cell])}{_by(old[cell], new[cell])}" for cell in moved]
    apart = len(set(old) ^ set(new))
    lines.append(
        f"{name}: {len(moved)} of {len(both)} cells moved" + (f", {apart} are in one of the two only" if apart else "")
    )
    return lines


def _figures(model: Mapping[str, Any]) -> dict[str, float | str | None]:
    """Return every cell's greatest absolute difference; a word if it is not finite, None if nothing ran."""
    return {
        f"{cell['level']}/{cell['grouping']}": cell["comparison"] and cell["comparison"]["max_abs"]
        for cell in model["cells"]
    }


def _changes(before: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    try:
        bindings = [Binding.from_dict(one["binding"]) for one in (before, model)]
    except (KeyError, ValueError):
        return "not told by the older file"
    return "; ".join(describe_changes(*bindings)) or "nothing that is bound"


def _shown(figure: float | str | None) -> str:
    return "not computed" if figure is None else figure if isinstance(figure, str) else f"{figure:.3e}"


def _by(old: float | str | None, new: float | str | None) -> str:
    numbers = isinstance(old, (int, float)) and isinstance(new, (int, float))
    return f" ({new - old:+.1e})" if numbers else ""  # type: ignore[operator]
