"""Who is measured: samevec's profiles and how people run these models today."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["OWN_PREFIX", "SYSTEMS", "System"]

#: Systems that are samevec itself; they run in the benchmark's own environment.
OWN_PREFIX = "samevec/"


@dataclass(frozen=True, kw_only=True, slots=True)
class System:
    """One way of running the models.

    Attributes
    ----------
    name : str
    script : str
        Module under ``benchmarks.peers``.
    environment : str or None
        Requirement file under ``benchmarks/peers``; None for the benchmark's own.
    options : mapping
        For the script.
    prepared_by : str or None
        ``environment/script`` that makes files once, before loading.
    tuned : bool
        Choose the best batch size for each workload first, in a process of its own.
    """

    name: str
    script: str
    environment: str | None = None
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    prepared_by: str | None = None
    tuned: bool = False

    @property
    def is_own(self) -> bool:
        """Whether it is samevec."""
        return self.name.startswith(OWN_PREFIX)


_ST, _OV = "sentence_transformers_peer", "openvino/sentence_transformers_peer"
_PLAIN = "plain-optimum/onnxruntime_peer"


def _torch(name: str, *, batch_size: int, tuned: bool = False) -> System:
    options = {"backend": "torch", "batch_size": batch_size}
    return System(
        name=f"sentence-transformers/{name}",
        script=_ST,
        environment="sentence-transformers",
        options=options,
        tuned=tuned,
    )


def _plain(name: str, grouping: str) -> System:
    return System(
        name=f"plain-optimum/{name}",
        script="onnxruntime_peer",
        environment="plain-optimum",
        options={"grouping": grouping},
        prepared_by=_PLAIN,
    )


_ALL = (
    System(name="samevec/cpu", script="samevec_peer", options={"profile": "cpu"}),
    System(name="samevec/portable", script="samevec_peer", options={"profile": "portable"}),
    _torch("torch-b32", batch_size=32),
    _torch("torch-best", batch_size=32, tuned=True),
    System(
        name="sentence-transformers/openvino-f32-b1",
        script=_ST,
        environment="openvino",
        options={"backend": "openvino", "batch_size": 1},
        prepared_by=_OV,
    ),
    _plain("b32", "arrival"),
    _plain("near-equal", "near-equal"),
    System(name="fastembed/custom", script="fastembed_peer", environment="fastembed", prepared_by=_PLAIN),
)

#: Every system by name, in table order.
SYSTEMS: dict[str, System] = {system.name: system for system in _ALL}
