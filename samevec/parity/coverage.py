"""What a gate does not look at, in words: a verdict says where its cases end. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from samevec.parity.cases.groupings import groupings
from samevec.parity.golden import has_card_values
from samevec.parity.levels import prefix_dimensions
from samevec.runtime.collate import padded_length

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from samevec.parity.cases.builtin import CaseSet
    from samevec.parity.rankings.figures import Rankings
    from samevec.parity.reference.file import Reference
    from samevec.parity.verdict import GroupingRun
    from samevec.runtime.embedder import Embedder
    from samevec.runtime.model import Model
    from samevec.runtime.providers.profiles import Profile

__all__ = [
    "case_gaps",
    "golden_gap",
    "profile_gaps",
    "quick_gaps",
    "ranking_gaps",
    "repeat_gap",
    "shape_gaps",
    "vocabulary_gap",
]


def case_gaps(model: Model, reference: Reference, cases: CaseSet, runs: Sequence[GroupingRun]) -> tuple[str, ...]:
    """Return where the cases and their groupings end.

    Parameters
    ----------
    model : Embedder or Reranker
    reference : Reference
        Of `cases`.
    cases : CaseSet
        Those that ran.
    runs : sequence of GroupingRun
    """
    longest = max(len(ids) for ids in reference.ids)
    found = []
    if longest < model.max_tokens:
        found.append(f"inputs longer than {longest} tokens (the model takes {model.max_tokens})")
    parts = [f"{run.name} {run.rows}" for run in runs if run.rows < len(cases)]
    if parts:
        found.append(f"every one of the {len(cases)} cases in every grouping: of them, {', '.join(parts)}")
    if model.task == "embed":
        found.append(_prefix_gap(model))
    found.append("several calls at the same time, and other numbers of threads than here")
    return tuple(found)


def shape_gaps(model: Model, longest_tokens: int, runs: Sequence[GroupingRun]) -> tuple[str, ...]:
    """Return how many widths, and which row counts, never ran.

    Parameters
    ----------
    model : Embedder or Reranker
    longest_tokens : int
        Of the longest case.
    runs : sequence of GroupingRun
        The shapes that ran, of cases and of the sweep.
    """
    shapes = {shape for run in runs for shape in run.shapes}
    multiple = model.engine.pad_to_multiple
    widths = range(multiple, padded_length(longest_tokens, multiple) + 1, multiple)
    other_widths = _stretches(widths, {n_tokens for _, n_tokens in shapes})
    counts = range(1, model.engine.max_rows + 1)
    other_counts = _stretches(counts, {n_rows for n_rows, _ in shapes})
    found = []
    if other_widths:
        longest = max(other_widths, key=len)
        found.append(
            f"{sum(map(len, other_widths))} of the {len(widths)} widths up to {widths[-1]} tokens, "
            f"the longest stretch of them {_from_to(longest)}"
        )
    if other_counts:
        found.append(
            f"{sum(map(len, other_counts))} of the {len(counts)} numbers of rows that may run together: "
            + ", ".join(map(_from_to, other_counts))
        )
    return tuple(found)


def _stretches(every: Sequence[int], ran: Collection[int]) -> list[list[int]]:
    """Return what did not run, neighbours together."""
    found: list[list[int]] = [[]]
    for value in every:
        if value not in ran:
            found[-1].append(value)
        elif found[-1]:
            found.append([])
    return found if found[-1] else found[:-1]


def _from_to(stretch: Sequence[int]) -> str:
    return str(stretch[0]) if len(stretch) == 1 else f"{stretch[0]} to {stretch[-1]}"


def vocabulary_gap(model: Model, rows: Iterable[Sequence[int]]) -> tuple[str, ...]:
    """Return how many token ids no row that ran has.

    Parameters
    ----------
    model : Embedder or Reranker
    rows : iterable of sequence of int
        Token ids of what ran.
    """
    n_ids = model.tokenizer.raw.get_vocab_size(with_added_tokens=True)
    n_unread = n_ids - len({i for row in rows for i in row})
    if n_unread <= 0:
        return ()
    return (f"{n_unread} of the {n_ids} token ids ({n_unread / n_ids:.1%}), which no row that ran has",)


def _prefix_gap(model: Embedder) -> str:
    prefix, least = prefix_dimensions(model), model.entry.matryoshka_min_dimensions
    if prefix is None:
        return "vector prefixes: the lock allows none"
    return f"vector prefixes of other lengths than {prefix} (from {least} to {model.dimensions} may be asked for)"


def quick_gaps(reference: Reference, full: CaseSet, cases: CaseSet, runs: Sequence[GroupingRun]) -> tuple[str, ...]:
    """Return what a full gate would have run.

    Parameters
    ----------
    reference : Reference
        Of `cases`.
    full, cases : CaseSet
        All of them, and those that ran.
    runs : sequence of GroupingRun
    """
    ran, tags = {run.name for run in runs}, {case.tag for case in cases.cases}
    every = groupings([len(ids) for ids in reference.ids], task=full.task)
    missing = [grouping.name for grouping in every if grouping.name not in ran]
    kinds = list(dict.fromkeys(case.tag for case in full.cases if case.tag not in tags))
    found = [f"{len(full) - len(cases)} of the {len(full)} cases (quick)"]
    if kinds:
        found.append(f"any case of these kinds (quick): {', '.join(kinds)}")
    if missing:
        found.append(f"groupings (quick): {', '.join(missing)}")
    return tuple(found)


def repeat_gap(repeats: int) -> tuple[str, ...]:
    """Return that nothing was computed twice in the same grouping, if so."""
    return ("repeats of the same run: every grouping ran once",) if repeats == 1 else ()


def ranking_gaps(model: Model, rankings: Rankings | None) -> tuple[str, ...]:
    """Return which rankings were not compared; of an embedder's, each prompt and prefix gives others."""
    if rankings is None:
        return ("rankings over the retrieval fixture",)
    if model.task == "rerank":
        return (*rankings.not_measured, f"rankings of more than {rankings.n_items} documents for a query")
    found = list(rankings.not_measured)
    if prefix_dimensions(model) is not None:
        found.append(f"rankings by vector prefixes: all {model.dimensions} components were ranked")
    prompts = model.entry.prompts
    used = [f"{what} had {_prompt(name, prompts)}" for what, name in (("queries", "query"), ("documents", "document"))]
    if prompts:
        found.append(f"rankings with other prompts: {', '.join(used)}")
    return tuple(found)


def _prompt(name: str, prompts: Collection[str]) -> str:
    return f"the prompt {name!r}" if name in prompts else "none"


def golden_gap(model: Model, *, checked: bool) -> tuple[str, ...]:
    """Return why the values of the model card were not compared, if they were not."""
    if checked and has_card_values(model.entry):
        return ()
    reason = "the lock states none" if checked else "these are not the published weights of the packaged lock"
    return (f"the model card's golden values: {reason}",)


def profile_gaps(profile: Profile) -> tuple[str, ...]:
    """Return what else may answer in the profile's place; it has a gate of its own."""
    if not profile.fallback:
        return ()
    return (f"the profile {profile.fallback}, which takes over where the device has no memory: it has its own receipt",)
