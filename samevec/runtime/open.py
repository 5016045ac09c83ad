"""A lock entry and a session in, a model ready to compute out. Knows no gate: see ``samevec.load``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from samevec.errors import InputError
from samevec.runtime.batching.cost import COSTS
from samevec.runtime.batching.plan import MAX_RUN_TOKENS
from samevec.runtime.embedder import Embedder
from samevec.runtime.engine import Engine
from samevec.runtime.limits import MemoryGuard
from samevec.runtime.reranker import Reranker
from samevec.runtime.tokenization import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from samevec.lock import LockedModel
    from samevec.runtime.batching.cost import CostModel
    from samevec.runtime.sessions.base import Session

__all__ = ["DEFAULT_ROWS", "open_model"]

#: Most rows of one microbatch: what sentence-transformers (embedding) and TrueMemory (pairs) use.
DEFAULT_ROWS = {"embed": 32, "rerank": 64}


def open_model(
    entry: LockedModel,
    session: Session,
    *,
    tokenizer_path: Path,
    pad_token_id: int,
    type_ids: bool = False,
    pad_to_multiple: int = 1,
    width: int | None = None,
    token_budget: int | None = None,
    max_rows: int | None = None,
    overlapping: bool = False,
    costs: Mapping[str, CostModel] = COSTS,
) -> Embedder | Reranker:
    """Put a session, its tokenizer and its limits together.

    Parameters
    ----------
    entry : LockedModel
    session : Session
    tokenizer_path : Path
        The pinned ``tokenizer.json``.
    pad_token_id, pad_to_multiple
        See :func:`samevec.runtime.collate.collate`.
    type_ids : bool
        Whether the graph reads segment ids.
    width : int, optional
        Components of a raw row; the lock's dimensions, or 1 logit, when not given.
    token_budget : int, optional
        Padded tokens of one microbatch; 4,096 when not given.
    max_rows : int, optional
        Rows of one microbatch; 32 texts or 64 pairs when not given.
    overlapping : bool
        See :class:`samevec.runtime.engine.Engine`.
    costs : mapping of str to CostModel
        By task; what runs cost where the session computes.

    Returns
    -------
    Embedder or Reranker
        By the entry's task.
    """
    if token_budget is not None and token_budget < 1:
        raise InputError(f"{token_budget} given, at least 1 is needed", field="token_budget")
    tokenizer = Tokenizer.from_file(tokenizer_path, max_tokens=entry.max_tokens, type_ids=type_ids)
    cost = costs[entry.task]
    engine = Engine(
        session=session,
        width=width or entry.dimensions or 1,
        pad_token_id=pad_token_id,
        pad_to_multiple=pad_to_multiple,
        token_budget=token_budget or MAX_RUN_TOKENS,
        max_rows=max_rows or DEFAULT_ROWS[entry.task],
        cost=cost,
        memory=MemoryGuard(bytes_per_token=cost.bytes_per_token),
        overlapping=overlapping,
    )
    if entry.task == "embed":
        return Embedder(entry=entry, tokenizer=tokenizer, engine=engine)
    return Reranker(entry=entry, tokenizer=tokenizer, engine=engine)
