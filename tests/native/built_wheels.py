"""The wheels of ``make wheels``: each carries its own library, which loads and gives the committed hashes."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

import pytest
from emulation import aarch64, haswell
from emulators import ROOT

from samevec import __version__
from samevec.native.library import read_hashes
from samevec.native.selftest import expected_hashes

if TYPE_CHECKING:
    from pathlib import Path

    from emulation import EmulatedProcessor

WHICH = "from samevec.native.library import load_library; print(load_library().path)"


@pytest.mark.parametrize(("machine", "processor"), [("x86_64", haswell), ("aarch64", aarch64)])
def test_the_wheels_library_gives_the_committed_hashes(
    tmp_path: Path, machine: str, processor: EmulatedProcessor
) -> None:
    wheel = ROOT / "dist" / f"samevec-{__version__}-py3-none-manylinux_2_28_{machine}.whl"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    if processor.problem is not None:
        pytest.skip(processor.problem)
    assert processor.run("-c", WHICH, first=tmp_path) == f"{tmp_path}/samevec/native/libsamevec.so\n"
    assert read_hashes(processor.run("-m", "samevec.native.selftest", first=tmp_path)) == expected_hashes()
