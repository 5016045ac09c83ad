"""The public way in: a model's name in, a model that may be used out, or the reason why not.

This is where lock, artifact, receipt and session meet; the gate stands here and nothing turns it off.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tokenizers

from samevec._version import __version__
from samevec.artifact import Artifact, find_artifact, verify_artifact
from samevec.digest import digest_json
from samevec.errors import ConfigError, NativeLibraryError
from samevec.hints import Commands
from samevec.lock import load_lock
from samevec.machine import allowed_cpus, give_back_memory
from samevec.native.library import load_library
from samevec.parity.answers import read_answers
from samevec.parity.cases.builtin import builtin_cases
from samevec.parity.code_digest import code_files
from samevec.parity.probe import Probe, require_probe
from samevec.parity.rankings.retrieval import builtin_fixture
from samevec.parity.receipt import Binding, GateState, gate_state, require_passed
from samevec.parity.reference.file import read_reference
from samevec.runtime.batching.plan import MAX_RUN_TOKENS
from samevec.runtime.embedder import Embedder
from samevec.runtime.open import open_model
from samevec.runtime.providers.detect import device_name, require_provider
from samevec.runtime.providers.profiles import get_profile
from samevec.runtime.reranker import Reranker
from samevec.runtime.sessions.fallback import FallbackSession
from samevec.runtime.sessions.onnx import onnxruntime_version
from samevec.runtime.sessions.static_shapes import open_session
from samevec.settings import default_home, default_token_budget

if TYPE_CHECKING:
    from samevec.lock import LockedModel, Tolerance
    from samevec.parity.answers import Answers
    from samevec.parity.reference.file import Reference
    from samevec.runtime.providers.profiles import Profile
    from samevec.runtime.sessions.base import Session

__all__ = [
    "Candidate",
    "binding_of",
    "fix_of",
    "load_embedder",
    "load_reranker",
    "open_candidate",
    "open_proved",
    "probe_of",
    "receipt_directories",
    "reference_of",
    "require_open_gate",
    "state_of",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """An artifact loaded into a session: what parity examines, and what is served once it has passed.

    Attributes
    ----------
    model : Embedder or Reranker
    entry : LockedModel
    artifact : Artifact
    profile : Profile
    home : Path
    commands : Commands
        Writes what messages tell people to run.
    probe : Probe or None
        What the model was asked before it was given out; None where no gate was asked.
    """

    model: Embedder | Reranker
    entry: LockedModel
    artifact: Artifact
    profile: Profile
    home: Path
    commands: Commands
    probe: Probe | None = None

    @property
    def answers(self) -> Answers | None:
        """The bits of the built-in cases; None where the native library does not compute.

        Raises
        ------
        ReferenceMissingError
            They are not there or not readable.
        """
        if not self.profile.is_native:
            return None
        return read_answers(self.artifact.answers_path, fix=self.export_command)

    @property
    def export_command(self) -> str:
        """The command that exports this model again."""
        return self.commands.export(self.entry.name, self.profile.name, source=self.entry.source)


def open_candidate(
    entry: LockedModel,
    *,
    profile: str,
    home: Path,
    commands: Commands | None = None,
    token_budget: int | None = None,
    n_threads: int | None = None,
) -> Candidate:
    """Verify an artifact's files and load it; asks no gate.

    Parameters
    ----------
    entry : LockedModel
    profile : str
    home : Path
    commands : Commands, optional
        For messages; commands that name only the home when not given.
    token_budget : int, optional
        Padded tokens of one microbatch; ``$SAMEVEC_TOKEN_BUDGET``, else the profile's, else 4,096.
    n_threads : int, optional
        Threads of one run; the machine's allowance when not given.

    Raises
    ------
    ConfigError, ArtifactError, InferenceError
        No such profile; nothing exported, or damaged; cannot be loaded here.

    Notes
    -----
    Every file of the artifact is hashed before any of them is loaded.
    """
    settings = get_profile(profile)
    commands = commands or Commands(home=home)
    require_provider(settings)
    artifact = find_artifact(home, entry, profile, commands=commands)
    n_threads = n_threads or allowed_cpus()
    opening = _Opening(
        entry=entry,
        artifact=artifact,
        profile=settings,
        n_threads=n_threads,
        token_budget=default_token_budget() if token_budget is None else token_budget,
        home=home,
    )
    verify_artifact(artifact, fix=commands.export(entry.name, profile, source=entry.source))
    model = opening.open()
    return Candidate(model=model, entry=entry, artifact=artifact, profile=settings, home=home, commands=commands)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Opening:
    """How a verified artifact is opened here."""

    entry: LockedModel
    artifact: Artifact
    profile: Profile
    n_threads: int
    token_budget: int | None
    home: Path

    def open(self) -> Embedder | Reranker:
        profile, manifest, graph_path = self.profile, self.artifact.manifest, self.artifact.graph_path
        session = open_session(
            graph_path,
            profile,
            max_tokens=self.entry.max_tokens,
            n_threads=self.n_threads,
            cache=_program_cache(self.artifact, profile, self.home),
        )
        return open_model(
            self.entry,
            session,
            tokenizer_path=self.artifact.tokenizer_path,
            pad_token_id=manifest.tokenizer.pad_token_id,
            type_ids=manifest.tokenizer.type_ids,
            pad_to_multiple=profile.pad_to_multiple,
            width=manifest.graph.width,
            token_budget=self.token_budget or profile.token_budget,
            overlapping=not profile.single_run,
            costs=profile.costs,
        )


def _program_cache(artifact: Artifact, profile: Profile, home: Path) -> Path | None:
    """Return where programs compiled for fixed shapes are kept; None where there are none or nothing can be written."""
    if not profile.static_shapes:
        return None
    record = {
        "artifact": artifact.digest,
        "options": profile.session_options(),
        "onnxruntime": onnxruntime_version(),
        "device": device_name(profile.provider),
    }
    key = digest_json(record).removeprefix("sha256:")[:16]
    # In the artifact, or under the home where that is read-only.
    for directory in (artifact.path / "machine", home / "machine" / artifact.path.name):
        folder = directory / profile.name / key
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        return folder
    return None


def binding_of(entry: LockedModel, artifact: Artifact, profile: Profile, home: Path) -> Binding:
    """Return everything a receipt for this artifact on this machine must be bound to.

    Parameters
    ----------
    entry : LockedModel
    artifact : Artifact
    profile : Profile
    home : Path

    Notes
    -----
    No session needs to be loaded: one with another provider than the profile's is refused when it is opened.

    The number of threads is not bound: a text's bits do not depend on it, and it changes with every container quota.
    """
    return Binding(
        model=entry.name,
        profile=profile.name,
        artifact_digest=artifact.digest,
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


def receipt_directories(artifact: Artifact, home: Path) -> list[Path]:
    """Return where receipts of an artifact are kept: in it, and under the home for when it is read-only."""
    return [artifact.receipts_path, home / "receipts" / artifact.path.name]


def state_of(entry: LockedModel, artifact: Artifact, profile: Profile, home: Path) -> GateState:
    """Return the gate's state for an artifact on this machine."""
    return gate_state(receipt_directories(artifact, home), binding_of(entry, artifact, profile, home))


def fix_of(state: GateState, entry: LockedModel, profile: Profile, commands: Commands) -> str:
    """Return the one command that mends a state that is not ``passed``.

    What has failed fails again, so that only another export helps. Where nothing but libraries has changed and bits are
    held against those of the export, a quick gate is enough.
    """
    if state.state == "failed":
        return commands.export(entry.name, profile.name, source=entry.source)
    return commands.parity(entry.name, profile.name, quick=bool(state.libraries) and profile.is_native)


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
        As for :func:`open_candidate`.

    Raises
    ------
    ParityError
        Not proved here, failed, or stale; the message has the command that mends it.
    ConfigError, ArtifactError, InferenceError
        As :func:`open_candidate`.
    """
    commands = commands or Commands(home=home)
    require_open_gate(entry, profile=profile, home=home, commands=commands)
    candidate = open_candidate(
        entry,
        profile=profile,
        home=home,
        commands=commands,
        token_budget=token_budget,
        n_threads=n_threads,
    )
    model, probe = candidate.model, probe_of(candidate, tolerance)
    require_probe(model, probe)
    give_back_memory()  # what was read to load it, and is done with
    return _with_fallback(replace(candidate, model=model, probe=probe), tolerance)


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


def require_open_gate(entry: LockedModel, *, profile: str, home: Path, commands: Commands) -> None:
    """Refuse a model whose parity has not passed here; loads nothing, so that a refusal takes no time.

    Raises
    ------
    ParityError, ArtifactMissingError
        With the command that mends it.
    ProviderUnavailableError
        The profile's provider is not to be had here.
    """
    settings = get_profile(profile)
    require_provider(settings)
    artifact = find_artifact(home, entry, profile, commands=commands)
    state = state_of(entry, artifact, settings, home)
    require_passed(state, model=entry.name, fix=fix_of(state, entry, settings, commands))


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


def _load(
    name: str, task: str, *, profile: str, home: str | Path | None, lock: str | Path | None
) -> Embedder | Reranker:
    loaded = load_lock(lock)
    entry = loaded.model(name)
    if entry.task != task:
        kinds = {"embed": "an embedding model", "rerank": "a reranking model"}
        raise ConfigError(f"{name} is {kinds[entry.task]}, {kinds[task]} is needed")
    home = default_home() if home is None else Path(home)
    commands = Commands(lock=lock, home=home)
    return open_proved(entry, tolerance=loaded.tolerance, profile=profile, home=home, commands=commands).model


def load_embedder(
    name: str,
    *,
    profile: str = "cpu",
    home: str | Path | None = None,
    lock: str | Path | None = None,
) -> Embedder:
    """Load an exported embedding model whose parity was proved on this machine.

    Parameters
    ----------
    name : str
        Its name in the lock, such as ``"qwen3-embedding-0.6b"``.
    profile : str
        How to run it.
    home : str or Path, optional
        Where artifacts are; ``$SAMEVEC_HOME``, else the platform's user data folder.
    lock : str or Path, optional
        A lock file; ``"toy"`` for the built-in toy pair; the packaged ``models.lock`` when not given.

    Returns
    -------
    Embedder

    Raises
    ------
    LockError, ConfigError
        The lock or the name is wrong.
    ArtifactError
        Nothing exported, or damaged since.
    ParityError
        Not proved here, failed, or something bound to the receipt has changed; the message has the command to run.
    InferenceError
        The graph cannot be loaded here.
    """
    model = _load(name, "embed", profile=profile, home=home, lock=lock)
    assert isinstance(model, Embedder)  # noqa: S101  open_model goes by the task checked above
    return model


def load_reranker(
    name: str,
    *,
    profile: str = "cpu",
    home: str | Path | None = None,
    lock: str | Path | None = None,
) -> Reranker:
    """Load an exported reranking model whose parity was proved on this machine; see :func:`load_embedder`."""
    model = _load(name, "rerank", profile=profile, home=home, lock=lock)
    assert isinstance(model, Reranker)  # noqa: S101  open_model goes by the task checked above
    return model
