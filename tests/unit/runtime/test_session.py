"""The ONNX Runtime session: what it refuses, and what its errors become. The graphs here are four nodes long."""

from __future__ import annotations

import builtins
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import onnx
import onnxruntime
import pytest
from makers import rows
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state

from samevec.errors import ConfigError, ProviderUnavailableError, SessionLoadError, SessionRunError
from samevec.runtime.cancel import CancelToken
from samevec.runtime.collate import Features, collate
from samevec.runtime.providers.profiles import get_profile
from samevec.runtime.sessions import onnx as session_module
from samevec.runtime.sessions.onnx import ORT_EXCEPTION_NAMES, OnnxSession, onnxruntime_version, ort_exceptions

if TYPE_CHECKING:
    from pathlib import Path

VOCABULARY, WIDTH = 64, 3
TABLE = np.arange(VOCABULARY * WIDTH, dtype=np.float32).reshape(VOCABULARY, WIDTH)
CPU = get_profile("cpu")


def write_graph(directory: Path, *, external: bool = True) -> Path:
    """Sum the masked rows of a table: ids and mask in, one vector a row out."""
    directory.mkdir(parents=True, exist_ok=True)
    ints = [helper.make_tensor_value_info(n, TensorProto.INT64, ["rows", "tokens"]) for n in MASKED]
    constants = [
        numpy_helper.from_array(TABLE, "table"),
        numpy_helper.from_array(np.array([1], dtype=np.int64), "axis"),
        numpy_helper.from_array(np.array([2], dtype=np.int64), "last"),
    ]
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["found"]),
        helper.make_node("Unsqueeze", ["attention_mask", "last"], ["mask"]),
        helper.make_node("Cast", ["mask"], ["weights"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["found", "weights"], ["masked"]),
        helper.make_node("ReduceSum", ["masked", "axis"], ["embedding"], keepdims=0),
    ]
    output = helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["rows", WIDTH])
    graph = helper.make_graph(nodes, "sum", ints, [output], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    path = directory / "model.onnx"
    onnx.save(model, str(path), save_as_external_data=external, location="model.onnx.data", size_threshold=64)
    return path


MASKED = ("input_ids", "attention_mask")


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_graph(tmp_path_factory.mktemp("graph"))


def features(lengths: tuple[int, ...] = (2, 5)) -> Features:
    return collate(rows(lengths), pad_token_id=0, pad_to_multiple=4)


def expected(lengths: tuple[int, ...] = (2, 5)) -> list[list[float]]:
    return [TABLE[list(row.ids)].sum(axis=0).tolist() for row in rows(lengths)]


def test_a_session_computes_and_names_what_computes(graph: Path) -> None:
    session = OnnxSession(graph, CPU, n_threads=1)
    raw = session.run(features())
    assert raw.dtype == np.float32
    assert raw.tolist() == expected()
    assert session.provider == "CPUExecutionProvider"
    assert session.provider_options == {}
    assert session.input_names == MASKED
    assert onnxruntime_version() == onnxruntime.__version__


def test_threads_and_options_follow_profile_and_allowance(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "allowed_cpus", lambda: 3)
    options = OnnxSession(graph, CPU)._session.get_session_options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (3, 1)
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "1"
    assert options.get_session_config_entry("session.force_spinning_stop") == "1"
    assert options.get_session_config_entry("session.inter_op.allow_spinning") == "0"
    assert options.enable_cpu_mem_arena
    assert not options.enable_mem_pattern
    bare = replace(CPU, memory_arena=False, memory_pattern=True, run_config={})
    options = OnnxSession(graph, bare, n_threads=2)._session.get_session_options()
    assert (options.intra_op_num_threads, options.enable_cpu_mem_arena, options.enable_mem_pattern) == (2, False, True)


def test_every_onnxruntime_exception_is_mapped() -> None:
    installed = {
        name
        for name, value in vars(onnxruntime_pybind11_state).items()
        if isinstance(value, type) and issubclass(value, BaseException)
    }
    assert installed == set(ORT_EXCEPTION_NAMES)
    assert list(ORT_EXCEPTION_NAMES) == sorted(ORT_EXCEPTION_NAMES)
    caught = ort_exceptions()
    assert {getattr(onnxruntime_pybind11_state, name) for name in installed} < set(caught)
    assert {ValueError, RuntimeError, MemoryError} < set(caught)


@pytest.mark.parametrize("name", ["ValueError", "RuntimeError", "MemoryError", *ORT_EXCEPTION_NAMES])
def test_each_becomes_a_session_run_error(name: str, graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = getattr(onnxruntime_pybind11_state, name, None) or getattr(builtins, name)
    session = OnnxSession(graph, CPU, n_threads=1)

    def fails(*arguments: object) -> None:
        raise kind("node Gather broke\nsecond line")

    monkeypatch.setattr(session._session, "run_with_iobinding", fails)
    with pytest.raises(SessionRunError) as caught:
        session.run(features())
    assert str(caught.value) == "a run of 2 x 8 tokens failed: node Gather broke"
    assert caught.value.out_of_memory == (name == "MemoryError")
    assert type(caught.value.__cause__) is kind


@pytest.mark.parametrize(
    ("message", "out_of_memory"),
    [
        ("Failed to allocate memory for requested buffer of size 1099511627776", True),
        ("std::bad_alloc", True),
        ("bad allocation", True),
        ("CUDA failure 2: out of memory", True),
        ("indices element out of data bounds", False),
        ("", False),
    ],
)
def test_running_out_of_memory_is_told_apart(
    message: str, out_of_memory: bool, graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = OnnxSession(graph, CPU, n_threads=1)

    def fails(*arguments: object) -> None:
        raise onnxruntime_pybind11_state.RuntimeException(message)

    monkeypatch.setattr(session._session, "run_with_iobinding", fails)
    with pytest.raises(SessionRunError) as caught:
        session.run(features())
    assert caught.value.out_of_memory is out_of_memory
    assert str(caught.value).endswith(message or "RuntimeException")


def test_an_id_outside_the_table_is_an_error_and_the_next_run_succeeds(graph: Path) -> None:
    session = OnnxSession(graph, CPU, n_threads=1)
    bad = features()
    bad.input_ids[0, 0] = VOCABULARY
    with pytest.raises(SessionRunError, match=r"^a run of 2 x 8 tokens failed: .*Gather"):
        session.run(bad)
    assert session.run(features()).tolist() == expected()


@pytest.mark.parametrize("provider", ["CUDAExecutionProvider", "CoreMLExecutionProvider", "NonsenseExecutionProvider"])
def test_an_absent_provider_is_refused(provider: str, graph: Path) -> None:
    with pytest.raises(ProviderUnavailableError) as caught:
        OnnxSession(graph, replace(CPU, provider=provider), n_threads=1)
    assert caught.value.provider == provider
    # Why it is not there is told apart in test_providers.py.
    assert str(caught.value).startswith(f"{provider}: ")


class SilentFallback:
    """An InferenceSession that takes the CPU whatever was asked for, as ONNX Runtime does with a warning."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.options = options

    def get_providers(self) -> list[str]:
        return ["CPUExecutionProvider"]


def test_a_silent_fallback_is_refused(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "require_provider", lambda profile: None)
    monkeypatch.setattr(onnxruntime, "InferenceSession", SilentFallback)
    with pytest.raises(ProviderUnavailableError) as caught:
        OnnxSession(graph, replace(CPU, provider="CUDAExecutionProvider"), n_threads=1)
    assert str(caught.value) == (
        "CUDAExecutionProvider: onnxruntime gave CPUExecutionProvider instead; nothing else is served in its place"
    )


def test_a_provider_that_fails_in_a_run_is_not_replaced(
    graph: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = OnnxSession(graph, CPU, n_threads=1)
    tried: list[str] = []

    class BrokenCore:
        core = session._session._sess

        def __getattr__(self, name: str) -> Any:
            return getattr(self.core, name)

        def run_with_iobinding(self, *arguments: object) -> None:
            tried.append("run")
            raise onnxruntime_pybind11_state.EPFail("the device is gone")

    monkeypatch.setattr(session._session, "_sess", BrokenCore())
    with pytest.raises(SessionRunError, match=r": the device is gone$"):
        session.run(features())
    assert tried == ["run"]
    assert capsys.readouterr().out == ""


def test_a_missing_onnxruntime_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError) as caught:
        onnxruntime_version()
    assert str(caught.value) == "onnxruntime is not installed; install it with: pip install 'samevec[cpu]'"


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_o21_missing_or_cut_files_are_named(tmp_path: Path) -> None:
    for name, damage in [("model.onnx", "missing"), ("model.onnx", "cut"), ("model.onnx.data", "missing")]:
        path = write_graph(tmp_path / f"{damage} {name}")
        (path.parent / name).unlink() if damage == "missing" else cut_in_half(path.parent / name)
        with pytest.raises(SessionLoadError) as caught:
            OnnxSession(path, CPU, n_threads=1)
        message = str(caught.value)
        assert message.startswith(f"{path}: cannot be loaded: ")
        assert message.endswith("; export it again")
        assert "\n" not in message
        assert "ONNXRuntimeError" not in message
    path = write_graph(tmp_path / "cut data")
    cut_in_half(path.with_name("model.onnx.data"))
    with pytest.raises(SessionLoadError):
        OnnxSession(path, CPU, n_threads=1)


def test_o21_every_valid_layout_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = write_graph(tmp_path / "ein Pfad mit Löchern" / "artifact")
    (tmp_path / "link").symlink_to(real.parent)
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    for name, blob in [("model.onnx", "0a1b"), ("model.onnx.data", "2c3d")]:
        shutil.copy(real.with_name(name), blobs / blob)
        (snapshot / name).symlink_to(f"../blobs/{blob}")
    moved = shutil.copytree(real.parent, tmp_path / "moved")
    monkeypatch.chdir("/")
    for directory in (real.parent, tmp_path / "link", snapshot, moved):
        assert OnnxSession(directory / "model.onnx", CPU, n_threads=1).run(features()).tolist() == expected()
    monkeypatch.chdir(tmp_path)
    relative = real.relative_to(tmp_path)
    assert OnnxSession(relative, CPU, n_threads=1).run(features()).tolist() == expected()


def test_importing_the_session_loads_no_onnxruntime() -> None:
    code = "import sys, samevec.runtime.sessions.onnx; print('onnxruntime' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"


def test_a_run_keeps_the_arena_only_where_it_was_asked_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = OnnxSession(write_graph(tmp_path), CPU)
    run, asked = session._session.run_with_iobinding, []

    def spy(binding: Any, options: Any) -> None:
        try:
            asked.append(options.get_run_config_entry("memory.enable_memory_arena_shrinkage"))
        except RuntimeError:  # not set
            asked.append("")
        run(binding, options)

    monkeypatch.setattr(session._session, "run_with_iobinding", spy)
    features = collate(rows([3]), pad_token_id=0, pad_to_multiple=1)
    session.run(features)
    kept = session.run(features, keep_memory=True)
    session.run(features, cancel=CancelToken(), keep_memory=True)
    after = session.run(features)
    session.run(features, cancel=CancelToken())
    assert asked == ["cpu:0", "", "", "cpu:0", "cpu:0"]
    assert kept.tobytes() == after.tobytes()


def test_the_last_run_to_end_says_whether_the_arena_holds_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = OnnxSession(write_graph(tmp_path), CPU)
    run, begun, may_end = session._session.run_with_iobinding, threading.Event(), threading.Event()

    n_runs = [0]

    def held(binding: Any, options: Any) -> None:
        n_runs[0] += 1
        if threading.current_thread() is late:
            begun.set()
            assert may_end.wait(20)
        run(binding, options)

    def releases() -> bool:
        """Whether there is memory to release: it takes a run."""
        n_runs[0] = 0
        session.release_memory()
        return n_runs[0] == 1

    late = threading.Thread(target=lambda: session.run(features(), keep_memory=True))
    monkeypatch.setattr(session._session, "run_with_iobinding", held)
    assert not releases()
    session.run(features(), keep_memory=True)
    assert releases()
    session.run(features())
    assert not releases()

    late.start()
    assert begun.wait(20)
    session.run(features())  # gives back all but what the other run uses
    may_end.set()
    late.join()
    assert releases()
    assert not releases()


def test_outputs_lie_outside_of_an_arena_that_gives_back(tmp_path: Path) -> None:
    """In it, an output would hold the block that it lies in: it is still there when the run gives back the rest."""
    path = write_graph(tmp_path)
    own = OnnxSession(path, CPU).run(features())
    lent = OnnxSession(path, replace(CPU, run_config={})).run(features())
    assert (own.flags.owndata, lent.flags.owndata) == (True, False)
    assert own.tolist() == lent.tolist() == expected()


def test_a_run_that_failed_may_have_left_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = OnnxSession(write_graph(tmp_path), CPU)
    monkeypatch.setattr(session, "run", run := mock.Mock(wraps=session.run))
    wrong = replace(features(), input_ids=features().input_ids + VOCABULARY)
    with pytest.raises(SessionRunError):
        session.run(wrong)
    session.release_memory()
    assert [call.args[0].shape for call in run.call_args_list] == [(2, 8), (1, 1)]
    never = OnnxSession(write_graph(tmp_path), replace(CPU, run_config={}))
    never.run(features(), keep_memory=True)
    monkeypatch.setattr(never, "run", lambda _: pytest.fail("runs under this profile release nothing"))
    never.release_memory()
