"""The toolchain an export needs: missing packages are named with the command that installs them."""

from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING

import pytest

from samevec.errors import ExportError
from samevec.export.pipeline import export_model, installed_toolchain, toolchain_differences
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


def test_onnxruntime_gpu_stands_in_for_the_package_it_must_not_lie_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    lock = load_lock("toy")
    versions = dict(lock.toolchain.versions)
    del versions["onnxruntime"]
    versions["onnxruntime-gpu"] = "1.31.1"

    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert installed_toolchain()["onnxruntime"] == "1.31.1"
    assert toolchain_differences(lock) == []
    versions["torch"] = "9.9.0"
    assert [words.partition(" is ")[0] for words in toolchain_differences(lock)] == ["torch 9.9.0"]
    del versions["onnxruntime-gpu"]
    assert installed_toolchain()["onnxruntime"] == "missing"
    versions["onnxruntime"] = "1.0.0"
    pinned = lock.toolchain.versions["onnxruntime"]
    assert f"onnxruntime 1.0.0 is installed, the lock pins {pinned}" in toolchain_differences(lock)
