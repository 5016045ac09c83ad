"""Where a loaded graph's nodes run, and whether too many of them were left to the CPU. Pure but for one reader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PlacedNode", "placement_problem", "placement_words", "read_placement"]

_CPU = "CPUExecutionProvider"

#: Operators that compute shapes, positions and masks in whole numbers; ONNX Runtime leaves those to the CPU on purpose,
#: since their results are read there. An operator that is not listed counts as computing.
_SHAPE_WORDS = """
    Abs Add And Cast Clip Concat Constant ConstantOfShape Div Equal Expand Flatten Floor Gather GatherElements GatherND
    Greater GreaterOrEqual Identity Less LessOrEqual Max Min Mod Mul Neg Not Or Range ReduceMax ReduceMin ReduceProd
    ReduceSum Reshape Shape Size Slice Split Squeeze Sub Tile Transpose Trilu Unsqueeze Where
    MemcpyFromHost MemcpyToHost
"""
_SHAPE_OPERATORS = frozenset(_SHAPE_WORDS.split())
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class PlacedNode:
    """One node of a loaded graph.

    Attributes
    ----------
    name : str
    operator : str
    provider : str
        The execution provider it was given to.
    """

    name: str
    operator: str
    provider: str

    @property
    def computes(self) -> bool:
        """Whether it may be part of the model's arithmetic."""
        return self.operator not in _SHAPE_OPERATORS


def placement_problem(nodes: Sequence[PlacedNode], provider: str, *, most_cpu_percent: int) -> str | None:
    """Return why a placement is refused; None when it is not.

    Parameters
    ----------
    nodes : sequence of PlacedNode
        Of the whole graph.
    provider : str
        Where they should run.
    most_cpu_percent : int
        Most compute nodes that may run elsewhere, in percent of all compute nodes.

    Notes
    -----
    An addition of floats looks like one of sizes here. It cannot hide a real fall-back: a product, norm, softmax or
    attention beside it is counted, and the CPU takes an addition alone only where sizes are computed.
    """
    computing = [node for node in nodes if node.computes]
    if not any(node.provider == provider for node in computing):
        return f"no compute node runs on {provider}"
    astray = [node for node in computing if node.provider != provider]
    if len(astray) * 100 <= most_cpu_percent * len(computing):
        return None
    shown = ", ".join(f"{node.name or '(no name)'} ({node.operator})" for node in astray[:_SHOWN])
    more = f" and {len(astray) - _SHOWN} more" if len(astray) > _SHOWN else ""
    limit = "none may" if most_cpu_percent == 0 else f"at most {most_cpu_percent}% may"
    return f"{len(astray)} of {len(computing)} compute nodes run elsewhere, {limit}: {shown}{more}"


def placement_words(nodes: Sequence[PlacedNode]) -> str:
    """Return how many compute nodes and how many others each provider has."""
    counts: dict[str, list[int]] = {}
    for node in nodes:
        counts.setdefault(node.provider, [0, 0])[0 if node.computes else 1] += 1
    return "; ".join(f"{name}: {counts[name][0]} compute, {counts[name][1]} other" for name in sorted(counts))


def read_placement(session: Any) -> list[PlacedNode] | None:
    """Read a session's own record of where its nodes run.

    Parameters
    ----------
    session : onnxruntime.InferenceSession
        Loaded with ``session.record_ep_graph_assignment_info``.

    Returns
    -------
    list of PlacedNode or None
        None where this ONNX Runtime keeps no such record.

    References
    ----------
    onnxruntime 1.32 ``InferenceSession.get_provider_graph_assignment_info``.
    """
    read = getattr(session, "get_provider_graph_assignment_info", None)
    if read is None:
        return None
    return [
        PlacedNode(str(node.name), str(node.op_type), str(subgraph.ep_name))
        for subgraph in read()
        for node in subgraph.get_nodes()
    ]
