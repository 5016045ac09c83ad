"""The graph form for CUDA, by value on the CPU provider, and made of nothing but what CUDA computes in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import pytest
from form_subjects import SUBJECTS, Subject, make_subject

from samevec.lock import load_lock
from samevec.parity.compare import compare
from samevec.runtime.collate import collate
from samevec.runtime.providers.placement import PlacedNode
from samevec.runtime.providers.profiles import get_profile
from samevec.runtime.sessions.onnx import OnnxSession

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.model,
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]

#: Compute operators of the exported graphs that have a float32 kernel in the CUDA provider: onnxruntime
#: ``docs/OperatorKernels.md``, "Operators implemented by CUDAExecutionProvider".
CUDA_FLOAT32 = {
    *("Erf", "Gemm", "LayerNormalization", "MatMul", "Pow", "ReduceMean", "Sigmoid", "Softmax", "Sqrt", "Tanh"),
    *("MultiHeadAttention", "RotaryEmbedding"),
}
TOLERANCE = load_lock("toy").tolerance


@pytest.fixture(scope="module", params=SUBJECTS)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Subject, Path]:
    pytest.importorskip("optimum", reason="needs the export extra")
    from samevec.export.convert import convert  # noqa: PLC0415 - needs torch

    folder = tmp_path_factory.mktemp("cuda")
    subject = make_subject(request.param, folder)
    form = get_profile("cuda").graph_form
    return subject, convert(subject.module, subject.entry, form=form, directory=folder)


def test_every_compute_operator_has_a_float32_kernel_on_cuda(exported: tuple[Subject, Path]) -> None:
    graph = onnx.load(str(exported[1]), load_external_data=False).graph
    operators = {node.op_type for node in graph.node}
    assert "MultiHeadAttention" in operators
    assert {name for name in operators if PlacedNode("", name, "").computes} <= CUDA_FLOAT32


def test_heads_grow_to_a_multiple_of_eight() -> None:
    torch = pytest.importorskip("torch", reason="needs the export extra")
    from samevec.export.architectures.base import CUDA_COMPONENTS, HIDDEN, PaddingComponent  # noqa: PLC0415 - needs torch

    padding = PaddingComponent.from_bias(torch.tensor([[0.0, HIDDEN]]), 3)
    assert CUDA_COMPONENTS % 8 == 0
    assert padding.query_ones.shape == padding.key_bias.shape == (1, 2, 3, CUDA_COMPONENTS)
    assert padding.query_ones.sum(3).tolist() == [[[1.0] * 3, [1.0] * 3]]
    assert padding.key_bias.sum(3).tolist() == [[[0.0] * 3, [HIDDEN] * 3]]


def test_ragged_rows_are_pytorchs(exported: tuple[Subject, Path]) -> None:
    subject, path = exported
    session = OnnxSession(path, get_profile("portable"), n_threads=1)
    step = get_profile("cuda").pad_to_multiple
    for lengths in ((1,), (8, 3), (64, 65, 1), (255, 17, 256), (300, 2, 257)):
        rows = subject.rows(lengths)
        found = session.run(collate(rows, pad_token_id=0, pad_to_multiple=step))
        outcome = compare(subject.reference(rows), found, TOLERANCE)
        assert outcome.passed, f"{lengths} tokens: {outcome.words}"


def test_the_values_are_not_all_alike(exported: tuple[Subject, Path]) -> None:
    # Otherwise a graph that ignores its input would agree.
    subject, _ = exported
    rows = subject.rows((8, 8, 300))
    expected = subject.reference(rows)
    for other in (1, 2):
        assert not compare(expected[:1], expected[other : other + 1], TOLERANCE).passed
