"""The export from end to end: pinned files in, one published artifact out, or nothing.

Order matters in two places. Every file is verified before anything is loaded. The reference is captured before the module
is exported, so that no patch of the exporter can reach the numbers the candidate is later judged by.
"""

from __future__ import annotations

import gc
import importlib.metadata
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samevec._version import __version__
from samevec.artifact import (
    MANIFEST_NAME,
    REFERENCE_NAME,
    TOKENIZER_NAME,
    Artifact,
    FileDigest,
    Manifest,
    TokenizerInfo,
    artifact_directory_name,
    read_artifact,
)
from samevec.digest import sha256_file
from samevec.errors import ExportError, GraphContractError
from samevec.export.fetch import locate_snapshot, verify_snapshot
from samevec.lock import TOOLCHAIN_NAMES
from samevec.parity.cases import builtin_cases
from samevec.parity.reference_file import write_reference
from samevec.progress import Progress, SilentProgress
from samevec.runtime.profiles import get_profile
from samevec.runtime.session import OnnxSession

if TYPE_CHECKING:
    from collections.abc import Callable

    from samevec.lock import Lock, LockedModel
    from samevec.parity.cases import CaseSet
    from samevec.parity.reference import ReferenceModel
    from samevec.runtime.profiles import Profile

__all__ = ["export_model", "installed_toolchain", "toolchain_differences"]

# Unfinished exports: never listed as artifacts, told apart by process so that a dead one's can be cleared.
_UNFINISHED_PREFIX = ".unfinished-"


def installed_toolchain() -> dict[str, str]:
    """Return the installed version of every distribution the lock's toolchain names."""
    found = {}
    for name in TOOLCHAIN_NAMES:
        try:
            # "+cpu" names a build of the same release.
            found[name] = importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            found[name] = "missing"
    return found


def toolchain_differences(lock: Lock) -> list[str]:
    """Return where the installed toolchain is not the lock's, in words."""
    installed = installed_toolchain()
    return [
        f"{name} {installed[name]} is installed, the lock pins {version}"
        for name, version in lock.toolchain.versions.items()
        if installed.get(name) != version
    ]


def export_model(
    entry: LockedModel,
    lock: Lock,
    *,
    profile: str,
    home: Path,
    source_dir: Path | None = None,
    progress: Progress | None = None,
) -> Artifact:
    """Export one model under one profile.

    Parameters
    ----------
    entry : LockedModel
    lock : Lock
        Its tolerance judges the sweep; its toolchain must be the installed one.
    profile : str
    home : Path
        Gets ``artifacts/<model>--<profile>--<digest>/`` by one rename at the very end.
    source_dir : Path, optional
        Folder of snapshot folders, see :func:`samevec.export.fetch.locate_snapshot`.
    progress : Progress, optional

    Returns
    -------
    Artifact
        Not yet proved: run the gate next.

    Raises
    ------
    SourceError
        The pinned files cannot be had or are not what is pinned.
    ExportError
        The toolchain differs, the exporter failed, or the graph was refused; nothing is published.
    """
    progress = progress or SilentProgress()
    settings = get_profile(profile)
    differences = toolchain_differences(lock)
    if differences:
        raise ExportError(f"the export needs the lock's toolchain: {'; '.join(differences)}")
    snapshot = locate_snapshot(entry, home=home, source_dir=source_dir, progress=progress)
    verify_snapshot(snapshot, entry, progress)
    artifacts = home / "artifacts"
    artifacts.mkdir(parents=True, exist_ok=True)
    _clear_abandoned(artifacts)
    directory = Path(tempfile.mkdtemp(prefix=f"{_UNFINISHED_PREFIX}{os.getpid()}-", dir=artifacts))
    try:
        manifest = _write_artifact(entry, lock, settings, snapshot, directory, progress)
        return _publish(directory, artifacts / artifact_directory_name(manifest))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _write_artifact(
    entry: LockedModel, lock: Lock, profile: Profile, snapshot: Path, directory: Path, progress: Progress
) -> Manifest:
    from samevec.parity.reference import load_reference_model  # noqa: PLC0415  loads torch

    with progress.step(f"load {entry.name} in PyTorch"):
        reference = load_reference_model(snapshot, entry)
    case_set = builtin_cases(entry.task, prompts=entry.prompts)
    _capture(reference, case_set, directory / REFERENCE_NAME, progress)
    graph = _export_graph(reference, entry, lock, profile, directory, progress)
    del reference
    gc.collect()  # two gigabytes of weights, before the files are hashed
    shutil.copyfile(snapshot / TOKENIZER_NAME, directory / TOKENIZER_NAME)
    manifest = Manifest(
        model=entry.name,
        task=entry.task,
        profile=profile.name,
        lock_entry_digest=entry.digest,
        case_set_digest=case_set.digest,
        samevec_version=__version__,
        toolchain=installed_toolchain(),
        graph=graph,
        tokenizer=TokenizerInfo(pad_token_id=_pad_token_id(snapshot), type_ids=False),
        files=_digest_files(directory, progress),
    )
    (directory / MANIFEST_NAME).write_bytes(manifest.to_bytes())
    return manifest


def _capture(reference: ReferenceModel, case_set: CaseSet, path: Path, progress: Progress) -> None:
    from samevec.parity.reference import capture_reference  # noqa: PLC0415  loads torch

    captured = capture_reference(reference, case_set, toolchain=installed_toolchain(), progress=progress)
    write_reference(path, captured)


def _export_graph(
    reference: ReferenceModel,
    entry: LockedModel,
    lock: Lock,
    profile: Profile,
    directory: Path,
    progress: Progress,
) -> Any:
    from samevec.export.convert import convert  # noqa: PLC0415  loads torch and optimum
    from samevec.export.graph import contract_problems, describe_graph, sweep_problems  # noqa: PLC0415

    width = entry.dimensions or 1
    with progress.step(f"export {entry.name} with optimum ({profile.graph_form})"):
        graph_path = convert(reference.module, entry, form=profile.graph_form, directory=directory)
    problems = contract_problems(graph_path, entry, width=width)
    if not problems:
        with progress.step(f"load {entry.name} in ONNX Runtime"):
            session = OnnxSession(graph_path, profile)
        problems = sweep_problems(
            session,
            reference.module,
            entry,
            lock.tolerance,
            pad_to_multiple=profile.pad_to_multiple,
            progress=progress,
        )
    if problems:
        raise GraphContractError(entry.name, problems)
    return describe_graph(graph_path, entry, form=profile.graph_form, width=width)


def _pad_token_id(snapshot: Path) -> int:
    """Return the id the checkpoint pads with; any id would do, since padding is masked."""
    config = json.loads((snapshot / "config.json").read_bytes())
    value = config.get("pad_token_id")
    return int(value) if isinstance(value, int) else 0


def _digest_files(directory: Path, progress: Progress) -> dict[str, FileDigest]:
    paths = sorted(path for path in directory.iterdir() if path.is_file())
    total_bytes = sum(path.stat().st_size for path in paths)
    with progress.step("digest artifact", total=total_bytes, unit="bytes") as advance:
        return {
            path.name: FileDigest(size_bytes=path.stat().st_size, sha256=sha256_file(path, on_bytes=advance))
            for path in paths
        }


def _publish(directory: Path, final: Path) -> Artifact:
    """Give a finished directory its name, after everything in it has reached the disk."""
    for path in (*directory.iterdir(), directory):
        _sync(path)
    directory.chmod(0o755)  # mkdtemp makes it owner-only; artifacts may be read by whoever may read their home
    try:
        directory.rename(final)
    except OSError:
        # The same content was published before, perhaps by an export beside this one. Names come from content.
        if not (final / MANIFEST_NAME).is_file():
            raise
        os.utime(final / MANIFEST_NAME)  # newest again
        return read_artifact(final)
    _sync(final.parent)
    return read_artifact(final)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _clear_abandoned(artifacts: Path, *, is_alive: Callable[[int], bool] | None = None) -> None:
    """Remove unfinished directories whose process is gone; another export's own is left alone."""
    for path in artifacts.glob(f"{_UNFINISHED_PREFIX}*"):
        owner = path.name.removeprefix(_UNFINISHED_PREFIX).partition("-")[0]
        if owner.isdecimal() and not (is_alive or _process_exists)(int(owner)):
            shutil.rmtree(path, ignore_errors=True)


def _process_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
