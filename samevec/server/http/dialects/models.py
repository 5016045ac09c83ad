"""Request bodies as pydantic models, read strictly, and the one table that words what is wrong with them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError

from samevec.errors import BatchTooLargeError, EmptyInputError, InputError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

__all__ = [
    "MOST_COUNT",
    "PROMPT_NAMES",
    "Answer",
    "BatchSize",
    "Count",
    "Dimensions",
    "Inputs",
    "Items",
    "ModelName",
    "PromptName",
    "RawScores",
    "RequestBody",
    "Strict",
    "Truncate",
    "input_rows",
    "parse_body",
]

#: The prompts a caller may ask for; which of them a model has, its lock entry says.
PROMPT_NAMES = ("query", "document")
#: The largest count any option takes: it fits every client's integers.
MOST_COUNT = 2**31 - 1

_T = TypeVar("_T")


class Strict(BaseModel):
    """A record of JSON without coercion, and without keys that its type does not name."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, value: Any) -> Any:
        """Name the first unknown key: pydantic would list every one, of millions too."""
        if isinstance(value, dict):
            known = _keys(cls)
            for key in value:
                if key not in known:
                    raise PydanticCustomError("unknown", "", {"key": key, "options": ", ".join(sorted(known))})
        return value


@functools.cache
def _keys(model: type[BaseModel]) -> frozenset[str]:
    """Return the keys that a record may have; once a type, since a body may hold thousands of one."""
    return frozenset(info.alias or name for name, info in model.model_fields.items())


class Answer(NamedTuple):
    """A JSON body, and headers that go with it."""

    body: bytes
    headers: dict[str, str]


def _within_limit(value: Any, info: ValidationInfo) -> Any:
    limit = (info.context or {}).get("max_items", MOST_COUNT)
    if isinstance(value, list) and len(value) > limit:
        raise PydanticCustomError("too_many_items", "", {"n_items": len(value), "limit": limit})
    return value


Items = Annotated[list[_T], Field(min_length=1, fail_fast=True), BeforeValidator(_within_limit)]
Count = Annotated[int, Field(ge=1, le=MOST_COUNT)]
ModelName = Annotated[
    str | None,
    Field(description="A served model, by its name in the lock or on the hub; may be left out when only one fits."),
]
PromptName = Annotated[
    Literal["query", "document"] | None,
    Field(description="Which of the model's own prompts is put before each text; none by default."),
]
Truncate = Annotated[
    bool | None, Field(description="Cut what exceeds the model's limit (the end token stays); false refuses it.")
]
BatchSize = Annotated[
    Count | None, Field(description="Most rows of any session run that holds an item of this request.")
]
Dimensions = Annotated[Count | None, Field(description="Length of the vector; cut, then scaled to unit length again.")]
RawScores = Annotated[bool | None, Field(description="Give logits instead of activated scores.")]


def _input_kind(value: Any) -> str | None:
    """Tell by its first item what a list holds."""
    if isinstance(value, list):
        first = value[0] if value else ""
        return "<rows>" if isinstance(first, list) else "<ids>" if isinstance(first, int | float) else "<texts>"
    return "<text>" if isinstance(value, str) else None


_TokenIds = Annotated[list[int], Field(min_length=1, fail_fast=True)]
Inputs = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[Items[str], Tag("<texts>")]
    | Annotated[_TokenIds, Tag("<ids>")]
    | Annotated[Items[_TokenIds], Tag("<rows>")],
    Discriminator(_input_kind),
    Field(description="One text, several texts, token ids, or several lists of token ids."),
]


def input_rows(value: str | list[str] | list[int] | list[list[int]]) -> dict[str, Any]:
    """Return `texts` or `token_ids` of a request, see :class:`samevec.server.requests.EmbedRequest`."""
    if isinstance(value, str):
        return {"texts": (value,)}
    if isinstance(value[0], str):
        return {"texts": tuple(value)}
    rows = [value] if isinstance(value[0], int) else value
    return {"token_ids": tuple(tuple(row) for row in rows)}


class RequestBody(Strict):
    """A request's body. Null counts as left out; fields that no request needs are excluded."""

    model: ModelName = None

    def options(self) -> dict[str, Any]:
        """Return what was sent, by the names of :mod:`samevec.server.requests`."""
        return self.model_dump(exclude_none=True)

    def request(self, deadline_s: float | None = None) -> Any:
        """Return what is asked for, as a record of :mod:`samevec.server.requests`."""
        raise NotImplementedError


_Body = TypeVar("_Body", bound=Strict)


def parse_body(model: type[_Body], body: object, *, max_items: int) -> _Body:
    """Check a request's body.

    Parameters
    ----------
    model : type
    body : object
        Parsed JSON.
    max_items : int
        Items of one request.

    Raises
    ------
    InputError
        A value has the wrong type or range, or a key is unknown; names the key, and the item in lists.
    EmptyInputError, BatchTooLargeError
        No items, or more than `max_items`.
    """
    try:
        return model.model_validate(body, context={"max_items": max_items})
    except ValidationError as error:
        raise _input_error(error.errors(include_url=False)[0]) from None


# What is wrong, by pydantic's type of error; filled in with its context, the value and its kind.
_WORDS = {
    "missing": "missing",
    "unknown": "unknown option; the options are: {options}",
    "model_type": "{kind} given, a JSON object is needed",
    "string_type": "{kind} given, a string is needed",
    "bool_type": "{kind} given, true or false is needed",
    "int_type": "{kind} given, a whole number is needed",
    "float_type": "{kind} given, a number is needed",
    "finite_number": "{kind} given, a finite number is needed",
    "list_type": "{kind} given, a list is needed",
    "tuple_type": "{kind} given, a list of two strings is needed",
    "union_tag_not_found": "{kind} given, a string, a list of strings or token ids are needed",
    "literal_error": "{shown} given, it must be one of: {choices}",
    "greater_than_equal": "{shown} given, at least {ge} is needed",
    "less_than_equal": "{shown} given, at most {le} is possible",
    "too_short": "empty list, at least one item is needed",
    "too_long": "{actual_length} items given, {max_length} are needed",
    "too_many_items": "{n_items} items, the limit of one request is {limit}; send several",
}
_CLASSES: dict[str, type[InputError]] = {"too_short": EmptyInputError, "too_many_items": BatchTooLargeError}
_KINDS = {
    type(None): "null",
    bool: "a boolean",
    int: "a whole number",
    float: "a fraction",
    str: "a string",
    list: "a list",
    dict: "an object",
}


def _input_error(details: ErrorDetails) -> InputError:
    kind, given, context = details["type"], details["input"], details.get("ctx", {})
    given_kind = _KINDS.get(type(given), type(given).__name__)
    words = _WORDS.get(kind, "{kind} given, which is not possible here").format_map({
        **context,
        "kind": given_kind,
        "shown": repr(given) if isinstance(given, str | int | float) else given_kind,
        "choices": str(context.get("expected", "")).replace("'", "").replace(" or ", ", "),
    })  # fmt: skip
    field, index = _place((*details["loc"], context["key"]) if kind == "unknown" else details["loc"])
    return _CLASSES.get(kind, InputError)(words, field=field, index=index)


def _place(parts: tuple[int | str, ...]) -> tuple[str, int | None]:
    """Return the key, and the item in it, of a place as pydantic gives it; tags of unions are in angle brackets."""
    named = [part for part in parts if isinstance(part, int) or not part.startswith("<")]
    index = named.pop() if named and isinstance(named[-1], int) else None
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in named)
    return place.removeprefix(".") or "body", index if isinstance(index, int) else None
