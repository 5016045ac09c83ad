"""Where nodes run: which placements are refused, from lists made up here and from a real session."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import onnxruntime
import pytest
from small_graph import write_graph

from samevec.runtime.providers.placement import PlacedNode, placement_problem, placement_words, read_placement

if TYPE_CHECKING:
    from pathlib import Path

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"


def nodes(*placed: tuple[str, str]) -> list[PlacedNode]:
    return [PlacedNode(f"n{i}", operator, provider) for i, (operator, provider) in enumerate(placed)]


def test_shapes_and_masks_may_stay_on_the_cpu() -> None:
    placed = nodes(("Shape", CPU), ("Gather", CPU), ("Range", CPU), ("MatMul", CUDA), ("Add", CUDA))
    assert placement_problem(placed, CUDA, most_cpu_percent=0) is None
    assert placement_words(placed) == f"{CPU}: 0 compute, 3 other; {CUDA}: 1 compute, 1 other"


@pytest.mark.parametrize(
    "operator", ["MatMul", "GroupQueryAttention", "Softmax", "SimplifiedLayerNormalization", "Zeta"]
)
def test_one_compute_node_on_the_cpu_is_too_many_for_cuda(operator: str) -> None:
    placed = nodes(("MatMul", CUDA), ("Gemm", CUDA), (operator, CPU))
    problem = placement_problem(placed, CUDA, most_cpu_percent=0)
    assert problem == f"1 of 3 compute nodes run elsewhere, none may: n2 ({operator})"


def test_a_share_may_be_allowed_and_no_more() -> None:
    placed = nodes(*[("MatMul", "X")] * 9, ("Erf", CPU))
    assert placement_problem(placed, "X", most_cpu_percent=10) is None
    placed += nodes(("Erf", CPU))
    problem = placement_problem(placed, "X", most_cpu_percent=10)
    assert problem == "2 of 11 compute nodes run elsewhere, at most 10% may: n9 (Erf), n0 (Erf)"


def test_nothing_on_the_device_is_refused_whatever_may_be_elsewhere() -> None:
    for placed in ([], nodes(("Shape", CUDA)), nodes(("MatMul", CPU))):
        assert placement_problem(placed, CUDA, most_cpu_percent=99) == f"no compute node runs on {CUDA}"


def test_long_lists_are_cut() -> None:
    problem = placement_problem(nodes(("MatMul", CUDA), *[("Erf", CPU)] * 7), CUDA, most_cpu_percent=0)
    assert problem is not None
    assert problem.endswith("n5 (Erf) and 2 more")


def test_a_real_session_tells_where_its_nodes_run(tmp_path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    session = onnxruntime.InferenceSession(str(write_graph(tmp_path)), options, providers=[CPU])
    placed = read_placement(session)
    assert placed
    assert {node.provider for node in placed} == {CPU}
    assert placement_problem(placed, CPU, most_cpu_percent=0) is None
    assert placement_problem(placed, CUDA, most_cpu_percent=50) == f"no compute node runs on {CUDA}"


def test_an_older_onnxruntime_keeps_no_record() -> None:
    assert read_placement(SimpleNamespace()) is None
