"""The probe that runs at every start: a few rows of the reference, strongly padded, before the first request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from samevec.errors import ParityFailedError
from samevec.parity.cases import builtin_cases
from samevec.parity.compare import compare
from samevec.runtime.reranker import Reranker
from samevec.runtime.rows import TokenRow

if TYPE_CHECKING:
    from samevec.lock import Tolerance
    from samevec.parity.compare import Comparison
    from samevec.parity.reference_file import Reference
    from samevec.runtime.embedder import Embedder

__all__ = ["PROBE_TOKENS", "probe", "probe_cases", "require_probe"]

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


def probe(model: Embedder | Reranker, reference: Reference, *, tolerance: Tolerance) -> Comparison:
    """Compare a few rows, in one padded batch, with the reference's raw rows."""
    chosen = probe_cases([len(ids) for ids in reference.ids])
    rows = _rows(model, reference, chosen)
    return compare(reference.raw[chosen], model.run_microbatch(rows), tolerance, row_names=chosen)


def _rows(model: Embedder | Reranker, reference: Reference, chosen: list[int]) -> list[TokenRow]:
    """Return the rows of the reference; where they have segment ids, which it does not store, from the cases again."""
    if not (isinstance(model, Reranker) and model.tokenizer.type_ids):
        return [TokenRow(reference.ids[i]) for i in chosen]
    cases = [builtin_cases(model.entry.task).pairs[i] for i in chosen]
    return [model.tokenize([(case.query, case.document)], max_tokens=case.max_tokens)[0] for case in cases]


def require_probe(model: Embedder | Reranker, reference: Reference, *, tolerance: Tolerance, fix: str) -> None:
    """Refuse a model whose probe differs.

    Raises
    ------
    ParityFailedError
        With the worst row; `fix` is the command in its message.
    """
    outcome = probe(model, reference, tolerance=tolerance)
    if not outcome.passed:
        raise ParityFailedError(
            f"{model.name}: the start-up probe differs from the reference: {outcome.words}", fix=fix
        )
