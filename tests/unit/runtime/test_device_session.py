"""What a session is really opened with under each device profile, and what it refuses; ONNX Runtime is a fake here."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
import pytest
from makers import rows
from onnxruntime.capi import onnxruntime_pybind11_state
from test_session import write_graph

from samevec.errors import ProviderUnavailableError, SessionLoadError, SessionRunError
from samevec.runtime.collate import Features, collate
from samevec.runtime.providers.profiles import get_profile
from samevec.runtime.sessions import onnx as session_module
from samevec.runtime.sessions.onnx import OnnxSession

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

CUDA, COREML = get_profile("cuda"), get_profile("coreml")
CPU = "CPUExecutionProvider"


class FakeBinding:
    """What is bound for one run."""

    def __init__(self) -> None:
        self.inputs: dict[str, Any] = {}
        self.outputs: list[tuple[str, str]] = []

    def bind_cpu_input(self, name: str, array: Any) -> None:
        self.inputs[name] = array

    def bind_output(self, name: str, device: str) -> None:
        self.outputs.append((name, device))

    def copy_outputs_to_cpu(self) -> list[Any]:
        return [self.inputs["input_ids"].astype(np.float32)]


class FakeInferenceSession:
    """Takes what it is given and remembers it; the newest one is in ``made``."""

    made: FakeInferenceSession
    nodes: Sequence[tuple[str, str]] = ()
    told: dict[str, str] | None = None

    def __init__(self, path: str, options: Any, *, providers: Any, enable_fallback: int) -> None:
        type(self).made = self
        self.path, self.options, self.asked, self.enable_fallback = path, options, providers, enable_fallback
        self.bindings: list[FakeBinding] = []
        self.failure: Exception | None = None

    def get_providers(self) -> list[str]:
        return [self.asked[0][0], CPU]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        name, options = self.asked[0]
        return {name: options if self.told is None else self.told}

    def get_provider_graph_assignment_info(self) -> list[Any]:
        def subgraph(operator: str, provider: str) -> Any:
            node = SimpleNamespace(name=f"/{operator}", op_type=operator)
            return SimpleNamespace(ep_name=provider, get_nodes=lambda: [node])

        return [subgraph(*placed) for placed in self.nodes]

    def get_inputs(self) -> list[Any]:
        return [SimpleNamespace(name=name) for name in ("input_ids", "attention_mask")]

    def get_outputs(self) -> list[Any]:
        return [SimpleNamespace(name="embedding")]

    def io_binding(self) -> FakeBinding:
        self.bindings.append(FakeBinding())
        return self.bindings[-1]

    def run_with_iobinding(self, binding: FakeBinding, options: Any) -> None:
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeInferenceSession]:
    class Fake(FakeInferenceSession):
        nodes = (("MatMul", CUDA.provider), ("Shape", CPU))

    monkeypatch.setattr(session_module, "require_provider", lambda profile: None)
    monkeypatch.setattr(session_module, "load_cuda_libraries", lambda ort: None)
    monkeypatch.setattr(onnxruntime, "InferenceSession", Fake)
    return Fake


def features() -> Features:
    return collate(rows((2, 5)), pad_token_id=0, pad_to_multiple=8)


def test_cuda_is_opened_in_float32_bounded_and_without_fallback(fake: Any, tmp_path: Path) -> None:
    OnnxSession(tmp_path / "model.onnx", CUDA, n_threads=2)
    made = fake.made
    assert made.asked == [
        (
            "CUDAExecutionProvider",
            {
                "device_id": "0",
                "use_tf32": "0",
                "gpu_mem_limit": str(8 << 30),
                "arena_extend_strategy": "kSameAsRequested",
            },
        )
    ]
    assert made.enable_fallback == 0
    assert made.options.get_session_config_entry("session.record_ep_graph_assignment_info") == "1"
    assert made.options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


def test_coreml_is_opened_with_its_shape_and_its_cache(
    fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.nodes = (("MatMul", COREML.provider),)
    fixed: dict[str, int] = {}

    class Options(onnxruntime.SessionOptions):  # type: ignore[misc]
        def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
            fixed[name] = size

    monkeypatch.setattr(onnxruntime, "SessionOptions", Options)
    OnnxSession(tmp_path / "model.onnx", COREML, n_threads=2, shape=(8, 64), more_options={"ModelCacheDirectory": "/c"})
    assert fake.made.asked == [
        (
            "CoreMLExecutionProvider",
            {
                "ModelFormat": "MLProgram",
                "MLComputeUnits": "CPUAndGPU",
                "RequireStaticInputShapes": "1",
                "EnableOnSubgraphs": "0",
                "AllowLowPrecisionAccumulationOnGPU": "0",
                "ModelCacheDirectory": "/c",
            },
        )
    ]
    assert fixed == {"rows": 8, "tokens": 64}


def test_a_compute_node_on_the_cpu_is_refused(fake: Any, tmp_path: Path) -> None:
    fake.nodes = (("MatMul", CUDA.provider), ("GroupQueryAttention", CPU))
    with pytest.raises(ProviderUnavailableError, match=r"1 of 2 compute nodes run elsewhere, none may: /GroupQuery"):
        OnnxSession(tmp_path / "model.onnx", CUDA, n_threads=1)


def test_a_partial_placement_on_coreml_is_refused(fake: Any, tmp_path: Path) -> None:
    fake.nodes = (*[("MatMul", COREML.provider)] * 8, ("Erf", CPU))
    with pytest.raises(ProviderUnavailableError, match=r"1 of 9 compute nodes run elsewhere, at most 10% may"):
        OnnxSession(tmp_path / "model.onnx", COREML, n_threads=1)


def test_options_that_were_not_taken_are_refused(fake: Any, tmp_path: Path) -> None:
    fake.told = {"use_tf32": "1", "device_id": "0"}
    with pytest.raises(ProviderUnavailableError, match="use_tf32 is 1 instead of 0"):
        OnnxSession(tmp_path / "model.onnx", CUDA, n_threads=1)
    fake.told = {"device_id": "0"}  # what it does not tell is not known
    OnnxSession(tmp_path / "model.onnx", CUDA, n_threads=1)


def test_an_onnxruntime_that_does_not_tell_placements_is_refused(
    fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(FakeInferenceSession, "get_provider_graph_assignment_info")
    with pytest.raises(ProviderUnavailableError, match="does not tell where nodes run"):
        OnnxSession(tmp_path / "model.onnx", CUDA, n_threads=1)


def test_only_the_graphs_output_comes_back_and_each_run_has_a_binding_of_its_own(fake: Any, tmp_path: Path) -> None:
    session = OnnxSession(tmp_path / "model.onnx", CUDA, n_threads=1)
    for _ in range(2):
        assert session.run(features()).shape == (2, 8)
    assert [binding.outputs for binding in fake.made.bindings] == [[("embedding", "cpu")]] * 2
    assert [sorted(binding.inputs) for binding in fake.made.bindings] == [["attention_mask", "input_ids"]] * 2


def test_one_run_goes_at_a_time(fake: Any, tmp_path: Path) -> None:
    session = OnnxSession(tmp_path / "model.onnx", CUDA, n_threads=1)
    told: list[str] = []
    other = threading.Thread(target=lambda: session.run(features()))

    def run(binding: FakeBinding, options: Any) -> None:
        told.append("begins")
        if threading.current_thread() is not other:
            other.start()
            other.join(0.2)  # long enough to begin, if it were let
        told.append("ends")

    fake.made.run_with_iobinding = run
    session.run(features())
    other.join()
    assert told == ["begins", "ends", "begins", "ends"]


# As ONNX Runtime words them: microsoft/onnxruntime issues 22702 and 16307, and hacksider/Deep-Live-Cam 584 and 645.
NODE = "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running MatMul node. Name:'/M'"
ARENA = (
    "/onnxruntime_src/onnxruntime/core/framework/bfc_arena.cc:376 void* onnxruntime::BFCArena::AllocateRawInternal()"
)
CALL = "/onnxruntime_src/onnxruntime/core/providers/cuda/cuda_call.cc:121 onnxruntime::CudaCall"
FULL = {
    "arena": (
        "RuntimeException",
        f"{NODE} Status Message: \n{ARENA} Failed to allocate memory for requested buffer of size 4585490524328388608",
    ),
    "arena at its bound": (
        "RuntimeException",
        f"{NODE} Status Message: {ARENA} Available memory of 34699008 is smaller than requested bytes of 945041920",
    ),
    "device": (
        "Fail",
        f"[ONNXRuntimeError] : 1 : FAIL : {CALL} CUDA failure 2: out of memory ; GPU=0 ; hostname=h ; line=175 ;",
    ),
    "cuBLAS": (
        "RuntimeException",
        f"{NODE} Status Message: {CALL} CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0 ; hostname=h ; line=168 ;",
    ),
}


@pytest.mark.parametrize("name", FULL)
def test_a_full_device_is_told_apart_and_its_words_are_kept(name: str, fake: Any, tmp_path: Path) -> None:
    kind, words = FULL[name]
    session = OnnxSession(tmp_path / "model.onnx", CUDA, n_threads=1)
    fake.made.failure = getattr(onnxruntime_pybind11_state, kind)(words)
    with pytest.raises(SessionRunError) as caught:
        session.run(features())
    assert caught.value.out_of_memory
    assert type(caught.value.__cause__) is getattr(onnxruntime_pybind11_state, kind)
    assert any(part in str(caught.value) for part in ("requested buffer", "requested bytes", "out of memory", "ALLOC"))


SHRINKAGE = "memory.enable_memory_arena_shrinkage"


def emptied(options: onnxruntime.RunOptions) -> str:
    try:
        return str(options.get_run_config_entry(SHRINKAGE))
    except (RuntimeError, onnxruntime_pybind11_state.Fail):
        return ""


@pytest.mark.parametrize("still_full", [False, True])
def test_a_full_arena_gives_back_its_blocks_once_before_rows_are_halved(
    still_full: bool, fake: Any, tmp_path: Path
) -> None:
    session = OnnxSession(tmp_path / "model.onnx", CUDA, n_threads=1)
    told: list[tuple[tuple[int, int], str]] = []

    def run(binding: FakeBinding, options: Any) -> None:
        told.append((binding.inputs["input_ids"].shape, emptied(options)))
        if len(told) == 1 or still_full:
            raise onnxruntime_pybind11_state.RuntimeException(FULL["arena at its bound"][1])

    fake.made.run_with_iobinding = run
    if still_full:
        with pytest.raises(SessionRunError) as caught:
            session.run(features())
        assert caught.value.out_of_memory
    else:
        assert session.run(features()).shape == (2, 8)
    assert told == [((2, 8), ""), ((1, 8), "gpu:0"), ((2, 8), "")]


def test_the_cpu_is_not_asked_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session, told = OnnxSession(write_graph(tmp_path / "graph"), get_profile("cpu"), n_threads=1), []

    def full(*arguments: object) -> None:
        told.append(arguments)
        raise onnxruntime_pybind11_state.RuntimeException(FULL["arena"][1])

    monkeypatch.setattr(session._session, "run_with_iobinding", full)
    with pytest.raises(SessionRunError):
        session.run(features())
    assert len(told) == 1


def test_another_fault_of_the_device_is_not_taken_for_a_full_one(fake: Any, tmp_path: Path) -> None:
    session = OnnxSession(tmp_path / "model.onnx", CUDA, n_threads=1)
    words = "[ONNXRuntimeError] : 1 : FAIL : CUDA failure 700: an illegal memory access was encountered ; GPU=0"
    fake.made.failure = onnxruntime_pybind11_state.Fail(words)
    with pytest.raises(SessionRunError) as caught:
        session.run(features())
    assert not caught.value.out_of_memory


@pytest.mark.parametrize(
    ("words", "fix"),
    [(FULL["arena at its bound"][1], "end what else takes its memory"), ("broken protobuf", "export it again")],
)
def test_a_model_that_finds_no_room_is_not_to_be_exported_again(
    words: str, fix: str, fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: Any, **_options: Any) -> None:
        raise onnxruntime_pybind11_state.RuntimeException(words)

    monkeypatch.setattr(fake, "__init__", refuse)
    with pytest.raises(SessionLoadError, match=rf"; {fix}$"):
        OnnxSession(tmp_path / "model.onnx", CUDA, n_threads=1)


def test_a_bound_run_gives_what_an_unbound_one_gives(tmp_path: Path) -> None:
    graph, cpu = write_graph(tmp_path / "graph"), get_profile("cpu")
    bound = OnnxSession(graph, replace(cpu, io_binding=True, session_config=CUDA.session_config))
    assert bound.run(features()).tobytes() == OnnxSession(graph, cpu).run(features()).tobytes()
