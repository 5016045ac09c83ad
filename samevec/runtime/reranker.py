"""Pairs in, scores out, in request order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import numpy as np

from samevec.errors import EmptyInputError, InputError
from samevec.runtime.batching.plan import require_policy
from samevec.runtime.checks import whole_number
from samevec.runtime.model import ModelBase
from samevec.runtime.pooling import activate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from samevec.runtime.batching.plan import Policy
    from samevec.runtime.rows import TokenRow

__all__ = ["Ranked", "Reranker", "rank_scores"]


class Ranked(NamedTuple):
    """One document's place in a ranking: its position in the request, and its score."""

    index: int  # type: ignore[assignment]  # the word every rerank API uses; it hides tuple.index
    score: float


def rank_scores(scores: NDArray[np.float32], *, top_n: int | None = None) -> list[Ranked]:
    """Order scores from high to low.

    Parameters
    ----------
    scores : ndarray of float32, shape (n,)
    top_n : int, optional
        Keep this many; all when None or larger than n.

    Returns
    -------
    list of Ranked
        Ties stay in request order.
    """
    order = np.argsort(-scores, kind="stable")[: len(scores) if top_n is None else top_n]
    return [Ranked(int(i), float(scores[i])) for i in order]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reranker(ModelBase):
    """A reranking model ready to compute; safe to share between threads."""

    task: ClassVar[Literal["rerank"]] = "rerank"
    _items: ClassVar[str] = "pairs"
    _field: ClassVar[str] = "pairs"

    def score(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        raw: bool = False,
        batch_size: int | None = None,
        max_tokens: int | None = None,
        truncate: bool = True,
        deadline_s: float | None = None,
        policy: Policy = "samevec",
    ) -> NDArray[np.float32]:
        """Score (query, document) pairs.

        Parameters
        ----------
        pairs : sequence of (str, str)
        raw : bool
            Give logits; otherwise the checkpoint's own activation is applied once.
        batch_size, max_tokens, truncate, deadline_s, policy
            As for :meth:`samevec.runtime.embedder.Embedder.encode`; pairs are cut ``longest_first``.

        Returns
        -------
        ndarray of float32, shape (n_pairs,)
            Score i belongs to pair i.

        Raises
        ------
        InputError
            A pair or an option is wrong; the message names it.
        DeadlineExceededError, InferenceError
            See :meth:`samevec.runtime.engine.Engine.run_rows`.
        """
        require_policy(policy)
        rows = self.tokenize(pairs, max_tokens=max_tokens, truncate=truncate)
        char_lengths = [len(query) + len(document) for query, document in pairs] if policy == "native" else None
        logits = self.compute(rows, batch_size=batch_size, deadline_s=deadline_s, char_lengths=char_lengths)
        return self.finish(logits, raw=raw)

    def rank(
        self, query: str, documents: Sequence[str], *, top_n: int | None = None, raw: bool = False
    ) -> list[Ranked]:
        """Order documents by their score for a query, best first.

        Parameters
        ----------
        query : str
        documents : sequence of str
        top_n : int, optional
            At least 1; more than there are documents gives all.
        raw : bool
            As for :meth:`score`.

        Returns
        -------
        list of Ranked
            Ties in request order.
        """
        if top_n is not None:
            top_n = whole_number(top_n, field="top_n")
        if isinstance(documents, str):
            raise InputError("one string given, a list of documents is needed", field="documents")
        if not documents:
            raise EmptyInputError("no documents given, at least one is needed", field="documents")
        return rank_scores(self.score([(query, document) for document in documents], raw=raw), top_n=top_n)

    def tokenize(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        max_tokens: int | None = None,
        max_document_tokens: int | None = None,
        truncate: bool = True,
        field: str = "pairs",
    ) -> list[TokenRow]:
        """Turn pairs into token rows, see :meth:`score` for the parameters."""
        for i, pair in enumerate(pairs):
            if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
                raise InputError("a query and a document are needed", field=field, index=i)
        return self.tokenizer.encode_pairs(
            pairs, max_tokens=max_tokens, max_document_tokens=max_document_tokens, truncate=truncate, field=field
        )

    def finish(self, logits: NDArray[np.float32], *, raw: bool = False) -> NDArray[np.float32]:
        """Turn logits of shape (n_rows, 1) into scores of shape (n_rows,)."""
        return activate(logits, None if raw else self.entry.activation)
