"""PyTorch computed anew beside the stored reference: whether the file is still what PyTorch gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from samevec.errors import InferenceError, InputError
from samevec.parity.cases.builtin import builtin_cases
from samevec.parity.compare import compare, compare_ids
from samevec.parity.levels import levels_of
from samevec.parity.reference.pytorch import capture_reference, load_reference_model
from samevec.parity.tokens import tokenize_cases
from samevec.parity.verdict import Cell

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from samevec.lock import LockedModel, Tolerance
    from samevec.parity.cases.builtin import CaseSet
    from samevec.parity.levels import Level
    from samevec.parity.reference.file import Reference
    from samevec.progress import Progress
    from samevec.runtime.embedder import Embedder
    from samevec.runtime.reranker import Reranker

__all__ = ["CANDIDATE_LIVE", "STORED_LIVE", "capture_live", "run_baseline"]

#: Names of the groupings: what is compared with what PyTorch gives now.
STORED_LIVE = "stored_vs_live"
CANDIDATE_LIVE = "candidate_vs_live"


def capture_live(
    entry: LockedModel,
    snapshot: Path,
    *,
    toolchain: Mapping[str, str],
    case_set: CaseSet | None = None,
    progress: Progress | None = None,
) -> Reference:
    """Compute the PyTorch reference of a case set on this machine; torch is loaded now.

    Parameters
    ----------
    entry : LockedModel
    snapshot : Path
        Folder of verified files.
    toolchain : mapping of str to str
        Versions in use, for the record.
    case_set : CaseSet, optional
        The built-in one if not given.
    progress : Progress, optional

    Raises
    ------
    ConfigError, ExportError
        See :func:`samevec.parity.reference.pytorch.load_reference_model`.
    """
    cases = builtin_cases(entry.task, prompts=entry.prompts) if case_set is None else case_set
    return capture_reference(load_reference_model(snapshot, entry), cases, toolchain=toolchain, progress=progress)


def run_baseline(
    model: Embedder | Reranker,
    stored: Reference,
    live: Reference,
    *,
    tolerance: Tolerance,
    case_set: CaseSet | None = None,
) -> tuple[Cell, ...]:
    """Compare the stored reference and the candidate with PyTorch's present numbers.

    Parameters
    ----------
    model : Embedder or Reranker
        The candidate; it computes the cases once, at its default policy.
    stored, live : Reference
        From the artifact, and from :func:`capture_live`, of the same case set.
    tolerance : Tolerance
        The lock's.
    case_set : CaseSet, optional
        The built-in one if not given.

    Returns
    -------
    tuple of Cell
        Groupings ``stored_vs_live`` and ``candidate_vs_live``, each at every level, for
        :meth:`samevec.parity.verdict.Verdict.with_findings`. In both, the live numbers are the reference of the rule.
    """
    cases = builtin_cases(model.entry.task, prompts=model.entry.prompts) if case_set is None else case_set
    tags = [case.tag for case in cases.cases]
    levels = levels_of(model, live)
    found = {level.name: level.expected for level in levels_of(model, stored)}
    cells = [Cell(level="ids", grouping=STORED_LIVE, comparison=compare_ids(live.ids, stored.ids))]
    cells += [_cell(level, STORED_LIVE, found[level.name], tolerance, tags) for level in levels]
    try:
        rows = tokenize_cases(model, cases)
        raw = model.compute(rows)
        finished = [level.finish(raw) for level in levels]
    except (InferenceError, InputError) as error:
        words = f"could not be computed: {error.without_advice}"
        return (*cells, Cell(level=levels[0].name, grouping=CANDIDATE_LIVE, comparison=None, error=words))
    ids = compare_ids(live.ids, [row.ids for row in rows])
    cells.append(Cell(level="ids", grouping=CANDIDATE_LIVE, comparison=ids))
    cells += [
        _cell(level, CANDIDATE_LIVE, values, tolerance, tags) for level, values in zip(levels, finished, strict=True)
    ]
    return tuple(cells)


def _cell(level: Level, grouping: str, found: NDArray[np.float32], tolerance: Tolerance, tags: Sequence[str]) -> Cell:
    comparison = compare(level.expected, found, tolerance)
    tag = "" if comparison.worst is None else tags[comparison.worst.row]
    return Cell(level=level.name, grouping=grouping, comparison=comparison, repeats=1, worst_tag=tag)
