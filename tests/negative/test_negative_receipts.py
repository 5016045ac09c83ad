"""Receipts that must not let anything be served; names say which row of the list of faults each test is of."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from parity_records import make_binding

from samevec import gate as gate_module
from samevec.digest import digest_json
from samevec.errors import ArtifactError
from samevec.gate import prove
from samevec.lock import FROZEN_TOLERANCE, load_lock
from samevec.parity import receipt as receipt_module
from samevec.parity.code_digest import code_digest, code_files
from samevec.parity.receipt import Binding, GateState, Receipt, gate_state, write_receipt
from samevec.parity.verdict import AnswersCheck, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PACKAGE = Path(receipt_module.__file__).parents[1]
NOW = datetime(2026, 1, 10, tzinfo=UTC)
BINDING = make_binding()


def receipt(*, passed: bool = True, at: datetime = NOW, binding: Binding = BINDING) -> Receipt:
    return Receipt(
        binding=binding,
        passed=passed,
        created_at=at.isoformat(timespec="seconds"),
        tolerance=FROZEN_TOLERANCE.to_dict(),
        failures=() if passed else ("raw/alone: 1 of 2 rows differ",),
    )


def state(*directories: Path, binding: Binding = BINDING, now: datetime = NOW) -> GateState:
    return gate_state(directories, binding, now=now)


def write_record(directory: Path, **changes: Any) -> None:
    """Write a receipt with other values and a digest that agrees, as whoever may write there could."""
    record: dict[str, Any] = {**receipt().to_dict(), **changes}
    del record["digest"]
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**record, "digest": digest_json(record)})
    (directory / receipt().file_name).write_text(text)


# A4


@pytest.fixture
def sources(tmp_path: Path) -> Iterator[Path]:
    """A copy of the package's sources."""
    shutil.copytree(PACKAGE, tmp_path / "samevec", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    yield tmp_path / "samevec"
    code_files.cache_clear()


def test_a4_one_changed_line_in_tokenisation_is_stale_and_named(sources: Path, tmp_path: Path) -> None:
    proved = dataclasses.replace(BINDING, code=code_files(sources))
    write_receipt([tmp_path / "receipts"], receipt(binding=proved))
    path = sources / "runtime" / "tokenization.py"
    path.write_text(path.read_text(encoding="utf-8").replace("def ", "def  ", 1), encoding="utf-8")
    code_files.cache_clear()
    now = dataclasses.replace(BINDING, code=code_files(sources))
    found = state(tmp_path / "receipts", binding=now)
    assert (found.state, found.changes) == ("stale", ("code of runtime/tokenization.py",))
    assert found.libraries == ()


def test_a4_a_new_file_and_many_changed_ones_are_named_and_counted(tmp_path: Path) -> None:
    write_receipt([tmp_path], receipt())
    code = {**BINDING.code, **{f"runtime/new_{i}.py": "9" for i in range(6)}}
    found = state(tmp_path, binding=dataclasses.replace(BINDING, code=code))
    names = ", ".join(f"runtime/new_{i}.py" for i in range(4))
    assert found.changes == (f"code of {names} and 2 more files",)


def test_a4_the_digest_is_the_same_for_the_same_sources_wherever_and_however_they_lie(sources: Path) -> None:
    there = code_digest(sources)
    assert there == code_digest()
    path = sources / "runtime" / "engine.py"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    (sources / "runtime" / "__pycache__").mkdir()
    (sources / "runtime" / "__pycache__" / "engine.cpython-311.pyc").write_bytes(b"compiled")
    code_files.cache_clear()
    assert code_digest(sources) == there


def test_a4_everything_that_the_gate_and_the_public_calls_load_is_bound() -> None:
    """Asked in a fresh process, so that what the tests themselves import does not count."""
    code = (
        "import sys, samevec.load, samevec.gate; "
        "print(*[m.__file__ for n, m in sys.modules.items() if n.split('.')[0] == 'samevec'], sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    loaded = {Path(line).relative_to(PACKAGE).as_posix() for line in done.stdout.split("\n") if line}
    # These write words for people; no answer and no judgement passes through them.
    assert loaded - set(code_files()) == {"hints.py", "progress.py"}
    assert {"server/queue/microbatch.py", "server/service.py", "native/library.py"} <= set(code_files())


# A5


@pytest.mark.parametrize("library", ["onnxruntime", "tokenizers", "numpy"])
def test_a5_one_swapped_library_version_is_stale_and_named(library: str, tmp_path: Path) -> None:
    write_receipt([tmp_path], receipt())
    field = f"{library}_version"
    change: dict[str, Any] = {field: "9.9"}
    found = state(tmp_path, binding=dataclasses.replace(BINDING, **change))
    before = f"{library} {getattr(BINDING, field)}"
    assert (found.state, found.changes, found.libraries) == ("stale", (f"{before} -> 9.9",), (before,))


def test_a5_a_library_is_not_all_that_changed_where_code_did_too(tmp_path: Path) -> None:
    write_receipt([tmp_path], receipt())
    found = state(tmp_path, binding=dataclasses.replace(BINDING, numpy_version="9.9", code={}))
    assert found.changes == ("numpy 2.4.0 -> 9.9", "code of runtime/engine.py, runtime/tokenization.py")
    assert found.libraries == ()


# A9


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"failures": ["raw/alone: 1 of 2 rows differ"]}, "it says passed and lists failures"),
        ({"tolerance": {"atol": 1.0, "rtol": 1.0}}, "it passed under the tolerance"),
        ({"created_at": 1768003200}, "created_at is not of type str"),
        ({"created_at": "yesterday"}, "not a readable receipt"),
        ({"created_at": "2026-01-10T00:00:00"}, "has no time zone"),
        ({"created_at": "2027-01-10T00:00:00+00:00"}, "in the future of this machine's clock"),
        ({"passed": 1}, "passed is not of type bool"),
        ({"failures": "none"}, "failures is not of type list"),
        ({"not_measured": [1]}, "something other than text"),
        ({"summary": None}, "summary is not of type dict"),
        ({"binding": {**BINDING.to_dict(), "device": 7}}, "binding.device is not of type str"),
        ({"more": 1}, "its keys are"),
    ],
)
def test_a9_a_misshapen_receipt_is_missing(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    write_record(tmp_path)
    assert state(tmp_path).state == "passed"
    write_record(tmp_path, **changes)
    found = state(tmp_path)
    assert found.state == "missing"
    assert reason in found.problems[0]


def test_a9_deep_nesting_and_things_that_are_no_files_are_missing(tmp_path: Path) -> None:
    (tmp_path / receipt().file_name).write_text('{"summary": ' * 200_000)
    assert state(tmp_path).problems == (f"{receipt().file_name}: not a readable receipt (nested too deeply)",)
    (tmp_path / receipt().file_name).unlink()
    os.mkfifo(tmp_path / receipt().file_name)
    assert state(tmp_path).state == "missing"


@pytest.mark.parametrize("days", [-400, 0, 400])
def test_a9_a_failure_goes_before_a_pass_whatever_their_dates(days: int, tmp_path: Path) -> None:
    write_receipt([tmp_path / "a"], receipt())
    write_receipt([tmp_path / "b"], receipt(passed=False, at=NOW + timedelta(days=days)))
    assert state(tmp_path / "a", tmp_path / "b").state == "failed"


def test_a9_a_pass_beside_a_damaged_file_of_the_same_binding_is_missing(tmp_path: Path) -> None:
    write_receipt([tmp_path / "a"], receipt())
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / receipt().file_name).touch()
    assert state(tmp_path / "a", tmp_path / "b").state == "missing"


# A11


def no_space(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a11_on_a_full_disk_a_failure_removes_the_older_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directories = [tmp_path / "a", tmp_path / "b"]
    write_receipt(directories, receipt())
    assert state(*directories).state == "passed"
    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(ArtifactError, match="No space left on device"):
        write_receipt(directories, receipt(passed=False))
    assert state(*directories).state == "missing"


def test_a11_a_pass_that_cannot_be_removed_does_not_count_beside_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The artifact is on a read-only system, where nothing is removed or emptied, and the home's disk is full."""
    fixed, home = tmp_path / "a", tmp_path / "b"
    write_receipt([fixed], receipt())
    home.mkdir()

    def keep(path: Path) -> None:
        if path.is_relative_to(fixed):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    really = {name: getattr(module, name) for module, name in ((Path, "unlink"), (Path, "touch"), (Path, "replace"))}
    for name, original in really.items():

        def guarded(path: Path, *arguments: Any, original: Any = original, **options: Any) -> Any:
            keep(path)
            for other in arguments:
                keep(Path(other))
            return original(path, *arguments, **options)

        monkeypatch.setattr(Path, name, guarded)
    monkeypatch.setattr(os, "truncate", no_space)
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", no_space)
        with pytest.raises(ArtifactError):
            write_receipt([fixed, home], receipt(passed=False))
    assert sorted(path.parent.name for path in tmp_path.rglob("*.json")) == ["a", "b"]
    assert state(fixed, home).state == "missing"
    with contextlib.suppress(ArtifactError):
        write_receipt([fixed, home], receipt(passed=False))
    assert state(fixed, home).state == "failed"


# What the gate keeps, and what it says: the gate itself is replaced by its verdicts.

ENTRY = load_lock("toy").model("toy-qwen3-embedder")


def verdict_of(*, passed: bool = True, quick: bool = False) -> Verdict:
    answers = AnswersCheck(arithmetic=1, digest="sha256:" + "1" * 64, n_compared=2, changed=(), processor="CPU A")
    return Verdict(
        model="m",
        task="embed",
        profile="cpu",
        provider="CPUExecutionProvider",
        case_set_digest="sha256:c",
        n_cases=2,
        repeats=1,
        tolerance=FROZEN_TOLERANCE.to_dict(),
        cells=(),
        runs=(),
        failures=() if passed else ("raw/alone: 1 of 2 rows differ",),
        notes=(),
        not_measured=(),
        elapsed_s=0.0,
        quick=quick,
        answers=answers,
    )


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Verdict]:
    """The gate's verdict on file in two directories, ``a`` and ``b``, under a binding of the caller's."""
    directories = [tmp_path / "a", tmp_path / "b"]

    def judge(*, binding: Binding = BINDING, ids: int = 1, now: datetime = NOW, **outcome: bool) -> Verdict:
        found = verdict_of(**outcome)
        rows = [type("Row", (), {"ids": (ids,)})]
        for name, answer in {
            "run_gate": found,
            "reference_of": type("Reference", (), {"ids": ((1,),)}),
            "binding_of": binding,
            "receipt_directories": directories,
            "tokenize_cases": rows,
        }.items():
            monkeypatch.setattr(gate_module, name, lambda *_, answer=answer, **__: answer)
        manifest = type("Manifest", (), {"samevec_version": "0.1.0"})
        artifact = type("Artifact", (), {"digest": "sha256:a", "manifest": manifest})
        candidate: Any = type(
            "Candidate",
            (),
            {
                "artifact": artifact,
                "entry": ENTRY,
                "answers": None,
                "home": tmp_path,
                **dict.fromkeys(("model", "profile", "export_command")),
            },
        )
        return prove(candidate, tolerance=FROZEN_TOLERANCE, quick=found.quick, now=lambda: now)

    return judge


OTHER_RUNTIME = dataclasses.replace(BINDING, onnxruntime_version="1.32.0")


def test_a5_after_a_library_changed_one_quick_gate_is_enough_and_says_so(
    judged: Callable[..., Verdict], tmp_path: Path
) -> None:
    judged()
    assert state(tmp_path / "a", binding=OTHER_RUNTIME).state == "stale"
    found = judged(binding=OTHER_RUNTIME, quick=True)
    assert found.words.endswith("bits as at export: sha256:111111111111, the same bits as under onnxruntime 1.31.1")
    opened = state(tmp_path / "a", binding=OTHER_RUNTIME)
    assert opened.state == "passed"
    assert opened.receipt is not None
    assert opened.receipt.not_measured[-1].startswith("what a quick gate leaves out, under these libraries; under onnx")


def test_a5_a_quick_gate_after_a_library_changed_looks_at_the_tokens_of_every_case(
    judged: Callable[..., Verdict], tmp_path: Path
) -> None:
    judged()
    found = judged(binding=OTHER_RUNTIME, quick=True, ids=2)
    assert found.failures[0].startswith("ids/every case: row 0: token id 2 instead of 1 ")
    assert state(tmp_path / "a", binding=OTHER_RUNTIME).state == "failed"


@pytest.mark.parametrize("change", [{"code": {}}, {"device": "CPU B"}, {"numpy_version": "9.9", "device": "CPU B"}])
def test_a5_a_quick_gate_proves_nothing_after_any_other_change(
    change: dict[str, Any], judged: Callable[..., Verdict], tmp_path: Path
) -> None:
    judged()
    binding = dataclasses.replace(BINDING, **change)
    assert judged(binding=binding, quick=True).same_bits_as == ()
    assert state(tmp_path / "a", binding=binding).state == "stale"


def test_a8_the_origin_of_the_reference_is_in_the_receipt(judged: Callable[..., Verdict], tmp_path: Path) -> None:
    judged()
    kept = state(tmp_path / "a").receipt
    assert kept is not None
    assert kept.summary["reference_toolchain"] == {"samevec": "0.1.0"}


def test_a11_a_failure_is_the_verdict_whatever_writing_it_did(
    judged: Callable[..., Verdict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged()
    monkeypatch.setattr(os, "fsync", no_space)
    found = judged(passed=False)
    assert not found.passed
    assert "parity failed, 1 findings; the receipt could not be written: " in found.words
    assert state(tmp_path / "a", tmp_path / "b").state == "missing"


@pytest.mark.parametrize("days", [-4000, 4000])
def test_a11_a_clock_that_jumped_hides_no_failure(days: int, judged: Callable[..., Verdict], tmp_path: Path) -> None:
    judged()
    judged(passed=False, now=NOW + timedelta(days=days))
    for now in (NOW, NOW + timedelta(days=days)):
        assert state(tmp_path / "a", tmp_path / "b", now=now).state == "failed"


def test_a11_a_pass_that_does_not_count_is_told(judged: Callable[..., Verdict], tmp_path: Path) -> None:
    (tmp_path / "b" / receipt().file_name).mkdir(parents=True)
    found = judged()
    assert found.passed
    assert "not a file, or too large to be a receipt" in found.receipt_problem
