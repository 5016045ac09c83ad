"""Text Embeddings Inference's embed, rerank, tokenize and info. Its answers are bare lists: usage is in headers.

References
----------
huggingface/text-embeddings-inference, ``router/src/http/types.rs`` (names, defaults, shapes of requests and answers)
and ``router/src/lib.rs`` (info, error types).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from samevec.errors import InputError
from samevec.runtime.embedder import Embedder
from samevec.server.http.answers import digest_headers, ranked_results, truncation_headers
from samevec.server.http.dialects.fields import PROMPT_NAMES, Fields, read_inputs, read_texts
from samevec.server.http.dialects.records import Answer
from samevec.server.requests import EmbedRequest, RerankRequest, TokenizeRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from samevec.server.http.tokens import Token
    from samevec.server.service import Embedded, Scored
    from samevec.server.settings import ServedModel, ServerSettings

__all__ = [
    "TOKENS_HEADER",
    "encode_embed",
    "encode_rerank",
    "encode_tokenize",
    "info_fields",
    "parse_embed",
    "parse_rerank",
    "parse_tokenize",
]

#: TEI's own header for the tokens of a request.
TOKENS_HEADER = "x-compute-tokens"


def parse_embed(body: object, *, max_items: int, deadline_s: float | None = None) -> EmbedRequest:
    """Read the body of ``POST /embed``.

    Parameters
    ----------
    body : object
        Parsed JSON.
    max_items : int
        Items of one request.

    Returns
    -------
    EmbedRequest

    Raises
    ------
    InputError, EmptyInputError, BatchTooLargeError
        As :func:`samevec.server.http.dialects.openai.parse_embeddings`.
    """
    fields = Fields(body)
    model, batch_size = fields.text("model", None), fields.count("batch_size")
    dimensions, prompt_name = fields.count("dimensions"), fields.choice("prompt_name", PROMPT_NAMES, None)
    normalize = fields.boolean("normalize", default=True)
    truncate = _truncation(fields)
    given = fields.require("inputs")
    fields.refuse_rest()
    texts, token_ids = read_inputs(given, field="inputs", limit=max_items)
    return EmbedRequest(
        model=model,
        texts=texts,
        token_ids=token_ids,
        dimensions=dimensions,
        prompt_name=prompt_name,
        normalize=normalize,
        truncate=truncate,
        batch_size=batch_size,
        deadline_s=deadline_s,
        field="inputs",
    )


def parse_rerank(body: object, *, max_items: int, deadline_s: float | None = None) -> RerankRequest:
    """Read the body of ``POST /rerank`` when it has ``texts``, see :func:`parse_embed`."""
    fields = Fields(body)
    model, batch_size = fields.text("model", None), fields.count("batch_size")
    raw_scores, return_text = fields.boolean("raw_scores", default=False), fields.boolean("return_text", default=False)
    truncate = _truncation(fields)
    query, texts = fields.require_text("query"), fields.require("texts")
    fields.refuse_rest()
    return RerankRequest(
        model=model,
        pairs=tuple((query, text) for text in read_texts(texts, field="texts", limit=max_items)),
        return_documents=return_text,
        raw_scores=raw_scores,
        truncate=truncate,
        batch_size=batch_size,
        deadline_s=deadline_s,
        field="texts",
    )


def parse_tokenize(body: object, *, max_items: int, deadline_s: float | None = None) -> TokenizeRequest:
    """Read the body of ``POST /tokenize``, see :func:`parse_embed`."""
    fields = Fields(body)
    model, prompt_name = fields.text("model", None), fields.choice("prompt_name", PROMPT_NAMES, None)
    add_special_tokens = fields.boolean("add_special_tokens", default=True)
    given = fields.require("inputs")
    fields.refuse_rest()
    texts = (given,) if isinstance(given, str) else read_texts(given, field="inputs", limit=max_items)
    return TokenizeRequest(
        model=model, texts=texts, add_special_tokens=add_special_tokens, prompt_name=prompt_name, deadline_s=deadline_s
    )


def _truncation(fields: Fields) -> bool:
    """Return whether to cut; the side must be the one that leaves the terminal token where pooling reads it."""
    side = fields.text("truncation_direction", None)
    if side is not None and side.lower() != "right":
        raise InputError(f"{side!r} given, only Right is possible", field="truncation_direction")
    return fields.boolean("truncate", default=True)


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
    if isinstance(model, Embedder):
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
