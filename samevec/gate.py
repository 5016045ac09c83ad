"""The gate on this machine: what a receipt is bound to, what it says, who may be opened; nothing turns it off."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np
import tokenizers

from samevec._version import __version__
from samevec.errors import ArtifactError, NativeLibraryError
from samevec.machine import give_back_memory
from samevec.native.library import load_library
from samevec.opening import locate, open_located
from samevec.parity.cases.builtin import builtin_cases
from samevec.parity.code_digest import code_files
from samevec.parity.compare import compare_ids
from samevec.parity.gate import run_gate
from samevec.parity.probe import Probe, require_probe
from samevec.parity.rankings.retrieval import builtin_fixture
from samevec.parity.receipt import Binding, gate_state, require_passed, write_receipt
from samevec.parity.reference.baseline import run_baseline
from samevec.parity.reference.file import read_reference
from samevec.parity.tokens import tokenize_cases
from samevec.parity.verdict import Cell
from samevec.runtime.batching.plan import MAX_RUN_TOKENS
from samevec.runtime.providers.detect import device_name, require_provider
from samevec.runtime.providers.profiles import get_profile
from samevec.runtime.sessions.fallback import FallbackSession
from samevec.runtime.sessions.onnx import onnxruntime_version

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from samevec.hints import Commands
    from samevec.lock import LockedModel, Tolerance
    from samevec.opening import Candidate, Located
    from samevec.parity.receipt import GateState
    from samevec.parity.reference.file import Reference
    from samevec.parity.verdict import Verdict
    from samevec.progress import Progress
    from samevec.runtime.providers.profiles import Profile
    from samevec.runtime.sessions.base import Session

__all__ = [
    "binding_of",
    "fix_of",
    "open_proved",
    "probe_of",
    "prove",
    "receipt_directories",
    "reference_of",
    "require_open_gate",
    "state_of",
]


def binding_of(located: Located) -> Binding:
    """Return everything a receipt for this artifact on this machine must be bound to.

    Notes
    -----
    No session needs to be loaded: one with another provider than the profile's is refused when it is opened.

    The number of threads is not bound: a text's bits do not depend on it, and it changes with every container quota.
    """
    entry, profile = located.entry, located.profile
    return Binding(
        model=entry.name,
        profile=profile.name,
        artifact_digest=located.artifact.digest,
        lock_entry_digest=entry.digest,
        case_set_digest=builtin_cases(entry.task, prompts=entry.prompts).digest,
        fixture_digest=builtin_fixture().digest,
        provider=profile.provider,
        provider_options=dict(profile.provider_options),
        session_options=profile.session_options() | _library_options(profile),
        device=device_name(profile.provider),
        samevec_version=__version__,
        onnxruntime_version=onnxruntime_version(),
        tokenizers_version=tokenizers.__version__,
        numpy_version=np.__version__,
        code=code_files(),
    )


def _library_options(profile: Profile) -> dict[str, object]:
    """Return what a receipt says of the native library, where it computes."""
    if not profile.is_native:
        return {}
    try:
        library = load_library()
    except NativeLibraryError:
        return {"native_library": "not to be had here"}
    return {"arithmetic": library.arithmetic, "native_library": f"sha256:{library.digest}"}


def receipt_directories(located: Located) -> list[Path]:
    """Return where receipts of an artifact are kept: in it, and under the home for when it is read-only."""
    return [located.artifact.receipts_path, located.home / "receipts" / located.artifact.path.name]


def state_of(located: Located) -> GateState:
    """Return the gate's state for an artifact on this machine."""
    return gate_state(receipt_directories(located), binding_of(located))


def fix_of(state: GateState, located: Located) -> str:
    """Return the one command that mends a state that is not ``passed``.

    What has failed fails again, so that only another export helps. Where nothing but libraries has changed and bits are
    held against those of the export, a quick gate is enough.
    """
    if state.state == "failed":
        return located.export_command
    quick = bool(state.libraries) and located.profile.is_native
    return located.commands.parity(located.entry.name, located.profile.name, quick=quick)


def require_open_gate(located: Located) -> GateState:
    """Refuse a model whose parity has not passed here; loads nothing, so that a refusal takes no time.

    Raises
    ------
    ParityError
        With the command that mends it.
    """
    state = state_of(located)
    require_passed(state, model=located.entry.name, fix=fix_of(state, located))
    return state


def open_proved(
    entry: LockedModel,
    *,
    tolerance: Tolerance,
    profile: str,
    home: Path,
    commands: Commands | None = None,
    token_budget: int | None = None,
    n_threads: int | None = None,
) -> Candidate:
    """Load an artifact that may be served: its receipt has passed, and so has a probe just now.

    Parameters
    ----------
    entry : LockedModel
    tolerance : Tolerance
        For the probe: a few calls compared with the reference at every start.
    profile, home, commands, token_budget, n_threads
        As for :func:`samevec.opening.open_candidate`.

    Raises
    ------
    ParityError
        Not proved here, failed, or stale; the message has the command that mends it.
    ConfigError, ArtifactError, InferenceError
        As :func:`samevec.opening.open_candidate`.
    """
    settings = require_provider(get_profile(profile))
    located = locate(entry, settings, home=home, commands=commands)
    state = require_open_gate(located)
    candidate = open_located(located, token_budget=token_budget, n_threads=n_threads)
    probe = probe_of(candidate, tolerance)
    require_probe(candidate.model, probe)
    give_back_memory()  # what was read to load it, and is done with
    return _with_fallback(replace(candidate, receipt=state.receipt, probe=probe), tolerance)


def _with_fallback(candidate: Candidate, tolerance: Tolerance) -> Candidate:
    """Return the candidate with what takes over when its device has no memory: another profile, only once proved.

    The gate never sees it: what it judges is the device alone.
    """
    name, engine = candidate.profile.fallback, candidate.model.engine
    if not name:
        return candidate

    def open_second() -> Session:
        proved = open_proved(
            candidate.entry, tolerance=tolerance, profile=name, home=candidate.home, commands=candidate.commands
        )
        return proved.model.engine.session

    session = FallbackSession(engine.session, open_second, profile=name, budget_tokens=MAX_RUN_TOKENS)
    return replace(candidate, model=replace(candidate.model, engine=replace(engine, session=session)))


def probe_of(candidate: Candidate, tolerance: Tolerance) -> Probe:
    """Choose what a candidate is asked at every start.

    Raises
    ------
    ReferenceMissingError
        Its reference or its answers are not there or not readable.
    """
    entry = candidate.entry
    return Probe.of(
        entry,
        reference_of(candidate),
        builtin_cases(entry.task, prompts=entry.prompts),
        tolerance=tolerance,
        answers=candidate.answers,
        fix=candidate.commands.parity(entry.name, candidate.profile.name),
    )


def reference_of(candidate: Candidate) -> Reference:
    """Read what PyTorch gave for the built-in cases.

    Raises
    ------
    ReferenceMissingError
        It is not there or not readable; the message has the command that makes it.
    """
    return read_reference(candidate.artifact.reference_path, fix=candidate.export_command)


def _now() -> datetime:
    return datetime.now(UTC)


def prove(
    candidate: Candidate,
    *,
    tolerance: Tolerance,
    quick: bool = False,
    live: Reference | None = None,
    progress: Progress | None = None,
    now: Callable[[], datetime] = _now,
) -> Verdict:
    """Compare a loaded artifact with its reference and keep what was found.

    Parameters
    ----------
    candidate : Candidate
    tolerance : Tolerance
        The lock's.
    quick : bool
        Only the quick subset. When that passes no receipt is written, since it is no leave to serve; but where an older
        receipt passed, nothing except versions of libraries has changed since, and the bits are those of the export, it
        is one. When it fails, a failed receipt is written, since what is known to be wrong must not be served on an
        older one.
    live : Reference, optional
        PyTorch's numbers computed anew (``samevec.parity.reference.baseline.capture_live``), compared as well.
    progress : Progress, optional
    now : callable
        The clock that dates the receipt.

    Returns
    -------
    Verdict
        Its ``receipt_problem`` says what went wrong in keeping it; that never changes the outcome.

    Raises
    ------
    ReferenceMissingError
        The artifact has no reference for the built-in cases of this samevec.
    """
    reference = reference_of(candidate)
    verdict = run_gate(
        candidate.model,
        reference,
        tolerance=tolerance,
        profile=candidate.profile,
        quick=quick,
        artifact_digest=candidate.artifact.digest,
        answers=candidate.answers,
        progress=progress,
        fix=candidate.export_command,
    )
    writer = {"samevec": candidate.artifact.manifest.samevec_version}
    verdict = replace(verdict, reference_toolchain={**verdict.reference_toolchain, **writer})
    if live is not None:
        cells = run_baseline(candidate.model, reference, live, tolerance=tolerance)
        verdict = verdict.with_findings(cells=cells)
    binding = binding_of(candidate)
    directories = receipt_directories(candidate)
    before = gate_state(directories, binding, now=now())
    if before.libraries and verdict.answers is not None:
        verdict = _compared_with_older_libraries(verdict, before, candidate, reference)
    if verdict.quick and verdict.passed and not verdict.same_bits_as:
        return verdict
    return replace(verdict, receipt_problem=_keep(verdict, binding, directories, now()))


def _compared_with_older_libraries(
    verdict: Verdict, before: GateState, candidate: Candidate, reference: Reference
) -> Verdict:
    """Say of a pass that the bits are those from under other libraries; a quick gate looks at every case's tokens."""
    if verdict.quick:
        cases = builtin_cases(candidate.entry.task, prompts=candidate.entry.prompts)
        found = [row.ids for row in tokenize_cases(candidate.model, cases)]
        cell = Cell(level="ids", grouping="every case", comparison=compare_ids(reference.ids, found))
        verdict = verdict.with_findings(cells=[cell])
    if not verdict.passed:
        return verdict
    older = before.receipt
    gap = f"what a quick gate leaves out, under these libraries; under {' and '.join(before.libraries)} the receipt of "
    gaps = (f"{gap}{older.created_at} has it",) if verdict.quick and older is not None else ()
    return replace(verdict, same_bits_as=before.libraries, not_measured=(*verdict.not_measured, *gaps))


def _keep(verdict: Verdict, binding: Binding, directories: Sequence[Path], now: datetime) -> str:
    """Write a verdict's receipt and read it again; return what is wrong, or nothing."""
    problem = ""
    try:
        write_receipt(directories, verdict.to_receipt(binding, created_at=now.isoformat(timespec="seconds")))
    except ArtifactError as error:
        problem = str(error)
    state = gate_state(directories, binding, now=now)
    if (state.state == "passed") == verdict.passed:
        return problem
    places = " or ".join(map(str, directories))
    return f"{problem or 'the receipt does not count'}: receipts in {places} say {state.summary}; remove them"
