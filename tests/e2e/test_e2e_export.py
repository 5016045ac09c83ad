"""The export: what kills it, what it refuses, and that nothing half-done ever loads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from e2e_tools import EMBEDDER, LOCK, RERANKER, TOYS, adopt_digests, artifact_of, rewrite_receipt, zero_block

import samevec
from samevec.artifact import list_artifacts, verify_artifact
from samevec.errors import ArtifactMissingError
from samevec.export import pipeline
from samevec.export.toy.checkpoint import build_toy
from samevec.lock import dump_lock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from e2e_tools import Done, ToyHome
    from export_lab import Lab

pytestmark = pytest.mark.model

MOMENTS = (
    "after the reference",
    "after the exporter",
    "inside the data file",
    "in the digests",
    "before the name",
    "while synced",
)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def unfinished(home: Path) -> list[str]:
    return [name for name in names_in(home / "artifacts") if name.startswith(".unfinished-")]


def test_o23_a_kill_at_any_moment_leaves_nothing_that_loads(lab: Lab, tmp_path: Path) -> None:
    home = tmp_path / "home"
    for moment in MOMENTS:
        codes, log = lab.run("killed", home, moment)
        assert codes == [-9], (moment, log)
        assert len(unfinished(home)) == 1, moment  # its own: the one before was cleared when this one began
        assert list_artifacts(home) == []
        with pytest.raises(ArtifactMissingError, match="nothing exported under"):
            samevec.load_embedder(EMBEDDER, lock="toy", home=home)
    codes, log = lab.run("export", home, EMBEDDER)
    assert codes == [0], log
    (artifact,) = list_artifacts(home)
    verify_artifact(artifact)
    assert names_in(home / "artifacts") == [".lock", artifact.path.name]


def test_two_exports_at_once_leave_one_artifact(lab: Lab, tmp_path: Path) -> None:
    home, barrier = tmp_path / "home", tmp_path / "barrier"
    barrier.mkdir()
    codes, log = lab.run("beside another", home, str(barrier), copies=2)
    assert codes == [0, 0], log
    (artifact,) = list_artifacts(home)
    verify_artifact(artifact)
    assert names_in(home / "artifacts") == [".lock", artifact.path.name]


def test_exporting_again_mends_a_damaged_artifact(lab: Lab, tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert lab.run("export", home, EMBEDDER)[0] == [0]
    (artifact,) = list_artifacts(home)
    zero_block(artifact.path)
    artifact.receipts_path.mkdir()
    codes, log = lab.run("export", home, EMBEDDER)
    assert codes == [0], log
    (mended,) = list_artifacts(home)
    assert mended.path == artifact.path
    verify_artifact(mended)
    assert names_in(home / "artifacts") == [".lock", artifact.path.name]


@pytest.mark.parametrize("moment", ["reference", "exporter", "data", "tokenizer", "sync"])
def test_a_full_disk_is_one_line(moment: str, lab: Lab, tmp_path: Path) -> None:
    codes, log = lab.run("full disk", tmp_path, moment)
    assert codes == [3], log
    complaints = [line for line in log.splitlines() if line.startswith("samevec: ")]
    assert len(complaints) == 1
    assert complaints[0].startswith("samevec: the disk is full, or a limit on file sizes was met: ")
    assert "No space left on device" in complaints[0]
    assert "Traceback" not in log
    assert list_artifacts(tmp_path) == []
    assert unfinished(tmp_path) == []


@pytest.mark.parametrize("limit_bytes", [100_000, 6_400_000])
def test_a_limit_of_the_kernel_is_one_line(limit_bytes: int, lab: Lab, tmp_path: Path) -> None:
    # The smaller one stops the checkpoint, the larger one the weights of the artifact.
    codes, log = lab.run("small files", tmp_path, str(limit_bytes))
    assert codes == [3], log
    complaints = [line for line in log.splitlines() if line.startswith("samevec: ")]
    assert len(complaints) == 1
    assert "File too large" in complaints[0]
    assert "Traceback" not in log
    assert list_artifacts(tmp_path) == []


@pytest.mark.parametrize("kind", ["embedder, first", "embedder, mean", "reranker, first"])
def test_wrong_pooling_is_refused_by_the_export(kind: str, lab: Lab, tmp_path: Path) -> None:
    codes, log = lab.run("wrong pooling", tmp_path, kind)
    assert codes == [1], log
    (complaint,) = [line for line in log.splitlines() if line.startswith("samevec: ")]
    name = EMBEDDER if kind.startswith("embedder") else RERANKER
    assert complaint.startswith(f"samevec: {name}: the exported graph was refused: ")
    assert "/widths: " in complaint
    assert list_artifacts(tmp_path) == []
    assert unfinished(tmp_path) == []


def test_wrong_pooling_is_refused_by_the_gate(lab: Lab, tmp_path: Path, cli: Callable[..., Done]) -> None:
    home = tmp_path / "home"
    codes, log = lab.run("unswept mistake", home, "embedder, first")
    assert codes == [0], log
    verify_artifact(artifact_of(home, EMBEDDER))
    refuse_by_values(home, EMBEDDER, cli)


@pytest.mark.parametrize("name", TOYS)
def test_a_zeroed_block_is_refused(name: str, home: Path, cli: Callable[..., Done]) -> None:
    artifact = artifact_of(home, name)
    path = zero_block(artifact.path)
    where = ("--lock", "toy", "--home", home, "--model", name)
    for command in (("parity", *where), ("serve", *where, "--port", 0)):
        done = cli(*command)
        assert done.code == 3
        (complaint,) = done.complaints
        assert f"{path}: sha256 is " in complaint
        assert complaint.endswith(f"run: samevec export --model {name} --profile cpu --lock toy --home {home}")
    # Somebody makes the manifest agree: now only the values tell.
    adopt_digests(artifact)
    refuse_by_values(home, name, cli)


def refuse_by_values(home: Path, name: str, cli: Callable[..., Done]) -> None:
    """An artifact whose files and manifest agree, and whose values are wrong."""
    where = ("--lock", "toy", "--home", home, "--model", name)
    done = cli("parity", *where)
    assert done.code == 1
    level = "raw" if name == EMBEDDER else "logits"
    assert f"failed: {level}/alone: " in done.out
    done = cli("serve", *where, "--port", 0)
    assert done.code == 3
    (complaint,) = done.complaints
    assert f"not serving: {name}: parity failed here: {level}/alone: " in complaint
    done = cli("status", "--lock", "toy", "--home", home)
    assert f"{name}: failed ({level}/alone: " in done.out
    rewrite_receipt(home, name)  # somebody forges even the receipt: the probe at the start sees it
    done = cli("serve", *where, "--port", 0)
    assert done.code == 3
    (complaint,) = done.complaints
    assert f"not serving: {name}: the start-up probe differs from the reference: " in complaint


def snapshots(folder: Path) -> Path:
    for name in TOYS:
        build_toy(name, folder / name)
    return folder


def test_a_truncated_shard_is_refused(tmp_path: Path, cli: Callable[..., Done]) -> None:
    shard = snapshots(tmp_path / "from") / EMBEDDER / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1000])
    done = cli("export", "--lock", "toy", "--home", tmp_path / "home", "--from", tmp_path / "from")
    assert done.code == 2
    (complaint,) = done.complaints
    assert complaint.startswith(f"samevec: {shard}: size is ")
    assert not (tmp_path / "home" / "artifacts").exists()


def test_a_changed_file_is_refused(tmp_path: Path, cli: Callable[..., Done]) -> None:
    config = snapshots(tmp_path / "from") / EMBEDDER / "config.json"
    config.write_bytes(config.read_bytes().replace(b'"rope_theta": 1000000', b'"rope_theta": 1000001'))
    done = cli("export", "--lock", "toy", "--home", tmp_path / "home", "--from", tmp_path / "from")
    assert done.code == 2
    (complaint,) = done.complaints
    assert complaint.startswith(f"samevec: {config}: sha256 is ")
    assert not (tmp_path / "home" / "artifacts").exists()


def test_another_toolchain_is_refused(tmp_path: Path, cli: Callable[..., Done]) -> None:
    versions = LOCK.toolchain.versions
    path = tmp_path / "other.lock"
    path.write_text(dump_lock(LOCK).replace(f'torch = "{versions["torch"]}"', 'torch = "1.0.0"'))
    done = cli("export", "--lock", path, "--home", tmp_path / "home")
    assert done.code == 3
    (complaint,) = done.complaints
    installed = pipeline.installed_toolchain()["torch"]
    assert complaint == (
        f"samevec: the export needs the lock's toolchain: torch {installed} is installed, the lock pins 1.0.0"
    )
    assert not (tmp_path / "home").exists()


def test_exporting_again_gives_the_same_bytes(exported: ToyHome, lab: Lab, tmp_path: Path) -> None:
    codes, log = lab.run("export", tmp_path, RERANKER)
    assert codes == [0], log
    assert artifact_of(tmp_path, RERANKER).digest == artifact_of(exported.path, RERANKER).digest
