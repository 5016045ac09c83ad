"""The toolchain an export needs: missing packages are named with the command that installs them."""

from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING

import pytest

from samevec.errors import ExportError
from samevec.export.pipeline import export_model
from samevec.lock import load_lock

if TYPE_CHECKING:
    from pathlib import Path


def test_missing_packages_are_named_with_the_install_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_version = importlib.metadata.version

    def version(name: str) -> str:
        if name in ("torch", "optimum"):
            raise importlib.metadata.PackageNotFoundError(name)
        return real_version(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    lock = load_lock("toy")
    with pytest.raises(ExportError) as caught:
        export_model(lock.models[0], lock, profile="cpu", home=tmp_path)
    message = str(caught.value)
    assert message.startswith("the export needs ")
    assert "torch" in message
    assert "optimum" in message
    assert "pip install --constraint constraints.txt 'samevec[cpu,export]'" in message
    assert list(tmp_path.iterdir()) == []
