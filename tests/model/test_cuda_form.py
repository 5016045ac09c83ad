"""The graph form for CUDA, by value on the CPU provider, and made of nothing but what CUDA computes in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest

from samevec.export.toy import TOY_EMBEDDER, TOY_RERANKER, build_toy
from samevec.lock import load_lock
from samevec.parity.compare import compare
from samevec.runtime.collate import collate
from samevec.runtime.placement import PlacedNode
from samevec.runtime.profiles import get_profile
from samevec.runtime.rows import TokenRow
from samevec.runtime.session import OnnxSession

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


@pytest.fixture(scope="module", params=[TOY_EMBEDDER, TOY_RERANKER])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Path]:
    pytest.importorskip("optimum", reason="needs the export extra")
    from samevec.export.convert import convert  # noqa: PLC0415 - needs torch
    from samevec.parity.reference import load_reference_model  # noqa: PLC0415 - needs torch

    entry, folder = load_lock("toy").model(request.param), tmp_path_factory.mktemp(request.param)
    build_toy(request.param, folder / "snapshot")
    module = load_reference_model(folder / "snapshot", entry).module
    return entry, module, convert(module, entry, form=get_profile("cuda").graph_form, directory=folder)


def test_every_compute_operator_has_a_float32_kernel_on_cuda(exported: tuple[Any, Any, Path]) -> None:
    _, _, path = exported
    graph = onnx.load(str(path), load_external_data=False).graph
    operators = {node.op_type for node in graph.node}
    assert "GroupQueryAttention" not in operators
    assert {name for name in operators if PlacedNode("", name, "").computes} <= CUDA_FLOAT32


def test_heads_grow_to_a_multiple_of_eight() -> None:
    torch = pytest.importorskip("torch", reason="needs the export extra")
    from samevec.export.architectures.base import CUDA_COMPONENTS, HIDDEN, PaddingComponent  # noqa: PLC0415 - needs torch

    padding = PaddingComponent.from_bias(torch.tensor([[0.0, HIDDEN]]), 3, n_components=CUDA_COMPONENTS)
    assert CUDA_COMPONENTS % 8 == 0
    assert padding.query_ones.shape == padding.key_bias.shape == (1, 2, 3, CUDA_COMPONENTS)
    assert padding.query_ones.sum(3).tolist() == [[[1.0] * 3, [1.0] * 3]]
    assert padding.key_bias.sum(3).tolist() == [[[0.0] * 3, [HIDDEN] * 3]]


def test_ragged_rows_are_pytorchs(exported: tuple[Any, Any, Path]) -> None:
    torch = pytest.importorskip("torch", reason="needs the export extra")
    from samevec.export.architectures import get_architecture  # noqa: PLC0415 - needs torch

    entry, module, path = exported
    architecture, session = get_architecture(entry), OnnxSession(path, get_profile("cpu"), n_threads=1)
    stream, n_ids = np.random.default_rng(5), int(module.config.vocab_size)
    step = get_profile("cuda").pad_to_multiple
    for lengths in ((1,), (8, 3), (64, 65, 1), (255, 17, 256), (300, 2, 257)):
        rows = [TokenRow(tuple(stream.integers(0, n_ids, n).tolist())) for n in lengths]
        feed = collate(rows, pad_token_id=0, pad_to_multiple=1).as_feed(architecture.input_names)
        with torch.inference_mode():
            tensors = {name: torch.from_numpy(array) for name, array in feed.items()}
            expected = architecture.reference_rows(module, tensors, entry.pooling).numpy()
        found = session.run(collate(rows, pad_token_id=0, pad_to_multiple=step))
        outcome = compare(expected, found, TOLERANCE)
        assert outcome.passed, f"{lengths} tokens: {outcome.words}"
