"""What each profile fixes: provider, provider options, session options, graph form and padding."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from samevec.errors import ConfigError
from samevec.runtime.batching.cost import COSTS, GPU_COSTS, NATIVE_COSTS
from samevec.runtime.batching.plan import MAX_RUN_TOKENS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from samevec.runtime.batching.cost import CostModel

__all__ = ["ARENA_SHRINKAGE", "GPU_BUDGET_TOKENS", "PROFILES", "PROFILES_GONE", "Profile", "get_profile"]


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
        Which form of the graph the export writes, see ``samevec.export``; ``"native"`` needs the native library.
    session_config : mapping of str to str
        ONNX Runtime session configuration entries.
    run_config : mapping of str to str
        ONNX Runtime run configuration entries.
    memory_arena, memory_pattern : bool
        Arena on and pattern off measured best for changing shapes.
    pad_to_multiple : int
        Token axis is padded to a multiple of this.
    bit_identical_groupings : bool
        Whether the gate requires that a text's bits do not depend on its neighbours.
    single_run : bool
        The provider runs one batch at a time: nothing runs beside another run.
    io_binding : bool
        Inputs and outputs are bound, so that nothing but the pooled rows comes back from the device.
    static_shapes : bool
        A session is opened for each of a few fixed shapes (``samevec.runtime.batching.buckets``).
    token_budget : int
        Padded tokens of one microbatch.
    most_cpu_percent : int
        Most compute nodes, in percent, that may run on the CPU instead of the provider; 100: not checked.
    fallback : str
        Profile that takes over, once proved, when the device has no memory even for one row; empty for none.
    costs : mapping of str to CostModel
        By task: what runs cost where they run, by which plans are chosen. It moves no bit, so receipts do not bind it.
    """

    name: str
    provider: str
    provider_options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    graph_form: str
    session_config: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    run_config: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    memory_arena: bool = True
    memory_pattern: bool = False
    pad_to_multiple: int = 1
    bit_identical_groupings: bool = False
    single_run: bool = False
    io_binding: bool = False
    static_shapes: bool = False
    token_budget: int = MAX_RUN_TOKENS
    most_cpu_percent: int = 100
    fallback: str = ""
    costs: Mapping[str, CostModel] = field(default_factory=lambda: COSTS)

    @property
    def is_native(self) -> bool:
        """Whether the native library computes."""
        return self.graph_form == "native"

    def session_options(self) -> dict[str, Any]:
        """Return the options as one flat record, as receipts bind them."""
        # Left out where they are off: receipts of the CPU profiles know nothing of devices.
        for_devices: dict[str, Any] = {
            "io_binding": self.io_binding,
            "static_shapes": self.static_shapes,
            "fallback": self.fallback,
        }
        if self.token_budget != MAX_RUN_TOKENS:
            for_devices["token_budget"] = self.token_budget
        if self.most_cpu_percent != 100:
            for_devices["most_cpu_percent"] = str(self.most_cpu_percent)
        return {name: value for name, value in for_devices.items() if value} | {
            "graph_form": self.graph_form,
            "memory_arena": self.memory_arena,
            "memory_pattern": self.memory_pattern,
            "single_run": self.single_run,
            "pad_to_multiple": self.pad_to_multiple,
            "session_config": dict(self.session_config),
            "run_config": dict(self.run_config),
        }


# Threads spin while a run lasts and stop with it. Left to spin on they cost 30 to 50 CPU-ms a query and keep
# an idle machine busy; never spinning costs a wake-up at every operator: 23.1 ms against 19.8 for a pair of
# 16 tokens, with equal CPU time (46 and 45 ms), where 22 layers have 180 operators worth a second thread.
_SPINNING = {
    "session.intra_op.allow_spinning": "1",
    "session.force_spinning_stop": "1",
    "session.inter_op.allow_spinning": "0",
}

#: Run option that gives an arena's surplus back after the run.
ARENA_SHRINKAGE = "memory.enable_memory_arena_shrinkage"

# After single runs no cost is visible. From one microbatch of a job to the next the arena is kept: shrinking
# in between cost 3% of CPU time on 100 pairs and, by holes in the heap, 120 MB.
_SHRINKING_ARENA = {ARENA_SHRINKAGE: "cpu:0"}

# A device computes; the few threads of the host only start its kernels.
_NO_SPINNING = {"session.intra_op.allow_spinning": "0", "session.inter_op.allow_spinning": "0"}

# Lets a loaded session say which provider each node was given to (``samevec.runtime.providers.placement``).
_RECORDED_PLACEMENT = {"session.record_ep_graph_assignment_info": "1"}

#: Padded tokens of a run on a GPU, and of the process, since runs go one at a time.
GPU_BUDGET_TOKENS = 16_384

# 2.4 GB of weights, and 16,384 tokens of about 120 kB each (the gated inner states, and scores of rows below 256
# tokens, which the operator keeps whole) with room for rounding. Computed, not measured.
_GPU_ARENA_BYTES = 8 * 2**30

PROFILES: Mapping[str, Profile] = MappingProxyType(
    {
        "cpu": Profile(
            name="cpu",
            provider="CPUExecutionProvider",
            graph_form="native",
            session_config=MappingProxyType(_SPINNING),
            run_config=MappingProxyType(_SHRINKING_ARENA),
            bit_identical_groupings=True,
            costs=NATIVE_COSTS,
        ),
        "portable": Profile(
            name="portable",
            provider="CPUExecutionProvider",
            graph_form="plain",  # operators of the standard, in float32: any runtime reads it
            session_config=MappingProxyType(_SPINNING),
            run_config=MappingProxyType(_SHRINKING_ARENA),
        ),
        "cuda": Profile(
            name="cuda",
            provider="CUDAExecutionProvider",
            provider_options=MappingProxyType(
                {
                    "device_id": "0",
                    "use_tf32": "0",  # products would otherwise have 10 bits of mantissa
                    "gpu_mem_limit": str(_GPU_ARENA_BYTES),
                    "arena_extend_strategy": "kSameAsRequested",  # the default doubles, up to the whole device
                }
            ),
            graph_form="cuda",
            session_config=MappingProxyType({**_NO_SPINNING, **_RECORDED_PLACEMENT}),
            pad_to_multiple=8,
            single_run=True,
            io_binding=True,
            token_budget=GPU_BUDGET_TOKENS,
            most_cpu_percent=0,
            fallback="cpu",
            costs=GPU_COSTS,
        ),
        "coreml": Profile(
            name="coreml",
            provider="CoreMLExecutionProvider",
            provider_options=MappingProxyType(
                {
                    "ModelFormat": "MLProgram",
                    "MLComputeUnits": "CPUAndGPU",  # the neural engine computes in half precision only
                    "RequireStaticInputShapes": "1",
                    "EnableOnSubgraphs": "0",
                    "AllowLowPrecisionAccumulationOnGPU": "0",
                }
            ),
            graph_form="plain",  # CoreML knows none of ONNX Runtime's own operators
            session_config=MappingProxyType({**_NO_SPINNING, **_RECORDED_PLACEMENT}),
            single_run=True,
            static_shapes=True,
            most_cpu_percent=10,
        ),
    }
)


#: Names that a flag, a variable or a file of settings may still say, and what to say then.
PROFILES_GONE = {"cpu-compact": "cpu-compact is gone: cpu is as small now; export again with --profile cpu"}


def get_profile(name: str) -> Profile:
    """Return a profile by name.

    Raises
    ------
    ConfigError
        No such profile, or no longer.
    """
    if name in PROFILES_GONE:
        raise ConfigError(PROFILES_GONE[name])
    if name not in PROFILES:
        raise ConfigError(f"profile {name!r} is not known; choose one of: {', '.join(sorted(PROFILES))}")
    return PROFILES[name]
