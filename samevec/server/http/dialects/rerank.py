"""The one reader of rerank bodies with ``documents``: Cohere's versions and Jina's differ only in what they allow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from samevec.errors import InputError
from samevec.server.http.dialects.fields import Fields, read_documents
from samevec.server.requests import RerankRequest

__all__ = ["COHERE_V1", "COHERE_V2", "JINA", "LAST_PRIORITY", "RerankBody", "RerankOption", "read_rerank"]

#: Cohere's scale: 0 is the most urgent.
LAST_PRIORITY = 999

RerankOption = Literal["batch_size", "raw_scores", "truncate", "max_tokens_per_doc", "priority"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RerankBody:
    """What a dialect's body may have beside model, query, documents, ``top_n`` and ``return_documents``.

    Attributes
    ----------
    options : tuple of str
    returns_documents : bool
        Whether documents are sent back where the caller says nothing.
    """

    options: tuple[RerankOption, ...]
    returns_documents: bool = False


COHERE_V1 = RerankBody(options=("batch_size", "raw_scores", "truncate", "max_tokens_per_doc"))
COHERE_V2 = RerankBody(options=("max_tokens_per_doc", "priority"))
JINA = RerankBody(options=("batch_size", "raw_scores", "truncate"), returns_documents=True)


def read_rerank(body: object, allowed: RerankBody, *, max_items: int, deadline_s: float | None = None) -> RerankRequest:
    """Read a rerank body. Of several mistakes the first is reported, in the order of the code here.

    Parameters
    ----------
    body : object
        Parsed JSON.
    allowed : RerankBody
    max_items : int
        Documents of one request.

    Returns
    -------
    RerankRequest

    Raises
    ------
    InputError, EmptyInputError, BatchTooLargeError
        As :func:`samevec.server.http.dialects.openai.parse_embeddings`.
    """
    fields, options = Fields(body), allowed.options
    model, top_n = fields.text("model", None), fields.count("top_n")
    batch_size = fields.count("batch_size") if "batch_size" in options else None
    return_documents = fields.boolean("return_documents", default=allowed.returns_documents)
    raw_scores = "raw_scores" in options and fields.boolean("raw_scores", default=False)
    truncate = "truncate" not in options or fields.boolean("truncate", default=True)
    max_document_tokens = fields.count("max_tokens_per_doc") if "max_tokens_per_doc" in options else None
    if "priority" in options:
        _check_priority(fields)
    query, documents = fields.require_text("query"), fields.require("documents")
    fields.refuse_rest()
    return RerankRequest(
        model=model,
        pairs=tuple((query, document) for document in read_documents(documents, limit=max_items)),
        top_n=top_n,
        return_documents=return_documents,
        raw_scores=raw_scores,
        truncate=truncate,
        batch_size=batch_size,
        deadline_s=deadline_s,
        max_document_tokens=max_document_tokens,
    )


def _check_priority(fields: Fields) -> None:
    """Check what orders Cohere's own queue; it cannot change a score, and the queue here lets short requests pass."""
    priority = fields.count("priority", least=0)
    if priority is not None and priority > LAST_PRIORITY:
        raise InputError(f"{priority} given, at most {LAST_PRIORITY} is possible", field="priority")
