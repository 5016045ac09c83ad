"""The comparison rule, from both sides of the tolerance."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from samevec.lock import load_lock
from samevec.parity.compare import (
    HISTOGRAM_EDGES,
    Comparison,
    compare,
    compare_ids,
    deviations,
    merge_comparisons,
    ratio_histogram,
    row_deviations,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from samevec.lock import Tolerance


@pytest.fixture(scope="module")
def tolerance() -> Tolerance:
    return load_lock("toy").tolerance


@pytest.fixture
def reference() -> NDArray[np.float32]:
    stream = np.random.Generator(np.random.PCG64(7))
    return stream.standard_normal((5, 8), dtype=np.float32) * np.float32(3)


def moved(
    reference: NDArray[np.float32], tolerance: Tolerance, *, allowances: float, at: tuple[int, int] = (3, 2)
) -> NDArray[np.float32]:
    """Return a copy with one component moved by so many allowances."""
    candidate = reference.copy()
    candidate[at] += np.float32(allowances * (tolerance.atol + tolerance.rtol * abs(float(reference[at]))))
    return candidate


def test_equal_arrays_pass(reference: NDArray[np.float32], tolerance: Tolerance) -> None:
    found = compare(reference, reference.copy(), tolerance)
    assert found.passed
    assert (found.rows, found.components, found.max_abs, found.min_cosine) == (5, 40, 0.0, 1.0)
    assert found.words == "5 rows agree, greatest difference 0.0e+00"


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("allowances", "passes"), [(0.5, True), (0.99, True), (1.01, False), (2.0, False)])
def test_both_sides_of_the_tolerance(
    reference: NDArray[np.float32], tolerance: Tolerance, allowances: float, passes: bool, sign: int
) -> None:
    found = compare(reference, moved(reference, tolerance, allowances=sign * allowances), tolerance)
    assert found.passed is passes
    assert found.max_at == (3, 2)
    assert found.worst_ratio == pytest.approx(allowances, rel=1e-2)
    assert found.failing_rows == (() if passes else (3,))
    assert found.failing_components == (0 if passes else 1)


def test_the_allowance_comes_from_the_reference(tolerance: Tolerance) -> None:
    # 0 against 0.0001005 is within atol + rtol * 0.0001005 only if the candidate were taken for the reference.
    zero, small = np.zeros((1, 1), np.float32), np.full((1, 1), tolerance.atol * 1.0005, np.float32)
    assert not compare(zero, small, tolerance).passed
    assert compare(small, zero, tolerance).passed


def test_words_name_the_worst_component(reference: NDArray[np.float32], tolerance: Tolerance) -> None:
    reference[3, 2] = 0.1234
    candidate = reference.copy()
    candidate[3, 2] = 0.1301
    candidate[1, 0] += np.float32(0.001)
    found = compare(reference, candidate, tolerance, row_names=[10, 11, 12, 17, 14])
    assert found.failing_rows == (11, 17)
    assert found.words == (
        "2 of 5 rows differ, worst row 17 component 2: |0.1234 - 0.1301| = 6.7e-03 > allowance 2.2e-04"
    )


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_fails(reference: NDArray[np.float32], tolerance: Tolerance, value: float) -> None:
    candidate = reference.copy()
    candidate[4, 7] = value
    found = compare(reference, candidate, tolerance)
    assert found.failing_rows == (4,)
    assert found.failing_components == 1
    assert found.max_abs == np.inf
    assert found.min_cosine == 0.0
    assert found.problems == ("1 components are not finite",)
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["max_abs"] == "inf"


def test_a_reference_that_is_not_finite_never_passes(reference: NDArray[np.float32], tolerance: Tolerance) -> None:
    reference[0, 0] = np.nan
    assert not compare(reference, reference.copy(), tolerance).passed


def test_structure_comes_first(reference: NDArray[np.float32], tolerance: Tolerance) -> None:
    narrow = compare(reference, reference[:, :4], tolerance)
    assert narrow.words == "shape (5, 4) instead of (5, 8)"
    assert narrow.failing_rows == (0, 1, 2, 3, 4)
    double = compare(reference, reference.astype(np.float64), tolerance)
    assert double.words == "dtype float64 instead of float32"
    assert not double.passed


def test_scores_have_one_component_and_no_cosine(tolerance: Tolerance) -> None:
    scores = np.asarray([0.1, 0.9], np.float32)
    found = compare(scores, scores + np.float32(0.5), tolerance)
    assert found.min_cosine is None
    assert found.failing_rows == (0, 1)


def test_the_least_cosine_is_of_the_worst_row(tolerance: Tolerance) -> None:
    reference = np.asarray([[1, 0], [1, 0], [0, 0]], np.float32)
    candidate = np.asarray([[1, 0], [0, 1], [0, 0]], np.float32)
    assert compare(reference, candidate, tolerance).min_cosine == 0.0
    assert compare(reference, -reference, tolerance).min_cosine == -1.0


def test_ids_must_be_equal() -> None:
    reference = [(1, 2, 3), (4, 5), (6,)]
    assert compare_ids(reference, [[1, 2, 3], [4, 5], [6]]).passed
    found = compare_ids(reference, [(1, 9, 3), (4, 5, 7), (6,)], row_names=[7, 8, 9])
    assert found.failing_rows == (7, 8)
    assert found.failing_components == 2
    assert found.problems == (
        "row 7: token id 9 instead of 2 at position 1 (3 ids, reference 3)",
        "row 8: 3 token ids instead of 2",
    )
    assert compare_ids(reference, reference[:2]).words == "2 rows instead of 3"


def test_merging_keeps_whatever_failed_once(reference: NDArray[np.float32], tolerance: Tolerance) -> None:
    clean = compare(reference, reference, tolerance)
    first = compare(reference, moved(reference, tolerance, allowances=2, at=(0, 0)), tolerance)
    second = compare(reference, moved(reference, tolerance, allowances=9, at=(4, 1)), tolerance)
    merged = merge_comparisons([clean, first, second, clean])
    assert merged.failing_rows == (0, 4)
    assert merged.worst == second.worst
    assert not merged.passed
    assert merge_comparisons([clean, clean]).passed


def test_an_empty_comparison_compares_nothing(tolerance: Tolerance) -> None:
    empty = np.zeros((0, 4), np.float32)
    assert compare(empty, empty, tolerance) == Comparison(rows=0, components=0)


def test_deviations_are_what_the_rule_looks_at(reference: NDArray[np.float32], tolerance: Tolerance) -> None:
    candidate = moved(reference, tolerance, allowances=2)
    candidate[1, 5] += np.float32(1e-3)
    difference, ratio = deviations(reference, candidate, tolerance)
    comparison = compare(reference, candidate, tolerance)
    assert difference.max() == comparison.max_abs
    assert ratio.max() == comparison.worst_ratio
    rows = row_deviations(difference, ratio)
    assert rows[0] == (0.0, 0.0)
    assert rows[3][1] == pytest.approx(2, rel=1e-2)
    assert [i for i, (_, worst) in enumerate(rows) if worst > 1] == [
        row for row in range(5) if row in comparison.failing_rows
    ]


def test_deviations_of_what_cannot_be_compared_are_infinite(
    reference: NDArray[np.float32], tolerance: Tolerance
) -> None:
    assert np.isinf(np.stack(deviations(reference, reference[:, :4], tolerance))).all()
    candidate = reference.copy()
    candidate[0, 0] = np.nan
    _, ratio = deviations(reference, candidate, tolerance)
    assert ratio[0, 0] == np.inf
    assert np.count_nonzero(ratio) == 1


def test_a_histogram_counts_every_component_once() -> None:
    ratio = np.asarray([[0.0, 1e-7, 1e-6], [0.9, 1.0, 99.0], [100.0, np.inf, 0.5]])
    histogram = ratio_histogram(ratio)
    assert histogram.edges == HISTOGRAM_EDGES
    assert len(histogram.counts) == len(HISTOGRAM_EDGES) + 1
    assert sum(histogram.counts) == 9
    assert histogram.counts[0] == 2  # below the first edge, equality included
    assert histogram.counts[-1] == 2  # from the last edge on
    line = HISTOGRAM_EDGES.index(1.0)
    assert sum(histogram.counts[line + 1 :]) == 4  # at or beyond what is allowed: 1, 99, 100 and infinity
    json.dumps(histogram.to_dict(), allow_nan=False)
