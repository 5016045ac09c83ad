"""Text Embeddings Inference's embed, rerank, tokenize and info. Its answers are bare lists: usage is in headers.

References
----------
huggingface/text-embeddings-inference, ``router/src/http/types.rs`` (names, defaults, shapes of requests and answers)
and ``router/src/lib.rs`` (info, error types).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import orjson
from pydantic import Discriminator, Field, Tag

from samevec.server.http.bodies import digest_headers, ranked_results, truncation_headers
from samevec.server.http.dialects.models import (
    Answer,
    BatchSize,
    Dimensions,
    Inputs,
    Items,
    PromptName,
    RawScores,
    RequestBody,
    Strict,
    Truncate,
    input_rows,
)
from samevec.server.requests import EmbedRequest, RerankRequest, TokenizeRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from samevec.server.http.tokens import Token
    from samevec.server.service import Embedded, Scored
    from samevec.server.settings import ServedModel, ServerSettings

__all__ = [
    "TOKENS_HEADER",
    "EmbedBody",
    "RankAnswer",
    "TeiRerankBody",
    "TokenAnswer",
    "TokenizeBody",
    "encode_embed",
    "encode_rerank",
    "encode_tokenize",
    "info_fields",
]

#: TEI's own header for the tokens of a request.
TOKENS_HEADER = "x-compute-tokens"

# The side that is cut must be the one that leaves the terminal token where pooling reads it.
_Side = Annotated[
    Literal["Right", "right"] | None,
    Field(exclude=True, description="Which side is cut. Left would cut off the start; it is refused."),
]


class EmbedBody(RequestBody):
    """The body of ``POST /embed``."""

    normalize: Annotated[bool | None, Field(description="Give vectors of unit length.")] = True
    truncate: Truncate = True
    truncation_direction: _Side = None
    prompt_name: PromptName = None
    dimensions: Dimensions = None
    batch_size: BatchSize = None
    inputs: Annotated[Inputs, Field(exclude=True)]

    def request(self, deadline_s: float | None = None) -> EmbedRequest:
        """Return what is asked for."""
        return EmbedRequest(**self.options(), **input_rows(self.inputs), deadline_s=deadline_s, field="inputs")


class TeiRerankBody(RequestBody):
    """The body of ``POST /rerank`` when it has texts."""

    raw_scores: RawScores = False
    return_documents: Annotated[bool | None, Field(alias="return_text", description="Give each text back.")] = False
    truncate: Truncate = True
    truncation_direction: _Side = None
    batch_size: BatchSize = None
    query: Annotated[str, Field(exclude=True)]
    texts: Annotated[Items[str], Field(exclude=True)]

    def request(self, deadline_s: float | None = None) -> RerankRequest:
        """Return what is asked for."""
        pairs = tuple((self.query, text) for text in self.texts)
        return RerankRequest(**self.options(), pairs=pairs, deadline_s=deadline_s, field="texts")


class TokenizeBody(RequestBody):
    """The body of ``POST /tokenize``."""

    model: Annotated[str | None, Field(description="Whose tokenizer; the first served model's when left out.")] = None
    add_special_tokens: Annotated[bool | None, Field(description="List the special tokens too.")] = True
    prompt_name: PromptName = None
    inputs: Annotated[
        Annotated[str, Tag("<text>")] | Annotated[Items[str], Tag("<texts>")],
        Discriminator(lambda value: "<text>" if isinstance(value, str) else "<texts>"),
        Field(exclude=True),
    ]

    def request(self, deadline_s: float | None = None) -> TokenizeRequest:
        """Return what is asked for."""
        texts = (self.inputs,) if isinstance(self.inputs, str) else tuple(self.inputs)
        return TokenizeRequest(**self.options(), texts=texts, deadline_s=deadline_s)


class RankAnswer(Strict):
    """One rank."""

    index: Annotated[int, Field(description="Position of the text in the request.")]
    score: float
    text: str | None = None


class TokenAnswer(Strict):
    """One token; special ones have no position."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


def encode_embed(embedded: Embedded, _: EmbedRequest) -> Answer:
    """Return vectors as a bare list of lists, see :func:`samevec.server.http.dialects.openai.encode_embeddings`."""
    rows = [orjson.dumps(vector, option=orjson.OPT_SERIALIZE_NUMPY) for vector in embedded.vectors]
    headers = {TOKENS_HEADER: str(embedded.n_tokens), **truncation_headers(embedded.cut)}
    return Answer(b"[" + b",".join(rows) + b"]", {**headers, **digest_headers(embedded.vectors)})


def encode_rerank(scored: Scored, request: RerankRequest) -> Answer:
    """Return a bare list of ranks: best first, ties in request order."""
    shown: dict[str, Any] = {"text": request.documents} if request.return_documents else {}
    ranks = ranked_results(scored.scores, top_n=None, score_key="score", shown=shown)
    headers = {TOKENS_HEADER: str(scored.n_tokens), **truncation_headers(scored.cut)}
    return Answer(orjson.dumps(ranks, option=orjson.OPT_SERIALIZE_NUMPY), headers)


def encode_tokenize(rows: Iterable[Iterable[Sequence[Token]]]) -> Answer:
    """Return each text's tokens, which come in parts, with character positions; special tokens have none."""
    n_tokens, texts = 0, []
    for parts in rows:
        written = []
        for part in filter(None, parts):
            n_tokens += len(part)
            written.append(orjson.dumps([token._asdict() for token in part])[1:-1])
        texts.append(b"[" + b",".join(written) + b"]")
    return Answer(b"[" + b",".join(texts) + b"]", {TOKENS_HEADER: str(n_tokens)})


def info_fields(served: ServedModel, settings: ServerSettings) -> dict[str, Any]:
    """Return what TEI's clients look for in ``/info``, about one model.

    Parameters
    ----------
    served : ServedModel
    settings : ServerSettings

    Returns
    -------
    dict
    """
    model, entry = served.model, served.model.entry
    if model.task == "embed":
        kind: dict[str, Any] = {"embedding": {"pooling": entry.pooling}}
    else:
        kind = {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}}
    return {
        "model_id": entry.source.removeprefix("hf:"),
        "model_sha": entry.revision,
        "model_dtype": "float32",  # what is computed in; weights may be stored shorter
        "model_type": kind,
        "max_concurrent_requests": settings.max_queue_items,
        "max_input_length": model.max_tokens,
        "max_batch_tokens": settings.token_budget or model.engine.token_budget,
        "max_batch_requests": model.engine.max_rows,
        "max_client_batch_size": settings.max_batch_items,
        "auto_truncate": True,
    }
