"""Answers: recorded, read back, pinned by a lock, compared by the gate."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from gate_stand_ins import REFERENCES, gate

from samevec.digest import array_digest
from samevec.errors import AnswersDifferError, LockValidationError, ReferenceMissingError
from samevec.export.source.lock_update import pin_answers
from samevec.lock import PinnedAnswers, dump_lock, load_lock, parse_lock, read_lock
from samevec.parity.answers import (
    Answers,
    NodeAnswer,
    changed_answers,
    read_answers,
    require_pinned,
    traced_cases,
)
from samevec.parity.cases.builtin import builtin_cases, quick_positions

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from samevec.parity.verdict import Verdict

RAW = np.arange(12, dtype=np.float32).reshape(3, 4)
ENTRY = load_lock("toy").models[0]


def answers_of(raw: NDArray[np.float32], *, cases: str = "sha256:" + "a" * 64) -> Answers:
    nodes = {1: (NodeAnswer("x", "RmsNorm", "b" * 64), NodeAnswer("y", "Attention", "c" * 64))}
    return Answers.of_rows(raw, arithmetic=1, case_set_digest=cases, nodes=nodes)


def test_a_rows_digest_is_that_of_its_little_endian_bytes() -> None:
    assert array_digest(RAW[1]) == hashlib.sha256(RAW[1].astype("<f4").tobytes()).hexdigest()
    assert array_digest(RAW[1].astype(">f4")) == array_digest(RAW[1])
    assert array_digest(RAW[:, 1]) == array_digest(RAW[:, 1].copy())


def test_one_changed_bit_is_named_by_its_case() -> None:
    answers, moved = answers_of(RAW), RAW.copy()
    moved[2, 3] = np.nextafter(moved[2, 3], np.float32(0))
    assert changed_answers(answers, RAW, (0, 1, 2)) == ()
    assert changed_answers(answers, moved, (0, 1, 2)) == (2,)
    assert changed_answers(answers, moved[2:], (2,)) == (2,)
    assert answers_of(moved).digest != answers.digest


def test_the_sign_of_a_zero_is_a_bit() -> None:
    negative = RAW.copy()
    negative[0, 0] = -0.0
    assert changed_answers(answers_of(RAW), negative, (0, 1, 2)) == (0,)


def test_answers_come_back_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "answers.json"
    path.write_bytes(answers_of(RAW).to_bytes())
    assert read_answers(path, fix="samevec export") == answers_of(RAW)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"answers_version": 2}', b'{"answers_version": 1}'])
def test_damaged_answers_are_missing_ones(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "answers.json"
    path.write_bytes(content)
    with pytest.raises(ReferenceMissingError, match=r"no readable answers .*; run: samevec export"):
        read_answers(path, fix="samevec export")


def test_the_traced_cases_are_short_middling_and_longer() -> None:
    assert traced_cases([300, 2, 90, 205, 7]) == (1, 2, 3)
    assert traced_cases([5]) == (0,)


def test_an_entry_without_answers_takes_any() -> None:
    require_pinned(replace(ENTRY, answers=None), answers_of(RAW))


def test_answers_that_are_not_the_pinned_ones_are_refused() -> None:
    answers = answers_of(RAW)
    pinned = PinnedAnswers(arithmetic=1, case_set_digest=answers.case_set_digest, digest=answers.digest)
    require_pinned(replace(ENTRY, answers=pinned), answers)
    others = answers_of(RAW + 1)
    with pytest.raises(AnswersDifferError, match=rf"answers are {others.digest}, the lock pins {answers.digest}"):
        require_pinned(replace(ENTRY, answers=pinned), others)


@pytest.mark.parametrize("other", [{"arithmetic": 2}, {"case_set_digest": "sha256:" + "d" * 64}])
def test_answers_about_something_else_are_no_proof(other: dict[str, object]) -> None:
    answers = answers_of(RAW)
    pinned = PinnedAnswers(arithmetic=1, case_set_digest=answers.case_set_digest, digest=answers.digest)
    with pytest.raises(AnswersDifferError, match="take the lock of this release"):
        require_pinned(replace(ENTRY, answers=replace(pinned, **other)), answers)  # type: ignore[arg-type]


def test_answers_do_not_change_what_an_entry_asks_for() -> None:
    assert ENTRY.answers is not None
    assert replace(ENTRY, answers=None).digest == ENTRY.digest


def test_a_lock_with_answers_reads_back_and_wrong_ones_are_named() -> None:
    lock = load_lock("toy")
    text = dump_lock(lock)
    assert parse_lock(text) == lock
    assert ENTRY.answers is not None
    with pytest.raises(LockValidationError, match=r"models\[0\].answers.digest: must be sha256:"):
        parse_lock(text.replace(ENTRY.answers.digest, "sha256:abc"))


def test_pinning_answers_writes_the_lock_once(tmp_path: Path) -> None:
    path = tmp_path / "models.lock"
    path.write_text(dump_lock(load_lock("toy")))
    changes = pin_answers(path, ENTRY.name, answers_of(RAW))
    assert changes == [f"answers: {ENTRY.answers and ENTRY.answers.digest} -> {answers_of(RAW).digest}"]
    found = read_lock(path).model(ENTRY.name).answers
    assert found is not None
    assert found.digest == answers_of(RAW).digest
    assert pin_answers(path, ENTRY.name, answers_of(RAW)) == []


@pytest.mark.parametrize("quick", [False, True])
def test_the_gate_fails_where_one_case_has_other_bits_than_at_export(quick: bool) -> None:
    cases = builtin_cases("embed", prompts=("query", "document"))
    case = quick_positions(cases)[0]
    recorded = REFERENCES["embed"].raw.copy()
    recorded[case, 0] = np.nextafter(recorded[case, 0], np.float32(9))

    def verdict_of(raw: NDArray[np.float32]) -> Verdict:
        answers = Answers.of_rows(raw, arithmetic=1, case_set_digest=cases.digest, nodes={})
        return gate("embed", repeats=1, quick=quick, golden=False, answers=answers)

    same, other = verdict_of(REFERENCES["embed"].raw), verdict_of(recorded)
    assert same.passed
    assert "bits as at export: sha256:" in same.words
    assert other.answers is not None
    assert other.answers.changed == (case,)
    assert any(f"answers: 1 of {other.n_cases} cases have other bits" in text for text in other.failures)
    assert not any("raw/alone" in text for text in other.failures)  # the tolerance sees nothing of it


def test_a_gate_with_answers_of_another_case_set_asks_for_an_export() -> None:
    with pytest.raises(ReferenceMissingError, match="another case set"):
        gate("embed", repeats=1, quick=True, golden=False, answers=answers_of(REFERENCES["embed"].raw))
