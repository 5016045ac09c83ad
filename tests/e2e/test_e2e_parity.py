"""``samevec parity`` with its flags, on the exported toy pair: reports, quick runs, the live reference, no torch."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest
from e2e_tools import EMBEDDER, LOCK, RERANKER, adopt_digests, artifact_of, environment, rewrite_receipt, zero_block

from samevec.load import state_of
from samevec.parity.rankings.retrieval import builtin_fixture
from samevec.parity.report.terminal import SHOWN_FAILURES
from samevec.runtime.providers.profiles import get_profile

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.model

Cli = Any  # called with arguments, gives a Done

#: Runs a command where none of the exporter's libraries can be imported.
WITHOUT_TORCH = """
import sys
for name in ("torch", "transformers", "optimum", "sentence_transformers", "huggingface_hub", "onnx"):
    sys.modules[name] = None
from samevec.cli.main import main
main()
"""


def gate(home: Path) -> str:
    artifact = artifact_of(home, RERANKER)
    return state_of(LOCK.model(RERANKER), artifact, get_profile("cpu"), home).state


def flags(home: Path, *more: object) -> list[object]:
    return ["parity", "--lock", "toy", "--home", home, "--model", RERANKER, *more]


def outputs(folder: Path) -> list[object]:
    return ["--report", folder / "report", "--junit", folder / "report" / "junit.xml"]


def break_weights(home: Path) -> None:
    """Zero a block, with digests that agree: only the values can tell."""
    artifact = artifact_of(home, RERANKER)
    zero_block(artifact.path)
    adopt_digests(artifact)
    shutil.rmtree(artifact.path / "machine", ignore_errors=True)


def test_a_quick_run_reports_and_opens_no_gate(home: Path, tmp_path: Path, cli: Cli) -> None:
    shutil.rmtree(artifact_of(home, RERANKER).receipts_path)
    done = cli(*flags(home, "--quick", *outputs(tmp_path)))
    assert done.code == 0, done.err
    assert "No receipt was written for what passed" in done.err
    assert gate(home) == "missing"
    report = json.loads((tmp_path / "report" / "report.json").read_bytes())
    (model,) = report["models"]
    assert (report["passed"], model["passed"], model["quick"]) == (True, True, True)
    assert model["binding"]["artifact_digest"] == artifact_of(home, RERANKER).digest
    page = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert "<strong>Passed</strong>" in page
    assert "no receipt lets this be served" in page
    assert [one["name"] for one in model["torch_baseline"]["groupings"]] == ["alone", "arrival_8", "near_equal_32"]
    assert "<h3>PyTorch against itself</h3>" in page
    assert "PyTorch against itself" in done.out
    assert not any("PyTorch against itself" in words for words in model["not_measured"])
    assert page.count("<svg") >= 2
    assert f"report {tmp_path / 'report' / 'index.html'}" in done.err
    (suite,) = ET.parse(tmp_path / "report" / "junit.xml").getroot()
    assert suite.get("failures") == "0"
    assert int(suite.get("tests", "0")) >= len(model["cells"])


def test_a_changed_label_of_the_fixture_makes_receipts_stale(
    home: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gate(home) == "passed"
    fixture = builtin_fixture()
    (number, grade), *others = fixture.queries[0].grades
    first = dataclasses.replace(fixture.queries[0], grades=((number, 3 - grade), *others))
    changed = dataclasses.replace(fixture, queries=(first, *fixture.queries[1:]))
    monkeypatch.setattr("samevec.load.builtin_fixture", lambda: changed)
    assert gate(home) == "stale"
    done = cli("status", "--lock", "toy", "--home", home)
    before, after = (one.digest[: len("sha256:") + 12] for one in (fixture, changed))
    assert f"stale (retrieval fixture {before} -> {after})" in done.out


def test_a_passed_receipt_outlives_a_quick_run_and_not_a_failed_one(home: Path, cli: Cli) -> None:
    assert gate(home) == "passed"
    assert cli(*flags(home, "--quick")).code == 0
    assert gate(home) == "passed"
    break_weights(home)
    rewrite_receipt(home, RERANKER)
    done = cli(*flags(home, "--quick"))
    assert done.code == 1
    assert gate(home) == "failed"


def test_a_failure_is_told_in_three_sentences_and_a_number(home: Path, tmp_path: Path, cli: Cli) -> None:
    break_weights(home)
    done = cli(*flags(home, "--quick", *outputs(tmp_path)))
    assert done.code == 1
    told = [line for line in done.out.splitlines() if line.startswith("failed: ")]
    (model,) = json.loads((tmp_path / "report" / "report.json").read_bytes())["models"]
    assert told == [f"failed: {failure}" for failure in model["failures"][:SHOWN_FAILURES]]
    assert f"and {len(model['failures']) - SHOWN_FAILURES} more" in done.out.splitlines()
    page = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert page.index("What failed") < page.index("What this is bound to")
    (suite,) = ET.parse(tmp_path / "report" / "junit.xml").getroot()
    assert suite.get("failures") != "0"


def test_json_keeps_standard_output_for_programs(
    home: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_weights(home)
    settings = {"LOCK": "toy", "HOME": home, "MODEL": RERANKER, "QUICK": 1, "JSON": 1, "REPORT": tmp_path / "r"}
    for name, value in {**settings, "JUNIT": tmp_path / "j" / "junit.xml", "REFERENCE": "stored"}.items():
        monkeypatch.setenv(f"SAMEVEC_{name}", str(value))
    done = cli("parity")
    assert done.code == 1
    (model,) = json.loads(done.out)
    assert model == json.loads((tmp_path / "r" / "report.json").read_bytes())["models"][0]
    assert f"{RERANKER}: failed: {model['failures'][0]}" in done.err.splitlines()
    assert (tmp_path / "j" / "junit.xml").is_file()


def test_reports_that_cannot_be_written_are_said_before_anything_runs(home: Path, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "file").write_text("")
    for flag in ("--report", "--junit"):
        done = cli(*flags(home, flag, tmp_path / "file" / "inside" / "more"))
        assert done.code == 2
        assert done.complaints[0].startswith(f"samevec: {flag}: ")
        assert done.out == ""
    done = cli(*flags(home, "--report", tmp_path / "file"))
    assert done.code == 2
    assert "is a file." in done.err


def test_a_report_is_never_of_an_earlier_run(home: Path, tmp_path: Path, cli: Cli) -> None:
    kept = tmp_path / "report" / "notes.txt"
    kept.parent.mkdir()
    for name in ("index.html", "report.json", "junit.xml", "notes.txt"):
        (tmp_path / "report" / name).write_text("earlier")
    shutil.rmtree(artifact_of(home, RERANKER).path)
    done = cli(*flags(home, *outputs(tmp_path)))
    assert done.code == 3
    assert [path.name for path in kept.parent.iterdir()] == ["notes.txt"]


def without_times(record: Any) -> Any:
    """Leave out what no two runs have alike."""
    if isinstance(record, list):
        return [without_times(one) for one in record]
    if isinstance(record, dict):
        return {name: without_times(one) for name, one in record.items() if name != "elapsed_s"}
    return record


def test_the_verdict_is_the_same_without_torch(home: Path, tmp_path: Path, cli: Cli) -> None:
    words = [str(word) for word in flags(home, "--quick", "--json")]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *words],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    verdicts = [json.loads(out) for out in (done.stdout, cli(*words).out)]
    assert without_times(verdicts[0]) == without_times(verdicts[1])


def test_the_live_reference_needs_torch_and_says_so_first(
    home: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    done = cli(*flags(home, "--reference", "live", *outputs(tmp_path)))
    assert done.code == 2
    assert done.complaints == [
        "samevec: the PyTorch reference needs torch; install it with: pip install 'samevec[export]'"
    ]
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize("model", [RERANKER, EMBEDDER])
def test_the_live_reference_compares_all_three(model: str, home: Path, tmp_path: Path, cli: Cli) -> None:
    arguments = ["parity", "--lock", "toy", "--home", home, "--model", model, "--quick", "--reference", "live"]
    done = cli(*arguments, *outputs(tmp_path))
    assert done.code == 0, done.err
    report = json.loads((tmp_path / "report" / "report.json").read_bytes())
    (found,) = report["models"]
    assert report["reference"] == "live"
    compared = {cell["grouping"] for cell in found["cells"] if cell["grouping"].endswith("_vs_live")}
    assert compared == {"stored_vs_live", "candidate_vs_live"}
    assert found["live_toolchain"]["torch"] == found["reference_toolchain"]["torch"]
    baseline = found["baseline_verdict"]
    assert (baseline["baseline"], baseline["provider"], baseline["passed"]) == (True, "PyTorch", True)
    page = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert "PyTorch, stored and computed again" in page
    assert "The baseline: PyTorch against PyTorch" in page
