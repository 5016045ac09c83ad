"""OpenAI's embeddings, with extensions: prompts, truncation, batch size, and what was cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import orjson
from pydantic import Field

from samevec.errors import InputError
from samevec.server.http.bodies import digest_headers, encode_array, truncation_headers, truncation_record
from samevec.server.http.dialects.models import (
    Answer,
    BatchSize,
    Dimensions,
    Inputs,
    PromptName,
    RequestBody,
    Strict,
    Truncate,
    input_rows,
)
from samevec.server.requests import EmbedRequest

if TYPE_CHECKING:
    from samevec.server.service import Embedded

__all__ = ["EmbeddingsAnswer", "EmbeddingsBody", "Truncated", "Usage", "encode_embeddings"]


class EmbeddingsBody(RequestBody):
    """The body of ``POST /v1/embeddings``."""

    dimensions: Dimensions = None
    encoding_format: Annotated[
        Literal["float", "base64"] | None, Field(description="base64 is little-endian float32.")
    ] = "float"
    user: Annotated[str | None, Field(exclude=True, description="Read and ignored.")] = None
    prompt_name: PromptName = None
    input_type: Annotated[
        Literal["query", "document"] | None,
        Field(exclude=True, description="Another name of prompt_name; both must agree where both are given."),
    ] = None
    truncate: Truncate = True
    batch_size: BatchSize = None
    input: Annotated[Inputs, Field(exclude=True)]

    def request(self, deadline_s: float | None = None) -> EmbedRequest:
        """Return what is asked for.

        Raises
        ------
        InputError
            The two names of the prompt contradict each other.
        """
        options, alias = self.options(), self.input_type
        if alias is not None:
            if self.prompt_name not in (None, alias):
                message = f"{alias!r} contradicts prompt_name {self.prompt_name!r}; send one of them"
                raise InputError(message, field="input_type")
            options |= {"prompt_name": alias, "prompt_field": "input_type"}
        return EmbedRequest(**options, **input_rows(self.input), deadline_s=deadline_s)


class Usage(Strict):
    """Tokens as the model sees them: prompt and special tokens included, padding never."""

    prompt_tokens: int
    total_tokens: int


class _Cut(Strict):
    index: int
    cut_tokens: int


class Truncated(Strict):
    """Which items were cut; not there when none was."""

    truncated: list[_Cut]


class _Embedding(Strict):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingsAnswer(Strict):
    """The answer of ``POST /v1/embeddings``."""

    object: Literal["list"]
    data: list[_Embedding]
    model: str
    usage: Usage
    samevec: Truncated | None = None


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
