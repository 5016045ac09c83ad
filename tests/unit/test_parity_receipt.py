"""Receipts: what they are bound to, how they go stale, how they are written."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from parity_records import make_binding as binding

from samevec.errors import ArtifactError, ParityFailedError, ReceiptMissingError, StaleReceiptError
from samevec.lock import FROZEN_TOLERANCE
from samevec.parity import receipt as receipt_module
from samevec.parity.receipt import Binding, GateState, Receipt, gate_state, read_receipt, require_passed, write_receipt

FIX = "samevec parity --model m"


def receipt(*, passed: bool = True, at: str = "2020-01-01T00:00:00+00:00", **changes: Any) -> Receipt:
    return Receipt(
        binding=binding(**changes),
        passed=passed,
        created_at=at,
        tolerance=FROZEN_TOLERANCE.to_dict(),
        failures=() if passed else ("raw/alone: 1 of 2 rows differ",),
        summary={"cells": [{"level": "raw"}]},
        not_measured=("rankings",),
    )


def test_a_receipt_survives_the_file(tmp_path: Path) -> None:
    path = write_receipt([tmp_path / "receipts"], receipt())
    assert path.parent == tmp_path / "receipts"
    assert path.name == f"cpu-{binding().digest[7:23]}.json"
    assert read_receipt(path).to_dict() == receipt().to_dict()
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_states(tmp_path: Path) -> None:
    assert gate_state([tmp_path / "none"], binding()) == GateState(state="missing")
    write_receipt([tmp_path], receipt())
    assert gate_state([tmp_path], binding()).state == "passed"
    write_receipt([tmp_path], receipt(passed=False))
    found = gate_state([tmp_path], binding())
    assert found.state == "failed"
    assert found.summary == "failed (raw/alone: 1 of 2 rows differ)"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"artifact_digest": "sha256:" + "d" * 64}, "artifact sha256:aaaaaaaaaaaa -> sha256:dddddddddddd"),
        ({"lock_entry_digest": "sha256:" + "d" * 64}, "lock entry sha256:bbbbbbbbbbbb -> sha256:dddddddddddd"),
        ({"case_set_digest": "sha256:" + "d" * 64}, "case set sha256:cccccccccccc -> sha256:dddddddddddd"),
        ({"fixture_digest": "sha256:" + "d" * 64}, "retrieval fixture sha256:ffffffffffff -> sha256:dddddddddddd"),
        ({"provider": "CoreMLExecutionProvider"}, "provider CPUExecutionProvider -> CoreMLExecutionProvider"),
        ({"provider_options": {"use_tf32": "0"}}, "provider option use_tf32 unset -> 0"),
        ({"session_options": {"memory_arena": True, "session_config": {"x": "1"}}}, "session option x 0 -> 1"),
        ({"session_options": {"session_config": {"x": "0"}}}, "session option memory_arena true -> unset"),
        ({"onnxruntime_version": "1.32.0"}, "onnxruntime 1.31.1 -> 1.32.0"),
        ({"device": "CPU B (x86_64)"}, "device CPU A (x86_64) -> CPU B (x86_64)"),
        ({"samevec_version": "0.2.0"}, "samevec 0.1.0 -> 0.2.0"),
        ({"tokenizers_version": "0.23.0"}, "tokenizers 0.22.2 -> 0.23.0"),
        ({"numpy_version": "2.5.0"}, "numpy 2.4.0 -> 2.5.0"),
        ({"code": {"runtime/engine.py": "1", "runtime/tokenization.py": "3"}}, "code of runtime/tokenization.py"),
    ],
)
def test_every_bound_fact_makes_it_stale(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    write_receipt([tmp_path], receipt())
    found = gate_state([tmp_path], binding(**changes))
    assert (found.state, found.changes) == ("stale", (words,))
    with pytest.raises(StaleReceiptError) as caught:
        require_passed(found, model="m", fix=FIX)
    assert str(caught.value) == f"m: the parity receipt is stale: {words}; run: {FIX}"
    assert caught.value.changes == (words,)


def test_every_field_of_the_binding_is_covered_above() -> None:
    covered = {
        name for mark in test_every_bound_fact_makes_it_stale.pytestmark for row in mark.args[1] for name in row[0]
    }
    # Model and profile say which receipts are about the same thing: another one is missing, not stale.
    assert covered | {"model", "profile"} == {field.name for field in dataclasses.fields(Binding)}


@pytest.mark.parametrize("changes", [{"model": "other"}, {"profile": "cuda"}])
def test_a_receipt_about_something_else_counts_for_nothing(tmp_path: Path, changes: dict[str, Any]) -> None:
    write_receipt([tmp_path], receipt())
    assert gate_state([tmp_path], binding(**changes)).state == "missing"


def test_stale_is_told_against_the_newest_receipt(tmp_path: Path) -> None:
    write_receipt([tmp_path], receipt(onnxruntime_version="1.30.0", at="2019-01-01T00:00:00+00:00"))
    write_receipt([tmp_path], receipt(onnxruntime_version="1.31.1", at="2021-01-01T00:00:00+00:00"))
    found = gate_state([tmp_path], binding(onnxruntime_version="1.32.0"))
    assert found.changes == ("onnxruntime 1.31.1 -> 1.32.0",)


def test_going_back_to_what_was_proved_is_proved(tmp_path: Path) -> None:
    write_receipt([tmp_path], receipt())
    write_receipt([tmp_path], receipt(passed=False, onnxruntime_version="1.32.0", at="2021-01-01T00:00:00+00:00"))
    assert gate_state([tmp_path], binding()).state == "passed"


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda text: text[:40], "not a readable receipt"),
        (lambda _: "", "not a readable receipt"),
        (lambda _: "[]", "not a receipt"),
        (lambda text: text.replace("rankings", "nothing!"), "its content does not match its digest"),
        (lambda text: text.replace('"receipt_version": 2', '"receipt_version": 1'), "receipt_version 1 is not 2"),
    ],
)
def test_a_damaged_receipt_counts_as_missing(tmp_path: Path, damage: Any, reason: str) -> None:
    path = write_receipt([tmp_path], receipt())
    path.write_text(damage(path.read_text()))
    found = gate_state([tmp_path], binding())
    assert found.state == "missing"
    assert reason in found.problems[0]
    with pytest.raises(ReceiptMissingError) as caught:
        require_passed(found, model="m", fix=FIX)
    assert reason in str(caught.value)


def test_a_failed_receipt_edited_to_passed_is_refused(tmp_path: Path) -> None:
    path = write_receipt([tmp_path], receipt(passed=False))
    record = json.loads(path.read_text())
    record["passed"] = True
    path.write_text(json.dumps(record))
    assert gate_state([tmp_path], binding()).state == "missing"


def test_a_receipt_renamed_for_another_binding_is_refused(tmp_path: Path) -> None:
    path = write_receipt([tmp_path], receipt())
    other = binding(device="CPU B")
    path.rename(tmp_path / receipt(device="CPU B").file_name)
    assert gate_state([tmp_path], other).state == "stale"


def test_a_new_verdict_ends_the_older_one_in_every_directory(tmp_path: Path) -> None:
    artifact, home = tmp_path / "artifact", tmp_path / "home"
    write_receipt([artifact, home], receipt())
    write_receipt([home, artifact], receipt(passed=False))
    assert gate_state([artifact, home], binding()).state == "failed"
    assert list(artifact.iterdir()) == []
    write_receipt([artifact, home], receipt())
    assert gate_state([artifact, home], binding()).state == "passed"
    assert list(home.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_passed_over(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")  # a file where the directory should be: refused for root too, unlike permissions
    path = write_receipt([blocked / "receipts", tmp_path / "home"], receipt())
    assert path.parent == tmp_path / "home"
    with pytest.raises(ArtifactError) as caught:
        write_receipt([blocked / "receipts"], receipt())
    assert str(caught.value) == f"the receipt could not be written: {blocked / 'receipts'}: Not a directory"


def no_space(_handle: int) -> None:
    raise OSError(28, "No space left on device")


def test_a_pass_that_cannot_be_written_leaves_the_old_receipt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_receipt([tmp_path], receipt(passed=False))
    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(ArtifactError, match="No space left on device"):
        write_receipt([tmp_path], receipt())
    assert not read_receipt(path).passed
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_require_passed_lets_only_passed_through(tmp_path: Path) -> None:
    write_receipt([tmp_path], receipt())
    require_passed(gate_state([tmp_path], binding()), model="m", fix=FIX)
    with pytest.raises(ReceiptMissingError) as missing:
        require_passed(GateState(state="missing"), model="m", fix=FIX)
    assert str(missing.value) == f"m: parity has not been proved on this machine; run: {FIX}"
    with pytest.raises(ParityFailedError) as failed:
        require_passed(GateState(state="failed", receipt=receipt(passed=False)), model="m", fix=FIX)
    assert str(failed.value) == f"m: parity failed here: raw/alone: 1 of 2 rows differ; run: {FIX}"


def test_bindings_are_validated() -> None:
    record = binding().to_dict()
    assert Binding.from_dict(record) == binding()
    with pytest.raises(ValueError, match="binding keys are"):
        Binding.from_dict(record | {"more": 1})
    with pytest.raises(ValueError, match=r"^binding\.provider_options is not of type dict$"):
        Binding.from_dict(record | {"provider_options": "none"})


def test_receipts_load_no_torch() -> None:
    code = (
        "import sys, samevec.parity.receipt; print(sorted({'torch', 'transformers', 'onnxruntime'} & set(sys.modules)))"
    )
    root = Path(receipt_module.__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.strip() == "[]"
