"""OpenAI's embeddings, with extensions: prompts, truncation, batch size, and what was cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from samevec.errors import InputError
from samevec.server.http.answers import digest_headers, encode_array, truncation_headers, truncation_record
from samevec.server.http.dialects.fields import PROMPT_NAMES, Fields, read_inputs
from samevec.server.http.dialects.records import Answer
from samevec.server.requests import EmbedRequest

if TYPE_CHECKING:
    from samevec.server.service import Embedded

__all__ = ["encode_embeddings", "parse_embeddings"]


def parse_embeddings(body: object, *, max_items: int, deadline_s: float | None = None) -> EmbedRequest:
    """Read the body of ``POST /v1/embeddings``.

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
    InputError
        A value has the wrong type or range, or a key is unknown; names the key, and the item in lists.
    EmptyInputError, BatchTooLargeError
        No items, or more than `max_items`.
    """
    fields = Fields(body)
    model = fields.text("model", None)
    dimensions, batch_size = fields.count("dimensions"), fields.count("batch_size")
    encoding_format = fields.choice("encoding_format", ("float", "base64"), "float")
    fields.text("user", None)  # OpenAI's label for the end user: read, checked, and of no use here
    truncate = fields.boolean("truncate", default=True)
    prompt_name, prompt_field = _prompt(fields)
    given = fields.require("input")
    fields.refuse_rest()
    texts, token_ids = read_inputs(given, field="input", limit=max_items)
    return EmbedRequest(
        model=model,
        texts=texts,
        token_ids=token_ids,
        dimensions=dimensions,
        encoding_format="base64" if encoding_format == "base64" else "float",
        prompt_name=prompt_name,
        prompt_field=prompt_field,
        truncate=truncate,
        batch_size=batch_size,
        deadline_s=deadline_s,
    )


def _prompt(fields: Fields) -> tuple[str | None, str]:
    """Return the prompt's name and the key it came under; both keys may stand if they agree."""
    chosen, chosen_field = fields.choice("prompt_name", PROMPT_NAMES, None), "prompt_name"
    alias = fields.choice("input_type", PROMPT_NAMES, None)
    if alias is not None:
        if chosen not in (None, alias):
            raise InputError(f"{alias!r} contradicts prompt_name {chosen!r}; send one of them", field="input_type")
        chosen, chosen_field = alias, "input_type"
    return chosen, chosen_field


def encode_embeddings(embedded: Embedded, request: EmbedRequest) -> Answer:
    """Return an embeddings response.

    Parameters
    ----------
    embedded : Embedded
        Finite: orjson would write NaN as null.
    request : EmbedRequest

    Returns
    -------
    Answer
        Floats are the shortest decimals that read back as the same float32. ``samevec.truncated`` is there when
        something was cut.

    Notes
    -----
    Encoded item by item: one call for thousands of vectors would hold the interpreter lock, and so the event loop, for
    a good part of a second even from another thread.
    """
    parts = []
    for i, vector in enumerate(embedded.vectors):
        values: Any = encode_array(vector) if request.encoding_format == "base64" else vector
        item = {"object": "embedding", "index": i, "embedding": values}
        parts.append(orjson.dumps(item, option=orjson.OPT_SERIALIZE_NUMPY))
    tail = {
        "model": embedded.model,
        "usage": {"prompt_tokens": embedded.n_tokens, "total_tokens": embedded.n_tokens},
        **truncation_record(embedded.cut),
    }
    body = b'{"object":"list","data":[' + b",".join(parts) + b"]," + orjson.dumps(tail)[1:]
    return Answer(body, {**truncation_headers(embedded.cut), **digest_headers(embedded.vectors)})
