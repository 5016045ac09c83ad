"""``samevec parity`` with its flags, on the exported toy pair: reports, quick runs, the live reference, no torch."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from e2e_tools import (
    EMBEDDER,
    LOCK,
    RERANKER,
    adopt_digests,
    artifact_of,
    environment,
    paste,
    rewrite_receipt,
    zero_block,
)

from samevec.gate import state_of
from samevec.opening import locate
from samevec.parity.rankings.retrieval import builtin_fixture
from samevec.parity.report.terminal import SHOWN_FAILURES
from samevec.runtime.providers.profiles import get_profile

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
    return state_of(locate(LOCK.model(RERANKER), get_profile("cpu"), home=home)).state


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
    monkeypatch.setattr("samevec.gate.builtin_fixture", lambda: changed)
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


#: The command under a limit of 100 bytes a file, which a full disk is like.
UNDER_A_FILE_LIMIT = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
from samevec.cli.main import main
main()
"""


def no_room(home: Path, folder: Path, *more: object, out: Path | None = None) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in flags(home, "--quick", *more)]
    with contextlib.ExitStack() as stack:
        return subprocess.run(
            [sys.executable, "-c", UNDER_A_FILE_LIMIT, *words],
            cwd=folder,
            env=environment(folder),
            stdout=subprocess.PIPE if out is None else stack.enter_context(out.open("w")),
            stderr=subprocess.PIPE,
            text=True,
            timeout=300,
            check=False,
        )


def test_a11_a_failure_is_told_and_ends_the_older_pass_where_nothing_can_be_written(home: Path, tmp_path: Path) -> None:
    break_weights(home)
    rewrite_receipt(home, RERANKER)  # for the broken artifact, so that it would be served
    assert gate(home) == "passed"
    done = no_room(home, tmp_path, "--report", tmp_path / "report")
    assert done.returncode == 1, done.stderr
    assert "quick parity failed, " in done.stdout
    assert "the receipt could not be written: " in done.stdout
    assert "--report could not be written: File too large" in done.stderr
    assert gate(home) == "missing"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a11_a_failure_is_the_exit_code_where_its_words_cannot_be_written(home: Path, tmp_path: Path) -> None:
    break_weights(home)
    rewrite_receipt(home, RERANKER)
    for more in ((), ("--json",)):
        done = no_room(home, tmp_path, *more, out=Path("/dev/full"))
        assert done.returncode == 1, done.stderr
        assert "could not be written: " in done.stderr
        assert "Traceback" not in done.stderr
    assert gate(home) == "missing"


def test_a11_a_pass_without_a_receipt_is_not_exit_0(home: Path, tmp_path: Path) -> None:
    rewrite_receipt(home, RERANKER, onnxruntime_version="1.0.0")
    done = no_room(home, tmp_path)
    assert done.returncode == 3, done.stderr
    assert "quick parity passed, " in done.stdout
    assert "the receipt could not be written: " in done.stdout


def test_a5_after_a_library_changed_the_printed_quick_command_opens_the_gate(
    home: Path, tmp_path: Path, cli: Cli
) -> None:
    rewrite_receipt(home, RERANKER, onnxruntime_version="1.0.0")
    complaint = cli("serve", "--lock", "toy", "--home", home, "--model", RERANKER, "--port", 0).complaints[0]
    assert complaint.endswith(" --quick")
    done = paste(complaint.rpartition("run: ")[2], folder=tmp_path)
    assert done.code == 0, done.err
    assert "the same bits as under onnxruntime 1.0.0" in done.out
    assert "No receipt was written" not in done.err
    assert gate(home) == "passed"


def test_d9_an_older_report_is_compared_and_read_before_it_is_written_over(
    home: Path, tmp_path: Path, cli: Cli
) -> None:
    older = tmp_path / "report" / "report.json"
    assert cli(*flags(home, "--quick", *outputs(tmp_path))).code == 0
    done = cli(*flags(home, "--quick", "--compare", older, *outputs(tmp_path)))
    assert done.code == 0, done.err
    assert f"{RERANKER} (cpu): changed since: nothing that is bound" in done.err.splitlines()
    assert f"{RERANKER} (cpu): 0 of " in done.err
    suite = ET.parse(tmp_path / "report" / "junit.xml").getroot()[0]
    assert all(float(case.get("time", "0")) > 0 for case in suite.iter("testcase"))
    done = cli(*flags(home, "--compare", tmp_path / "report" / "index.html"))
    assert done.code == 2
    assert "neither a report nor a receipt" in done.complaints[0]


def test_a10_serve_prove_that_fails_names_the_cause_first_and_the_export(home: Path, cli: Cli) -> None:
    break_weights(home)
    shutil.rmtree(artifact_of(home, RERANKER).receipts_path)
    done = cli("serve", "--lock", "toy", "--home", home, "--model", RERANKER, "--port", 0, "--prove")
    assert done.code == 3
    (complaint,) = done.complaints
    assert f"{RERANKER}: parity failed here: logits/alone: " in complaint
    assert complaint.endswith(f"run: samevec export --model {RERANKER} --profile cpu --lock toy --home {home}")
    assert gate(home) == "failed"
