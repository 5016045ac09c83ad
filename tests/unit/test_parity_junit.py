"""JUnit XML: it parses, its counts are true, and it fails exactly when the verdict does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import parity_records as records
import pytest

from samevec.parity.report.files import write_junit
from samevec.parity.report.junit import junit_xml
from samevec.parity.report.markup import visible

if TYPE_CHECKING:
    from pathlib import Path

#: Elements with the attributes they must have, and what may be in them: what CI systems agree on.
SCHEMA = {
    "testsuites": ({"name", "tests", "failures", "errors", "time"}, {"testsuite"}),
    "testsuite": (
        {"name", "tests", "failures", "errors", "skipped", "time", "timestamp"},
        {"testcase", "system-out"},
    ),
    "testcase": ({"classname", "name", "time"}, {"failure"}),
    "failure": ({"message", "type"}, set()),
    "system-out": (set(), set()),
}


def parsed(*models: dict[str, Any]) -> ET.Element:
    root = ET.fromstring(junit_xml(records.report(*models)).encode("utf-8"))
    assert root.tag == "testsuites"
    for element in root.iter():
        attributes, children = SCHEMA[element.tag]
        assert set(element.attrib) == attributes
        assert {child.tag for child in element} <= children
    return root


def failed_names(suite: ET.Element) -> set[str]:
    return {case.get("name", "") for case in suite.iter("testcase") if case.find("failure") is not None}


def test_counts_are_true() -> None:
    root = parsed(records.passed_model(), records.failed_model())
    for suite in root:
        cases = suite.findall("testcase")
        assert int(suite.get("tests", "")) == len(cases)
        assert int(suite.get("failures", "")) == len(suite.findall("testcase/failure"))
        names = [case.get("name") for case in cases]
        assert len(set(names)) == len(names)
    for name in ("tests", "failures"):
        assert int(root.get(name, "")) == sum(int(suite.get(name, "")) for suite in root)


def test_a_passed_verdict_has_one_case_a_cell_and_no_failure() -> None:
    model = records.passed_model()
    (suite,) = parsed(model)
    names = [case.get("name") for case in suite.iter("testcase")]
    assert names[: len(model["cells"])] == [f"{cell['level']}/{cell['grouping']}" for cell in model["cells"]]
    assert names[len(model["cells"]) :] == [
        *(f"grouping {name}" for name in records.GROUPINGS),
        *(f"rankings/{name}" for name in ("default", "shuffled", "stored")),
    ]
    assert suite.get("failures") == "0"


def test_d9_cases_carry_the_seconds_they_took() -> None:
    (suite,) = parsed(records.passed_model())
    times = {case.get("name"): case.get("time") for case in suite.iter("testcase")}
    assert times["raw/alone"] == "0.125000"
    assert times["grouping alone"] == "0.002000"
    assert times["rankings/default"] == "0.500000"


def test_failures_are_where_they_belong_and_none_is_lost() -> None:
    model = records.failed_model()
    (suite,) = parsed(model)
    expected = {f"{level}/{grouping}" for level in records.LEVELS for grouping in ("default", "batch_8", "shuffled")}
    assert failed_names(suite) == expected | {"grouping batch_32", "rankings/default", "other findings"}
    told = "\n".join(failure.text or "" for failure in suite.iter("failure"))
    for failure in model["failures"]:
        assert visible(failure) in told
    moved = next(case for case in suite.iter("testcase") if case.get("name") == "raw/batch_8")
    assert (moved.findtext("failure") or "").splitlines() == [
        failure for failure in model["failures"] if failure.startswith("raw/batch_8: ")
    ]


def test_one_finding_that_belongs_nowhere_still_fails_the_suite() -> None:
    (suite,) = parsed(records.passed_model(passed=False, failures=["the golden values differ"]))
    assert failed_names(suite) == {"other findings"}
    assert suite.get("failures") == "1"


@pytest.mark.parametrize("where", ["model", "not_measured", "failures"])
def test_nothing_hostile_breaks_the_file(where: str) -> None:
    value = records.HOSTILE if where == "model" else [records.HOSTILE]
    changes: dict[str, Any] = {where: value, "passed": where != "failures"}
    text = junit_xml(records.report(records.passed_model(**changes)))
    root = ET.fromstring(text.encode("utf-8"))
    told = " ".join([*(str(value) for element in root.iter() for value in element.attrib.values()), *root.itertext()])
    assert visible(records.HOSTILE) in told


def test_it_is_written_where_asked(tmp_path: Path) -> None:
    path = tmp_path / "new" / "junit.xml"
    report = records.report(records.failed_model())
    write_junit(path, report)
    assert path.read_text(encoding="utf-8") == junit_xml(report)
