"""What a run found: records for JSON, tables for people. Nothing in them says whose machine it was."""

from __future__ import annotations

import json
import math
import platform
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

import psutil

from samevec._version import __version__
from samevec.machine import allowed_cpus, cpu_name

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["NOTICE", "Report", "Row", "machine_record", "to_markdown", "write_report"]

NOTICE = (
    "Weights are seeded random numbers in the real models' full shape: times, memory and parity are those of the real "
    "checkpoints, answers mean nothing, and no figure here says anything about quality."
)
_COUNTED = (
    "private: anonymous pages (`Anonymous` of smaps_rollup), so no file pages; resident: `Rss`, file pages included; "
    "both are peaks over the examined pass, sampled about every 20 ms; load is with warm file cache, imports included. "
    "violations: items outside |ref - x| <= 1e-4 + 1e-3 |ref| of PyTorch float32 one item at a time, at any level the "
    "system shows (pooled vectors or logits, unit vectors or scores)."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One system on one workload; numbers are None where there are none, and `reason` says why.

    Attributes
    ----------
    workload, system, task : str
    status : {"ok", "failed", "unavailable"}
    reason, note : str or None
    items, useful_tokens, repeats : int
    useful_tokens_per_s : float
        Useful tokens over the median wall time of one call with all items.
    latency_p50_s, wall_s, wall_min_s, cpu_s : float
        Of that call: median (under both names), least, and median processor time over all threads.
    padding_ratio : float
        Padded over useful tokens.
    private_peak_bytes, resident_peak_bytes, private_loaded_bytes, resident_loaded_bytes : int
        Peaks, and right after loading.
    load_s, ceiling_fraction : float
    violations, compared : int
    greatest_difference : float
    """

    workload: str
    system: str
    task: str
    status: Literal["ok", "failed", "unavailable"] = "failed"
    reason: str | None = None
    note: str | None = None
    items: int = 0
    useful_tokens: int = 0
    repeats: int = 0
    useful_tokens_per_s: float | None = None
    latency_p50_s: float | None = None
    cpu_s: float | None = None
    wall_s: float | None = None
    wall_min_s: float | None = None
    padding_ratio: float | None = None
    private_peak_bytes: int | None = None
    resident_peak_bytes: int | None = None
    private_loaded_bytes: int | None = None
    resident_loaded_bytes: int | None = None
    load_s: float | None = None
    ceiling_fraction: float | None = None
    violations: int | None = None
    compared: int | None = None
    greatest_difference: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return a record for JSON; numbers that are not finite become None, since JSON has none."""
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(self).items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """One run.

    Attributes
    ----------
    machine : dict
    ceiling_gflops : float
        Measured before the first row.
    ceiling_gflops_after : float or None
        Measured after the last: how much the machine drifted meanwhile.
    quick, unproved : bool
    rows : list of Row
    started_at : str
    """

    machine: dict[str, Any]
    ceiling_gflops: float
    ceiling_gflops_after: float | None = None
    quick: bool = False
    unproved: bool = False
    rows: list[Row] = field(default_factory=list)
    started_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    def to_dict(self) -> dict[str, Any]:
        """Return the record of ``latest.json``."""
        return {
            "notice": NOTICE,
            "samevec_version": __version__,
            "started_at": self.started_at,
            "machine": self.machine,
            "quick": self.quick,
            "unproved": self.unproved,
            "ceiling_gflops": self.ceiling_gflops,
            "ceiling_gflops_after": self.ceiling_gflops_after,
            "rows": [row.to_dict() for row in self.rows],
        }


def machine_record() -> dict[str, Any]:
    """Return what matters for speed, and nothing that names the machine."""
    return {
        "cpu": cpu_name(),
        "threads": allowed_cpus(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.system(),
        "python": platform.python_version(),
    }


def _cell(value: float | None, scale: float, digits: int) -> str:
    return "-" if value is None else f"{value * scale:,.{digits}f}"


def _line(row: Row, own: Row | None) -> str:
    if row.status != "ok" or row.wall_s is None:
        return f"| {row.system} | {row.status}: {row.reason} |" + " |" * 10
    ratio = f"{row.wall_s / own.wall_s:.2f}x" if own is not None and own.wall_s else "-"
    cells = (
        row.system + (f" ({row.note.partition(' (')[0]})" if row.note else ""),
        _cell(row.useful_tokens_per_s, 1, 0),
        ratio,
        _cell(row.latency_p50_s, 1e3, 1),
        _cell(row.cpu_s, 1, 2),
        _cell(row.padding_ratio, 1, 3),
        _cell(row.private_peak_bytes, 1e-6, 0),
        _cell(row.private_loaded_bytes, 1e-6, 0),
        _cell(row.resident_peak_bytes, 1e-6, 0),
        _cell(row.load_s, 1, 1),
        _cell(row.ceiling_fraction, 100, 0) + "%",
        f"{row.violations} of {row.compared}",
    )
    return "| " + " | ".join(cells) + " |"


_HEADINGS = (
    *("system", "useful tokens/s", "its time over samevec/cpu's", "p50 ms", "CPU s", "padding", "private peak MB"),
    *("private after load MB", "resident peak MB", "load s", "of ceiling", "violations"),
)


def _workload_lines(name: str, rows: list[Row]) -> list[str]:
    own = next((row for row in rows if row.system == "samevec/cpu" and row.status == "ok"), None)
    first = rows[0]
    lines = [f"## {name}", "", f"{first.items} items, {first.useful_tokens:,} tokens, {first.task}", ""]
    lines += ["| " + " | ".join(_HEADINGS) + " |", "|---" + "|---:" * (len(_HEADINGS) - 1) + "|"]
    return [*lines, *(_line(row, own) for row in rows), ""]


def to_markdown(report: Report) -> str:
    """Return the report as Markdown: one table a workload.

    Parameters
    ----------
    report : Report

    Returns
    -------
    str
    """
    from benchmarks.targets import target_lines  # noqa: PLC0415  it reads rows, this writes them

    machine, after = report.machine, report.ceiling_gflops_after
    drift = "" if after is None else f" ({after:,.0f} after the last row)"
    lines = [
        "# Benchmark",
        "",
        f"{report.started_at}, samevec {__version__}, {machine['cpu']}, {machine['threads']} threads, "
        f"{machine['memory_bytes'] / 2**30:.0f} GiB. "
        f"Matrix-product ceiling {report.ceiling_gflops:,.0f} GFLOP/s{drift}."
        + (" Quick: few repeats, no peers unless asked." if report.quick else "")
        + (" **Artifacts were not required to be proved.**" if report.unproved else ""),
        "",
        NOTICE,
        "",
        *target_lines(report.rows),
    ]
    by_workload: dict[str, list[Row]] = {}
    for row in report.rows:
        by_workload.setdefault(row.workload, []).append(row)
    for name, rows in by_workload.items():
        lines += _workload_lines(name, rows)
    return "\n".join([*lines, _COUNTED, ""])


def write_report(report: Report, directory: Path) -> None:
    """Write ``latest.json`` and ``latest.md``; after every row, so that an interrupted run keeps what it has."""
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report.to_dict(), indent=1, ensure_ascii=False) + "\n"
    (directory / "latest.json").write_text(text, encoding="utf-8", newline="\n")
    (directory / "latest.md").write_text(to_markdown(report), encoding="utf-8", newline="\n")
