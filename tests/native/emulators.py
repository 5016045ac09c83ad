"""Set other processors up on this one: ``make emulators``, on Debian 12 for x86-64.

qemu runs this machine's own Python as a processor without AVX-512, and Debian's arm64 Python as an ARM one. For the
latter a folder holds that Python, the wheels samevec needs, and a file of processor facts: onnxruntime reads them and
crashes on an x86 one. Nothing but two packages is installed outside ``.emulators/``.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".emulators"
#: The arm64 system: where qemu looks before it looks at this machine's files.
ARM_ROOT = FOLDER / "root"
ARM_PYTHON = ARM_ROOT / "usr" / "bin" / "python3.11"
ARM_PACKAGES = FOLDER / "site"
STAMP = FOLDER / "installed"

# What Debian calls the emulators, and a compiler for the library: 14 s and 212 MB, where zig is 11 s and 438 MB and
# then compiles its own C++ library for a minute.
_PROGRAMS = {"qemu-x86_64": "qemu-user", "qemu-aarch64": "qemu-user", "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu"}
_ARM_DEBS = (
    *("python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib", "libc6", "libgcc-s1", "libstdc++6"),
    *("zlib1g", "libexpat1", "libffi8", "libbz2-1.0", "liblzma5", "libssl3", "libcrypt1"),
)
_ARM_PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_27_aarch64", "manylinux2014_aarch64")
# A Neoverse N1, as qemu's neoverse-n1 is.
_ARM_CPU = """\
processor\t: {index}
BogoMIPS\t: 243.75
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1

"""


def main() -> int:
    if STAMP.is_file() and STAMP.read_text() == recipe_digest() and not missing_packages():
        return 0
    if packages := missing_packages():
        call("apt-get", "update", "-qq")
        call("apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages)
    shutil.rmtree(FOLDER, ignore_errors=True)
    unpack_arm_system()
    write_arm_facts()
    install_arm_wheels()
    STAMP.write_text(recipe_digest())
    print(f"{FOLDER.name}: AVX2 (Haswell) and ARM64 (Neoverse N1) are ready")
    return 0


def recipe_digest() -> str:
    """Of all that decides what the folder holds."""
    files = (Path(__file__), ROOT / "constraints.txt", ROOT / "pyproject.toml")
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


def missing_packages() -> list[str]:
    return sorted({package for program, package in _PROGRAMS.items() if shutil.which(program) is None})


def unpack_arm_system() -> None:
    """Fetch Debian's arm64 packages with lists of their own, so that this system does not become a mixed one."""
    debs = FOLDER / "debs"
    lists = FOLDER / "lists"
    debs.mkdir(parents=True)
    (lists / "partial").mkdir(parents=True)
    options = ["APT::Architecture=arm64", "APT::Architectures=arm64", "APT::Sandbox::User=root"]
    options += [f"Dir::State::lists={lists}", f"Dir::Cache={FOLDER / 'cache'}"]
    apt = ["apt-get", "-qq", *(word for option in options for word in ("-o", option))]
    call(*apt, "update")
    call(*apt, "download", *_ARM_DEBS, cwd=debs)
    for deb in sorted(debs.iterdir()):
        call("dpkg", "-x", str(deb), str(ARM_ROOT))
    for done in (debs, lists, FOLDER / "cache"):
        shutil.rmtree(done, ignore_errors=True)


def write_arm_facts() -> None:
    cpus = ARM_ROOT / "sys" / "devices" / "system" / "cpu"
    cpus.mkdir(parents=True)
    for name in ("possible", "present"):
        (cpus / name).write_text("0-1\n")
    (ARM_ROOT / "proc").mkdir()
    (ARM_ROOT / "proc" / "cpuinfo").write_text("".join(_ARM_CPU.format(index=index) for index in range(2)))


def install_arm_wheels() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    platforms = [word for platform in _ARM_PLATFORMS for word in ("--platform", platform)]
    call(
        *(sys.executable, "-m", "pip", "install", "--quiet", "--no-warn-conflicts", "--target", str(ARM_PACKAGES)),
        *("--only-binary=:all:", "--python-version", "3.11", *platforms),
        *("--constraint", str(ROOT / "constraints.txt"), *project["dependencies"]),
        *project["optional-dependencies"]["cpu"],
    )


def call(*command: str, cwd: Path | None = None) -> None:
    try:
        subprocess.run(command, cwd=cwd, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"emulators: {error}; needed are Debian 12 for x86-64, and root for apt-get install") from None


if __name__ == "__main__":
    sys.exit(main())
