"""PyTorch against itself: what batching alone moves, measured at export and carried by the reference file.

It judges nothing. It says how much batching alone moves: same modules, same weights, other company.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from samevec.parity.cases.builtin import quick_positions
from samevec.parity.compare import compare, plain_number, rows_with_other_bits
from samevec.parity.levels import levels_of
from samevec.parity.tokens import tokenize_cases
from samevec.progress import SilentProgress

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from samevec.lock import Tolerance
    from samevec.parity.cases.builtin import CaseSet
    from samevec.parity.levels import Level
    from samevec.parity.reference.file import Reference
    from samevec.progress import Progress
    from samevec.runtime.embedder import Embedder
    from samevec.runtime.reranker import Reranker

__all__ = [
    "BASELINE_TITLE",
    "BaselineGrouping",
    "BaselineLevel",
    "TorchBaseline",
    "baseline_batches",
    "measure_torch_baseline",
]

#: What every report calls it.
BASELINE_TITLE = "PyTorch against itself"

_ARRIVAL_ROWS = 8
_NEAR_EQUAL_ROWS = 32
#: Of the batch of near equal lengths: most padding, as a share of all its tokens.
_MOST_PADDING = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class BaselineLevel:
    """One level of a grouping, against the same rows computed one at a time.

    Attributes
    ----------
    level : str
    components, failing_rows, failing_components : int
        Compared, and outside the lock's tolerance.
    moved_rows : int
        Rows with other bits.
    max_abs : float
        Greatest absolute difference.
    max_relative : float
        Greatest difference of a row over the greatest magnitude of that row.
    worst_ratio : float
        Greatest difference over what the tolerance allows there.
    """

    level: str
    components: int
    failing_rows: int
    failing_components: int
    moved_rows: int
    max_abs: float
    max_relative: float
    worst_ratio: float

    def to_dict(self) -> dict[str, Any]:
        """Return a record for JSON; what is not finite becomes a word."""
        record = {name: getattr(self, name) for name in self.__slots__}
        return record | {name: plain_number(record[name]) for name in ("max_abs", "max_relative", "worst_ratio")}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> BaselineLevel:
        """Return what a record says."""
        numbers = {name: float(record[name]) for name in ("max_abs", "max_relative", "worst_ratio")}
        return cls(**{**record, **numbers})


@dataclass(frozen=True, kw_only=True, slots=True)
class BaselineGrouping:
    """One way in which PyTorch ran some cases again.

    Attributes
    ----------
    name : str
        ``alone``, ``arrival_8`` (eight at a time in the order of the cases) or ``near_equal_32``.
    rows, runs : int
        Cases, and in how many batches they ran.
    levels : tuple of BaselineLevel
    """

    name: str
    rows: int
    runs: int
    levels: tuple[BaselineLevel, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return a record for JSON."""
        levels = [level.to_dict() for level in self.levels]
        return {"name": self.name, "rows": self.rows, "runs": self.runs, "levels": levels}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> BaselineGrouping:
        """Return what a record says."""
        return cls(**{**record, "levels": tuple(BaselineLevel.from_dict(level) for level in record["levels"])})


@dataclass(frozen=True, slots=True)
class TorchBaseline:
    """Every grouping in which PyTorch was compared with itself."""

    groupings: tuple[BaselineGrouping, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return a record for JSON."""
        return {"groupings": [grouping.to_dict() for grouping in self.groupings]}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> TorchBaseline:
        """Return what a record says.

        Raises
        ------
        KeyError, TypeError, ValueError
            It is no such record.
        """
        return cls(tuple(BaselineGrouping.from_dict(grouping) for grouping in record["groupings"]))


def baseline_batches(lengths: Sequence[int], quick: Sequence[int]) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Choose which cases PyTorch computes again, and in which batches.

    Parameters
    ----------
    lengths : sequence of int
        Tokens of every case.
    quick : sequence of int
        The quick cases, in order.

    Returns
    -------
    dict of str to tuple of tuple of int
        By grouping, its batches of case numbers: the quick cases alone; eight at a time as they come, so that most of a
        batch is padding; and the 32 longest cases among all that fill a batch with no more than a tenth of padding.
    """
    quick = tuple(quick)
    starts = range(0, len(quick), _ARRIVAL_ROWS)
    return {
        "alone": tuple((i,) for i in quick),
        f"arrival_{_ARRIVAL_ROWS}": tuple(quick[start : start + _ARRIVAL_ROWS] for start in starts),
        f"near_equal_{_NEAR_EQUAL_ROWS}": (_near_equal(lengths),),
    }


def _near_equal(lengths: Sequence[int]) -> tuple[int, ...]:
    """Return the longest 32 cases of near equal length; where no 32 are near, those with the least padding."""
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    windows = [order[start : start + _NEAR_EQUAL_ROWS] for start in range(max(1, len(order) - _NEAR_EQUAL_ROWS + 1))]

    def padding(window: list[int]) -> float:
        return 1 - sum(lengths[i] for i in window) / (len(window) * lengths[window[-1]])

    near = [window for window in windows if padding(window) <= _MOST_PADDING]
    chosen = near[-1] if near else min(windows, key=padding)
    return tuple(chosen)


def measure_torch_baseline(
    model: Embedder | Reranker,
    reference: Reference,
    case_set: CaseSet,
    *,
    tolerance: Tolerance,
    progress: Progress | None = None,
) -> TorchBaseline:
    """Run PyTorch in batches and compare it with what it gave one case at a time.

    Parameters
    ----------
    model : Embedder or Reranker
        Around a :class:`samevec.parity.reference.torch_session.TorchSession`, not yet patched for the export.
    reference : Reference
        Of `case_set`.
    case_set : CaseSet
    tolerance : Tolerance
        The lock's.
    progress : Progress, optional

    Returns
    -------
    TorchBaseline

    Raises
    ------
    InputError, SessionRunError
        A case is refused, or PyTorch cannot run a batch.
    """
    batches = baseline_batches([len(ids) for ids in reference.ids], quick_positions(case_set))
    needed = sorted({i for every in batches.values() for batch in every for i in batch})
    rows = dict(zip(needed, tokenize_cases(model, case_set.subset(needed)), strict=True))
    levels = levels_of(model, reference)
    found = []
    n_runs = sum(len(every) for every in batches.values())
    with (progress or SilentProgress()).step(f"{BASELINE_TITLE} {model.name}", total=n_runs, unit="runs") as advance:
        for name, every in batches.items():
            parts = []
            for batch in every:
                parts.append(model.run_microbatch([rows[i] for i in batch]))
                advance(1)
            members = [i for batch in every for i in batch]
            measured = tuple(_measure(level, members, np.concatenate(parts), tolerance) for level in levels)
            found.append(BaselineGrouping(name=name, rows=len(members), runs=len(every), levels=measured))
    return TorchBaseline(tuple(found))


def _measure(level: Level, members: Sequence[int], raw: NDArray[np.float32], tolerance: Tolerance) -> BaselineLevel:
    expected, found = level.expected[np.asarray(members)], level.finish(raw)
    comparison = compare(expected, found, tolerance)
    return BaselineLevel(
        level=level.name,
        components=comparison.components,
        failing_rows=len(comparison.failing_rows),
        failing_components=comparison.failing_components,
        moved_rows=len(rows_with_other_bits(expected, found)),
        max_abs=comparison.max_abs,
        max_relative=_max_relative(expected, found),
        worst_ratio=comparison.worst_ratio,
    )


def _max_relative(expected: NDArray[np.float32], found: NDArray[np.float32]) -> float:
    wide = expected.reshape(len(expected), -1).astype(np.float64)
    differences = np.abs(wide - found.reshape(wide.shape)).max(axis=1)
    magnitudes = np.abs(wide).max(axis=1)
    relative = np.divide(differences, magnitudes, out=np.full_like(differences, np.inf), where=magnitudes > 0)
    return float(np.where(differences > 0, relative, 0.0).max())
