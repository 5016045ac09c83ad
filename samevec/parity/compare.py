"""The frozen rule, applied to arrays and token ids. Pure; a mismatch is data, never an exception."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

__all__ = [
    "HISTOGRAM_EDGES",
    "Comparison",
    "Histogram",
    "Limits",
    "Worst",
    "compare",
    "compare_ids",
    "deviations",
    "merge_comparisons",
    "plain_number",
    "ratio_histogram",
    "row_deviations",
    "rows_with_other_bits",
]

#: Bounds of the histogram's bins: four a decade, from a millionth of what is allowed to a hundred times that.
HISTOGRAM_EDGES = tuple(10.0 ** (step / 4) for step in range(-24, 9))


class Limits(Protocol):
    """What a tolerance has; the only one in use is the lock's (``samevec.lock.Tolerance``)."""

    @property
    def atol(self) -> float:
        """Absolute part of the allowance."""
        ...

    @property
    def rtol(self) -> float:
        """Part of the allowance that grows with the reference's magnitude."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Worst:
    """The component that is worst in proportion to what it was allowed.

    Attributes
    ----------
    row, component : int
    reference, candidate : float
    difference, allowance : float
    """

    row: int
    component: int
    reference: float
    candidate: float
    difference: float
    allowance: float

    @property
    def ratio(self) -> float:
        """Difference over allowance: above 1 fails. Infinite for NaN and infinity."""
        if self.allowance > 0:
            return self.difference / self.allowance
        return float("inf") if self.difference > 0 else 0.0

    def __str__(self) -> str:
        sign = ">" if not self.difference <= self.allowance else "<="
        return (
            f"row {self.row} component {self.component}: |{self.reference:.4g} - {self.candidate:.4g}| = "
            f"{self.difference:.1e} {sign} allowance {self.allowance:.1e}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """What a comparison found.

    Attributes
    ----------
    rows, components : int
        Rows compared, and components of all of them together.
    failing_rows : tuple of int
        Rows with at least one failing component, ascending.
    failing_components : int
    max_abs : float
        Greatest absolute difference; infinite when the candidate is not finite.
    max_at : tuple of (int, int), or None
        Row and component of it.
    worst : Worst or None
        The greatest difference in proportion to its allowance.
    min_cosine : float or None
        Least cosine between a reference row and its candidate; None for rows of one component.
    problems : tuple of str
        Structural differences (shape, dtype, finiteness, token ids), in words.
    """

    rows: int
    components: int
    failing_rows: tuple[int, ...] = ()
    failing_components: int = 0
    max_abs: float = 0.0
    max_at: tuple[int, int] | None = None
    worst: Worst | None = None
    min_cosine: float | None = None
    problems: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether nothing differs by more than the tolerance."""
        return not self.problems and not self.failing_components and not self.failing_rows

    @property
    def worst_ratio(self) -> float:
        """Greatest difference over its allowance; above 1 fails."""
        return 0.0 if self.worst is None else self.worst.ratio

    @property
    def words(self) -> str:
        """One sentence: how much failed and where it is worst."""
        parts = list(self.problems[:3])
        if len(self.problems) > 3:
            parts.append(f"and {len(self.problems) - 3} more")
        if self.failing_components and self.worst is not None:
            parts.append(f"{len(self.failing_rows)} of {self.rows} rows differ, worst {self.worst}")
        if not parts:
            parts.append(f"{self.rows} rows agree, greatest difference {self.max_abs:.1e}")
        return "; ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return a record for JSON; numbers that are not finite become words, since JSON has none."""
        return {
            "rows": self.rows,
            "components": self.components,
            "failing_rows": list(self.failing_rows),
            "failing_components": self.failing_components,
            "max_abs": plain_number(self.max_abs),
            "max_at": None if self.max_at is None else list(self.max_at),
            "worst_ratio": plain_number(self.worst_ratio),
            "min_cosine": None if self.min_cosine is None else plain_number(self.min_cosine),
            "problems": list(self.problems),
        }


def plain_number(value: float) -> float | str:
    """Return a number as JSON can hold it: NaN and infinity become words."""
    return value if np.isfinite(value) else str(value)


@dataclass(frozen=True, kw_only=True, slots=True)
class Histogram:
    """How many components differ by how much of what they are allowed.

    Attributes
    ----------
    edges : tuple of float
        Bounds of the bins, ascending, in allowances: 1 is the line beyond which a component fails.
    counts : tuple of int
        One more than edges: below the first (exact equality included), between each two, and from the last on
        (what is not finite included). A component on an edge counts above it.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return a record for JSON."""
        return {"edges": list(self.edges), "counts": list(self.counts)}


def compare(
    reference: NDArray[np.float32],
    candidate: NDArray[np.float32],
    tolerance: Limits,
    *,
    row_names: Sequence[int] | None = None,
) -> Comparison:
    """Apply ``|reference - candidate| <= atol + rtol * |reference|`` to every component.

    Parameters
    ----------
    reference : ndarray of float32, shape (n_rows, width) or (n_rows,)
        What PyTorch gave.
    candidate : ndarray of float32, the same shape
        What is to be served.
    tolerance : Tolerance
        The lock's; there is no default.
    row_names : sequence of int, optional
        Numbers to report rows by, such as case numbers; positions if not given.

    Returns
    -------
    Comparison
        Structure is looked at first. With a wrong shape every row fails and no value is compared.

    Notes
    -----
    The difference is taken in float64: in float32 its own rounding could decide at the limit. NaN and infinity fail.
    """
    names = range(len(reference)) if row_names is None else row_names
    problems = _structure_problems(reference, candidate)
    if reference.shape != candidate.shape:
        return Comparison(
            rows=len(reference),
            components=int(reference.size),
            failing_rows=tuple(sorted(names)),
            failing_components=int(reference.size),
            max_abs=float("inf"),
            problems=problems,
        )
    if reference.size == 0:
        return Comparison(rows=len(reference), components=0, problems=problems)
    expected = reference.reshape(len(reference), -1).astype(np.float64)
    found = candidate.reshape(len(candidate), -1).astype(np.float64)
    return _compare_values(expected, found, tolerance, names, problems)


def _structure_problems(reference: NDArray[Any], candidate: NDArray[Any]) -> tuple[str, ...]:
    problems = []
    if reference.shape != candidate.shape:
        problems.append(f"shape {candidate.shape} instead of {reference.shape}")
    if reference.dtype != np.float32 or not np.isfinite(reference).all():
        problems.append("the reference itself is not finite float32")
    if candidate.dtype != np.float32:
        problems.append(f"dtype {candidate.dtype} instead of float32")
    elif not np.isfinite(candidate).all():
        problems.append(f"{int((~np.isfinite(candidate)).sum())} components are not finite")
    return tuple(problems)


def _compare_values(
    expected: NDArray[np.float64],
    found: NDArray[np.float64],
    tolerance: Limits,
    names: Sequence[int],
    problems: tuple[str, ...],
) -> Comparison:
    difference, allowance, ratio = _deviations(expected, found, tolerance)
    failing = ~(difference <= allowance)
    at = np.unravel_index(int(difference.argmax()), difference.shape)
    where = np.unravel_index(int(ratio.argmax()), ratio.shape)
    worst = Worst(
        row=int(names[int(where[0])]),
        component=int(where[1]),
        reference=float(expected[where]),
        candidate=float(found[where]),
        difference=float(difference[where]),
        allowance=float(allowance[where]),
    )
    return Comparison(
        rows=len(expected),
        components=int(expected.size),
        failing_rows=tuple(sorted(int(names[i]) for i in np.flatnonzero(failing.any(axis=1)).tolist())),
        failing_components=int(failing.sum()),
        max_abs=float(difference[at]),
        max_at=(int(names[int(at[0])]), int(at[1])),
        worst=worst,
        min_cosine=_min_cosine(expected, found),
        problems=problems,
    )


def _deviations(
    expected: NDArray[np.float64], found: NDArray[np.float64], tolerance: Limits
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return difference, allowance and their ratio, component by component; what is not finite differs infinitely."""
    with np.errstate(invalid="ignore", over="ignore"):  # infinity minus infinity: reported as a difference below
        difference = np.abs(expected - found)
    difference[np.isnan(difference)] = np.inf
    allowance = tolerance.atol + tolerance.rtol * np.abs(expected)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(difference > 0, difference / allowance, 0.0)
    return difference, allowance, np.where(np.isnan(ratio), np.inf, ratio)


def deviations(
    reference: NDArray[np.float32], candidate: NDArray[np.float32], tolerance: Limits
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Measure every component, for plots.

    Parameters
    ----------
    reference, candidate : ndarray of float32, shape (n_rows, width) or (n_rows,)
    tolerance : Tolerance

    Returns
    -------
    difference, ratio : ndarray of float64, shape (n_rows, width)
        ``|reference - candidate|``, and that over ``atol + rtol * |reference|``. Infinite where either is not finite,
        and everywhere if the shapes differ.
    """
    expected = reference.reshape(len(reference), -1).astype(np.float64)
    if reference.shape != candidate.shape:
        return np.full_like(expected, np.inf), np.full_like(expected, np.inf)
    difference, _, ratio = _deviations(expected, candidate.reshape(expected.shape).astype(np.float64), tolerance)
    return difference, ratio


def row_deviations(difference: NDArray[np.float64], ratio: NDArray[np.float64]) -> list[tuple[float, float]]:
    """Return each row's greatest difference and greatest ratio, which may be at different components."""
    return list(zip(difference.max(axis=1).tolist(), ratio.max(axis=1).tolist(), strict=True))


def rows_with_other_bits(reference: NDArray[np.float32], candidate: NDArray[np.float32]) -> list[int]:
    """Return which rows are not the same bit for bit; every row where shapes or types differ."""
    if reference.shape != candidate.shape or reference.dtype != candidate.dtype:
        return list(range(len(reference)))
    a, b = (np.ascontiguousarray(x).reshape(len(x), -1).view(np.uint32) for x in (reference, candidate))
    return np.flatnonzero((a != b).any(axis=1)).tolist()


def ratio_histogram(ratio: NDArray[np.float64]) -> Histogram:
    """Count components by how much of their allowance they take, see :data:`HISTOGRAM_EDGES`."""
    bins = np.searchsorted(HISTOGRAM_EDGES, ratio.ravel(), side="right")
    counts = np.bincount(bins, minlength=len(HISTOGRAM_EDGES) + 1)
    return Histogram(edges=HISTOGRAM_EDGES, counts=tuple(counts.tolist()))


def _min_cosine(expected: NDArray[np.float64], found: NDArray[np.float64]) -> float | None:
    """Return the least row cosine; a row that is zero or not finite on one side counts as 0, on both as 1."""
    if expected.shape[1] < 2:
        return None
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        norms = np.linalg.norm(expected, axis=1) * np.linalg.norm(found, axis=1)
        cosines = np.einsum("ij,ij->i", expected, found) / norms
    same = (expected == found).all(axis=1)
    cosines = np.where(same, 1.0, np.where(np.isfinite(cosines), cosines, 0.0))
    return float(np.clip(cosines, -1.0, 1.0).min())


def compare_ids(
    reference: Sequence[Sequence[int]],
    candidate: Sequence[Sequence[int]],
    *,
    row_names: Sequence[int] | None = None,
) -> Comparison:
    """Compare token ids, which must be equal.

    Parameters
    ----------
    reference, candidate : sequence of sequence of int
        One sequence a row, special tokens included, no padding.
    row_names : sequence of int, optional
        Numbers to report rows by.

    Returns
    -------
    Comparison
        Components are token positions; each differing row is a problem in words.
    """
    names = range(len(reference)) if row_names is None else row_names
    n_tokens = sum(len(ids) for ids in reference)
    if len(reference) != len(candidate):
        return Comparison(
            rows=len(reference),
            components=n_tokens,
            failing_rows=tuple(sorted(names)),
            failing_components=n_tokens,
            problems=(f"{len(candidate)} rows instead of {len(reference)}",),
        )
    failing, problems, n_failing = [], [], 0
    for name, expected, found in zip(names, reference, candidate, strict=True):
        if tuple(expected) == tuple(found):
            continue
        failing.append(int(name))
        problems.append(f"row {name}: {_ids_difference(expected, found)}")
        n_failing += abs(len(expected) - len(found)) + sum(a != b for a, b in zip(expected, found, strict=False))
    return Comparison(
        rows=len(reference),
        components=n_tokens,
        failing_rows=tuple(sorted(failing)),
        failing_components=n_failing,
        problems=tuple(problems),
    )


def _ids_difference(expected: Sequence[int], found: Sequence[int]) -> str:
    for position, (a, b) in enumerate(zip(expected, found, strict=False)):
        if a != b:
            return f"token id {b} instead of {a} at position {position} ({len(found)} ids, reference {len(expected)})"
    return f"{len(found)} token ids instead of {len(expected)}"


def merge_comparisons(comparisons: Iterable[Comparison]) -> Comparison:
    """Merge comparisons of repeats of the same rows: whatever failed once has failed.

    Parameters
    ----------
    comparisons : iterable of Comparison
        At least one.

    Returns
    -------
    Comparison
        The union of failing rows, and the worst of every number.
    """
    every = list(comparisons)
    greatest = max(every, key=lambda one: one.max_abs)
    worst = max(every, key=lambda one: one.worst_ratio)
    cosines = [one.min_cosine for one in every if one.min_cosine is not None]
    return Comparison(
        rows=every[0].rows,
        components=every[0].components,
        failing_rows=tuple(sorted({row for one in every for row in one.failing_rows})),
        failing_components=max(one.failing_components for one in every),
        max_abs=greatest.max_abs,
        max_at=greatest.max_at,
        worst=worst.worst,
        min_cosine=min(cosines) if cosines else None,
        problems=tuple(dict.fromkeys(problem for one in every for problem in one.problems)),
    )
