"""Cases in, the candidate's token rows out."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Sequence

    from samevec.parity.cases.builtin import CaseSet, PairCase, TextCase
    from samevec.runtime.model import Model
    from samevec.runtime.rows import TokenRow

__all__ = ["tokenize_cases"]


def tokenize_cases(model: Model, case_set: CaseSet, *, together: bool = True) -> list[TokenRow]:
    """Return the candidate's token rows of the cases.

    Parameters
    ----------
    model : Model
    case_set : CaseSet
    together : bool
        Hand over all cases with equal settings in one call; False makes a call for each case.

    Returns
    -------
    list of TokenRow
        In the order of the cases.

    Raises
    ------
    InputError
        The candidate refuses a case.
    """
    batches: dict[object, list[int]] = {}
    for i, case in enumerate(case_set.cases):
        settings = (getattr(case, "prompt", None), case.max_tokens)
        batches.setdefault(settings if together else i, []).append(i)
    rows: dict[int, TokenRow] = {}
    for members in batches.values():
        rows.update(zip(members, _tokenize(model, [case_set.cases[i] for i in members]), strict=True))
    return [rows[i] for i in range(len(case_set))]


def _tokenize(model: Model, cases: Sequence[TextCase | PairCase]) -> list[TokenRow]:
    if model.task == "embed":
        texts = cast("Sequence[TextCase]", cases)
        first = texts[0]
        return model.tokenize([case.text for case in texts], prompt=first.prompt, max_tokens=first.max_tokens)
    pairs = cast("Sequence[PairCase]", cases)
    return model.tokenize([(case.query, case.document) for case in pairs], max_tokens=pairs[0].max_tokens)
