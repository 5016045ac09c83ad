"""The kernels give the committed hashes on every processor that can be had here, emulated ones among them."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from emulation import aarch64, haswell, nehalem
from emulators import ROOT

from samevec.native.library import load_library, read_hashes
from samevec.native.selftest import differing_kernels, expected_hashes

if TYPE_CHECKING:
    from emulation import EmulatedProcessor

SELFTEST = ("-m", "samevec.native.selftest")
WHICH = "from samevec.native.library import load_library; print(load_library().instruction_set)"


def needs(processor: EmulatedProcessor) -> None:
    if processor.problem is not None:
        pytest.skip(processor.problem)


def run_with(instruction_set: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "SAMEVEC_INSTRUCTION_SET": instruction_set}
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environ, capture_output=True, text=True, check=False, timeout=120
    )


def test_this_processor_gives_the_committed_hashes() -> None:
    assert differing_kernels(load_library()) == []


def test_the_avx2_kernels_give_them_where_there_are_better_ones() -> None:
    if load_library().instruction_set == "neon":
        pytest.skip("an ARM processor has one kind of kernels")
    assert run_with("avx2", "-c", WHICH).stdout == "avx2\n"
    assert read_hashes(run_with("avx2", *SELFTEST).stdout) == expected_hashes()


@pytest.mark.parametrize(("processor", "kernels"), [(haswell, "avx2"), (aarch64, "neon")], ids=["haswell", "aarch64"])
def test_an_emulated_processor_gives_them(processor: EmulatedProcessor, kernels: str) -> None:
    needs(processor)
    assert processor.run("-c", WHICH) == f"{kernels}\n"
    assert read_hashes(processor.run(*SELFTEST)) == expected_hashes()


def test_a_processor_without_avx2_is_refused_by_name() -> None:
    needs(nehalem)
    code = (
        "from samevec.errors import NativeLibraryError\n"
        "from samevec.native.library import load_library\n"
        "try: load_library()\n"
        "except NativeLibraryError as error: print(error.problem, error.rebuild)"
    )
    said = nehalem.run("-c", code)
    assert said.startswith("this processor lacks AVX2 or FMA, which the library needs")
    assert said.endswith(" False\n")


def test_kernels_this_processor_lacks_are_refused() -> None:
    other = "avx2" if load_library().instruction_set == "neon" else "neon"
    done = run_with(other, *SELFTEST)
    assert done.returncode == 1
    assert "lacks what SAMEVEC_INSTRUCTION_SET names; use --profile portable" in done.stderr
