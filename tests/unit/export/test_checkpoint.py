"""Tensors of a checkpoint by parameter name, in the type they are stored in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from samevec.errors import ExportError

torch = pytest.importorskip("torch", reason="needs the export extra")

from safetensors.torch import save_file  # noqa: E402  needs torch

from samevec.export.native.checkpoint import Checkpoint, widen  # noqa: E402  needs torch

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    values = torch.tensor([[1.0, -2.5], [3.0, 0.125]])
    save_file({"model.a.weight": values.to(torch.bfloat16), "b.weight": values}, tmp_path / "1.safetensors")
    save_file({"c.weight": values.to(torch.float16), "d": torch.tensor([1])}, tmp_path / "2.safetensors")
    return sorted(tmp_path.iterdir())


def test_tensors_of_several_files_with_and_without_the_prefix(paths: list[Path]) -> None:
    with Checkpoint(paths, prefix="model.") as checkpoint:
        stored = checkpoint.tensor("a.weight")
        assert (stored.source, stored.is_bfloat16, stored.widened) == ("model.a.weight", True, False)
        assert checkpoint.tensor("model.a.weight").source == "model.a.weight"
        assert checkpoint.tensor("model.b.weight").source == "b.weight"
        assert "a.weight" in checkpoint
        assert "e.weight" not in checkpoint


def test_every_type_keeps_its_values(paths: list[Path]) -> None:
    with Checkpoint(paths, prefix="model.") as checkpoint:
        for name in ("a.weight", "b.weight", "c.weight"):
            wide = widen(checkpoint.tensor(name))
            assert wide.values.dtype == np.float32
            assert wide.values.tolist() == [[1.0, -2.5], [3.0, 0.125]]
            assert wide.widened == (name != "b.weight")


def test_what_cannot_be_had_is_refused(paths: list[Path], tmp_path: Path) -> None:
    with Checkpoint(paths) as checkpoint:
        with pytest.raises(ExportError, match=r"no tensor e\.weight"):
            checkpoint.tensor("e.weight")
        with pytest.raises(ExportError, match=r"tensor d is stored as torch\.int64"):
            checkpoint.tensor("d")
    with pytest.raises(ExportError, match="is in another file too"):
        Checkpoint([paths[0], paths[0]])
    (tmp_path / "bad.safetensors").write_bytes(b"no")
    with pytest.raises(ExportError, match="cannot be read"):
        Checkpoint([tmp_path / "bad.safetensors"])
