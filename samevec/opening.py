"""A lock entry and its artifact in, a model ready to compute out. Asks no gate: see ``samevec.gate``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from samevec.artifact import find_artifact, verify_artifact
from samevec.digest import digest_json
from samevec.errors import InputError
from samevec.hints import Commands
from samevec.machine import allowed_cpus
from samevec.parity.answers import read_answers
from samevec.runtime.batching.cost import COSTS
from samevec.runtime.batching.plan import MAX_RUN_TOKENS
from samevec.runtime.embedder import Embedder
from samevec.runtime.engine import DEFAULT_ROWS, Engine
from samevec.runtime.limits import MemoryGuard
from samevec.runtime.providers.detect import device_name, require_provider
from samevec.runtime.providers.profiles import get_profile
from samevec.runtime.reranker import Reranker
from samevec.runtime.sessions.onnx import onnxruntime_version
from samevec.runtime.sessions.static_shapes import open_session
from samevec.runtime.tokenization import Tokenizer
from samevec.settings import default_token_budget

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from samevec.artifact import Artifact
    from samevec.lock import LockedModel
    from samevec.parity.answers import Answers
    from samevec.parity.probe import Probe
    from samevec.parity.receipt import Receipt
    from samevec.runtime.batching.cost import CostModel
    from samevec.runtime.model import Model
    from samevec.runtime.providers.profiles import Profile
    from samevec.runtime.sessions.base import Session

__all__ = ["Candidate", "Located", "build_model", "locate", "open_candidate", "open_located"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Located:
    """An artifact of a lock entry under a profile; of its files only the manifest has been read.

    Attributes
    ----------
    entry : LockedModel
    artifact : Artifact
    profile : Profile
    home : Path
    commands : Commands
        Writes what messages tell people to run.
    """

    entry: LockedModel
    artifact: Artifact
    profile: Profile
    home: Path
    commands: Commands

    @property
    def export_command(self) -> str:
        """The command that exports this model again."""
        return self.commands.export(self.entry.name, self.profile.name, source=self.entry.source)


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate(Located):
    """An artifact loaded into a session: what parity examines, and what is served once it has passed.

    Attributes
    ----------
    model : Model
    receipt : Receipt or None
        By which its gate was open; None where no gate was asked.
    probe : Probe or None
        What the model was asked before it was given out; None where no gate was asked.
    """

    model: Model
    receipt: Receipt | None = None
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


def locate(entry: LockedModel, profile: Profile, *, home: Path, commands: Commands | None = None) -> Located:
    """Find the artifact of a lock entry under a profile, whether or not it can run here.

    Parameters
    ----------
    entry : LockedModel
    profile : Profile
    home : Path
    commands : Commands, optional
        For messages; commands that name only the home when not given.

    Raises
    ------
    ArtifactMissingError
        Nothing exported; the message has the command that mends it.
    """
    commands = commands or Commands(home=home)
    artifact = find_artifact(home, entry, profile.name, commands=commands)
    return Located(entry=entry, artifact=artifact, profile=profile, home=home, commands=commands)


def open_candidate(
    entry: LockedModel,
    *,
    profile: str,
    home: Path,
    commands: Commands | None = None,
    token_budget: int | None = None,
    n_threads: int | None = None,
) -> Candidate:
    """Find an artifact, verify its files and load it; asks no gate.

    Parameters
    ----------
    entry : LockedModel
    profile : str
    home, commands
        As for :func:`locate`.
    token_budget, n_threads
        As for :func:`open_located`.

    Raises
    ------
    ConfigError, ArtifactError, InferenceError
        No such profile; nothing exported, or damaged; cannot be loaded here.
    """
    settings = require_provider(get_profile(profile))
    located = locate(entry, settings, home=home, commands=commands)
    return open_located(located, token_budget=token_budget, n_threads=n_threads)


def open_located(located: Located, *, token_budget: int | None = None, n_threads: int | None = None) -> Candidate:
    """Verify an artifact's files and load it; asks no gate.

    Parameters
    ----------
    located : Located
    token_budget : int, optional
        Padded tokens of one microbatch; ``$SAMEVEC_TOKEN_BUDGET``, else the profile's, else 4,096.
    n_threads : int, optional
        Threads of one run; the machine's allowance when not given.

    Raises
    ------
    ArtifactError, InferenceError
        Damaged; cannot be loaded here.

    Notes
    -----
    Every file of the artifact is hashed before any of them is loaded.
    """
    entry, artifact, profile = located.entry, located.artifact, located.profile
    if token_budget is None:
        token_budget = default_token_budget()
    n_threads = n_threads or allowed_cpus()
    verify_artifact(artifact, fix=located.export_command)
    session = open_session(
        artifact.graph_path,
        profile,
        max_tokens=entry.max_tokens,
        n_threads=n_threads,
        cache=_program_cache(located),
    )
    model = build_model(
        entry,
        session,
        tokenizer_path=artifact.tokenizer_path,
        pad_token_id=artifact.manifest.tokenizer.pad_token_id,
        type_ids=artifact.manifest.tokenizer.type_ids,
        pad_to_multiple=profile.pad_to_multiple,
        width=artifact.manifest.graph.width,
        token_budget=token_budget or profile.token_budget,
        overlapping=not profile.single_run,
        costs=profile.costs,
    )
    return Candidate(
        model=model, entry=entry, artifact=artifact, profile=profile, home=located.home, commands=located.commands
    )


def _program_cache(located: Located) -> Path | None:
    """Return where programs compiled for fixed shapes are kept; None where there are none or nothing can be written."""
    artifact, profile = located.artifact, located.profile
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
    for directory in (artifact.path / "machine", located.home / "machine" / artifact.path.name):
        folder = directory / profile.name / key
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        return folder
    return None


def build_model(
    entry: LockedModel,
    session: Session,
    *,
    tokenizer_path: Path,
    pad_token_id: int,
    type_ids: bool = False,
    pad_to_multiple: int = 1,
    width: int | None = None,
    token_budget: int | None = None,
    max_rows: int | None = None,
    overlapping: bool = False,
    costs: Mapping[str, CostModel] = COSTS,
) -> Model:
    """Put a session, its tokenizer and its limits together.

    Parameters
    ----------
    entry : LockedModel
    session : Session
    tokenizer_path : Path
        The pinned ``tokenizer.json``.
    pad_token_id, pad_to_multiple
        See :func:`samevec.runtime.collate.collate`.
    type_ids : bool
        Whether the graph reads segment ids.
    width : int, optional
        Components of a raw row; the lock's dimensions, or 1 logit, when not given.
    token_budget : int, optional
        Padded tokens of one microbatch; 4,096 when not given.
    max_rows : int, optional
        Rows of one microbatch; 32 texts or 64 pairs when not given.
    overlapping : bool
        See :class:`samevec.runtime.engine.Engine`.
    costs : mapping of str to CostModel
        By task; what runs cost where the session computes.

    Returns
    -------
    Embedder or Reranker
        By the entry's task.
    """
    if token_budget is not None and token_budget < 1:
        raise InputError(f"{token_budget} given, at least 1 is needed", field="token_budget")
    tokenizer = Tokenizer.from_file(tokenizer_path, max_tokens=entry.max_tokens, type_ids=type_ids)
    cost = costs[entry.task]
    engine = Engine(
        session=session,
        width=width or entry.dimensions or 1,
        pad_token_id=pad_token_id,
        pad_to_multiple=pad_to_multiple,
        token_budget=token_budget or MAX_RUN_TOKENS,
        max_rows=max_rows or DEFAULT_ROWS[entry.task],
        cost=cost,
        memory=MemoryGuard(bytes_per_token=cost.bytes_per_token),
        overlapping=overlapping,
    )
    if entry.task == "embed":
        return Embedder(entry=entry, tokenizer=tokenizer, engine=engine)
    return Reranker(entry=entry, tokenizer=tokenizer, engine=engine)
