"""Other releases of what samevec stands on: ``make releases``, into ``.releases/``.

Each folder goes first on PYTHONPATH and hides the installed packages of the same names. ``oldest`` and ``newest`` hold
the ends of what pyproject.toml admits, up to constraints.txt; ``all`` adds every minor release of onnxruntime between.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".releases"
#: The last patch of each minor release of onnxruntime.
ONNXRUNTIMES = (
    *("1.23.2", "1.24.4", "1.25.1", "1.26.0", "1.27.0"),
    *("1.28.0", "1.29.0", "1.30.0", "1.31.1", "1.32.0"),
)
#: The oldest numpy with wheels for this Python.
OLD_NUMPY = "1.26.4" if sys.version_info < (3, 13) else "2.1.3"
OLD_TOKENIZERS = "0.22.0"
ENDS = ("oldest", "newest")


@dataclass(frozen=True)
class Release:
    """A folder of packages.

    Attributes
    ----------
    name : str
    requirements : tuple of str
        What pip installs into it, without dependencies: those that are already installed serve.
    """

    name: str
    requirements: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return FOLDER / self.name

    @property
    def is_there(self) -> bool:
        """Whether it was installed whole, from the same requirements."""
        return self._stamp.is_file() and self._stamp.read_text() == self._digest

    def install(self) -> None:
        """Put it there; nothing where it is."""
        if self.is_there:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:")
        try:
            subprocess.run([*pip, "--target", str(self.folder), *self.requirements], check=True)
        except subprocess.CalledProcessError as error:
            raise SystemExit(f"releases: {self.name}: {error}") from None
        self._stamp.write_text(self._digest)

    def run(self, *arguments: str, timeout_s: float = 300) -> str:
        """Run Python with these packages and this checkout; an exit code other than 0 is an AssertionError."""
        path = os.pathsep.join(map(str, (self.folder, ROOT, ROOT / "native", ROOT / "tests" / "native")))
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SAMEVEC_"))}
        environ = {**kept, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "ORT_DISABLE_TELEMETRY": "1"}
        # Python looks in the working directory first, for -c and -m.
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )
        assert done.returncode == 0, f"{self.name}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    @property
    def _stamp(self) -> Path:
        return self.folder / "installed"

    @property
    def _digest(self) -> str:
        words = (sys.version.split()[0], *self.requirements)
        return hashlib.sha256("\n".join(words).encode()).hexdigest()


def releases() -> tuple[Release, ...]:
    """Return every release that can be tried with this Python, the oldest and the newest first."""
    newest = pinned("onnxruntime")
    oldest = f"onnxruntime=={ONNXRUNTIMES[0]}", f"numpy=={OLD_NUMPY}", f"tokenizers=={OLD_TOKENIZERS}"
    latest = tuple(f"{name}=={pinned(name)}" for name in ("onnxruntime", "numpy", "tokenizers"))
    between = [version for version in ONNXRUNTIMES[1:] if numbers(version) < numbers(newest)]
    return (
        Release("oldest", oldest),
        Release("newest", latest),
        *(Release(f"onnxruntime-{version}", (f"onnxruntime=={version}",)) for version in between),
    )


def pinned(name: str) -> str:
    """Return the version of a package in constraints.txt for this Python."""
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    for version, compared, minor in re.findall(
        rf'^{name}==([\w.]+)(?:; python_version (<|>=) "3\.(\d+)")?$', text, re.MULTILINE
    ):
        if not compared or (sys.version_info[1] < int(minor)) == (compared == "<"):
            return str(version)
    raise SystemExit(f"releases: constraints.txt does not pin {name}")


def numbers(version: str) -> tuple[int, ...]:
    """Return a version's numbers, to be compared."""
    return tuple(map(int, version.split(".")))


def main() -> None:
    """Install what the command line asks for."""
    parser = argparse.ArgumentParser(prog="releases", description="Install other releases for the tests.")
    parser.add_argument("which", nargs="?", choices=["ends", "all"], default="ends")
    which = parser.parse_args().which
    for release in releases():
        if which == "all" or release.name in ENDS:
            release.install()


if __name__ == "__main__":
    main()
