"""The reference file: round trip, equal bytes, damage."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from samevec.errors import ReferenceMissingError
from samevec.parity.cases.builtin import CaseSet, PairCase, TextCase
from samevec.parity.limit import LimitCase
from samevec.parity.reference.file import (
    REFERENCE_VERSION,
    CapturedRow,
    Reference,
    RetrievalReference,
    SweepReference,
    read_reference,
    write_reference,
)
from samevec.parity.reference.torch_baseline import BaselineGrouping, BaselineLevel, TorchBaseline

if TYPE_CHECKING:
    from pathlib import Path

CASES = CaseSet(task="embed", texts=(TextCase(text="a", tag=""), TextCase(text="", tag=""), TextCase(text="b", tag="")))


def reference() -> Reference:
    rows = [
        CapturedRow((1, 2, 9), np.asarray([1, 2], np.float32), np.asarray([0.6, 0.8], np.float32)),
        CapturedRow((9,), np.asarray([3, 4], np.float32), np.asarray([0.6, 0.8], np.float32)),
        CapturedRow((5, 9), np.asarray([5, -6], np.float32), np.asarray([1, 0], np.float32)),
    ]
    return Reference.from_rows(
        rows,
        model="m",
        case_set=CASES,
        lock_entry_digest="sha256:e",
        prompts={"query": "Q: ", "document": ""},
        toolchain={"torch": "2.13.0", "numpy": "2.4.6"},
        retrieval=RetrievalReference.from_rows(rows[::-1][:2], fixture_digest="sha256:f", task="embed"),
        sweep=SweepReference(
            ids=((3, 4, 5, 6), (7,)),
            raw=np.asarray([[7, 8], [9, 10]], np.float32),
            limit=(LimitCase(5, 6, "sha256:a"), LimitCase(6, 7, "sha256:b")),
        ),
    )


def test_what_is_written_is_read(tmp_path: Path) -> None:
    written = reference()
    write_reference(tmp_path / "r", written)
    read = read_reference(tmp_path / "r")
    assert read.ids == ((1, 2, 9), (9,), (5, 9))
    assert read.case_set_digest == CASES.digest
    for name in ("model", "task", "lock_entry_digest", "prompts", "toolchain", "ids"):
        assert getattr(read, name) == getattr(written, name)
    assert read.raw.dtype == np.float32
    np.testing.assert_array_equal(read.raw, written.raw)
    np.testing.assert_array_equal(read.final, written.final)
    assert read.retrieval is not None
    assert written.retrieval is not None
    assert read.retrieval.ids == ((5, 9), (9,))
    assert read.retrieval.fixture_digest == "sha256:f"
    np.testing.assert_array_equal(read.retrieval.raw, written.retrieval.raw)
    np.testing.assert_array_equal(read.retrieval.final, written.retrieval.final)
    assert read.sweep is not None
    assert written.sweep is not None
    assert (read.sweep.ids, read.sweep.limit) == (written.sweep.ids, written.sweep.limit)
    np.testing.assert_array_equal(read.sweep.raw, written.sweep.raw)


def test_equal_references_are_equal_bytes(tmp_path: Path) -> None:
    for i in range(8):
        write_reference(tmp_path / str(i), reference())
    assert len({(tmp_path / str(i)).read_bytes() for i in range(8)}) == 1


def test_scores_are_one_a_pair() -> None:
    pairs = CaseSet(task="rerank", pairs=(PairCase(query="q", document="d", tag=""),))
    row = CapturedRow((1,), np.asarray([2], np.float32), np.asarray([0.88], np.float32))
    made = Reference.from_rows([row], model="m", case_set=pairs, lock_entry_digest="", prompts={}, toolchain={})
    assert made.raw.shape == (1, 1)
    assert made.final.shape == (1,)


def test_rows_must_match_the_cases() -> None:
    with pytest.raises(ValueError, match=r"^0 rows captured for 3 cases$"):
        Reference.from_rows([], model="m", case_set=CASES, lock_entry_digest="", prompts={}, toolchain={})


def test_a_missing_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ReferenceMissingError) as caught:
        read_reference(tmp_path / "none", fix="samevec export --model m")
    assert str(caught.value) == f"{tmp_path / 'none'}: no reference to compare with; run: samevec export --model m"


@pytest.mark.parametrize("keep", [0, 7, 40, -1])
def test_a_cut_file_is_refused(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "r"
    write_reference(path, reference())
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ReferenceMissingError, match="not a readable reference"):
        read_reference(path)


def test_a_file_with_unequal_rows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r"
    whole = reference()
    write_reference(path, dataclasses.replace(whole, raw=whole.raw[:2]))
    with pytest.raises(ReferenceMissingError, match="differ in number"):
        read_reference(path)


def test_a_file_of_another_version_says_so_and_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "r"
    write_reference(path, reference())
    marker = b'\\"reference_version\\":'
    written = marker + str(REFERENCE_VERSION).encode()
    assert path.read_bytes().count(written) == 1
    path.write_bytes(path.read_bytes().replace(written, marker + b"1"))
    with pytest.raises(ReferenceMissingError) as caught:
        read_reference(path, fix="samevec export --model m")
    assert str(caught.value) == (
        f"{path}: written by another samevec (reference version 1, this one reads {REFERENCE_VERSION}); "
        "run: samevec export --model m"
    )


def baseline() -> TorchBaseline:
    level = BaselineLevel(
        level="raw",
        components=4,
        failing_rows=1,
        failing_components=2,
        moved_rows=1,
        max_abs=0.25,
        max_relative=0.125,
        worst_ratio=math.inf,
    )
    return TorchBaseline((BaselineGrouping(name="arrival_8", rows=2, runs=1, levels=(level,)),))


def test_what_pytorch_moved_itself_is_read_as_written(tmp_path: Path) -> None:
    write_reference(tmp_path / "r", dataclasses.replace(reference(), torch_baseline=baseline()))
    assert read_reference(tmp_path / "r").torch_baseline == baseline()


@pytest.mark.parametrize("record", ['{\\"groupings\\":[{}]}', "7", '{\\"groupings\\":[7]}'])
def test_a_spoilt_baseline_is_refused_in_words(tmp_path: Path, record: str) -> None:
    path = tmp_path / "r"
    write_reference(path, reference())
    content = path.read_bytes()
    marker = b'\\"torch_baseline\\":'
    assert content.count(marker + b"null") == 1
    spoilt = content.replace(marker + b"null", marker + record.encode())
    length = int.from_bytes(content[:8], "little") + len(spoilt) - len(content)
    path.write_bytes(length.to_bytes(8, "little") + spoilt[8:])
    with pytest.raises(ReferenceMissingError, match="not a readable reference"):
        read_reference(path)


@pytest.mark.parametrize("part", ["retrieval", "sweep"])
def test_a_reference_without_fixture_or_sweep_is_not_written(part: str, tmp_path: Path) -> None:
    without: dict[str, Any] = {part: None}
    with pytest.raises(ValueError, match="lacks the rows of"):
        write_reference(tmp_path / "r", dataclasses.replace(reference(), **without))
    assert not (tmp_path / "r").exists()
