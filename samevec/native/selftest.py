"""Checks the library on this processor: hashes of its results against those in the package.

``python -m samevec.native.selftest`` prints this machine's, in the form of ``hashes.txt``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from samevec.native.library import load_library, read_hashes

if TYPE_CHECKING:
    from samevec.native.library import NativeLibrary

__all__ = ["differing_kernels", "expected_hashes"]


def expected_hashes() -> dict[str, str]:
    """Return the hashes shipped with the package, by the kernel's name."""
    return read_hashes(Path(__file__).with_name("hashes.txt").read_text(encoding="ascii"))


def differing_kernels(library: NativeLibrary) -> list[str]:
    """Return the sorted names of kernels whose results differ from the expected ones or are missing on either side."""
    expected, found = expected_hashes(), library.selftest()
    return sorted(name for name in expected | found if expected.get(name) != found.get(name))


def main() -> None:
    """Print the hashes of this machine."""
    for name, value in load_library().selftest().items():
        sys.stdout.write(f"{name} {value}\n")


if __name__ == "__main__":
    main()
