"""Complete command lines for messages, ready to paste."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from samevec.settings import default_home

__all__ = ["Commands"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Commands:
    """Writes commands that mean the same models in any shell."""

    lock: str | Path | None = None  # as it was named: None for the packaged lock, "toy", or a file
    home: Path | None = None  # of the artifacts; left out of commands where it is the default
    source_dir: Path | None = None  # folder of checkpoint files, for exports

    def export(self, model: str, profile: str, *, source: str = "") -> str:
        """Return the command that exports a model and proves it; a ``local:`` `source` needs a folder."""
        folder: list[str] = []
        if self.source_dir is not None:
            folder = ["--from", str(self.source_dir.absolute())]
        elif source.startswith("local:"):
            folder = ["--from", "DIR"]  # only the caller knows where it is
        return shlex.join(["samevec", "export", *self._arguments(model, profile), *folder])

    def parity(self, model: str, profile: str, *, quick: bool = False) -> str:
        """Return the command that runs the gate for a model, or the quick one."""
        return shlex.join(["samevec", "parity", *self._arguments(model, profile), *(["--quick"] if quick else [])])

    def _arguments(self, model: str, profile: str) -> list[str]:
        arguments = ["--model", model, "--profile", profile]
        if self.lock is not None:
            arguments += ["--lock", "toy" if self.lock == "toy" else str(Path(self.lock).absolute())]
        # Compared with the platform's folder, not with $SAMEVEC_HOME: the other shell may not have the variable.
        if self.home is not None and self.home != default_home({}):
            arguments += ["--home", str(self.home.absolute())]
        return arguments
