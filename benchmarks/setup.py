"""What measuring needs: full-shape snapshots, and artifacts of them that were exported and proved."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.environments import default_cache
from benchmarks.protocol import REPOSITORY, PeerUnavailableError
from samevec.errors import ArtifactMissingError
from samevec.gate import state_of
from samevec.lock import load_lock
from samevec.opening import locate
from samevec.runtime.providers.profiles import PROFILES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from samevec.lock import LockedModel

__all__ = ["Models", "add_model_arguments", "ensure_proved", "ensure_snapshots", "models_of", "say"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Models:
    """Where the models lie.

    Attributes
    ----------
    snapshots : Path
        Written by ``full_shape.py``: random weights, never quality.
    home : Path
        samevec's artifacts.
    unproved : bool
        Measure artifacts that the gate has not passed; for work on a profile, said in the results.
    """

    snapshots: Path
    home: Path
    unproved: bool = False

    @property
    def lock_path(self) -> Path:
        """The lock that pins the snapshots."""
        return self.snapshots / "full.lock"


def say(line: str) -> None:
    """Tell people how far it has come; standard error, so that results can be piped."""
    print(line, file=sys.stderr, flush=True)


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags that say where things lie."""
    add = parser.add_argument
    add("--home", type=Path, help="samevec's artifacts (default: in the cache folder)")
    add("--snapshots", type=Path, help="full-shape checkpoints (default: in the cache folder)")
    add("--files", type=Path, help="the models' real small files, to build them from (default: $SAMEVEC_SNAPSHOTS)")
    add("--cache", type=Path, default=default_cache(), help="default: $SAMEVEC_BENCH_CACHE or the user's cache")
    add("--output", type=Path, default=Path(__file__).parent / "results", help="default: benchmarks/results")
    add("--unproved", action="store_true", help="also measure artifacts the gate has not passed; the results say so")


def models_of(arguments: argparse.Namespace) -> Models:
    """Return where the models lie, snapshots built if they were missing."""
    snapshots = arguments.snapshots or arguments.cache / "snapshots"
    home = arguments.home or arguments.cache / "home"
    models = Models(snapshots=snapshots.resolve(), home=home.resolve(), unproved=arguments.unproved)
    ensure_snapshots(models, arguments.files, say)
    return models


def ensure_snapshots(models: Models, files: Path | None, say: Callable[[str], None]) -> None:
    """Build the snapshots where they are missing.

    Parameters
    ----------
    models : Models
    files : Path, optional
        Folder with the real configuration and tokenizer files; ``$SAMEVEC_SNAPSHOTS`` when not given.
    say : callable

    Raises
    ------
    SystemExit
        The builder could not; it has said why.
    """
    if models.lock_path.is_file():
        return
    say("building full-shape checkpoints with seeded random weights (1.8 GB)")
    command = [sys.executable, "-m", "benchmarks.full_shape", str(models.snapshots)]
    command += ["--files", str(files)] if files else []
    if subprocess.run(command, check=False, cwd=REPOSITORY).returncode:
        raise SystemExit("the full-shape checkpoints could not be built")


def ensure_proved(model: str, profile: str, models: Models, say: Callable[[str], None]) -> None:
    """Export and prove an artifact where it is missing or its receipt does not hold.

    Parameters
    ----------
    model, profile : str
    models : Models
    say : callable

    Raises
    ------
    PeerUnavailableError
        There is no such profile, or the export or the gate failed.
    """
    if profile not in PROFILES:
        raise PeerUnavailableError(f"this samevec has no profile {profile}")
    state = _state(load_lock(models.lock_path).model(model), profile, models)
    if state is None:
        _samevec("export", model, profile, models, say, "--from", str(models.snapshots))
    elif state != "passed" and not models.unproved:
        _samevec("parity", model, profile, models, say)


def _state(entry: LockedModel, profile: str, models: Models) -> str | None:
    try:
        return state_of(locate(entry, PROFILES[profile], home=models.home)).state
    except ArtifactMissingError:
        return None


def _samevec(verb: str, model: str, profile: str, models: Models, say: Callable[[str], None], *arguments: str) -> None:
    say(f"samevec {verb} {model} --profile {profile}: once, this takes minutes")
    command = [sys.executable, "-m", "samevec", verb, "--model", model, "--profile", profile, *arguments]
    where = ["--lock", str(models.lock_path), "--home", str(models.home)]
    code = subprocess.run([*command, *where], check=False, cwd=REPOSITORY, stdout=sys.stderr).returncode
    if code and not (models.unproved and code == 1):
        raise PeerUnavailableError(f"samevec {verb} of {model} under {profile} ended with {code}")
