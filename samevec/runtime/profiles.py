"""What each profile fixes: provider, provider options, session options, graph form and padding."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from samevec.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PROFILES", "Profile", "get_profile"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """Everything about a way of running that may move a bit, and so is bound into receipts.

    Attributes
    ----------
    name : str
    provider : str
        ONNX Runtime's name of the execution provider.
    provider_options : mapping of str to str
    graph_form : str
        Which form of the graph the export writes, see ``samevec.export``.
    session_config : mapping of str to str
        ONNX Runtime session configuration entries.
    run_config : mapping of str to str
        ONNX Runtime run configuration entries.
    memory_arena, memory_pattern : bool
        Arena on and pattern off measured best for changing shapes (FINDINGS, "Sessions and memory").
    disabled_optimizers : tuple of str
        ONNX Runtime graph optimisers that must not run.
    packed : bool
        Weights are mapped from a file packed on the serving machine (``samevec.runtime.prepack``).
    pad_to_multiple : int
        Token axis is padded to a multiple of this.
    bit_identical_groupings : bool
        Whether the gate requires that a text's bits do not depend on its neighbours.
    single_run : bool
        The provider runs one batch at a time: nothing runs beside another run, and one run may use the whole token
        budget.
    side_by_side : bool
        Bulk microbatches run side by side on few threads each, on a second session (``samevec.runtime.bulk``).
    """

    name: str
    provider: str
    provider_options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    graph_form: str
    session_config: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    run_config: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    memory_arena: bool = True
    memory_pattern: bool = False
    disabled_optimizers: tuple[str, ...] = ()
    packed: bool = False
    pad_to_multiple: int = 4
    bit_identical_groupings: bool = False
    single_run: bool = False
    side_by_side: bool = False

    def session_options(self) -> dict[str, Any]:
        """Return the options as one flat record, as receipts bind them."""
        return {
            "graph_form": self.graph_form,
            "memory_arena": self.memory_arena,
            "memory_pattern": self.memory_pattern,
            "disabled_optimizers": list(self.disabled_optimizers),
            "packed": self.packed,
            "single_run": self.single_run,
            "side_by_side": self.side_by_side,
            "pad_to_multiple": self.pad_to_multiple,
            "session_config": dict(self.session_config),
            "run_config": dict(self.run_config),
        }


# Threads spin while a run lasts and stop with it. Left to spin on they cost 30 to 50 CPU-ms a query (FINDINGS) and keep
# an idle machine busy (CASES O20); never spinning costs a wake-up at every operator: 23.1 ms against 19.8 for a pair of
# 16 tokens, with equal CPU time (46 and 45 ms), where 22 layers have 180 operators worth a second thread.
_SPINNING = {
    "session.intra_op.allow_spinning": "1",
    "session.force_spinning_stop": "1",
    "session.inter_op.allow_spinning": "0",
}

# Gives the arena's surplus back after each run; no visible cost (FINDINGS).
_SHRINKING_ARENA = {"memory.enable_memory_arena_shrinkage": "cpu:0"}

PROFILES: Mapping[str, Profile] = MappingProxyType(
    {
        "cpu": Profile(
            name="cpu",
            provider="CPUExecutionProvider",
            graph_form="fused",
            session_config=MappingProxyType(_SPINNING),
            run_config=MappingProxyType(_SHRINKING_ARENA),
            packed=True,
            bit_identical_groupings=True,
            side_by_side=True,
        ),
        "cpu-compact": Profile(
            name="cpu-compact",
            provider="CPUExecutionProvider",
            graph_form="compact",
            # Weights stay in file pages as they are stored: packing would copy them into private memory.
            session_config=MappingProxyType({**_SPINNING, "session.disable_prepacking": "1"}),
            run_config=MappingProxyType(_SHRINKING_ARENA),
            # It would cast every stored weight at load and keep the float32 copies.
            disabled_optimizers=("ConstantFolding",),
            bit_identical_groupings=True,
        ),
    }
)


def get_profile(name: str) -> Profile:
    """Return a profile by name.

    Raises
    ------
    ConfigError
        No such profile.
    """
    if name not in PROFILES:
        raise ConfigError(f"profile {name!r} is not known; choose one of: {', '.join(sorted(PROFILES))}")
    return PROFILES[name]
