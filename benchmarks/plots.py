"""Plots of a run, drawn in an environment of its own: ``python -m benchmarks.plots RESULTS``."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

__all__ = ["draw"]

_PLOTS = (
    ("useful_tokens_per_s", "useful tokens per second (more is better)", "throughput", 1.0),
    ("latency_p50_s", "milliseconds, median of one call (less is better)", "latency", 1e3),
    ("private_peak_bytes", "peak private memory, MB (less is better)", "memory", 1e-6),
    ("ceiling_fraction", "percent of the matrix-product ceiling (more is better)", "ceiling", 100.0),
)
_OWN_COLOR, _PEER_COLOR, _WRONG_COLOR = "#1b6ca8", "#9aa5ad", "#d98880"


def draw(directory: Path) -> list[Path]:
    """Draw every plot of ``latest.json``.

    Parameters
    ----------
    directory : Path
        With ``latest.json``; gets one SVG a figure.

    Returns
    -------
    list of Path
        What was written.
    """
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "samevec"  # the same rows, the same bytes
    rows = json.loads((directory / "latest.json").read_bytes())["rows"]
    return [_draw_one(rows, directory, *plot) for plot in _PLOTS]


def _draw_one(rows: list[dict[str, Any]], directory: Path, field: str, title: str, name: str, scale: float) -> Path:
    pyplot = importlib.import_module("matplotlib.pyplot")
    workloads = list(dict.fromkeys(row["workload"] for row in rows if row[field] is not None))
    columns = min(2, max(1, len(workloads)))
    lines = -(-max(1, len(workloads)) // columns)
    figure, axes = pyplot.subplots(lines, columns, figsize=(6.2 * columns, 2.3 * lines), squeeze=False)
    for axis in axes.flat[len(workloads) :]:
        axis.set_visible(False)
    for axis, workload in zip(axes.flat, workloads, strict=False):
        chosen = [row for row in rows if row["workload"] == workload and row[field] is not None][::-1]
        values = [row[field] * scale for row in chosen]
        bars = axis.barh([row["system"] for row in chosen], values, color=[_color(row) for row in chosen])
        labels = [f" {value:,.3g}" if value < 10 else f" {value:,.0f}" for value in values]
        axis.bar_label(bars, labels=labels, fontsize=7)
        axis.set_title(workload, fontsize=9, loc="left")
        axis.tick_params(labelsize=7)
        axis.margins(x=0.15)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{title}\nrandom weights, never quality; red: outside the tolerance", fontsize=9)
    figure.tight_layout()
    path = directory / f"{name}.svg"
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return path


def _color(row: dict[str, Any]) -> str:
    if row["violations"]:
        return _WRONG_COLOR
    return _OWN_COLOR if row["system"].startswith("samevec/") else _PEER_COLOR


if __name__ == "__main__":
    for written in draw(Path(sys.argv[1])):
        print(written.name)
