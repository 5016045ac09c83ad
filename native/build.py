"""Build samevec's native library from the C++ beside this file.

Run it as ``python native/build.py``; it needs the standard library and a C++ compiler, nothing else. The compiler is
``$CXX``, else ``c++``, ``g++`` or ``clang++``, else zig from the package ``ziglang``, which brings its own headers and
libraries and also builds for other processors.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "MANYLINUX",
    "SOURCES",
    "TARGETS",
    "ZIG_REQUIREMENT",
    "BuildError",
    "Compiler",
    "CompilerMissingError",
    "Target",
    "UnsupportedPlatformError",
    "build",
    "find_compiler",
    "host_target",
    "source_files",
]

#: The folder of the C++.
SOURCES = Path(__file__).resolve().parent
#: What to install where there is no C++ compiler; newer releases of zig have changed their command line before.
ZIG_REQUIREMENT = "ziglang==0.17.1"
#: The platform tag of what zig builds for Linux: it asks for no symbol newer than this glibc's.
MANYLINUX = "manylinux_2_28"
_GLIBC = "2.28"

# No flag may change a result: products and sums stay as they are written, fma only where it is called.
_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden")
_KERNELS: dict[str, dict[str, tuple[str, ...]]] = {
    "x86_64": {"kernels_avx2.cpp": ("-mavx2", "-mfma"), "kernels_avx512.cpp": ("-mavx512f",)},
    "aarch64": {"kernels_neon.cpp": ()},
}
_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
_SYSTEMS = {"linux": "linux", "darwin": "macos"}
_SYSTEM_COMPILERS = ("c++", "g++", "clang++")


class BuildError(Exception):
    """The library could not be built; what was there before is untouched."""


class CompilerMissingError(BuildError):
    """There is no C++ compiler for the target."""


class UnsupportedPlatformError(BuildError):
    """The library is not written for this system or processor."""


@dataclass(frozen=True)
class Target:
    """Where the library is to run.

    Attributes
    ----------
    machine : str
        ``"x86_64"`` or ``"aarch64"``.
    system : str
        ``"linux"`` or ``"macos"``.
    """

    machine: str
    system: str

    def __str__(self) -> str:
        return f"{self.machine}-{self.system}"

    @property
    def library_name(self) -> str:
        """The library's file name."""
        return "libsamevec.dylib" if self.system == "macos" else "libsamevec.so"

    @property
    def zig_triple(self) -> str:
        """The target as zig names it. Without one zig would build for the very processor it runs on."""
        return str(self) if self.system == "macos" else f"{self.machine}-linux-gnu.{_GLIBC}"


#: What ``--target`` takes besides ``host``.
TARGETS = {str(target): target for target in (Target("x86_64", "linux"), Target("aarch64", "linux"))}


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler that answered when asked for its version.

    Attributes
    ----------
    command : tuple of str
        How to call it.
    kind : {"gcc", "clang", "zig"}
    version : str
        The first line it says of itself.
    """

    command: tuple[str, ...]
    kind: Literal["gcc", "clang", "zig"]
    version: str


def host_target() -> Target:
    """Return the target that is this machine.

    Raises
    ------
    UnsupportedPlatformError
        There is no code for it.
    """
    machine = _MACHINES.get(platform.machine().lower())
    system = _SYSTEMS.get(sys.platform)
    if machine is None or system is None:
        raise UnsupportedPlatformError(
            f"the native library is written for Linux and macOS on x86-64 and ARM64,"
            f" not for {sys.platform} on {platform.machine()}"
        )
    return Target(machine, system)


def find_compiler(target: Target, *, zig_only: bool = False, environ: Mapping[str, str] | None = None) -> Compiler:
    """Return the compiler to use: the system's, else zig.

    Parameters
    ----------
    target : Target
    zig_only : bool
        Take zig even where the system has a compiler, for a library that runs on older systems too.
    environ : mapping, optional
        Where ``CXX`` and ``PATH`` are read; this process's environment by default.
        ``CXX`` counts for this machine alone.

    Returns
    -------
    Compiler

    Raises
    ------
    CompilerMissingError
        None is there, or ``CXX`` names one that does not run.
    """
    environ = os.environ if environ is None else environ
    native = target == host_target()
    if native and not zig_only and (named := environ.get("CXX", "").strip()):
        compiler = _asked(shlex.split(named), environ)
        if compiler is None:
            raise CompilerMissingError(f"CXX={named} does not run; unset it or name a C++ compiler")
        return compiler
    system = _SYSTEM_COMPILERS if native else (f"{target.machine}-linux-gnu-g++",)
    for name in () if zig_only else system:
        if compiler := _asked([name], environ):
            return compiler
    if compiler := _zig():
        return compiler
    raise CompilerMissingError(
        f"there is no C++ compiler for {target}: looked for {', '.join((*(() if zig_only else system), 'ziglang'))};"
        f" install g++ or clang, or run: pip install {ZIG_REQUIREMENT}"
    )


def _asked(command: Sequence[str], environ: Mapping[str, str]) -> Compiler | None:
    # Asked for its version, since macOS has a c++ that only offers to install one.
    program = shutil.which(command[0], path=environ.get("PATH"))
    if program is None:
        return None
    words = (program, *command[1:])
    asked = subprocess.run([*words, "--version"], capture_output=True, text=True, check=False)
    if asked.returncode != 0 or not asked.stdout:
        return None
    if "ziglang" in words or Path(program).name == "zig":
        return Compiler(words, "zig", asked.stdout.splitlines()[0])
    return Compiler(words, "clang" if "clang" in asked.stdout else "gcc", asked.stdout.splitlines()[0])


def _zig() -> Compiler | None:
    if importlib.util.find_spec("ziglang") is None:
        return None
    zig = (sys.executable, "-m", "ziglang")
    asked = subprocess.run([*zig, "version"], capture_output=True, text=True, check=False)
    return Compiler((*zig, "c++"), "zig", f"zig {asked.stdout.strip()}") if asked.returncode == 0 else None


def source_files(target: Target, *, sources: Path = SOURCES) -> dict[Path, tuple[str, ...]]:
    """Return the files to compile for a target, each with the flags of its own.

    Parameters
    ----------
    target : Target
    sources : Path

    Returns
    -------
    dict of Path to tuple of str
        Every ``.cpp`` of the folder but the kernels of other processors.
    """
    kernels = _KERNELS[target.machine]
    files = sorted(sources.glob("*.cpp"))
    return {
        file: kernels.get(file.name, ())
        for file in files
        if file.name in kernels or not file.stem.startswith("kernels_")
    }


def build(target: Target, output: Path, *, compiler: Compiler, sources: Path = SOURCES) -> None:
    """Compile and link the library, and put it in its place in one step.

    Parameters
    ----------
    target : Target
    output : Path
        The library's file; what it held stays there until the new one is whole.
    compiler : Compiler
    sources : Path

    Raises
    ------
    BuildError
        The compiler refused something; its words are in the message.
    """
    files = source_files(target, sources=sources)
    if not files:
        raise BuildError(f"{sources}: there is no C++ here")
    command = [*compiler.command, *(("-target", target.zig_triple) if compiler.kind == "zig" else ())]
    output.parent.mkdir(parents=True, exist_ok=True)
    # Beside the output, so that the last step is a rename within one file system.
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".build-") as folder:
        objects = [Path(folder) / f"{file.stem}.o" for file in files]
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            compiled = threads.map(
                lambda file, made: _call([*command, *_FLAGS, *files[file], "-c", str(file), "-o", str(made)]),
                files,
                objects,
            )
            list(compiled)
        linked = Path(folder) / target.library_name
        _call([*command, *_link_flags(target, compiler), *map(str, objects), "-o", str(linked)])
        linked.replace(output)


def _link_flags(target: Target, compiler: Compiler) -> tuple[str, ...]:
    if target.system == "macos":
        return ("-shared",)
    flags = ("-shared", "-pthread", "-Wl,--no-undefined", "-s", "-static-libstdc++")
    if compiler.kind == "zig":
        return flags
    # The C++ library goes inside, and its names stay there: torch and onnxruntime bring their own into the process.
    hidden = (*flags, "-Wl,--exclude-libs,ALL")
    return (*hidden, "-static-libgcc") if compiler.kind == "gcc" else hidden


def _call(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise BuildError(f"the compiler ended with {done.returncode}: {shlex.join(command)}\n{said}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Build as the command line says, and print what was used."""
    parser = argparse.ArgumentParser(prog="native/build.py", description="Build samevec's native library.")
    parser.add_argument("--target", choices=["host", *TARGETS], default="host")
    parser.add_argument("--output", type=Path, help="the file to write; by default where the package looks for it")
    parser.add_argument("--zig", action="store_true", help=f"use zig, for every Linux with glibc {_GLIBC} or later")
    options = parser.parse_args(arguments)
    try:
        target = host_target() if options.target == "host" else TARGETS[options.target]
        output = options.output or SOURCES.parent / "samevec" / "native" / target.library_name
        compiler = find_compiler(target, zig_only=options.zig)
        build(target, output, compiler=compiler)
    except BuildError as error:
        sys.stderr.write(f"native/build.py: {error}\n")
        return 1
    sys.stdout.write(f"{output}: {target}, {output.stat().st_size:,} bytes, by {compiler.version}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
