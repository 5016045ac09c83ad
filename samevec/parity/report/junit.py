"""Verdicts as JUnit XML, which CI systems show as tests: one test case a cell. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from samevec.parity.report.markup import visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["junit_xml"]


def junit_xml(report: Mapping[str, Any]) -> str:
    """Return a report, as in ``report.json``, as JUnit XML: a ``testsuite`` a model, which fails as its verdict does.

    It has one ``testcase`` a cell, one a grouping for its own rules, one a ranking, and ``other findings`` for failures
    that belong to none of them.
    """
    root = ET.Element("testsuites", name="samevec parity")
    for model in report["models"]:
        root.append(_suite(model, report["created_at"]))
    for name in ("tests", "failures"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    root.set("errors", "0")
    root.set("time", f"{sum(model['elapsed_s'] for model in report['models']):.3f}")
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _suite(model: Mapping[str, Any], created_at: str) -> ET.Element:
    cases = list(_cases(model))
    suite = ET.Element(
        "testsuite",
        name=_text(f"{model['model']} ({model['profile']})"),
        tests=str(len(cases)),
        failures=str(sum(bool(failures) for *_, failures in cases)),
        errors="0",
        skipped="0",
        time=f"{model['elapsed_s']:.3f}",
        timestamp=created_at,
    )
    for name, elapsed_s, failures in cases:
        case = ET.SubElement(suite, "testcase", classname=_text(f"parity.{model['model']}"), name=_text(name))
        case.set("time", f"{elapsed_s:.6f}")
        if failures:
            failure = ET.SubElement(case, "failure", message=_text(failures[0]), type="ParityFailed")
            failure.text = _text("\n".join(failures))
    if model["not_measured"]:
        ET.SubElement(suite, "system-out").text = _text(
            "not measured: " + "; ".join(str(words) for words in model["not_measured"])
        )
    return suite


def _cases(model: Mapping[str, Any]) -> Iterator[tuple[str, float, list[str]]]:
    """Yield the name of every test case with its seconds and its failures."""
    left = [str(failure) for failure in model["failures"]]
    for cell in model["cells"]:
        name = f"{cell['level']}/{cell['grouping']}"
        found = _take(left, name)
        if not cell["passed"] and not found:  # a grouping that could not run is reported once, not once a level
            found = [f"{name}: {cell['error'] or 'failed'}"]
        yield name, cell["elapsed_s"], found
    for run in model["groupings"]:
        yield f"grouping {run['name']}", run["elapsed_s"], _take(left, run["name"])
    rankings = model.get("rankings") or {}
    for run in rankings.get("runs", ()):
        share_s = rankings["elapsed_s"] / len(rankings["runs"])
        yield f"rankings/{run['name']}", share_s, _take(left, f"rankings/{run['name']}")
    if left:
        yield "other findings", 0.0, left


def _take(failures: list[str], name: str) -> list[str]:
    """Remove and return the failures of a cell or grouping of this name."""
    found = [failure for failure in failures if failure.startswith(f"{name}: ")]
    failures[:] = [failure for failure in failures if failure not in found]
    return found


def _text(text: str) -> str:
    """Return text that XML may hold; line breaks stay."""
    return "\n".join(visible(line) for line in text.split("\n"))
