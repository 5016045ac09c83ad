"""The probe: calls as callers make them, from text to value, with known answers; at every start and while serving.

The expected values are PyTorch's raw rows from the stored reference; what is derived from them (unit norms, prefixes,
scores) is computed here in float64, without the functions that serve.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from samevec.digest import array_digest
from samevec.errors import NonFiniteOutputError, ParityFailedError
from samevec.machine import cpu_name
from samevec.parity.compare import compare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from samevec.lock import LockedModel, Tolerance
    from samevec.parity.answers import Answers
    from samevec.parity.cases.builtin import CaseSet
    from samevec.parity.reference.file import Reference
    from samevec.runtime.model import Model
    from samevec.runtime.reranker import Reranker

__all__ = ["PROBE_TOKENS", "Probe", "ProbeCall", "require_probe"]

#: Length the longest pair is taken near to: past one local window, so into a block's neighbours.
PROBE_TOKENS = 132
# Characters of a call into the tokenizer where a text is to have seams, some every 8, and words of such a text.
_SEAM_CHARACTERS = 32
_SEAM_WORDS = 8
# Rows of one request that make a server take it as bulk work, beside a small one.
_CROWD = 9


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeCall:
    """One call, and what must come back.

    Attributes
    ----------
    cases : tuple of int
        The built-in case of each item.
    items : tuple of str, or of (str, str)
    expected : ndarray of float32, shape (n_items, d) or (n_items,)
    digests : tuple of str
        Of the rows' bits, where they are known.
    raw : bool
        Ask for raw vectors or logits.
    prompt, dimensions, max_tokens, batch_size
        As in :meth:`samevec.runtime.embedder.Embedder.encode`.
    over_seam : bool
        Tokenise in pieces.
    ranked : bool
        Ask for a ranking; the pairs have one query.
    """

    cases: tuple[int, ...]
    items: tuple[Any, ...]
    expected: NDArray[np.float32]
    digests: tuple[str, ...] = ()
    raw: bool = False
    prompt: str | None = None
    dimensions: int | None = None
    max_tokens: int | None = None
    batch_size: int | None = None
    over_seam: bool = False
    ranked: bool = False

    def problem(self, found: NDArray[np.float32], tolerance: Tolerance) -> str | None:
        """Return what differs, as the end of a sentence; None when nothing does."""
        outcome = compare(self.expected, found, tolerance, row_names=self.cases)
        if not outcome.passed:
            return f"differs from the reference: {outcome.words}{self._asked}"
        bits = zip(self.cases, self.digests, found, strict=False)
        changed = dict.fromkeys(case for case, digest, row in bits if array_digest(row) != digest)
        if changed:
            cases = ", ".join(map(str, changed))
            return f"has other bits than at export, in case {cases}, on {cpu_name()}{self._asked}"
        return None

    @property
    def _asked(self) -> str:
        """Which way was taken, in brackets."""
        options = {name: getattr(self, name) for name in ("prompt", "dimensions", "max_tokens")}
        ways = [name.replace("_", " ") for name in ("raw", "over_seam", "ranked") if getattr(self, name)]
        ways += [f"{name} {value}" for name, value in options.items() if value is not None]
        return f" (asked together: {len(self.items)}{''.join(f', {way}' for way in ways)})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """What is asked of a model, and what it must answer; holds nothing else of the reference.

    Attributes
    ----------
    library, server : tuple of tuple of ProbeCall
        Rounds: the calls of one are asked at once. A server takes no limit of tokens with a request.
    tolerance : Tolerance
    fix : str
        The command in messages.
    """

    library: tuple[tuple[ProbeCall, ...], ...]
    server: tuple[tuple[ProbeCall, ...], ...]
    tolerance: Tolerance
    fix: str = "samevec parity"

    @classmethod
    def of(
        cls,
        entry: LockedModel,
        reference: Reference,
        case_set: CaseSet,
        *,
        tolerance: Tolerance,
        answers: Answers | None = None,
        fix: str = "samevec parity",
    ) -> Probe:
        """Choose what is asked of a model.

        Parameters
        ----------
        entry : LockedModel
        reference : Reference
            Of `case_set`.
        case_set : CaseSet
        tolerance : Tolerance
        answers : Answers, optional
            The bits of the cases, where the native library computes.
        fix : str
        """
        choice = _Choice(entry, case_set, reference, answers)
        library, server = choice.of_pairs() if entry.task == "rerank" else choice.of_texts()
        return cls(library=library, server=server, tolerance=tolerance, fix=fix)

    def problem(self, asked: Iterable[tuple[ProbeCall, NDArray[np.float32]]]) -> str | None:
        """Return what differs first among answers; looked at when all are there, so that none overwrote another."""
        problems = (call.problem(found, self.tolerance) for call, found in asked)
        return next(filter(None, problems), None)

    def problem_of(self, model: Model) -> str | None:
        """Ask a model, and return what differs; None when nothing does."""
        asked: list[tuple[ProbeCall, NDArray[np.float32]]] = []
        try:
            with ThreadPoolExecutor(2, thread_name_prefix="samevec-probe") as pool:
                for calls in self.library:
                    asked += zip(calls, pool.map(lambda call: _ask(model, call), calls), strict=True)
        except NonFiniteOutputError as error:
            return f"came to nothing: {error}"
        return self.problem(asked)


def require_probe(model: Model, probe: Probe) -> None:
    """Refuse a model whose probe differs.

    Raises
    ------
    ParityFailedError
        With the worst row and the command that mends it.
    """
    problem = probe.problem_of(model)
    if problem is not None:
        raise ParityFailedError(f"{model.name}: the start-up probe {problem}", fix=probe.fix)


def _ask(model: Model, call: ProbeCall) -> NDArray[np.float32]:
    """Make a call as callers do."""
    if call.over_seam:
        model = replace(model, tokenizer=replace(model.tokenizer, call_characters=_SEAM_CHARACTERS))
    if call.ranked and model.task == "rerank":
        return _ask_ranking(model, call)
    options: dict[str, Any] = {"max_tokens": call.max_tokens, "batch_size": call.batch_size}
    if model.task == "embed":
        vectors: NDArray[np.float32] = model.encode(
            call.items, prompt=call.prompt, dimensions=call.dimensions, normalize=not call.raw, **options
        )
        return vectors
    return model.score(call.items, raw=call.raw, **options)


def _ask_ranking(model: Reranker, call: ProbeCall) -> NDArray[np.float32]:
    """Return each document's score in a ranking; NaN where one is lost, and everywhere when the order is wrong."""
    scores = np.full(len(call.items), np.nan, dtype=np.float32)
    ranked = model.rank(call.items[0][0], [document for _, document in call.items])
    if all(before.score >= after.score for before, after in pairwise(ranked)):
        for one in ranked:
            scores[one.index] = one.score
    return scores


@dataclass(frozen=True, slots=True)
class _Choice:
    """Which cases are asked in which ways; short ones, since every start waits for them."""

    entry: LockedModel
    case_set: CaseSet
    reference: Reference
    answers: Answers | None
    plain: list[int] = field(init=False)

    def __post_init__(self) -> None:
        """Sort the cases that need no option, shortest first, the first of those with the same tokens."""
        first: dict[tuple[int, ...], int] = {}
        for i, case in enumerate(self.case_set.cases):
            if case.max_tokens is None and getattr(case, "prompt", None) is None:
                first.setdefault(self.reference.ids[i], i)
        object.__setattr__(self, "plain", sorted(first.values(), key=self._n_tokens))

    def of_texts(self) -> tuple[tuple[tuple[ProbeCall, ...], ...], tuple[tuple[ProbeCall, ...], ...]]:
        """Choose for an embedder: rounds for the library, and for a server."""
        texts, entry = self.case_set.texts, self.entry
        width, least = self.reference.raw.shape[1], entry.matryoshka_min_dimensions
        dimensions = (None, None) if least is None else (least, (least + width) // 2)
        seam = self._first(self.plain, lambda i: _has_seams(texts[i].text))
        over_seam = self._call(seam or self.plain[-1:], dimensions=dimensions[1], over_seam=True)
        # A text that is asked without a prompt before: what remembers texts must know them apart.
        known = {texts[i].text: i for i in reversed(self.plain)}
        prompted = self._first(
            sorted(range(len(texts)), key=self._n_tokens),
            lambda i: texts[i].prompt is not None and texts[i].max_tokens is None and texts[i].text in known,
        )
        twins = [known[texts[i].text] for i in prompted]
        twin = self._call(twins or self.plain[:1], dimensions=dimensions[0])
        with_prompt = [self._call([i], prompt=texts[i].prompt, dimensions=dimensions[0]) for i in prompted]
        return (
            ((self._mixed(*self._longest_cut()), twin), (*with_prompt, over_seam)),
            ((self._crowd(), twin), (*with_prompt, over_seam)),
        )

    def of_pairs(self) -> tuple[tuple[tuple[ProbeCall, ...], ...], tuple[tuple[ProbeCall, ...], ...]]:
        """Choose for a reranker: rounds for the library, and for a server."""
        pairs = self.case_set.pairs
        seam = self._first(self.plain, lambda i: _has_seams(pairs[i].document))
        over_seam = self._call([*(seam or self.plain[-1:]), self.plain[0]], over_seam=True)
        by_query: dict[str, list[int]] = {}
        for i in self.plain:
            by_query.setdefault(pairs[i].query, []).append(i)
        groups = [group[:3] for group in by_query.values() if len(group) > 1]
        shortest = min(groups, key=lambda group: (-len(group), sum(map(self._n_tokens, group))), default=[])
        worst_first = sorted(shortest, key=lambda i: float(self.reference.raw[i, 0]))
        ranked = [self._call(worst_first, ranked=True)] if worst_first else []
        long = min(self.plain, key=lambda i: abs(self._n_tokens(i) - PROBE_TOKENS))
        cut = [self._call([i], max_tokens=pairs[i].max_tokens) for i in self._longest_cut()]
        return ((self._mixed(long),), (over_seam, *ranked), tuple(cut)), ((self._crowd(), over_seam),)

    def _n_tokens(self, case: int) -> int:
        return len(self.reference.ids[case])

    @staticmethod
    def _first(order: Sequence[int], fits: Callable[[int], bool]) -> list[int]:
        return [i for i in order if fits(i)][:1]

    def _mixed(self, *long: int) -> ProbeCall:
        """Ask for raw rows of mixed lengths in no order, one of them twice, together: most are mostly padding.

        Graphs that fail only when padded exist.
        """
        first, middle = self.plain[0], self.plain[min(3, len(self.plain) - 1)]
        rows = [*dict.fromkeys([first, *long, middle]), first]
        limits = [self.case_set.cases[i].max_tokens for i in long]
        return self._call(rows, raw=True, batch_size=len(rows), max_tokens=limits[0] if limits else None)

    def _crowd(self) -> ProbeCall:
        """Ask for raw rows of many short cases, shortest first."""
        return self._call(self.plain[:_CROWD], raw=True)

    def _longest_cut(self) -> list[int]:
        """Return the case without a prompt that loses most, of those with the highest limit."""
        cases = self.case_set.cases
        limited = [i for i, case in enumerate(cases) if case.max_tokens and getattr(case, "prompt", None) is None]
        return sorted(limited, key=lambda i: (-(cases[i].max_tokens or 0), -len(str(cases[i].to_record()))))[:1]

    def _call(self, cases: Sequence[int], *, raw: bool = False, dimensions: int | None = None, **how: Any) -> ProbeCall:
        chosen = [self.case_set.cases[i] for i in cases]
        items = [case.text if hasattr(case, "text") else (case.query, case.document) for case in chosen]
        rows = self.reference.raw[list(cases)].astype(np.float64)
        return ProbeCall(
            cases=tuple(cases),
            items=tuple(items),
            expected=_values(self.entry, rows, raw=raw, dimensions=dimensions).astype(np.float32),
            digests=tuple(self.answers.cases[i] for i in cases) if raw and self.answers is not None else (),
            raw=raw,
            dimensions=dimensions,
            **how,
        )


def _has_seams(text: str) -> bool:
    return len(text) > 2 * _SEAM_CHARACTERS and len(text.split()) >= _SEAM_WORDS


def _values(entry: LockedModel, rows: NDArray[np.float64], *, raw: bool, dimensions: int | None) -> NDArray[np.float64]:
    """Compute what a caller gets of raw rows, in float64."""
    if entry.task == "rerank":
        logits = rows[:, 0]
        return logits if raw or entry.activation != "sigmoid" else np.asarray(1 / (1 + np.exp(-logits)))
    cut = rows[:, :dimensions]
    return cut if raw else np.asarray(cut / np.sqrt((cut**2).sum(axis=1, keepdims=True)))
