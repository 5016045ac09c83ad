"""The lock of the toy pair, rebuilt from the toy pair: ``python -m samevec.export.toy.lock FILE``.

A test compares it with the packaged ``toy.lock``.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from samevec.digest import sha256_file
from samevec.export.toy.checkpoint import (
    TOY_EMBEDDER,
    TOY_MAX_TOKENS,
    TOY_QUERY_PROMPT,
    TOY_RERANKER,
    TOY_WIDTH,
    build_toy,
    byte_ids,
)
from samevec.lock import (
    FROZEN_TOLERANCE,
    Golden,
    GoldenCosines,
    GoldenPair,
    GoldenTokens,
    Lock,
    LockedFile,
    LockedModel,
    PinnedAnswers,
    Toolchain,
    dump_lock,
    load_lock,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["content_revision", "dump_toy_lock", "toy_lock"]

_HEADER = """\
# The toy pair, which samevec builds itself. Its weights are random: no answer it gives means anything.
# Written by `python -m samevec.export.toy.lock FILE`; do not edit by hand. `samevec lock check` validates it.
"""
_END, _CLS, _SEP = 256, 257, 258

_QUERIES = ("What is the capital of China?", "Explain gravity")
_DOCUMENTS = ("The capital of China is Beijing.", "Gravity is a force that attracts two bodies towards each other.")
# Measured with sentence-transformers 5.7.0, torch 2.13.0 in float32, one text at a time, rounded as a model card would:
# tests/model/test_toy_reference.py measures them again.
_COSINES = ((0.5431, 0.5085), (0.5288, 0.4880))
_PAIRS = (
    ("what is the capital of China?", "Beijing", 4.0363, 0.9826),
    ("how to implement quick sort in python?", "Introduction of quick sort", -2.6020, 0.0690),
    ("how to implement quick sort in python?", "The weather is nice today", -0.2137, 0.4468),
)
# Answers of the native graphs, from `samevec export --lock toy`; other operators or cases need new values here.
_EMBEDDER_ANSWERS = PinnedAnswers(
    arithmetic=1,
    case_set_digest="sha256:682f749dedf022292759c2e946416705f4eccb827458dfda65f0ddb9180f95d2",
    digest="sha256:1ec0f513472f421ddabdf331a4cdc5892b170d73db192b5a097d172d241206d2",
)
_RERANKER_ANSWERS = PinnedAnswers(
    arithmetic=1,
    case_set_digest="sha256:a8b63998387cd90dc4f4dcb6b928ab77b1aee1033e7ae9b6fa8dd01e55554f54",
    digest="sha256:90dbbd0141d49766589129911765eecfe214d0f98c4ebacabc4223f4a6ba14c4",
)
# The third text is not in NFC and not ASCII; the last is empty.
_TEXTS = (*_DOCUMENTS, "cafe\u0301 今日は", "")


def toy_lock(directory: Path, *, toolchain: Toolchain) -> Lock:
    """Build the two toy snapshots below a directory and return the lock that pins them."""
    models = (_embedder(directory / TOY_EMBEDDER), _reranker(directory / TOY_RERANKER))
    return Lock(origin="toy.lock", tolerance=FROZEN_TOLERANCE, toolchain=toolchain, models=models)


def dump_toy_lock(lock: Lock) -> str:
    """Return the lock's text under a header that names its command."""
    lines = dump_lock(lock).splitlines(keepends=True)
    while lines[0].startswith("#"):
        lines.pop(0)
    return _HEADER + "".join(lines)


def content_revision(files: Iterable[LockedFile]) -> str:
    """Return a stand-in for a commit: the first 40 digits of the sha256 over the sorted lines ``path sha256``."""
    listing = "".join(sorted(f"{file.path} {file.sha256}\n" for file in files))
    return hashlib.sha256(listing.encode("ascii")).hexdigest()[:40]


def _embedder(directory: Path) -> LockedModel:
    build_toy(TOY_EMBEDDER, directory)
    files, revision = _pin(directory)
    query = GoldenTokens(text=_QUERIES[0], prompt="query", ids=(*byte_ids(TOY_QUERY_PROMPT + _QUERIES[0]), _END))
    plain = tuple(GoldenTokens(text=text, ids=(*byte_ids(text), _END)) for text in _TEXTS)
    cosines = GoldenCosines(queries=_QUERIES, documents=_DOCUMENTS, values=_COSINES, prompt="query")
    return LockedModel(
        name=TOY_EMBEDDER,
        task="embed",
        source=f"toy:{TOY_EMBEDDER}",
        revision=revision,
        license="Apache-2.0",
        architecture="qwen3",
        pooling="last_token",
        normalize=True,
        dimensions=TOY_WIDTH,
        matryoshka_min_dimensions=32,
        max_tokens=TOY_MAX_TOKENS,
        activation=None,
        prompts={"query": TOY_QUERY_PROMPT, "document": ""},
        golden=Golden(tokens=(query, *plain), cosines=cosines),
        files=files,
        answers=_EMBEDDER_ANSWERS,
    )


def _reranker(directory: Path) -> LockedModel:
    build_toy(TOY_RERANKER, directory)
    files, revision = _pin(directory)
    pairs = tuple(
        GoldenPair(
            query=query,
            document=document,
            logit=logit,
            score=score,
            ids=(_CLS, *byte_ids(query), _SEP, *byte_ids(document), _SEP),
        )
        for query, document, logit, score in _PAIRS
    )
    return LockedModel(
        name=TOY_RERANKER,
        task="rerank",
        source=f"toy:{TOY_RERANKER}",
        revision=revision,
        license="Apache-2.0",
        architecture="modernbert",
        pooling="mean",
        normalize=False,
        dimensions=None,
        matryoshka_min_dimensions=None,
        max_tokens=TOY_MAX_TOKENS,
        activation="sigmoid",
        prompts={},
        golden=Golden(pairs=pairs),
        files=files,
        answers=_RERANKER_ANSWERS,
    )


def _pin(directory: Path) -> tuple[tuple[LockedFile, ...], str]:
    """Return the files of a snapshot folder and the revision that names them together."""
    paths = sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())
    files = tuple(
        LockedFile(path=path, size_bytes=(directory / path).stat().st_size, sha256=sha256_file(directory / path))
        for path in paths
    )
    return files, content_revision(files)


def main() -> None:
    """Write the toy lock to the file named on the command line, with the toolchain of the product lock."""
    parser = argparse.ArgumentParser(description="Write the lock of the toy pair.")
    parser.add_argument("file", type=Path, metavar="FILE", help="such as samevec/toy.lock")
    target: Path = parser.parse_args().file
    with tempfile.TemporaryDirectory() as directory:
        lock = toy_lock(Path(directory), toolchain=load_lock(None).toolchain)
    target.write_text(dump_toy_lock(lock), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
