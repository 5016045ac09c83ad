"""Refusal from end to end: an artifact whose files and manifest agree, and whose answers are wrong."""

from __future__ import annotations

import dataclasses
import importlib
import os
import shutil
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

import negative_graphs as graphs
import pytest
from negative_tools import EMBEDDER, LOCK, edited_graph, without_end_rule

from samevec.artifact import GRAPH_NAME, MANIFEST_NAME, Artifact, FileDigest, find_artifact
from samevec.cli.main import main
from samevec.digest import sha256_file
from samevec.parity.cases.builtin import CaseSet, builtin_cases
from samevec.parity.reference.file import read_reference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import onnx

pytestmark = pytest.mark.model


def first_token(artifact: Artifact, folder: Path) -> None:
    """Pooling at the first token."""
    replace_operator(artifact, folder, "LastToken", "FirstToken")


def another_gate(artifact: Artifact, folder: Path) -> None:
    """Another activation in every layer."""
    replace_operator(artifact, folder, "SwiGlu", "GeGlu")


def replace_operator(artifact: Artifact, folder: Path, right: str, wrong: str) -> None:
    def edit(model: onnx.ModelProto) -> None:
        for node in model.graph.node:
            if node.op_type == right:
                node.op_type = wrong

    replace_graph(artifact, edited_graph(artifact.graph_path, edit, folder))


def one_width(artifact: Artifact, folder: Path) -> None:
    """A graph that is wrong at one width, which no case has."""
    wrong_at(1, lambda reference: max(map(len, reference.sweep.ids)), artifact, folder)


def one_row_count(artifact: Artifact, folder: Path) -> None:
    """A graph that is wrong where 29 rows run together."""
    wrong_at(0, lambda _reference: 29, artifact, folder)


def wrong_at(axis: int, size: Callable[[Any], int], artifact: Artifact, folder: Path) -> None:
    edit = graphs.wrong_at(axis, size(read_reference(artifact.reference_path)))
    replace_graph(artifact, edited_graph(artifact.graph_path, edit, folder))


def no_end_rule(artifact: Artifact, folder: Path) -> None:
    """A tokenizer that appends no end token."""
    shutil.copyfile(without_end_rule(artifact.tokenizer_path, folder), artifact.tokenizer_path)


def replace_graph(artifact: Artifact, graph: Path) -> None:
    for path in artifact.path.glob(f"{GRAPH_NAME}*"):
        path.unlink()
    shutil.copyfile(graph, artifact.graph_path)


def adopt_digests(artifact: Artifact) -> None:
    """Make the manifest agree with the files: only the gate can tell."""
    paths = [artifact.path / name for name in artifact.manifest.files]
    files = {
        path.name: FileDigest(size_bytes=path.stat().st_size, sha256=sha256_file(path))
        for path in paths
        if path.exists()
    }
    changed = dataclasses.replace(artifact.manifest, files=files)
    (artifact.path / MANIFEST_NAME).write_bytes(changed.to_bytes())


def quick_cases(task: str, **settings: Any) -> CaseSet:
    return builtin_cases(task, **{**settings, "quick": True})


@contextmanager
def few_cases() -> Iterator[None]:
    """Let the quick cases be all there are, so that whole commands take seconds; nothing else is replaced."""
    with ExitStack() as stack:
        for name in ("samevec.export.pipeline", "samevec.gate", "samevec.parity.gate"):
            stack.enter_context(mock.patch.object(importlib.import_module(name), "builtin_cases", quick_cases))
        yield


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the embedder, exported and not yet proved."""
    pipeline: Any = pytest.importorskip("samevec.export.pipeline", reason="needs the export extra")
    home = tmp_path_factory.mktemp("home")
    with few_cases():
        entry = dataclasses.replace(LOCK.model(EMBEDDER), answers=None)  # the pinned ones are of all cases
        pipeline.export_model(entry, LOCK, profile="cpu", home=home)
    return home


@pytest.fixture
def home(exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy that a test may spoil, and no settings of whoever runs the tests."""
    for name in [name for name in os.environ if name.startswith("SAMEVEC_")]:
        monkeypatch.delenv(name)
    shutil.copytree(exported / "artifacts", tmp_path / "home" / "artifacts")
    return tmp_path / "home"


@pytest.mark.parametrize(
    ("spoil", "flags", "cell"),
    [
        (first_token, (), "raw/alone"),
        (another_gate, ("--quick",), "raw/alone"),
        (no_end_rule, (), "ids/together"),
        (one_width, (), "raw/widths"),
        (one_row_count, (), "raw/row_counts"),
    ],
)
def test_a_spoilt_artifact_is_never_served(
    spoil: Callable[[Artifact, Path], None],
    flags: tuple[str, ...],
    cell: str,
    home: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    artifact = find_artifact(home, LOCK.model(EMBEDDER), "cpu")
    spoil(artifact, tmp_path)
    adopt_digests(artifact)
    where = ("--lock", "toy", "--home", str(home), "--model", EMBEDDER)
    with few_cases():
        assert main(["parity", *where, *flags]) == 1
        found = capfd.readouterr()
        assert f"failed: {cell}: " in found.out
        assert "Traceback" not in found.out + found.err
        assert main(["serve", *where, "--port", "0"]) == 3
    (complaint,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("samevec: ")]
    assert f"not serving: {EMBEDDER}: parity failed here: {cell}: " in complaint
