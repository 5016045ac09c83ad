"""The sweep: rows of random ids at many widths and in every row count, where no case need be.

At export PyTorch computes each row alone, and the graph must equal it before it is published; the gate then runs the
same rows on the machine that serves. Widths come from a fixed stream, the same on every machine.
"""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from samevec.digest import array_digest
from samevec.errors import InferenceError
from samevec.parity.compare import compare
from samevec.parity.recorder import Recorder
from samevec.parity.reference.file import SweepReference
from samevec.parity.verdict import Cell, GroupingRun
from samevec.runtime.rows import TokenRow

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from samevec.lock import Tolerance
    from samevec.parity.limit import LimitCase
    from samevec.progress import Progress
    from samevec.runtime.model import Model

    Call = tuple[int, ...]

__all__ = ["WIDTHS_AN_OCTAVE", "Sweep", "SweepPlan", "capture_sweep", "plan_sweep", "sweep_rows"]

#: Random widths in each octave, from 4 tokens on; in the last, which the longest case cuts short, its share of them.
WIDTHS_AN_OCTAVE = 6
_LEAST_TOKENS = 4
#: Rows of these lengths, in tokens, run in every number.
_SHORT_TOKENS = (3, 8)
#: The widths of an octave also run together where none is greater: mostly padding, and more tokens in one run.
_TOGETHER_TOKENS = 256
#: Of a quick gate.
_QUICK_OCTAVES, _QUICK_COUNTS = 4, 4
_TOKEN_BUDGET = 4096
_SEED = 20240607
#: What the number of a row means in each grouping, for messages.
_NUMBERED_BY = {"widths": "rows numbered by tokens", "octaves": "rows numbered by tokens", "row_counts": "by row count"}


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepPlan:
    """Which rows there are, and which of them run together.

    Attributes
    ----------
    lengths : tuple of int
        Tokens of each row.
    calls : mapping of str to tuple of tuple of int
        By grouping, the rows of each session run: ``widths`` every row alone, ``octaves`` the widths of an octave
        together, ``row_counts`` from one short row up to as many as may run together.
    """

    lengths: tuple[int, ...]
    calls: Mapping[str, tuple[Call, ...]]

    def quick(self) -> SweepPlan:
        """Return a width of each short octave and the least row counts: what takes about a second."""
        octaves, counts = self.calls["octaves"][:_QUICK_OCTAVES], self.calls["row_counts"][:_QUICK_COUNTS]
        alone = (*(octave[0] for octave in octaves), *counts[-1])
        return SweepPlan(lengths=self.lengths, calls={"widths": tuple((i,) for i in alone), "row_counts": counts})


def plan_sweep(*, longest_tokens: int, max_rows: int) -> SweepPlan:
    """Choose widths and row counts.

    Parameters
    ----------
    longest_tokens : int
        Of the longest case.
    max_rows : int
        Rows that may run together.
    """
    stream = random.Random(_SEED)  # noqa: S311  only random() itself is promised to stay the same in every Python
    octaves = _octaves(longest_tokens, stream)
    widths = [width for octave in octaves for width in octave]
    least, most = _SHORT_TOKENS
    short = [most, *(least + int(stream.random() * (most + 1 - least)) for _ in range(max_rows - 1))]
    starts = itertools.accumulate((len(octave) for octave in octaves), initial=0)
    together = [
        tuple(range(start, start + len(octave)))
        for start, octave in zip(starts, octaves, strict=False)
        if octave[-1] <= _TOGETHER_TOKENS
    ]
    calls = {
        "widths": tuple((i,) for i in range(len(widths) + max_rows)),
        "octaves": tuple(together),
        "row_counts": tuple(tuple(range(len(widths), len(widths) + n)) for n in range(1, max_rows + 1)),
    }
    return SweepPlan(lengths=(*widths, *short), calls=calls)


def _octaves(longest_tokens: int, stream: random.Random) -> list[list[int]]:
    """Cut each octave into equal stretches, and take one width from each."""
    octaves, start = [], _LEAST_TOKENS
    while start <= longest_tokens:
        n_widths = min(start, longest_tokens + 1 - start)
        n_taken = min(n_widths, -(-WIDTHS_AN_OCTAVE * n_widths // start))
        bounds = [start + n_widths * i // n_taken for i in range(n_taken + 1)]
        octaves.append([a + int(stream.random() * (b - a)) for a, b in itertools.pairwise(bounds)])
        start *= 2
    return octaves


def capture_sweep(model: Model, plan: SweepPlan, *, limit: tuple[LimitCase, ...], progress: Progress) -> SweepReference:
    """Draw token ids for the rows of a plan and compute each row alone.

    Parameters
    ----------
    model : Model
        Around a :class:`samevec.parity.reference.torch_session.TorchSession`, not yet patched for the export.
    plan : SweepPlan
    limit : tuple of LimitCase
        For the record.
    progress : Progress
    """
    stream = random.Random(_SEED)  # noqa: S311
    n_ids = model.tokenizer.raw.get_vocab_size(with_added_tokens=True)
    ids = tuple(tuple(int(stream.random() * n_ids) for _ in range(n)) for n in plan.lengths)
    raw = []
    with progress.step(f"reference {model.name}, sweep", total=len(ids), unit="rows") as advance:
        # An embedder's graph has segment 0 built in, whatever its tokenizer writes.
        for row in sweep_rows(ids, type_ids=model.tokenizer.type_ids and model.task == "rerank"):
            raw.append(model.run_microbatch([row]))
            advance(1)
    return SweepReference(ids=ids, raw=np.concatenate(raw), limit=limit)


def sweep_rows(ids: Sequence[Sequence[int]], *, type_ids: bool) -> list[TokenRow]:
    """Return token rows; where a model reads segment ids, the second half of each is of segment 1."""
    return [
        TokenRow(tuple(row), tuple(int(2 * i >= len(row)) for i in range(len(row))) if type_ids else None)
        for row in ids
    ]


@dataclass(kw_only=True, slots=True)
class Sweep:
    """A sweep of one candidate.

    Attributes
    ----------
    model : Model
    plan : SweepPlan
    reference : SweepReference
        Of the plan's rows.
    tolerance : Tolerance
        The lock's.
    bits_required : bool
        Whether a row's bits may not depend on its company.
    raw : dict of int to ndarray
        What each row gave alone; filled while the sweep runs.
    runs : list of GroupingRun
        How each grouping ran; filled likewise.
    """

    model: Model
    plan: SweepPlan
    reference: SweepReference
    tolerance: Tolerance
    bits_required: bool
    raw: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    runs: list[GroupingRun] = field(default_factory=list)

    def run(self, progress: Progress) -> list[Cell]:
        """Compare every run of the plan with PyTorch, each once.

        Returns
        -------
        list of Cell
            One a grouping. Rows are numbered by their tokens, and in ``row_counts`` by how many ran together.
        """
        rows = sweep_rows(self.reference.ids, type_ids=self.model.tokenizer.type_ids)
        cells = []
        n_runs = sum(map(len, self.plan.calls.values()))
        with progress.step(f"sweep {self.model.name}", total=n_runs, unit="runs") as advance:
            for grouping, calls in self.plan.calls.items():
                if not calls:
                    continue
                recorder = Recorder(twins=range(len(rows)), lengths=self.plan.lengths)
                started_s = time.monotonic()
                cell = self._run_grouping(grouping, calls, rows, recorder, advance)
                elapsed_s = time.monotonic() - started_s
                cells.append(replace(cell, elapsed_s=elapsed_s))
                self.runs.append(
                    GroupingRun(
                        name=grouping,
                        rows=sum(map(len, calls)),
                        shapes=tuple(recorder.shapes),
                        features_digest=recorder.features_digest,
                        elapsed_s=elapsed_s,
                    )
                )
        return cells

    def changed(self, digests: Sequence[str]) -> tuple[int, ...]:
        """Return the tokens of the rows that have other bits than the recorded digests, of those that ran."""
        return tuple(self.plan.lengths[i] for i, row in self.raw.items() if array_digest(row) != digests[i])

    @property
    def rows_run(self) -> tuple[tuple[int, ...], ...]:
        """Token ids of the rows that ran."""
        return tuple(self.reference.ids[i] for i in sorted(self.raw))

    def _run_grouping(
        self,
        grouping: str,
        calls: Sequence[Call],
        rows: Sequence[TokenRow],
        recorder: Recorder,
        advance: Callable[[float], None],
    ) -> Cell:
        parts = []
        for call in calls:
            chosen, recorder.call = [rows[i] for i in call], call
            try:
                parts.append(
                    self.model.compute(chosen, batch_size=len(call), token_budget=_TOKEN_BUDGET, recorder=recorder)
                )
            except InferenceError as error:
                where = f"{len(call)} rows of up to {max(row.n_tokens for row in chosen)} tokens"
                return Cell(
                    level=self._level,
                    grouping=grouping,
                    comparison=None,
                    error=f"{where} could not be computed: {error}",
                    shapes=tuple(recorder.shapes),
                    features_digest=recorder.features_digest,
                )
            advance(1)
        members = [i for call in calls for i in call]
        numbers = [len(call) if grouping == "row_counts" else self.plan.lengths[i] for call in calls for i in call]
        found = np.concatenate(parts)
        comparison = compare(self.reference.raw[members], found, self.tolerance, row_names=numbers)
        return Cell(
            level=self._level,
            grouping=grouping,
            comparison=comparison,
            repeats=1,
            moved_rows=self._moved(members, numbers, found),
            bits_required=self.bits_required,
            shapes=tuple(recorder.shapes),
            features_digest=recorder.features_digest,
            worst_tag=_NUMBERED_BY[grouping],
        )

    @property
    def _level(self) -> str:
        return "raw" if self.model.task == "embed" else "logits"

    def _moved(self, members: Sequence[int], numbers: Sequence[int], found: NDArray[np.float32]) -> tuple[int, ...]:
        """Return the numbers of rows that have other bits than alone, which is how each ran first."""
        pairs = zip(members, numbers, found, strict=True)
        return tuple(
            sorted(number for i, number, row in pairs if self.raw.setdefault(i, row).tobytes() != row.tobytes())
        )
