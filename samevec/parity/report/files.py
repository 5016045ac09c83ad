"""A run of the gate over several models as one record, and its files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from samevec._version import __version__
from samevec.parity.report.junit import junit_xml
from samevec.parity.report.page import html_page

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["PAGE_NAME", "REPORT_VERSION", "clear_report", "report_record", "write_junit", "write_report"]

#: Of ``report.json``; raised when a key changes its meaning or is removed.
REPORT_VERSION = 1

PAGE_NAME, _RECORD = "index.html", "report.json"


def report_record(models: Sequence[dict[str, Any]], *, created_at: str, reference: str = "stored") -> dict[str, Any]:
    """Return the record in ``report.json``, from which page and JUnit file are made.

    `models` are records of verdicts (:meth:`samevec.parity.verdict.Verdict.to_dict`), each with ``binding``, and with
    ``live_toolchain`` and ``baseline_verdict`` if `reference` is ``"live"``; `created_at` is ISO 8601 in UTC.
    """
    return {
        "report_version": REPORT_VERSION,
        "samevec_version": __version__,
        "created_at": created_at,
        "reference": reference,
        "passed": all(model["passed"] for model in models),
        "models": list(models),
    }


def clear_report(directory: Path | None, junit: Path | None) -> None:
    """Remove the report of an earlier run."""
    stale = [] if directory is None else [directory / PAGE_NAME, directory / _RECORD]
    for path in [*stale, *([] if junit is None else [junit])]:
        path.unlink(missing_ok=True)


def write_report(directory: Path, report: dict[str, Any]) -> tuple[Path, Path]:
    """Write ``index.html`` and ``report.json`` into a directory, made if missing; return their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    page, record = directory / PAGE_NAME, directory / _RECORD
    record.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n", encoding="ascii")
    page.write_text(html_page(report), encoding="utf-8")
    return page, record


def write_junit(path: Path, report: dict[str, Any]) -> None:
    """Write JUnit XML for CI systems; the folder is made if missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(junit_xml(report), encoding="utf-8")
