"""From a parsed TOML document to lock records; an error names its path."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from samevec.errors import LockVersionError
from samevec.lock.records import (
    LOCK_VERSION,
    Activation,
    Golden,
    GoldenCosines,
    GoldenPair,
    GoldenTokens,
    Lock,
    LockedFile,
    LockedModel,
    PinnedAnswers,
    Pooling,
    Task,
    Tolerance,
    Toolchain,
)
from samevec.lock.table import Table, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FROZEN_TOLERANCE", "TOOLCHAIN_NAMES", "is_revision", "parse_document", "revision_problem"]

#: No lock may widen it.
FROZEN_TOLERANCE = Tolerance(atol=1e-4, rtol=1e-3)

#: The distributions whose versions decide an export's output.
TOOLCHAIN_NAMES = (
    "torch",
    "transformers",
    "optimum",
    "optimum-onnx",
    "sentence-transformers",
    "onnx",
    "onnxruntime",
    "numpy",
    "tokenizers",
)

# What may be pinned: tasks and architectures with their poolings. A decoder is causal: only its last position has seen
# the whole text; in an encoder every position has. Rerankers pool as the head of their *ForSequenceClassification class
# does. The module that exports an architecture has its name: samevec/export/architectures/.
_POOLINGS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("embed", "qwen3"): ("last_token",),
    ("embed", "modernbert"): ("mean", "cls"),
    ("embed", "bert"): ("mean", "cls"),
    ("rerank", "modernbert"): ("mean", "cls"),
    ("rerank", "bert"): ("cls",),
}

_MODEL_KEYS = tuple(field.name for field in fields(LockedModel))
# Names become directory names, in which "--" separates them from the profile.
_NAME = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*")
_SOURCE = re.compile(r"hf:[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*|(?:toy|local):[A-Za-z0-9][\w.-]*", re.ASCII)
_REVISION = re.compile(r"[0-9a-f]{40}")
_SHORT_REVISION = re.compile(r"[0-9a-f]{4,39}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_VERSION = re.compile(r"[0-9]+(?:\.[0-9]+)*(?:(?:a|b|rc|\.post|\.dev)[0-9]+)*(?:\+[A-Za-z0-9.]+)?")
# A part may not begin with a dot: that bars "..", hidden files and the folder where the hub's client keeps its notes.
_FILE_PATH = re.compile(r"[A-Za-z0-9_][\w.-]*(?:/[A-Za-z0-9_][\w.-]*)*", re.ASCII)
# Weights as safetensors, and files that are read, never run: pickles and Python cannot be pinned at all.
_FILE_ENDINGS = (".safetensors", ".json", ".txt", ".model", ".jinja")
_NEEDED_FILES = ("config.json", "tokenizer.json")


def is_revision(text: str) -> bool:
    """Whether a text is a full commit: 40 lower-case hex digits."""
    return _REVISION.fullmatch(text) is not None


def revision_problem(text: str) -> str:
    """Describe what is wrong with a text that is not a full commit."""
    if _SHORT_REVISION.fullmatch(text):
        return f"{text!r} is a short revision; pin all 40 hex digits of the commit"
    if _REVISION.fullmatch(text.lower()):
        return f"{text!r} must be written in lower case"
    return f"{shown(text)} is not a commit; branches and tags move, pin the 40 hex digits of a commit"


def parse_document(document: object, *, origin: str) -> Lock:
    """Return the lock that a parsed TOML document holds; raises as :func:`samevec.lock.parse_lock`."""
    # Before the other keys: another version may have others.
    if isinstance(document, dict) and "lock_version" in document:
        version = document["lock_version"]
        if type(version) is not int or version != LOCK_VERSION:
            raise LockVersionError(version, LOCK_VERSION, origin=origin)
    root = Table(document, path="", origin=origin, keys=("lock_version", "tolerance", "toolchain", "models"))
    root.raw("lock_version")
    lock = Lock(
        origin=origin,
        tolerance=_parse_tolerance(root.table("tolerance", keys=("atol", "rtol"))),
        toolchain=_parse_toolchain(root.table("toolchain", keys=TOOLCHAIN_NAMES)),
        models=tuple(_parse_model(table) for table in root.tables("models", keys=_MODEL_KEYS)),
    )
    _refuse_duplicates(root, "models", "name", lock.names)
    if not lock.default_models:
        raise root.error("models", "are all optional; commands that name none would have none")
    return lock


def _parse_tolerance(table: Table) -> Tolerance:
    for key, frozen in FROZEN_TOLERANCE.to_dict().items():
        found = table.number(key)
        if found != frozen:
            raise table.error(key, f"is frozen at {frozen!r}, found {found!r}")
    return FROZEN_TOLERANCE


def _parse_toolchain(table: Table) -> Toolchain:
    versions = {}
    for name in TOOLCHAIN_NAMES:
        versions[name] = table.text(name)
        if not _VERSION.fullmatch(versions[name]):
            raise table.error(name, f"must be one exact version such as 1.2.3, found {shown(versions[name])}")
    return Toolchain(versions=versions)


def _parse_model(table: Table) -> LockedModel:
    task = table.literal("task", Task)
    model = LockedModel(
        name=_match(table, "name", _NAME, "must be lower-case letters and digits with single . _ - between them"),
        task=task,
        source=_match(table, "source", _SOURCE, "must be hf:OWNER/NAME, toy:NAME or local:NAME"),
        revision=_parse_revision(table),
        license=table.text("license"),
        architecture=_parse_architecture(table),
        pooling=table.literal("pooling", Pooling),
        normalize=table.flag("normalize") if task == "embed" or table.has("normalize") else False,
        dimensions=table.count("dimensions") if table.has("dimensions") else None,
        matryoshka_min_dimensions=(
            table.count("matryoshka_min_dimensions") if table.has("matryoshka_min_dimensions") else None
        ),
        max_tokens=table.count("max_tokens"),
        activation=table.literal("activation", Activation) if table.has("activation") else None,
        prompts=_parse_prompts(table),
        golden=_parse_golden(table),
        files=_parse_files(table),
        optional=table.flag("optional") if table.has("optional") else False,
        answers=_parse_answers(table),
    )
    _check_combination(table, model)
    _check_embedder(table, model) if task == "embed" else _check_reranker(table, model)
    return model


def _match(table: Table, key: str, pattern: re.Pattern[str], rule: str) -> str:
    value = table.text(key)
    if not pattern.fullmatch(value):
        raise table.error(key, f"{rule}, found {shown(value)}")
    return value


def _parse_revision(table: Table) -> str:
    revision = table.text("revision")
    if not is_revision(revision):
        raise table.error("revision", revision_problem(revision))
    return revision


def _parse_architecture(table: Table) -> str:
    name = table.text("architecture")
    known = tuple(dict.fromkeys(architecture for _, architecture in _POOLINGS))
    if name not in known:
        raise table.error("architecture", f"must be one of {', '.join(known)}, found {shown(name)}")
    return name


def _parse_answers(table: Table) -> PinnedAnswers | None:
    if not table.has("answers"):
        return None
    found = table.table("answers", keys=("arithmetic", "case_set", "digest"))
    rule = "must be sha256: and 64 lower-case hex digits"
    return PinnedAnswers(
        arithmetic=found.count("arithmetic"),
        case_set_digest=_match(found, "case_set", _DIGEST, rule),
        digest=_match(found, "digest", _DIGEST, rule),
    )


def _parse_prompts(table: Table) -> dict[str, str]:
    if not table.has("prompts"):
        return {}
    prompts = table.table("prompts", keys=None)
    return {name: prompts.text(name, empty=True) for name in prompts.keys}


def _parse_files(table: Table) -> tuple[LockedFile, ...]:
    files = tuple(_parse_file(file) for file in table.tables("files", keys=("path", "size", "sha256")))
    # Case-insensitive file systems (macOS) would let one file overwrite the other.
    _refuse_duplicates(table, "files", "path", [file.path.casefold() for file in files])
    paths = {file.path for file in files}
    for path in _NEEDED_FILES:
        if path not in paths:
            raise table.error("files", f"{path} is missing")
    if not any(path.endswith(".safetensors") for path in paths):
        raise table.error("files", "no .safetensors weights among them")
    return files


def _parse_file(table: Table) -> LockedFile:
    path = _match(
        table,
        "path",
        _FILE_PATH,
        "must be relative, made of letters, digits and . _ - with / between its parts, no part beginning with a dot",
    )
    if not path.endswith(_FILE_ENDINGS):
        raise table.error(
            "path", f"only {', '.join(_FILE_ENDINGS)} files are loaded, never pickles or code; found {shown(path)}"
        )
    sha256 = _match(table, "sha256", _SHA256, "must be 64 lower-case hex digits")
    return LockedFile(path=path, size_bytes=table.count("size"), sha256=sha256)


def _refuse_duplicates(table: Table, array: str, key: str, values: Any) -> None:
    first_at: dict[str, int] = {}
    for i, value in enumerate(values):
        first = first_at.setdefault(value, i)
        if first != i:
            raise table.error(f"{array}[{i}].{key}", f"is the same as {table.where(array)}[{first}].{key}")


def _parse_golden(table: Table) -> Golden:
    if not table.has("golden"):
        return Golden()
    golden = table.table("golden", keys=("tokens", "pairs", "cosines"))
    tokens = golden.tables("tokens", keys=("text", "prompt", "ids")) if golden.has("tokens") else ()
    pair_keys = ("query", "document", "ids", "logit", "score")
    pairs = golden.tables("pairs", keys=pair_keys) if golden.has("pairs") else ()
    return Golden(
        tokens=tuple(
            GoldenTokens(text=item.text("text", empty=True), prompt=_prompt(item), ids=item.token_ids("ids"))
            for item in tokens
        ),
        pairs=tuple(_parse_pair(item) for item in pairs),
        cosines=_parse_cosines(golden) if golden.has("cosines") else None,
    )


def _prompt(table: Table) -> str | None:
    return table.text("prompt") if table.has("prompt") else None


def _parse_pair(table: Table) -> GoldenPair:
    return GoldenPair(
        query=table.text("query", empty=True),
        document=table.text("document", empty=True),
        ids=table.token_ids("ids") if table.has("ids") else None,
        logit=table.number("logit"),
        score=table.number("score"),
    )


def _parse_cosines(golden: Table) -> GoldenCosines:
    table = golden.table("cosines", keys=("prompt", "queries", "documents", "values"))
    cosines = GoldenCosines(
        prompt=_prompt(table),
        queries=table.texts("queries"),
        documents=table.texts("documents"),
        values=table.matrix("values"),
    )
    if [len(row) for row in cosines.values] != [len(cosines.documents)] * len(cosines.queries):
        raise table.error("values", f"must be {len(cosines.queries)} rows of {len(cosines.documents)} numbers")
    for i, row in enumerate(cosines.values):
        for j, value in enumerate(row):
            if abs(value) > 1:
                raise table.error(f"values[{i}][{j}]", f"must be a cosine from -1 to 1, found {value!r}")
    return cosines


def _check_combination(table: Table, model: LockedModel) -> None:
    poolings = _POOLINGS.get((model.task, model.architecture))
    if poolings is None:
        raise table.error("architecture", f"{model.architecture} cannot {model.task}")
    if model.pooling not in poolings:
        allowed = " or ".join(poolings)
        raise table.error(
            "pooling", f"{model.architecture} with task {model.task} pools by {allowed}, found {model.pooling!r}"
        )


def _check_embedder(table: Table, model: LockedModel) -> None:
    if model.dimensions is None:
        raise table.error("dimensions", "is missing")
    least = model.matryoshka_min_dimensions
    if least is not None and least > model.dimensions:
        raise table.error("matryoshka_min_dimensions", f"{least} is more than dimensions, {model.dimensions}")
    if model.activation is not None:
        raise table.error("activation", "only a reranker has one")
    if model.golden.pairs:
        raise table.error("golden.pairs", "only a reranker has them")
    named = [(f"golden.tokens[{i}].prompt", item.prompt) for i, item in enumerate(model.golden.tokens)]
    if model.golden.cosines is not None:
        named.append(("golden.cosines.prompt", model.golden.cosines.prompt))
    for where, prompt in named:
        if prompt is not None and prompt not in model.prompts:
            raise table.error(where, f"{prompt!r} is not among the prompts")


def _check_reranker(table: Table, model: LockedModel) -> None:
    if model.activation is None:
        raise table.error("activation", "is missing")
    for key in ("dimensions", "matryoshka_min_dimensions", "prompts"):
        if table.has(key):
            raise table.error(key, "only an embedder has it")
    if model.normalize:
        raise table.error("normalize", "must be false: a reranker gives scores, not vectors")
    for key, present in (("golden.tokens", model.golden.tokens), ("golden.cosines", model.golden.cosines)):
        if present:
            raise table.error(key, "only an embedder has them")
    for i, pair in enumerate(model.golden.pairs):
        if model.activation == "sigmoid" and not 0 <= pair.score <= 1:
            raise table.error(f"golden.pairs[{i}].score", f"a sigmoid gives 0 to 1, found {pair.score!r}")
