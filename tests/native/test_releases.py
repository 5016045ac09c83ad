"""The operators give the definition's bits under every release of ONNX Runtime and numpy that pyproject.toml admits."""

from __future__ import annotations

import re

import pytest
from emulators import ROOT
from releases import ENDS, ONNXRUNTIMES, Release, pinned, releases

RELEASES = releases()
#: Each takes a second at most; together they run every operator but the gates of one value.
NODES = (
    *("padding_is_taken_out", "products_are_as_defined and normal", "norms_are_as_defined", "gates_are_as_defined"),
    *("pools_are_as_defined", "attention_is_as_defined and 32", "wrong_input_is_refused", "absent_bias"),
)


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.name)
def test_the_operators_load_and_are_as_defined(release: Release) -> None:
    if not release.is_there:
        pytest.skip("other releases were not tried: run make releases")
    code = "import onnxruntime, numpy, tokenizers; print(onnxruntime.__version__, numpy.__version__)"
    found = dict(zip(("onnxruntime", "numpy"), release.run("-c", code).split(), strict=True))
    asked = dict(requirement.split("==") for requirement in release.requirements)
    assert found.items() <= ({name: pinned(name) for name in found} | asked).items()
    tests = str(ROOT / "tests" / "native" / "test_kernels.py")
    chosen = " or ".join(f"({words})" for words in NODES)
    said = release.run("-m", "pytest", "-q", "--rootdir", str(ROOT), "-p", "no:cacheprovider", "-k", chosen, tests)
    passed = re.search(r"(\d+) passed", said)
    assert passed is not None, said
    assert int(passed[1]) > 50


def test_the_releases_are_those_that_the_project_admits() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert re.search(r'^cpu = \["onnxruntime>=1\.23"', text, re.MULTILINE)
    assert '"numpy>=1.26"' in text
    assert '"tokenizers>=0.22,<0.23"' in text
    minors = [int(version.split(".")[1]) for version in ONNXRUNTIMES]
    assert minors == list(range(23, minors[-1] + 1))
    assert pinned("onnxruntime") in ONNXRUNTIMES
    assert tuple(release.name for release in RELEASES[:2]) == ENDS
