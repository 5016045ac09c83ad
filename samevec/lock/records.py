"""The records of a lock, and their dictionaries."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from samevec.digest import digest_json
from samevec.errors import LockError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "LOCK_VERSION",
    "Activation",
    "Golden",
    "GoldenCosines",
    "GoldenPair",
    "GoldenTokens",
    "Lock",
    "LockedFile",
    "LockedModel",
    "PinnedAnswers",
    "Pooling",
    "Task",
    "Tolerance",
    "Toolchain",
]

#: The only form of lock this version reads and writes.
LOCK_VERSION = 1

Task = Literal["embed", "rerank"]
Pooling = Literal["last_token", "mean", "cls"]
Activation = Literal["sigmoid", "identity"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedFile:
    """One pinned file of a snapshot."""

    path: str  # below the snapshot folder, "/" between its parts
    size_bytes: int
    sha256: str  # 64 lower-case hex digits

    def to_dict(self) -> dict[str, Any]:
        """Return the TOML form: ``path``, ``size``, ``sha256``."""
        return {"path": self.path, "size": self.size_bytes, "sha256": self.sha256}


@dataclass(frozen=True, kw_only=True, slots=True)
class Tolerance:
    """The frozen rule ``|reference - candidate| <= atol + rtol * |reference|``."""

    atol: float
    rtol: float

    def to_dict(self) -> dict[str, Any]:
        """Return the TOML form."""
        return {"atol": self.atol, "rtol": self.rtol}


@dataclass(frozen=True, kw_only=True, slots=True)
class Toolchain:
    """The exact package versions an export uses, by distribution name."""

    versions: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Return the TOML form: one key a distribution."""
        return dict(self.versions)


@dataclass(frozen=True, kw_only=True, slots=True)
class GoldenTokens:
    """Token ids of a text; `prompt` is a prompt's name, or None for no prompt."""

    text: str
    ids: tuple[int, ...]
    prompt: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the TOML form; no ``prompt`` key where there is none."""
        return _present({"text": self.text, "prompt": self.prompt, "ids": list(self.ids)})


@dataclass(frozen=True, kw_only=True, slots=True)
class GoldenPair:
    """A pair's logit and score, rounded as the publisher's model card states them."""

    query: str
    document: str
    logit: float
    score: float
    ids: tuple[int, ...] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the TOML form; no ``ids`` key where they are unknown."""
        ids = None if self.ids is None else list(self.ids)
        return _present(
            {"query": self.query, "document": self.document, "logit": self.logit, "score": self.score, "ids": ids}
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class GoldenCosines:
    """Cosines of queries and documents that the publisher's model card states."""

    queries: tuple[str, ...]
    documents: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]  # values[i][j] is of query i and document j
    prompt: str | None = None  # the queries' prompt; documents get none

    def to_dict(self) -> dict[str, Any]:
        """Return the TOML form; no ``prompt`` key where there is none."""
        return _present(
            {
                "prompt": self.prompt,
                "queries": list(self.queries),
                "documents": list(self.documents),
                "values": [list(row) for row in self.values],
            }
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PinnedAnswers:
    """The bits that a model gives, see :class:`samevec.parity.answers.Answers`."""

    arithmetic: int  # of the native library
    case_set_digest: str  # "sha256:..." of the built-in cases that were answered
    digest: str  # "sha256:..." of the answers

    def to_dict(self) -> dict[str, Any]:
        """Return the TOML form: ``arithmetic``, ``case_set``, ``digest``."""
        return {"arithmetic": self.arithmetic, "case_set": self.case_set_digest, "digest": self.digest}


@dataclass(frozen=True, kw_only=True, slots=True)
class Golden:
    """Values known from outside samevec; each kind may be absent."""

    tokens: tuple[GoldenTokens, ...] = ()
    pairs: tuple[GoldenPair, ...] = ()
    cosines: GoldenCosines | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the TOML form; kinds that are absent have no key."""
        record: dict[str, Any] = {}
        if self.cosines is not None:
            record["cosines"] = self.cosines.to_dict()
        if self.tokens:
            record["tokens"] = [item.to_dict() for item in self.tokens]
        if self.pairs:
            record["pairs"] = [item.to_dict() for item in self.pairs]
        return record


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedModel:
    """Everything pinned about one model."""

    name: str  # as commands and requests name it; also a directory name
    task: Task
    source: str  # "hf:OWNER/NAME", "toy:NAME" (built by samevec) or "local:NAME" (only from a folder)
    revision: str  # 40 lower-case hex digits
    license: str  # SPDX identifier
    architecture: str  # "qwen3", "modernbert" or "bert": the module that exports it
    pooling: Pooling
    normalize: bool  # the model's own pipeline normalises vectors; False for rerankers
    dimensions: int | None  # width of a vector; None for rerankers
    matryoshka_min_dimensions: int | None  # the least width a vector may be cut to; None: it may not be cut
    max_tokens: int  # special tokens included
    activation: Activation | None  # makes a reranker's score of its logit; None for embedders
    prompts: Mapping[str, str]  # prompt texts by name
    golden: Golden
    files: tuple[LockedFile, ...]
    optional: bool = False  # commands without --model leave it out
    answers: PinnedAnswers | None = None  # the native graph's output, to the bit

    @property
    def facts(self) -> dict[str, Any]:
        """Return the TOML form without the answers: what the export starts from."""
        return {key: value for key, value in self.to_dict().items() if key != "answers"}

    @property
    def digest(self) -> str:
        """``"sha256:<64 hex>"`` of :attr:`facts`."""
        return digest_json(self.facts)

    @property
    def total_bytes(self) -> int:
        """Bytes of all pinned files together."""
        return sum(file.size_bytes for file in self.files)

    def file(self, path: str) -> LockedFile:
        """Return a pinned file by its path; LockError if the entry pins no such file."""
        for file in self.files:
            if file.path == path:
                return file
        raise LockError(f"{self.name} pins no file {path!r}; it pins {', '.join(file.path for file in self.files)}")

    def to_dict(self) -> dict[str, Any]:
        """Return the TOML form; keys that do not apply are absent."""
        record = _present(
            {
                "name": self.name,
                "task": self.task,
                "optional": self.optional or None,
                "source": self.source,
                "revision": self.revision,
                "license": self.license,
                "architecture": self.architecture,
                "pooling": self.pooling,
                "normalize": self.normalize,
                "dimensions": self.dimensions,
                "matryoshka_min_dimensions": self.matryoshka_min_dimensions,
                "max_tokens": self.max_tokens,
                "activation": self.activation,
            }
        )
        if self.prompts:
            record["prompts"] = dict(self.prompts)
        if golden := self.golden.to_dict():
            record["golden"] = golden
        if self.answers is not None:
            record["answers"] = self.answers.to_dict()
        record["files"] = [file.to_dict() for file in self.files]
        return record


@dataclass(frozen=True, kw_only=True, slots=True)
class Lock:
    """A whole lock; ``origin``, the file's name in messages, does not count in comparisons."""

    origin: str = field(compare=False)
    tolerance: Tolerance
    toolchain: Toolchain
    models: tuple[LockedModel, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The models' names, in the lock's order."""
        return tuple(model.name for model in self.models)

    @property
    def default_models(self) -> tuple[LockedModel, ...]:
        """The models of a command that names none, in the lock's order."""
        return tuple(model for model in self.models if not model.optional)

    def model(self, name: str) -> LockedModel:
        """Return a model's entry; LockError with the known names if there is none."""
        for model in self.models:
            if model.name == name:
                return model
        raise LockError(f"{self.origin}: no model named {name!r}; it pins {', '.join(self.names)}")

    def to_dict(self) -> dict[str, Any]:
        """Return the TOML form of the whole lock, ``lock_version`` first."""
        return {
            "lock_version": LOCK_VERSION,
            "tolerance": self.tolerance.to_dict(),
            "toolchain": self.toolchain.to_dict(),
            "models": [model.to_dict() for model in self.models],
        }


def _present(record: dict[str, Any]) -> dict[str, Any]:
    """Drop the keys whose value is None: TOML has no null."""
    return {key: value for key, value in record.items() if value is not None}
