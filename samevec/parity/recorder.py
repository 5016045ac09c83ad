"""What a grouping really fed to the session, and whether that could prove anything."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from samevec.parity.verdict import GroupingRun

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from samevec.parity.cases.groupings import Grouping
    from samevec.runtime.collate import Features
    from samevec.runtime.engine import Engine
    from samevec.runtime.rows import TokenRow

__all__ = ["Microbatch", "Recorder", "grouping_run", "twins", "unasked_microbatches"]

#: Shape of a session run, and which distinct rows it held.
Microbatch = tuple[tuple[int, int], tuple[int, ...]]

# With more distinct rows than one default microbatch holds, and than the grouping asks to run together, groupings meant
# to differ run alike only if a limit is ignored; with fewer they may, and then it is only said.
_DEFECT_ROWS = 33


@dataclass(slots=True)
class Recorder:
    """Notes what one repeat of a grouping fed to the session.

    Attributes
    ----------
    twins : sequence of int
        See :func:`twins`.
    lengths : sequence of int
        Tokens of every case.
    call : tuple of int
        Case numbers of the call that runs now; the caller sets it.
    """

    twins: Sequence[int]
    lengths: Sequence[int]
    call: tuple[int, ...] = ()
    shapes: list[tuple[int, int]] = field(default_factory=list)
    microbatches: Counter[Microbatch] = field(default_factory=Counter)
    digests: list[str] = field(default_factory=list)

    def __call__(self, indices: Sequence[int], features: Features) -> None:
        """Note a microbatch, see :class:`samevec.runtime.engine.RunRecorder`."""
        self.shapes.append(features.shape)
        members = tuple(sorted(self.twins[self.call[i]] for i in indices))
        self.microbatches[(features.shape, members)] += 1
        self.digests.append(features.digest)

    @property
    def features_digest(self) -> str:
        """``sha256:...`` over everything fed, in order: ids, masks, shapes, types."""
        return "sha256:" + hashlib.sha256("".join(self.digests).encode("ascii")).hexdigest()


def twins(rows: Sequence[TokenRow]) -> list[int]:
    """Return for each row the first one that the model cannot tell from it."""
    first: dict[object, int] = {}
    return [first.setdefault(row.key, i) for i, row in enumerate(rows)]


def unasked_microbatches(
    engine: Engine, rows: Sequence[TokenRow], twins: Sequence[int], calls: Sequence[Sequence[int]]
) -> Counter[tuple[int, ...]]:
    """Return which distinct rows would run together if the calls asked for no batch size and no budget."""
    found: Counter[tuple[int, ...]] = Counter()
    for call in calls:
        distinct = list(dict.fromkeys(twins[i] for i in call))
        planned = engine.plan_rows([rows[i] for i in distinct])
        found.update(tuple(sorted(distinct[i] for i in one.indices)) for one in planned.microbatches)
    return found


def grouping_run(
    grouping: Grouping,
    recorder: Recorder,
    seen: Mapping[str, Counter[Microbatch]],
    unasked: Counter[tuple[int, ...]],
) -> GroupingRun:
    """Record how a grouping ran, and what is wrong with that.

    Parameters
    ----------
    grouping : Grouping
    recorder : Recorder
        Of one repeat.
    seen : mapping of str to Counter
        The microbatches of the groupings that ran before.
    unasked : Counter
        See :func:`unasked_microbatches`.

    Returns
    -------
    GroupingRun
        Vacuous (`same_as`) if an earlier grouping ran every one of its microbatches and the two are not meant to be
        alike, or if it ran what it would have run without what it asked for. That is a fault where there are more rows
        than one run holds.
    """
    ran = recorder.microbatches
    within = [name for name, microbatches in seen.items() if ran and ran <= microbatches]
    same_as = next((name for name in within if name not in grouping.like), None)
    asks = grouping.batch_size is not None or grouping.token_budget is not None
    if same_as is None and asks and ran and unasked == _members(ran):
        same_as = "default"
    problems = _broken_limits(grouping, recorder)
    n_rows = len({member for _, members in ran for member in members})
    if same_as is not None and n_rows >= max(_DEFECT_ROWS, (grouping.batch_size or 0) + 1):
        problems.append(f"{grouping.name}: ran the same microbatches as {same_as}, so it proves nothing (vacuous)")
    return GroupingRun(
        name=grouping.name,
        rows=len(grouping.cases),
        shapes=tuple(recorder.shapes),
        features_digest=recorder.features_digest,
        same_as=same_as,
        like=next((name for name in within if name in grouping.like), None),
        problems=tuple(problems),
    )


def _members(microbatches: Counter[Microbatch]) -> Counter[tuple[int, ...]]:
    found: Counter[tuple[int, ...]] = Counter()
    for (_, members), count in microbatches.items():
        found[members] += count
    return found


def _broken_limits(grouping: Grouping, recorder: Recorder) -> list[str]:
    """Return which of the limits a grouping asked for were not kept."""
    problems = []
    limit = 1 if grouping.name == "alone" else grouping.batch_size
    most = max((shape[0] for shape in recorder.shapes), default=0)
    if limit is not None and most > limit:
        problems.append(f"{grouping.name}: {most} rows ran together although at most {limit} were asked for")
    shared = [members for _, members in recorder.microbatches if len(members) > 1]
    tokens = max((len(members) * max(recorder.lengths[i] for i in members) for members in shared), default=0)
    if grouping.token_budget is not None and tokens > grouping.token_budget:
        problems.append(
            f"{grouping.name}: {tokens} tokens ran together although at most {grouping.token_budget} were asked for"
        )
    return problems
