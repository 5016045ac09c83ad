"""Environments of the peers: made from a requirement file each, kept in the cache folder, never in the repository."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

from benchmarks.protocol import PeerUnavailableError, without_paths

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["default_cache", "ensure_environment"]

_REQUIREMENTS = Path(__file__).parent / "peers"


def default_cache() -> Path:
    """Return ``$SAMEVEC_BENCH_CACHE``, else a folder of the user's cache."""
    given = os.environ.get("SAMEVEC_BENCH_CACHE")
    return Path(given).expanduser() if given else platformdirs.user_cache_path("samevec-bench", appauthor=False)


def ensure_environment(name: str, cache: Path, say: Callable[[str], None]) -> Path:
    """Return an environment's interpreter, installing it the first time.

    Parameters
    ----------
    name : str
        Of ``benchmarks/peers/<name>.txt``.
    cache : Path
    say : callable
        Takes one line for people.

    Returns
    -------
    Path

    Raises
    ------
    PeerUnavailableError
        It does not install here; the reason in pip's words.
    """
    requirements = _REQUIREMENTS / f"{name}.txt"
    key = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:12]
    directory = cache / "environments" / f"{name}-{key}"
    python = directory / "bin" / "python"
    if (directory / ".installed").is_file():
        return python
    say(f"installing the environment {name}")
    shutil.rmtree(directory, ignore_errors=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--requirement", str(requirements)]
    for command in ([sys.executable, "-m", "venv", str(directory)], install):
        finished = subprocess.run(command, check=False, capture_output=True, text=True)
        if finished.returncode:
            raise PeerUnavailableError(f"{name} does not install here: {_reason(finished.stderr)}")
    (directory / ".installed").touch()
    return python


def _reason(stderr: str) -> str:
    errors = [line for line in stderr.splitlines() if line.startswith("ERROR")]
    return without_paths(errors[0] if errors else stderr[-300:])
