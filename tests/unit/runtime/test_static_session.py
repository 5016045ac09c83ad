"""Runs padded to compiled shapes and cut again; the cache of programs and its bound."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from makers import rows
from test_session import write_graph

from samevec.runtime.batching.buckets import Bucket, bucket_shapes, most_open_shapes
from samevec.runtime.collate import collate
from samevec.runtime.providers.profiles import get_profile
from samevec.runtime.sessions import static_shapes as module
from samevec.runtime.sessions.fake import FakeSession
from samevec.runtime.sessions.onnx import OnnxSession
from samevec.runtime.sessions.static_shapes import StaticShapeSession, open_session, trim_cache

if TYPE_CHECKING:
    import pytest

SHAPES = bucket_shapes(256, token_budget=1024)


class Shapes:
    """Opens fakes that take one shape each."""

    def __init__(self) -> None:
        self.opened: list[Bucket] = []

    def __call__(self, bucket: Bucket) -> FakeSession:
        def exact(features: Any) -> None:
            assert features.shape == (bucket.n_rows, bucket.n_tokens)

        self.opened.append(bucket)
        return FakeSession(before_run=exact)


def test_every_run_has_a_compiled_shape_and_every_row_its_own_vector() -> None:
    shapes = Shapes()
    session = StaticShapeSession(SHAPES, shapes, most_open=4)
    assert shapes.opened == [Bucket(1, 32)]  # at load, so that a graph that cannot be compiled is not accepted
    for lengths in ((3,), (3, 40, 12), tuple(range(1, 30)), (200, 7, 9, 33, 256)):
        features = collate(rows(lengths), pad_token_id=0, pad_to_multiple=4)
        assert np.array_equal(session.run(features), FakeSession().run(features))


def test_a_long_row_does_not_widen_the_short_ones_beside_it() -> None:
    shapes = Shapes()
    session = StaticShapeSession(SHAPES, shapes, most_open=4)
    session.run(collate(rows((250, *(10,) * 8)), pad_token_id=0, pad_to_multiple=4))
    assert shapes.opened == [Bucket(1, 32), Bucket(1, 256), Bucket(8, 32)]


def test_only_a_few_shapes_stay_loaded() -> None:
    shapes = Shapes()
    session = StaticShapeSession(SHAPES, shapes, most_open=2)
    for n_tokens in (30, 60, 120, 60, 30):
        session.run(collate(rows((n_tokens,)), pad_token_id=0, pad_to_multiple=4))
    assert session.open_shapes == (Bucket(1, 64), Bucket(1, 32))
    assert [bucket.n_tokens for bucket in shapes.opened] == [32, 64, 128, 32]


def test_as_many_shapes_stay_loaded_as_half_of_the_memory_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert most_open_shapes(14, weights_bytes=2_400, available_bytes=16_000) == 3
    assert most_open_shapes(14, weights_bytes=2_400, available_bytes=1_000) == 2
    assert most_open_shapes(14, weights_bytes=10, available_bytes=16_000) == 14
    assert most_open_shapes(1, weights_bytes=0, available_bytes=0) == 1
    graph, opened = write_graph(tmp_path / "graph"), Shapes()
    weights_bytes = sum(path.stat().st_size for path in graph.parent.iterdir())
    monkeypatch.setattr(module, "available_memory_bytes", lambda: 6 * weights_bytes)
    monkeypatch.setattr(module, "OnnxSession", lambda *_, shape, **__: opened(Bucket(*shape)))
    session = open_session(graph, get_profile("coreml"), max_tokens=256)
    assert isinstance(session, StaticShapeSession)
    for n_tokens in (30, 60, 120, 250):
        session.run(collate(rows((n_tokens,)), pad_token_id=0, pad_to_multiple=4))
    assert len(session.open_shapes) == 3


def test_a_real_graph_is_loaded_with_its_axes_fixed(tmp_path: Path) -> None:
    graph, cpu = write_graph(tmp_path / "graph"), get_profile("cpu")
    session = open_session(graph, replace(cpu, static_shapes=True), max_tokens=64, n_threads=1)
    assert isinstance(session, StaticShapeSession)
    fixed = session._open[Bucket(1, 32)]
    assert isinstance(fixed, OnnxSession)
    assert fixed._session.get_inputs()[0].shape == [1, 32]
    features = collate(rows((2, 5, 40)), pad_token_id=0, pad_to_multiple=4)
    assert np.array_equal(session.run(features), OnnxSession(graph, cpu, n_threads=1).run(features))
    assert isinstance(open_session(graph, cpu, max_tokens=64, n_threads=1), OnnxSession)


def test_each_shape_has_a_cache_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, Any]] = []

    class Recorded(FakeSession):
        def __init__(self, *_: Any, shape: Any, more_options: Any, **__: Any) -> None:
            super().__init__()
            asked.append((shape, more_options))

    monkeypatch.setattr(module, "OnnxSession", Recorded)
    cache = tmp_path / "cache"
    session = open_session(tmp_path / "model.onnx", get_profile("coreml"), max_tokens=64, cache=cache)
    session.run(collate(rows((40,) * 6), pad_token_id=0, pad_to_multiple=4))
    assert asked == [
        ((1, 32), {"ModelCacheDirectory": str(cache / "1x32")}),
        ((8, 64), {"ModelCacheDirectory": str(cache / "8x64")}),
    ]
    assert sorted(path.name for path in cache.iterdir()) == ["1x32", "8x64"]


def program(folder: Path, name: str, n_bytes: int, used_s: int) -> None:
    (folder / name / "inner").mkdir(parents=True)
    (folder / name / "inner" / "weights").write_bytes(b"0" * n_bytes)
    os.utime(folder / name, (used_s, used_s))


def programs(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.glob("*/*"))


def test_programs_used_longest_ago_are_removed(tmp_path: Path) -> None:
    for used_s, name in enumerate(("now/1x64", "now/1x32", "now/8x32")):
        program(tmp_path, name, 100, used_s)
    assert trim_cache(tmp_path, most_bytes=300) == []
    assert trim_cache(tmp_path, most_bytes=250, keep="now/1x64") == ["now/1x32"]
    assert programs(tmp_path) == ["now/1x64", "now/8x32"]
    assert trim_cache(tmp_path, most_bytes=0, keep="now/1x64") == ["now/8x32"]
    assert trim_cache(tmp_path / "nowhere", most_bytes=0) == []


def test_programs_of_versions_gone_by_count_and_go_first(tmp_path: Path) -> None:
    for used_s, name in enumerate(("old/1x32", "old/8x64", "now/1x32")):
        program(tmp_path, name, 100, used_s)
    assert trim_cache(tmp_path, most_bytes=200, keep="now/1x32") == ["old/1x32"]
    assert trim_cache(tmp_path, most_bytes=100, keep="now/1x32") == ["old/8x64"]
    assert [path.name for path in tmp_path.iterdir()] == ["now"]


def test_the_bound_is_kept_whenever_a_shape_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Compiling(FakeSession):
        def __init__(self, *_: Any, more_options: Any, **__: Any) -> None:
            super().__init__()
            (Path(more_options["ModelCacheDirectory"]) / "weights").write_bytes(b"0" * 100)

    monkeypatch.setattr(module, "OnnxSession", Compiling)
    monkeypatch.setattr(module, "CACHE_BYTES", 250)
    program(tmp_path, "old/1x32", 100, 0)
    cache = tmp_path / "now"
    session = open_session(tmp_path / "model.onnx", get_profile("coreml"), max_tokens=256, cache=cache)
    for n_tokens in (60, 120, 250):
        session.run(collate(rows((n_tokens,)), pad_token_id=0, pad_to_multiple=4))
        assert sum(path.stat().st_size for path in tmp_path.rglob("weights")) <= 250 + 100  # and what was just made
    assert "old" not in {path.name for path in tmp_path.iterdir()}
