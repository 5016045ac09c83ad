"""From flags to a running server: bind first, ask the gate, load, serve."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeVar

from samevec.errors import ArtifactError, NotReadyError, ParityError, ParityFailedError
from samevec.gate import open_proved, prove, require_open_gate, state_of
from samevec.opening import build_model, locate, open_located
from samevec.runtime.providers.detect import require_provider
from samevec.runtime.providers.profiles import get_profile
from samevec.runtime.sessions.reloadable import Reloadable
from samevec.server.lifecycle import read_api_keys, require_tls, reserve_endpoints, run_server
from samevec.server.settings import ServedModel, ServerSettings
from samevec.server.telemetry.tracing import require_otel

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from samevec.hints import Commands
    from samevec.lock import Lock, LockedModel
    from samevec.opening import Candidate, Located
    from samevec.progress import Progress
    from samevec.server.lifecycle import Endpoints

__all__ = ["ServePlan", "load_served", "serve_models"]

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServePlan:
    """Models to serve, where they come from, and the server's settings."""

    lock: Lock
    entries: tuple[LockedModel, ...]
    home: Path
    commands: Commands
    settings: ServerSettings = field(default_factory=ServerSettings)
    profile: str = "cpu"
    backend: Literal["onnx", "torch"] = "onnx"
    source_dir: Path | None = None
    prove_first: bool = False


def serve_models(plan: ServePlan, *, progress: Progress, say: Callable[[str], None]) -> int:
    """Serve until a stop signal.

    Returns
    -------
    int
        0 after a drained stop; 3 when the gate is not open for a model: every such model is named with its state, what
        changed and the command to run.

    Raises
    ------
    ConfigError, NotReadyError, ArtifactError, InferenceError
        A flag is wrong, an address is in use, nothing is exported, or a graph cannot be loaded.
    """
    settings = plan.settings
    # Find an unusable key file and a busy port before gigabytes are read.
    read_api_keys(settings.api_key_file)
    require_tls(settings)
    if settings.otlp_endpoint is not None:
        require_otel()
    on_stop = _StopBeforeReady()
    previous = signal.signal(signal.SIGTERM, on_stop)  # the server sets its own when it runs
    endpoints: Endpoints | None = None
    try:
        endpoints = reserve_endpoints(settings)
        on_stop.take_effect()
        served, refusals = _load_all(plan, progress)
        on_stop.take_effect()
        for refusal in refusals:
            say(f"samevec: not serving: {refusal}")
        return 3 if refusals else run_server(served, settings, endpoints)
    except BaseException:
        # Any exception: an extension module that is being imported turns the signal's into its own.
        if not on_stop.came:
            raise
        say("samevec: stopped before it was ready")
        return 0
    finally:
        signal.signal(signal.SIGTERM, previous)
        if endpoints is not None:
            endpoints.close()


class _StopBeforeReadyError(BaseException):
    """SIGTERM came while models were loading; no request is open that needs draining."""


class _StopBeforeReady:
    """A handler of SIGTERM that raises only once every address is held by a context that releases it."""

    def __init__(self) -> None:
        self.came = False
        self._takes_effect = False

    def __call__(self, _number: int, _frame: object) -> None:
        self.came = True
        if self._takes_effect:
            raise _StopBeforeReadyError

    def take_effect(self) -> None:
        """Raise on the signal from now on, and at once if it has come already."""
        self._takes_effect = True
        if self.came:
            raise _StopBeforeReadyError


def _load_all(plan: ServePlan, progress: Progress) -> tuple[list[ServedModel], list[ParityError | ArtifactError]]:
    """Load every model, or collect why not; all gates are asked before the first is loaded."""
    if not plan.entries:
        raise NotReadyError("the lock names no model to serve")
    _, refusals = _for_each(plan, lambda entry: _ask_gate(entry, plan, progress))
    return ([], refusals) if refusals else _for_each(plan, lambda entry: load_served(entry, plan, progress))


def _for_each(plan: ServePlan, step: Callable[[LockedModel], _T]) -> tuple[list[_T], list[ParityError | ArtifactError]]:
    """Take a step for every model; return the results, and why other models are not served."""
    results: list[_T] = []
    refusals: list[ParityError | ArtifactError] = []
    for entry in plan.entries:
        try:
            results.append(step(entry))
        except (ParityError, ArtifactError) as error:
            refusals.append(error)
    return results, refusals


def _ask_gate(entry: LockedModel, plan: ServePlan, progress: Progress) -> None:
    if plan.backend == "torch":
        return  # the reference needs no receipt: it is what receipts compare with
    located = locate(entry, require_provider(get_profile(plan.profile)), home=plan.home, commands=plan.commands)
    if plan.prove_first:
        _prove_if_needed(located, plan, progress)
    require_open_gate(located)


def load_served(entry: LockedModel, plan: ServePlan, progress: Progress) -> ServedModel:
    """Load one model to serve; ParityError or ArtifactError if its gate is closed or its files have changed."""
    if plan.backend == "torch":
        return _load_torch(entry, plan, progress)
    with progress.step(f"load {entry.name}"):
        candidate = _open(entry, plan)
    model, receipt, reloadable = candidate.model, candidate.receipt, None
    if plan.settings.idle_unload_s:
        reloadable = Reloadable(model.engine, lambda: _open(entry, plan).model.engine)
        model = replace(model, engine=reloadable.engine)
    return ServedModel(
        model=model,
        profile=plan.profile,
        backend="onnx",
        gate="passed",
        artifact_digest=candidate.artifact.digest,
        answers=candidate.artifact.manifest.answers,
        receipt_created_at=None if receipt is None else receipt.created_at,
        bound_to={} if receipt is None else receipt.binding.facts(),
        reloadable=reloadable,
        probe=candidate.probe,
    )


def _open(entry: LockedModel, plan: ServePlan) -> Candidate:
    """Open a model behind its gate, every file verified: at start, and after it was unloaded."""
    return open_proved(
        entry,
        tolerance=plan.lock.tolerance,
        profile=plan.profile,
        home=plan.home,
        commands=plan.commands,
        token_budget=plan.settings.token_budget,
    )


def _prove_if_needed(located: Located, plan: ServePlan, progress: Progress) -> None:
    state, name = state_of(located), located.entry.name
    if state.state == "passed":
        return
    progress.note(f"{name}: parity {state.summary}; running the gate")
    candidate = open_located(located, token_budget=plan.settings.token_budget)
    verdict = prove(candidate, tolerance=plan.lock.tolerance, progress=progress)
    if not verdict.passed:  # reported whether or not its receipt was written
        reasons = "; ".join(verdict.failures[:3])
        raise ParityFailedError(f"{name}: parity failed here: {reasons}", fix=located.export_command)
    if verdict.receipt_problem:
        progress.note(f"{name}: {verdict.receipt_problem}")


def _load_torch(entry: LockedModel, plan: ServePlan, progress: Progress) -> ServedModel:
    from samevec.export.source.snapshot import locate_snapshot, verify_snapshot  # noqa: PLC0415
    from samevec.parity.reference.pytorch import load_reference_model  # noqa: PLC0415  loads torch
    from samevec.parity.reference.torch_session import TorchSession  # noqa: PLC0415

    snapshot = locate_snapshot(entry, home=plan.home, source_dir=plan.source_dir, progress=progress)
    verify_snapshot(snapshot, entry, progress)
    with progress.step(f"load {entry.name} in PyTorch"):
        reference = load_reference_model(snapshot, entry)
    model = build_model(
        entry,
        TorchSession(reference),
        tokenizer_path=snapshot / "tokenizer.json",
        pad_token_id=0,
        type_ids=reference.type_ids,
        token_budget=plan.settings.token_budget,
    )
    return ServedModel(model=model, profile="torch", backend="torch", gate="reference")
