"""Properties of locks: whatever is valid survives being written, and whatever is random is refused politely."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from samevec.errors import LockError
from samevec.lock import (
    FROZEN_TOLERANCE,
    TOOLCHAIN_NAMES,
    Golden,
    GoldenCosines,
    GoldenPair,
    GoldenTokens,
    Lock,
    LockedFile,
    LockedModel,
    Toolchain,
    dump_lock,
    load_lock,
    parse_lock,
)

HEX = "0123456789abcdef"
# Everything TOML can hold: no lone surrogates.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
NAME = st.from_regex(r"[a-z0-9]{1,6}(?:[._-][a-z0-9]{1,4}){0,2}", fullmatch=True)
SHA256 = st.text(HEX, min_size=64, max_size=64)
IDS = st.lists(st.integers(0, 200_000), min_size=1, max_size=60).map(tuple)
FLOAT = st.floats(allow_nan=False, allow_infinity=False)
COSINE = st.floats(-1, 1)


@st.composite
def files(draw: st.DrawFn) -> tuple[LockedFile, ...]:
    paths = ["config.json", "tokenizer.json", "model.safetensors", "1_Pooling/config.json"]
    return tuple(
        LockedFile(path=path, size_bytes=draw(st.integers(1, 2**53)), sha256=draw(SHA256))
        for path in draw(st.permutations(paths))
    )


@st.composite
def cosines(draw: st.DrawFn, prompts: st.SearchStrategy[str | None]) -> GoldenCosines:
    queries = draw(st.lists(TEXT, min_size=1, max_size=3).map(tuple))
    documents = draw(st.lists(TEXT, min_size=1, max_size=3).map(tuple))
    row = st.lists(COSINE, min_size=len(documents), max_size=len(documents)).map(tuple)
    values = draw(st.lists(row, min_size=len(queries), max_size=len(queries)).map(tuple))
    return GoldenCosines(queries=queries, documents=documents, values=values, prompt=draw(prompts))


@st.composite
def embedders(draw: st.DrawFn) -> LockedModel:
    prompts = draw(st.dictionaries(TEXT, TEXT, max_size=3))
    named = st.sampled_from([None, *(name for name in prompts if name)])
    tokens = st.builds(GoldenTokens, text=TEXT, ids=IDS, prompt=named)
    dimensions = draw(st.integers(1, 4096))
    architecture, pooling = draw(st.sampled_from([("qwen3", "last_token"), ("bert", "mean"), ("modernbert", "cls")]))
    facts: dict[str, Any] = {"architecture": architecture, "pooling": pooling}
    return LockedModel(
        task="embed",
        name=draw(NAME),
        source=draw(st.sampled_from(["hf:A/b.c", "toy:x", "local:y"])),
        revision=draw(st.text(HEX, min_size=40, max_size=40)),
        license=draw(TEXT.filter(bool)),
        normalize=draw(st.booleans()),
        dimensions=dimensions,
        matryoshka_min_dimensions=draw(st.none() | st.integers(1, dimensions)),
        max_tokens=draw(st.integers(1, 2**31)),
        activation=None,
        prompts=prompts,
        golden=Golden(tokens=draw(st.lists(tokens, max_size=2).map(tuple)), cosines=draw(st.none() | cosines(named))),
        files=draw(files()),
        optional=draw(st.booleans()),
        **facts,
    )


@st.composite
def rerankers(draw: st.DrawFn) -> LockedModel:
    pairs = st.builds(GoldenPair, query=TEXT, document=TEXT, logit=FLOAT, score=st.floats(0, 1), ids=st.none() | IDS)
    return replace(
        draw(embedders()),
        task="rerank",
        architecture="modernbert",
        pooling="mean",
        normalize=False,
        dimensions=None,
        matryoshka_min_dimensions=None,
        activation=draw(st.sampled_from(["sigmoid", "identity"])),
        prompts={},
        golden=Golden(pairs=draw(st.lists(pairs, max_size=2).map(tuple))),
    )


@st.composite
def locks(draw: st.DrawFn) -> Lock:
    models = draw(st.lists(embedders() | rerankers(), min_size=1, max_size=2, unique_by=lambda model: model.name))
    models[-1] = replace(models[-1], optional=False)  # a lock of optional models only is refused
    version = st.from_regex(r"[0-9]{1,3}(\.[0-9]{1,3}){0,3}", fullmatch=True)
    return Lock(
        origin="drawn",
        tolerance=FROZEN_TOLERANCE,
        toolchain=Toolchain(versions={name: draw(version) for name in TOOLCHAIN_NAMES}),
        models=tuple(models),
    )


@settings(max_examples=60, deadline=None)
@given(locks())
def test_what_is_written_reads_back_the_same(lock: Lock) -> None:
    back = parse_lock(dump_lock(lock))
    assert back == lock
    assert [model.digest for model in back.models] == [model.digest for model in lock.models]
    assert dump_lock(back) == dump_lock(lock)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_lock_is_refused_as_a_lock_error_or_still_valid(data: st.DataObject) -> None:
    text = dump_lock(load_lock())
    start = data.draw(st.integers(0, len(text)))
    stop = data.draw(st.integers(start, min(len(text), start + 40)))
    damaged = text[:start] + data.draw(TEXT) + text[stop:]
    lock, message = parsed(damaged)
    assert message.startswith("damaged: ") if lock is None else parse_lock(dump_lock(lock)) == lock


def parsed(text: str) -> tuple[Lock | None, str]:
    try:
        return parse_lock(text, origin="damaged"), ""
    except LockError as error:
        return None, str(error)
