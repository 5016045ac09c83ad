"""One text, one vector, whichever release of ONNX Runtime, numpy and tokenizers computes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from e2e_tools import LOCK, TOYS
from emulators import ROOT
from releases import Release, releases

from samevec.native.library import load_library
from samevec.parity.cases.builtin import builtin_cases

if TYPE_CHECKING:
    from e2e_tools import ToyHome

pytestmark = pytest.mark.model
SCRIPT = str(ROOT / "tests" / "native" / "answer_cases.py")


@pytest.mark.parametrize("release", releases(), ids=lambda release: release.name)
@pytest.mark.parametrize("name", TOYS)
def test_another_release_gives_the_bits_of_the_export_in_every_case(
    exported: ToyHome, release: Release, name: str
) -> None:
    if not release.is_there:
        pytest.skip("other releases were not tried: run make releases")
    entry = LOCK.model(name)
    cases = range(len(builtin_cases(entry.task, prompts=entry.prompts)))
    said = release.run(SCRIPT, "toy", name, str(exported.path), *map(str, cases))
    assert said.split() == [load_library().instruction_set]
