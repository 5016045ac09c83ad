"""Values known from outside samevec: what the publisher's model card states, where its very weights are in use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from samevec.errors import InferenceError, InputError, LockError
from samevec.lock import load_lock
from samevec.parity.compare import compare, compare_ids
from samevec.parity.verdict import Cell

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from samevec.lock import LockedModel
    from samevec.parity.compare import Comparison
    from samevec.runtime.embedder import Embedder
    from samevec.runtime.model import Model
    from samevec.runtime.reranker import Reranker

__all__ = ["COSINE_ALLOWANCE", "LOGIT_ALLOWANCE", "golden_cells", "has_card_values", "is_published"]

LEVEL = "golden"

#: For cosines of a card, whose precision is not stated: one rounding of a value near 1 in bfloat16 (2**-9), in which
#: the checkpoint is stored and the card may have been computed.
COSINE_ALLOWANCE = 2e-3

#: For logits of a card. Those stated (2.1387, 2.4609, -1.6729) are multiples of 2**-10, as float16 gives them: steps of
#: 0.002 there. Ten steps, for the roundings of all layers before.
LOGIT_ALLOWANCE = 2e-2


@dataclass(frozen=True, slots=True)
class _CardLimits:
    """An absolute allowance: a card's rounding does not grow with its value."""

    atol: float
    rtol: float = 0.0


def is_published(entry: LockedModel) -> bool:
    """Return whether an entry is the packaged ``models.lock``'s own.

    Then the weights are the published ones: every file was compared with the entry's sha256 before it was loaded, and
    reference and artifact are bound to the entry's digest.
    """
    try:
        return load_lock(None).model(entry.name).digest == entry.digest
    except LockError:
        return False


def has_card_values(entry: LockedModel) -> bool:
    """Return whether the lock states values for this entry."""
    return entry.golden.cosines is not None or bool(entry.golden.pairs) or bool(entry.golden.tokens)


def golden_cells(model: Model) -> tuple[Cell, ...]:
    """Compare a model with the values the lock states for it.

    Parameters
    ----------
    model : Model
        With the published weights.

    Returns
    -------
    tuple of Cell
        Of level ``golden``: ``ids`` exactly, ``cosines`` within :data:`COSINE_ALLOWANCE`, ``logits`` within
        :data:`LOGIT_ALLOWANCE`; none for what the lock does not state. These limits are for the cards' own rounding
        and far wider than the tolerance: a cell here says "the right checkpoint and prompts", not "equal to PyTorch".
    """
    cells = []
    if _stated_ids(model):
        cells.append(_cell("ids", lambda: _compare_token_ids(model), None))
    if model.task == "embed" and model.entry.golden.cosines is not None:
        cells.append(_cell("cosines", lambda: _compare_cosines(model), COSINE_ALLOWANCE))
    if model.task == "rerank" and model.entry.golden.pairs:
        cells.append(_cell("logits", lambda: _compare_logits(model), LOGIT_ALLOWANCE))
    return tuple(cells)


def _cell(grouping: str, measure: Callable[[], Comparison], atol: float | None) -> Cell:
    limits = None if atol is None else (atol, 0.0)
    try:
        return Cell(level=LEVEL, grouping=grouping, comparison=measure(), worst_tag="model card", limits=limits)
    except (InferenceError, InputError) as error:
        return Cell(
            level=LEVEL, grouping=grouping, comparison=None, error=f"could not be computed: {error.without_advice}"
        )


def _stated_ids(model: Model) -> list[Sequence[int]]:
    golden = model.entry.golden
    if model.task == "embed":
        return [item.ids for item in golden.tokens]
    return [pair.ids for pair in golden.pairs if pair.ids is not None]


def _compare_token_ids(model: Model) -> Comparison:
    golden = model.entry.golden
    if model.task == "embed":
        rows = [model.tokenize([item.text], prompt=item.prompt)[0] for item in golden.tokens]
    else:
        rows = model.tokenize([(pair.query, pair.document) for pair in golden.pairs if pair.ids is not None])
    return compare_ids(_stated_ids(model), [row.ids for row in rows])


def _compare_cosines(model: Embedder) -> Comparison:
    """Compare the cosine of every query with every document: rows are queries, components documents."""
    stated = model.entry.golden.cosines
    assert stated is not None  # noqa: S101  asked before
    queries = model.encode(list(stated.queries), prompt=stated.prompt).astype(np.float64)
    documents = model.encode(list(stated.documents)).astype(np.float64)
    found = (queries @ documents.T).astype(np.float32)
    return compare(np.asarray(stated.values, dtype=np.float32), found, _CardLimits(COSINE_ALLOWANCE))


def _compare_logits(model: Reranker) -> Comparison:
    pairs = model.entry.golden.pairs
    stated = np.asarray([pair.logit for pair in pairs], dtype=np.float32)
    found = model.score([(pair.query, pair.document) for pair in pairs], raw=True)
    return compare(stated, found, _CardLimits(LOGIT_ALLOWANCE))
