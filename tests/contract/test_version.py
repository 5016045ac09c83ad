"""One version everywhere."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest

import samevec
from samevec._version import __version__

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(not (ROOT / "CHANGELOG.md").is_file(), reason="CHANGELOG.md is not written yet")
def test_the_version_is_the_newest_in_the_changelog() -> None:
    headings = re.findall(r"^## \[?v?([^\]\s]+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    released = [heading for heading in headings if heading.lower() != "unreleased"]
    assert released[:1] == [__version__]


def test_the_library_and_the_distribution_agree() -> None:
    assert samevec.__version__ == __version__
    assert re.fullmatch(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?(?:\.dev\d+)?", __version__)
    try:
        installed = metadata.version("samevec")
    except metadata.PackageNotFoundError:  # run from a checkout that was never installed
        return
    assert installed == __version__
