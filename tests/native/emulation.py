"""Python on processors this machine does not have: ``haswell`` (AVX2, no AVX-512), ``nehalem`` (no AVX), ``aarch64``.

``haswell.run("-c", "print(1)")`` takes the arguments of ``python``, finds this checkout's samevec with a native library
for that processor, and returns what was printed. Skip with ``haswell.problem`` where it is not None.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import build
import emulators

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["EmulatedProcessor", "aarch64", "haswell", "nehalem"]

_PACKAGE = emulators.ROOT / "samevec"
_NOT_SET_UP = "other processors were not tried: run make emulators"


@dataclass(frozen=True)
class EmulatedProcessor:
    """A processor that qemu pretends to be.

    Attributes
    ----------
    name : str
    command : tuple of str
        Runs that processor's Python.
    needs : tuple of Path
        What ``make emulators`` has put there.
    python_path : callable
        Gives the folders to import from; builds the library where it has to.
    """

    name: str
    command: tuple[str, ...]
    needs: tuple[Path, ...]
    python_path: Callable[[], list[Path]]

    @property
    def problem(self) -> str | None:
        """Why it cannot be tried here, or None."""
        if sys.platform != "linux" or platform.machine() != "x86_64":
            return "other processors are emulated on Linux on x86-64 only"
        there = shutil.which(self.command[0]) and all(path.exists() for path in self.needs)
        return None if there else _NOT_SET_UP

    def _import_path(self, first: Path | None) -> list[Path]:
        return self.python_path() if first is None else [first, *self.python_path()]

    def environment(self, first: Path | None = None) -> dict[str, str]:
        """Variables to start ``command`` with, see ``run``; from a folder without a samevec of its own."""
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SAMEVEC_"))},
            "PYTHONPATH": os.pathsep.join(map(str, self._import_path(first))),
            "PYTHONDONTWRITEBYTECODE": "1",
            # A command that starts itself again would do so without the emulator.
            "PYTHONMALLOC": "malloc",
            "ORT_DISABLE_TELEMETRY": "1",
        }

    def run(self, *arguments: str, first: Path | None = None, timeout_s: float = 600) -> str:
        """Run Python with these arguments and return its standard output.

        Paths in the arguments are absolute. ``first`` is a folder to import samevec from instead of this checkout.
        An exit code other than 0 is an AssertionError with what was written to standard error.
        """
        path = self._import_path(first)
        # Python looks in the working directory first, for -c and -m.
        done = subprocess.run(
            [*self.command, *arguments],
            cwd=path[0],
            env=self.environment(first),
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )
        assert done.returncode == 0, f"{self.name}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout


def _arm_path() -> list[Path]:
    return [_arm_checkout(), emulators.ARM_PACKAGES]


def _arm_checkout() -> Path:
    """This checkout with an ARM library: links to all other files of the package, kept until the C++ changes."""
    target = build.TARGETS["aarch64-linux"]
    folder = emulators.FOLDER / f"checkout-{_source_digest()[:16]}"
    package = folder / "samevec"
    library = package / "native" / target.library_name
    if not library.exists():
        build.build(target, library, compiler=build.find_compiler(target))
    _link_all(_PACKAGE, package, but="native")
    _link_all(_PACKAGE / "native", library.parent, but=library.name)
    _link(emulators.ROOT / "models.lock", folder)
    return folder


def _source_digest() -> str:
    files = sorted(path for path in build.SOURCES.iterdir() if path.suffix in (".cpp", ".h", ".inc", ".py"))
    return hashlib.sha256(b"\0".join(path.name.encode() + b"\0" + path.read_bytes() for path in files)).hexdigest()


def _link_all(source: Path, folder: Path, *, but: str) -> None:
    for entry in source.iterdir():
        if entry.name != but:
            _link(entry, folder)


def _link(entry: Path, folder: Path) -> None:
    link = folder / entry.name
    if not link.exists():
        link.symlink_to(entry)


_PYTHON = sys.executable

#: As this machine, without AVX-512.
haswell = EmulatedProcessor(
    "Haswell", ("qemu-x86_64", "-cpu", "Haswell", _PYTHON), (emulators.STAMP,), lambda: [emulators.ROOT]
)
#: Older than AVX, which the library refuses.
nehalem = EmulatedProcessor(
    "Nehalem", ("qemu-x86_64", "-cpu", "Nehalem", _PYTHON), (emulators.STAMP,), lambda: [emulators.ROOT]
)
aarch64 = EmulatedProcessor(
    "ARM64",
    ("qemu-aarch64", "-cpu", "neoverse-n1", "-L", str(emulators.ARM_ROOT), str(emulators.ARM_PYTHON)),
    (emulators.STAMP, emulators.ARM_PYTHON, emulators.ARM_PACKAGES),
    _arm_path,
)
