"""The probe: a few rows of the reference, strongly padded; at every start, and again while serving where asked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from samevec.errors import ParityFailedError
from samevec.machine import cpu_name
from samevec.parity.answers import changed_answers
from samevec.parity.cases.builtin import builtin_cases
from samevec.parity.compare import compare
from samevec.runtime.reranker import Reranker
from samevec.runtime.rows import TokenRow

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from samevec.lock import Tolerance
    from samevec.parity.answers import Answers
    from samevec.parity.reference.file import Reference
    from samevec.runtime.embedder import Embedder

__all__ = ["PROBE_TOKENS", "Probe", "probe", "probe_cases", "require_probe"]

#: Length the longest probe row is taken near to: past one local window, so into a block's neighbours. The whole batch
#: is then some 400 tokens, under a second for the embedder.
PROBE_TOKENS = 132
_SHORT_ROWS = 2


def probe_cases(lengths: list[int]) -> list[int]:
    """Choose which reference rows are probed.

    Parameters
    ----------
    lengths : list of int
        Tokens of every reference row.

    Returns
    -------
    list of int
        The two shortest rows and the one nearest to :data:`PROBE_TOKENS`: one batch in which most rows are mostly
        padding, since graphs that fail only when padded exist (CASES O06).
    """
    order = np.argsort(lengths, kind="stable").tolist()
    long_row = min(range(len(lengths)), key=lambda i: (abs(lengths[i] - PROBE_TOKENS), i))
    return list(dict.fromkeys([*order[:_SHORT_ROWS], long_row]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """Rows to compute, and what they must give; holds nothing else of the reference.

    Attributes
    ----------
    cases : tuple of int
        The built-in case of each row.
    rows : tuple of TokenRow
    expected : ndarray of float32, shape (n_rows, width)
        Raw outputs of the reference.
    tolerance : Tolerance
    answers : Answers or None
        Their bits, where the native library computes.
    """

    cases: tuple[int, ...]
    rows: tuple[TokenRow, ...]
    expected: NDArray[np.float32]
    tolerance: Tolerance
    answers: Answers | None = None

    @classmethod
    def of(
        cls,
        model: Embedder | Reranker,
        reference: Reference,
        *,
        tolerance: Tolerance,
        answers: Answers | None = None,
    ) -> Probe:
        """Choose the rows of a model's reference, see :func:`probe`."""
        cases = probe_cases([len(ids) for ids in reference.ids])
        return cls(
            cases=tuple(cases),
            rows=tuple(_rows(model, reference, cases)),
            expected=reference.raw[cases],
            tolerance=tolerance,
            answers=None if answers is None else replace(answers, nodes={}),
        )

    def problem(self, raw: NDArray[np.float32]) -> str | None:
        """Return what differs in the rows' raw outputs, as the end of a sentence; None when nothing does."""
        outcome = compare(self.expected, raw, self.tolerance, row_names=self.cases)
        if not outcome.passed:
            return f"differs from the reference: {outcome.words}"
        changed = () if self.answers is None else changed_answers(self.answers, raw, self.cases)
        if changed:
            cases = ", ".join(map(str, changed))
            return f"has other bits than at export, in case {cases}, on {cpu_name()}"
        return None


def probe(
    model: Embedder | Reranker, reference: Reference, *, tolerance: Tolerance, answers: Answers | None = None
) -> str | None:
    """Compute a few rows, in one padded batch.

    Parameters
    ----------
    model : Embedder or Reranker
    reference : Reference
        Its raw rows are what they must equal within the tolerance.
    tolerance : Tolerance
    answers : Answers, optional
        Their bits, where the native library computes.

    Returns
    -------
    str or None
        What differs; None when nothing does.
    """
    chosen = Probe.of(model, reference, tolerance=tolerance, answers=answers)
    problem = chosen.problem(model.run_microbatch(chosen.rows))
    return None if problem is None else f"the start-up probe {problem}"


def _rows(model: Embedder | Reranker, reference: Reference, chosen: list[int]) -> list[TokenRow]:
    """Return the rows of the reference; where they have segment ids, which it does not store, from the cases again."""
    if not (isinstance(model, Reranker) and model.tokenizer.type_ids):
        return [TokenRow(reference.ids[i]) for i in chosen]
    cases = [builtin_cases(model.entry.task).pairs[i] for i in chosen]
    return [model.tokenize([(case.query, case.document)], max_tokens=case.max_tokens)[0] for case in cases]


def require_probe(
    model: Embedder | Reranker,
    reference: Reference,
    *,
    tolerance: Tolerance,
    fix: str,
    answers: Answers | None = None,
) -> None:
    """Refuse a model whose probe differs.

    Raises
    ------
    ParityFailedError
        With the worst row; `fix` is the command in its message.
    """
    problem = probe(model, reference, tolerance=tolerance, answers=answers)
    if problem is not None:
        raise ParityFailedError(f"{model.name}: {problem}", fix=fix)
