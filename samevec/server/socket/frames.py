"""Requests of the socket protocol, read strictly."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from samevec.server.http.dialects.models import BatchSize, Count, Items, PromptName, Strict, parse_body
from samevec.server.requests import EmbedRequest, RerankRequest
from samevec.server.socket.truememory import resolve_reranker, resolve_tier

if TYPE_CHECKING:
    from samevec.server.service import Service

__all__ = ["EmbedFrame", "PingFrame", "RerankFrame", "parse_frame"]


class _Frame(Strict):
    op: Annotated[Literal["ping", "embed", "rerank"], Field(exclude=True)]
    protocol: Annotated[Literal[1] | None, Field(exclude=True)] = None
    # Wall-clock time in seconds, as TrueMemory's client sends it.
    deadline: Annotated[float | None, Field(exclude=True, allow_inf_nan=False)] = None

    def _options(self, service: Service) -> dict[str, Any]:
        """Return what was sent, and the deadline in the service's clock."""
        left_s = None if self.deadline is None else self.deadline - time.time()
        deadline_s = None if left_s is None else service.clock() + left_s
        return {**self.model_dump(exclude_none=True), "deadline_s": deadline_s}


class PingFrame(_Frame):
    """Socket operation ``ping``."""


class EmbedFrame(_Frame):
    """Socket operation ``embed``."""

    tier: Annotated[str | None, Field(exclude=True)] = None
    dimensions: Count | None = None
    prompt_name: PromptName = None
    batch_size: BatchSize = None
    texts: Annotated[Items[str], Field(exclude=True)]

    def request(self, service: Service) -> EmbedRequest:
        """Return what is asked of the embedder that the tier means."""
        target = resolve_tier(self.tier or "", service.embedders())
        options = {"dimensions": target.dimensions, **self._options(service)}
        return EmbedRequest(**options, model=target.model, texts=tuple(self.texts), renormalize=False, field="texts")


class RerankFrame(_Frame):
    """Socket operation ``rerank``."""

    model_name: Annotated[str | None, Field(exclude=True)] = None
    batch_size: BatchSize = None
    pairs: Annotated[Items[Annotated[tuple[str, str], Field(strict=False)]], Field(exclude=True)]

    def request(self, service: Service) -> RerankRequest:
        """Return what is asked of the reranker."""
        model = resolve_reranker(self.model_name, service.rerankers())
        return RerankRequest(**self._options(service), model=model, pairs=tuple(self.pairs), field="pairs")


_OPERATIONS: dict[object, type[PingFrame | EmbedFrame | RerankFrame]] = {"embed": EmbedFrame, "rerank": RerankFrame}


def parse_frame(body: object, *, max_items: int) -> PingFrame | EmbedFrame | RerankFrame:
    """Read one request of the socket protocol.

    Parameters
    ----------
    body : object
        Parsed JSON.
    max_items : int
        Items of one request.

    Raises
    ------
    InputError
        See :func:`samevec.server.http.dialects.models.parse_body`.
    """
    op = body.get("op") if isinstance(body, dict) else None
    model = _OPERATIONS.get(op, PingFrame) if isinstance(op, str) else PingFrame
    return parse_body(model, body, max_items=max_items)
