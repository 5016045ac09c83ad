"""The model's limit, by token ids alone: a text that just fits, and one that is a token longer. Nothing is run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from samevec.digest import digest_json
from samevec.errors import InputError, InputTooLongError
from samevec.parity.cases.texts import letters
from samevec.parity.compare import Comparison
from samevec.parity.verdict import Cell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from samevec.runtime.model import Model
    from samevec.runtime.rows import TokenRow

__all__ = ["LIMIT_QUERY", "LimitCase", "ids_digest", "limit_cell"]

#: Query of the pairs.
LIMIT_QUERY = "a"


@dataclass(frozen=True, slots=True)
class LimitCase:
    """A text at the limit, or one past it, as transformers tokenised it at export.

    Attributes
    ----------
    n_characters : int
        Of ``letters(limit)``, from its beginning: the text, or the document beside :data:`LIMIT_QUERY`.
    n_tokens : int
        Before truncation, special tokens included.
    digest : str
        ``sha256:...`` of the ids after truncation, see :func:`ids_digest`.
    """

    n_characters: int
    n_tokens: int
    digest: str


def ids_digest(ids: Sequence[int]) -> str:
    """Return ``sha256:...`` of token ids."""
    return digest_json(list(ids))


def limit_cell(model: Model, cases: Sequence[LimitCase]) -> Cell:
    """Check that texts, and ids as callers send them, are cut and refused exactly at the lock's limit.

    Returns
    -------
    Cell
        ``ids/limit``.
    """
    text = letters(model.entry.max_tokens)
    try:
        problems = {i: tuple(_problems(model, case, text)) for i, case in enumerate(cases)}
    except InputError as error:
        return Cell(level="ids", grouping="limit", comparison=None, error=f"a case was refused: {error}")
    comparison = Comparison(
        rows=len(cases),
        components=sum(min(case.n_tokens, model.entry.max_tokens) for case in cases),
        failing_rows=tuple(i for i, found in problems.items() if found),
        problems=tuple(problem for found in problems.values() for problem in found),
    )
    return Cell(level="ids", grouping="limit", comparison=comparison)


def _problems(model: Model, case: LimitCase, text: str) -> Iterator[str]:
    limit = model.entry.max_tokens
    fits = case.n_tokens <= limit
    outcome = f"must be {'taken' if fits else 'refused'}: the limit is {limit}"
    text = text[: case.n_characters]
    (row,) = _tokenize(model, text, truncate=True)
    if ids_digest(row.ids) != case.digest:
        expected = f"the {min(case.n_tokens, limit)} that PyTorch reads"
        yield f"a text of {case.n_tokens} tokens gives {row.n_tokens} ids, which are not {expected}"
    if _taken(lambda: _tokenize(model, text, truncate=False)) != fits:
        yield f"a text of {case.n_tokens} tokens that may not be cut {outcome}"
    if model.task == "embed" and _taken(lambda: model.tokenizer.rows_from_ids([row.ids[-1:] * case.n_tokens])) != fits:
        yield f"{case.n_tokens} token ids {outcome}"


def _tokenize(model: Model, text: str, *, truncate: bool) -> list[TokenRow]:
    items: list[Any] = [text if model.task == "embed" else (LIMIT_QUERY, text)]
    return model.tokenize(items, truncate=truncate)


def _taken(tokenize: Callable[[], object]) -> bool:
    try:
        tokenize()
    except InputTooLongError:
        return False
    return True
