"""A graph in ONNX Runtime behind the Session protocol."""

from __future__ import annotations

import importlib
import threading
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from samevec.errors import (
    ConfigError,
    ProviderUnavailableError,
    SessionLoadError,
    SessionRunError,
    WorkCancelledError,
)
from samevec.machine import allowed_cpus
from samevec.native.library import load_library
from samevec.runtime.cancel import CancelToken
from samevec.runtime.collate import collate
from samevec.runtime.providers.detect import load_cuda_libraries, require_provider
from samevec.runtime.providers.placement import placement_problem, read_placement
from samevec.runtime.providers.profiles import ARENA_SHRINKAGE
from samevec.runtime.rows import TokenRow
from samevec.runtime.sessions.base import Session

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from samevec.runtime.collate import Features
    from samevec.runtime.providers.profiles import Profile

__all__ = [
    "ORT_EXCEPTION_NAMES",
    "OnnxSession",
    "onnxruntime_version",
    "ort_exceptions",
]

#: ONNX Runtime's own exception classes; they share no base but Exception, so each is named. A test compares this list
#: with the installed module. A missing or misshapen feed raises ValueError or RuntimeError.
ORT_EXCEPTION_NAMES = (
    "DeviceReset",
    "EPFail",
    "EngineError",
    "Fail",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "ModelLoadCanceled",
    "ModelLoaded",
    "ModelRequiresCompilation",
    "NoModel",
    "NoSuchFile",
    "NotFound",
    "NotImplemented",
    "RuntimeException",
)
_OUT_OF_MEMORY_WORDS = (
    "failed to allocate",
    "bad_alloc",
    "bad allocation",
    "out of memory",
    "is smaller than requested bytes",  # an arena that has met its bound
    "status_alloc_failed",  # of cuBLAS and cuDNN
)


#: What classes of ONNX Runtime's errors mean at load.
_DAMAGE = {
    "NoSuchFile": "the graph's file is not there",
    "InvalidProtobuf": "the graph's file is damaged",
    "InvalidGraph": "the graph is damaged, or has operators that are not here",
}

_CORNER_TOKENS = 8
#: Providers whose arena can be told to give back what no run uses, and its name in ONNX Runtime's run options.
_DEVICE_ARENAS = {"CUDAExecutionProvider": "gpu:0"}


def _onnxruntime() -> Any:
    try:
        return importlib.import_module("onnxruntime")
    except ImportError as error:
        raise ConfigError("onnxruntime is not installed; install it with: pip install 'samevec[cpu]'") from error


def onnxruntime_version() -> str:
    """Return the version of the installed ONNX Runtime."""
    return str(_onnxruntime().__version__)


def ort_exceptions() -> tuple[type[BaseException], ...]:
    """Return the exception classes a session may raise, of the installed ONNX Runtime."""
    state = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    found = [getattr(state, name) for name in ORT_EXCEPTION_NAMES if hasattr(state, name)]
    return (*found, ValueError, RuntimeError, MemoryError)


def _session_options(ort: Any, profile: Profile, n_threads: int) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = n_threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL
    if profile.is_native:  # what stands in the file is what runs
        options.graph_optimization_level = levels.ORT_DISABLE_ALL
        options.register_custom_ops_library(str(load_library().path))
    options.enable_cpu_mem_arena = profile.memory_arena
    options.enable_mem_pattern = profile.memory_pattern
    options.log_severity_level = 3  # errors only: optimiser warnings are about the graph, which the gate judges
    for key, value in profile.session_config.items():
        options.add_session_config_entry(key, value)
    return options


class OnnxSession(Session):
    """A graph loaded into ONNX Runtime under a profile. Safe between threads, which wait where one run goes at a time.

    Parameters
    ----------
    graph_path : Path
        ``model.onnx``; its external data is found beside it.
    profile : Profile
    n_threads : int, optional
        Threads of one run; the machine's allowance when not given.
    shape : (int, int), optional
        Rows and tokens of every run, fixed when the graph is loaded.
    more_options : mapping of str to str, optional
        Of the provider, beside the profile's: what moves no bit, such as where it keeps compiled programs.

    Raises
    ------
    NativeLibraryError
        The profile computes with the native library, which cannot be loaded.
    ProviderUnavailableError
        The provider is not in this ONNX Runtime, the session silently took another, it took other options than it was
        given, or it left more compute nodes to the CPU than the profile allows.
    SessionLoadError
        The graph or its data cannot be loaded.
    """

    def __init__(
        self,
        graph_path: Path,
        profile: Profile,
        *,
        n_threads: int | None = None,
        shape: tuple[int, int] | None = None,
        more_options: Mapping[str, str] | None = None,
    ) -> None:
        ort = _onnxruntime()
        self._exceptions = ort_exceptions()
        require_provider(profile)
        options = _session_options(ort, profile, n_threads or allowed_cpus())
        for axis, size in zip(("rows", "tokens"), shape or (), strict=False):
            options.add_free_dimension_override_by_name(axis, size)
        if profile.provider == "CUDAExecutionProvider":
            load_cuda_libraries(ort)
        try:
            # The directory is resolved, since some versions refuse external data reached through a linked one; the
            # graph itself is not, since its data lies beside the link. Fallback off: otherwise a provider
            # that fails, at load or in any later run, is replaced by the CPU one with nothing but a printed line.
            self._session = ort.InferenceSession(
                str(graph_path.parent.resolve() / graph_path.name),
                options,
                providers=[(profile.provider, {**profile.provider_options, **(more_options or {})})],
                enable_fallback=0,
            )
        except self._exceptions as error:
            fix = "end what else takes its memory" if _is_out_of_memory(error) else "export it again"
            raise SessionLoadError(f"{graph_path}: cannot be loaded: {_load_problem(error)}; {fix}") from error
        # Two runs at a time would need the memory of both, and a device would be no faster for it.
        self._turn: Any = threading.Lock() if profile.single_run else nullcontext()
        self._check_provider(profile.provider)
        self._check_options(profile)
        self._check_placement(profile)
        self._io_binding = profile.io_binding
        self._device_arena = _DEVICE_ARENAS.get(profile.provider)
        self._run_config = dict(profile.run_config)
        self._gives_back = ARENA_SHRINKAGE in self._run_config
        self._holds_memory = False
        self._pad_to_multiple = profile.pad_to_multiple
        self._input_names = [value.name for value in self._session.get_inputs()]
        outputs = self._session.get_outputs()
        self._output_names = [value.name for value in outputs]
        self._row_width = _row_width(outputs) if self._gives_back else None

    def _check_provider(self, requested: str) -> None:
        used = self._session.get_providers()[0]
        if used != requested:
            raise ProviderUnavailableError(
                requested, f"onnxruntime gave {used} instead; nothing else is served in its place"
            )

    def _check_options(self, profile: Profile) -> None:
        """Refuse a provider that says it took another value than it was given; what it does not tell is not known."""
        told = self.provider_options
        differing = [
            f"{name} is {told[name]} instead of {value}"
            for name, value in profile.provider_options.items()
            if name in told and told[name].lower() != value.lower()
        ]
        if differing:
            raise ProviderUnavailableError(profile.provider, f"it was given options it did not take: {differing}")

    def _check_placement(self, profile: Profile) -> None:
        if profile.most_cpu_percent >= 100:
            return
        nodes = read_placement(self._session)
        if nodes is None:
            problem: str | None = (
                f"onnxruntime {onnxruntime_version()} does not tell where nodes run, so that it cannot be said whether"
                " the model runs there; install a newer one"
            )
        else:
            problem = placement_problem(nodes, profile.provider, most_cpu_percent=profile.most_cpu_percent)
        if problem is not None:
            raise ProviderUnavailableError(profile.provider, problem)

    @property
    def provider(self) -> str:
        """The execution provider in use."""
        return str(self._session.get_providers()[0])

    @property
    def provider_options(self) -> dict[str, str]:
        """The options of that provider as ONNX Runtime reports them."""
        return {str(k): str(v) for k, v in self._session.get_provider_options().get(self.provider, {}).items()}

    @property
    def input_names(self) -> Sequence[str]:
        """Inputs the graph declares; feeds are built from these."""
        return tuple(self._input_names)

    def run(
        self, features: Features, *, cancel: CancelToken | None = None, keep_memory: bool = False
    ) -> NDArray[np.float32]:
        """Compute one microbatch, see :class:`Session`; a cancelled run ends between two operators of the graph."""
        cancel = cancel or CancelToken()
        cancel.require_wanted()
        options = self._run_options(keep_memory=keep_memory)  # of this run alone: terminating goes by this object

        def terminate() -> None:
            options.terminate = True

        holds_memory = True  # a run that fails is taken to have left what it had
        try:
            with cancel.telling(terminate), self._turn:
                outputs = self._compute_in_room(features, options)
            holds_memory = keep_memory
        except self._exceptions as error:
            if cancel.is_cancelled:
                raise WorkCancelledError from error
            raise SessionRunError(
                f"a run of {features.shape[0]} x {features.shape[1]} tokens failed: {_first_line(error)}",
                out_of_memory=_is_out_of_memory(error),
            ) from error
        finally:  # a run that gives back gives all that no other run uses, so that the last one to end decides
            self._holds_memory = holds_memory
        return cast("NDArray[np.float32]", outputs[0])

    def run_all(self, features: Features) -> dict[str, NDArray[Any]]:
        """Compute every output of the graph, by name: for graphs that are traced, not served.

        Raises
        ------
        SessionRunError
            The run failed.
        """
        try:
            outputs = self._session.run(self._output_names, features.as_feed(self._input_names))
        except self._exceptions as error:
            raise SessionRunError(f"a traced run failed: {_first_line(error)}") from error
        return dict(zip(self._output_names, outputs, strict=True))

    def release_memory(self) -> None:
        """Release what runs left in the arena, by a run of one token; nothing where the profile keeps it for good."""
        if self._gives_back and self._holds_memory:
            type_ids = (0,) if "token_type_ids" in self._input_names else None
            self.run(collate([TokenRow((0,), type_ids)], pad_token_id=0, pad_to_multiple=self._pad_to_multiple))

    def _run_options(self, *, keep_memory: bool) -> Any:
        options = _onnxruntime().RunOptions()
        options.log_severity_level = 3
        for key, value in self._run_config.items():
            if not (keep_memory and key == ARENA_SHRINKAGE):
                options.add_run_config_entry(key, value)
        return options

    def _compute_in_room(self, features: Features, options: Any) -> Sequence[Any]:
        """Compute; on a device that is full, once more after its arena gave back the blocks of shapes gone by.

        An arena that is at its bound keeps every block it ever took, and a larger one fits into none of them: without
        this, a device that is nearly empty could seem to have no memory for a single row.
        """
        try:
            return self._compute(features, options)
        except self._exceptions as error:
            if self._device_arena is None or not _is_out_of_memory(error):
                raise
        emptying = _onnxruntime().RunOptions()
        emptying.add_run_config_entry(ARENA_SHRINKAGE, self._device_arena)
        with suppress(*self._exceptions):  # then there is no room either, which the next line finds out
            self._compute(_corner(features), emptying)
        return self._compute(features, options)

    def _compute(self, features: Features, options: Any) -> Sequence[Any]:
        feed = features.as_feed(self._input_names)
        if self._row_width is None and not self._io_binding:
            return cast("Sequence[Any]", self._session.run(self._output_names, feed, options))
        binding = self._session.io_binding()  # of this run alone: nothing of an earlier one can come back
        for name, array in feed.items():
            binding.bind_cpu_input(name, array)
        if self._row_width is not None:
            return [self._compute_into(np.empty((features.shape[0], self._row_width), np.float32), binding, options)]
        for name in self._output_names:
            binding.bind_output(name, "cpu")
        self._session.run_with_iobinding(binding, options)
        return cast("Sequence[Any]", binding.copy_outputs_to_cpu())

    def _compute_into(self, raw: NDArray[np.float32], binding: Any, options: Any) -> NDArray[np.float32]:
        """Compute into memory of our own.

        An output in the arena is still there when the run gives memory back, and holds the whole block that it lies
        in: 4 to 17 MB of the toy pair, in every other run of several microbatches.
        """
        binding.bind_output(
            self._output_names[0], "cpu", element_type=np.float32, shape=raw.shape, buffer_ptr=raw.ctypes.data
        )
        self._session.run_with_iobinding(binding, options)
        return raw


def _row_width(outputs: Sequence[Any]) -> int | None:
    """Return how many float32 a row has, where the graph declares one output and says so."""
    if len(outputs) != 1 or outputs[0].type != "tensor(float)" or len(outputs[0].shape) != 2:
        return None
    width = outputs[0].shape[1]
    return width if isinstance(width, int) else None


def _corner(features: Features) -> Features:
    """Return the first few tokens of the first row: the least that a graph computes."""
    ids, mask, type_ids = features.input_ids, features.attention_mask, features.token_type_ids
    part = (slice(1), slice(_CORNER_TOKENS))
    return replace(
        features,
        input_ids=ids[part].copy(),
        attention_mask=mask[part].copy(),
        token_type_ids=None if type_ids is None else type_ids[part].copy(),
    )


def _is_out_of_memory(error: BaseException) -> bool:
    words = str(error).lower()
    return isinstance(error, MemoryError) or any(word in words for word in _OUT_OF_MEMORY_WORDS)


def _load_problem(error: BaseException) -> str:
    """Say what is wrong with a graph; the words of ONNX Runtime only where its class of error says nothing."""
    kind, line = type(error).__name__, _first_line(error)
    if kind in _DAMAGE:
        return _DAMAGE[kind]
    return "its weights are missing, cut, or not those of the graph" if "xternal" in line else line


def _first_line(error: BaseException) -> str:
    """Return an error's first line; two where the first only announces the second."""
    lines = (str(error).strip() or type(error).__name__).splitlines()
    return " ".join(line.strip() for line in lines[: 2 if lines[0].rstrip().endswith(":") else 1])
