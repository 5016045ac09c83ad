"""The export from end to end: pinned files in, one published artifact out, or nothing.

Every file is verified before anything is loaded, and the reference is captured before the module is exported, so that
no patch of the exporter can reach it.
"""

from __future__ import annotations

import gc
import importlib.metadata
import json
import os
import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from samevec._version import __version__
from samevec.artifact import (
    MANIFEST_NAME,
    REFERENCE_NAME,
    TOKENIZER_NAME,
    WEIGHTS_NAME,
    Artifact,
    FileDigest,
    Manifest,
    TokenizerInfo,
    artifact_directory_name,
    read_artifact,
    verify_artifact,
)
from samevec.digest import sha256_file
from samevec.errors import ArtifactCorruptError, ExportError, GraphContractError, WeightsDifferError
from samevec.export.source.snapshot import locate_snapshot, verify_snapshot
from samevec.lock import TOOLCHAIN_NAMES
from samevec.opening import build_model
from samevec.parity.answers import require_pinned
from samevec.parity.cases.builtin import builtin_cases
from samevec.parity.rankings.retrieval import builtin_fixture
from samevec.parity.reference.file import write_reference
from samevec.parity.reference.torch_baseline import measure_torch_baseline
from samevec.parity.sweep import capture_sweep, plan_sweep
from samevec.progress import Progress, SilentProgress
from samevec.runtime.engine import DEFAULT_ROWS
from samevec.runtime.providers.detect import require_provider
from samevec.runtime.providers.profiles import get_profile
from samevec.runtime.sessions.static_shapes import open_session
from samevec.staging import put_in_place, unfinished_directory

if TYPE_CHECKING:
    from pathlib import Path

    from samevec.artifact import GraphInfo
    from samevec.export.native import Weight
    from samevec.lock import Lock, LockedModel
    from samevec.parity.answers import Answers
    from samevec.parity.cases.builtin import CaseSet
    from samevec.parity.reference.file import SweepReference
    from samevec.parity.reference.pytorch import ReferenceModel
    from samevec.parity.sweep import SweepPlan
    from samevec.runtime.embedder import Embedder
    from samevec.runtime.providers.profiles import Profile
    from samevec.runtime.reranker import Reranker
    from samevec.runtime.sessions.base import Session

__all__ = ["export_model", "installed_toolchain", "toolchain_differences"]


#: Distributions of the module onnxruntime, of which only one can be installed.
_ONNXRUNTIME, _ONNXRUNTIME_GPU = "onnxruntime", "onnxruntime-gpu"


def installed_toolchain() -> dict[str, str]:
    """Return the installed version of every distribution of the lock's toolchain, or of its substitute."""
    versions = {name: _installed_version(name) for name in TOOLCHAIN_NAMES}
    if versions[_ONNXRUNTIME] == "missing":
        versions[_ONNXRUNTIME] = _installed_version(_ONNXRUNTIME_GPU)
    return versions


def _installed_version(name: str) -> str:
    try:
        return importlib.metadata.version(name).partition("+")[0]  # "+cpu" names a build of the same release
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def toolchain_differences(lock: Lock) -> list[str]:
    """Return the differences between the installed toolchain and the lock's.

    onnxruntime-gpu may have another version than the locked onnxruntime: it only checks graphs, and receipts are bound
    to its version.
    """
    installed = installed_toolchain()
    free = _ONNXRUNTIME if _installed_version(_ONNXRUNTIME) == "missing" else None
    return [
        f"{name} {installed[name]} is installed, the lock pins {version}"
        for name, version in lock.toolchain.versions.items()
        if installed.get(name) != version and name != free
    ]


def _require_toolchain(lock: Lock) -> None:
    """Refuse an installation without the lock's toolchain."""
    missing = [name for name, version in installed_toolchain().items() if version == "missing"]
    if missing:
        raise ExportError(
            f"the export needs {', '.join(missing)}; install the lock's toolchain with: "
            "pip install --constraint constraints.txt 'samevec[cpu,export]'"
        )
    differences = toolchain_differences(lock)
    if differences:
        raise ExportError(f"the export needs the lock's toolchain: {'; '.join(differences)}")


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
    lock : Lock
        Its tolerance judges the sweep; its toolchain must be the installed one.
    home : Path
        Gets ``artifacts/<model>--<profile>--<digest>/`` by one rename at the very end.
    source_dir : Path, optional
        Folder of snapshot folders, see :func:`samevec.export.source.snapshot.locate_snapshot`.

    Returns
    -------
    Artifact
        Not yet proved: run the gate next.

    Raises
    ------
    NativeLibraryError, ProviderUnavailableError
        This machine cannot run the checks of the graph.
    SourceError
        The pinned files are not available, or not the pinned ones.
    ExportError
        The toolchain differs, the exporter failed, or the graph was refused; nothing is published.
    """
    progress = progress or SilentProgress()
    settings = get_profile(profile)
    require_provider(settings)
    _require_toolchain(lock)
    snapshot = locate_snapshot(entry, home=home, source_dir=source_dir, progress=progress)
    verify_snapshot(snapshot, entry, progress)
    artifacts = home / "artifacts"
    artifacts.mkdir(parents=True, exist_ok=True)
    with unfinished_directory(artifacts) as directory:
        export = _Export(
            entry=entry, lock=lock, profile=settings, snapshot=snapshot, directory=directory, progress=progress
        )
        manifest = export.write()
        return _publish(directory, artifacts / artifact_directory_name(manifest))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Export:
    """One export into an unpublished directory."""

    entry: LockedModel
    lock: Lock
    profile: Profile
    snapshot: Path
    directory: Path
    progress: Progress

    def write(self) -> Manifest:
        """Write every file of the artifact, its manifest last."""
        from samevec.parity.reference.pytorch import load_reference_model  # noqa: PLC0415  loads torch

        entry, toolchain = self.entry, installed_toolchain()
        with self.progress.step(f"load {entry.name} in PyTorch"):
            reference = load_reference_model(self.snapshot, entry)
        case_set = builtin_cases(entry.task, prompts=entry.prompts)
        self._require_own_weights(reference.module)
        plan, sweep = self._capture(reference, case_set, toolchain)
        graph = self._export_graph(reference, plan, sweep)
        del reference
        gc.collect()  # two gigabytes of weights, before the files are hashed
        shutil.copyfile(self.snapshot / TOKENIZER_NAME, self.directory / TOKENIZER_NAME)
        tokenizer = TokenizerInfo(pad_token_id=_pad_token_id(self.snapshot), type_ids="token_type_ids" in graph.inputs)
        answers = self._record_answers(case_set, tokenizer, sweep) if self.profile.is_native else None
        manifest = Manifest(
            model=entry.name,
            task=entry.task,
            profile=self.profile.name,
            lock_entry_digest=entry.digest,
            case_set_digest=case_set.digest,
            samevec_version=__version__,
            toolchain=toolchain,
            graph=graph,
            tokenizer=tokenizer,
            files=_digest_files(self.directory, self.progress),
            arithmetic=None if answers is None else answers.arithmetic,
            answers=None if answers is None else answers.digest,
            lock_entry=entry.facts,
        )
        (self.directory / MANIFEST_NAME).write_bytes(manifest.to_bytes())
        return manifest

    def _capture(
        self, reference: ReferenceModel, case_set: CaseSet, toolchain: dict[str, str]
    ) -> tuple[SweepPlan, SweepReference]:
        """Write PyTorch's output for the cases, the fixture and the sweep; return the sweep's."""
        from samevec.parity.reference.pytorch import capture_reference  # noqa: PLC0415  loads torch

        captured = capture_reference(
            reference, case_set, toolchain=toolchain, fixture=builtin_fixture(), progress=self.progress
        )
        model = self._torch_model(reference)
        baseline = measure_torch_baseline(
            model, captured, case_set, tolerance=self.lock.tolerance, progress=self.progress
        )
        plan = plan_sweep(longest_tokens=max(map(len, captured.ids)), max_rows=DEFAULT_ROWS[self.entry.task])
        sweep = capture_sweep(model, plan, limit=reference.capture_limit(), progress=self.progress)
        write_reference(self.directory / REFERENCE_NAME, replace(captured, sweep=sweep, torch_baseline=baseline))
        return plan, sweep

    def _require_own_weights(self, module: Any) -> None:
        """Refuse a module that PyTorch did not fill from the checkpoint alone."""
        from samevec.export.native import open_checkpoint  # noqa: PLC0415  loads torch
        from samevec.export.weights import module_problems  # noqa: PLC0415  the same

        label = "compare PyTorch's weights with the checkpoint"
        with self.progress.step(label), open_checkpoint(self.snapshot, self.entry) as checkpoint:
            problems = module_problems(module, checkpoint)
        if problems:
            raise WeightsDifferError(self.entry.name, problems)

    def _record_answers(self, case_set: CaseSet, tokenizer: TokenizerInfo, sweep: SweepReference) -> Answers:
        """Write the bits of every case, and refuse those that differ from the lock's."""
        from samevec.export.answers import record_answers  # noqa: PLC0415  loads onnx

        answers = record_answers(
            self.entry,
            self.profile,
            case_set,
            sweep.ids,
            directory=self.directory,
            pad_token_id=tokenizer.pad_token_id,
            type_ids=tokenizer.type_ids,
            progress=self.progress,
        )
        require_pinned(self.entry, answers)
        return answers

    def _torch_model(self, reference: ReferenceModel) -> Embedder | Reranker:
        """Return PyTorch itself as a model."""
        from samevec.parity.reference.torch_session import TorchSession  # noqa: PLC0415  the same

        return self._build_model(TorchSession(reference), type_ids=reference.type_ids)

    def _build_model(self, session: Session, *, type_ids: bool, pad_to_multiple: int = 1) -> Embedder | Reranker:
        return build_model(
            self.entry,
            session,
            tokenizer_path=self.snapshot / TOKENIZER_NAME,
            pad_token_id=_pad_token_id(self.snapshot),
            type_ids=type_ids,
            pad_to_multiple=pad_to_multiple,
        )

    def _export_graph(self, reference: ReferenceModel, plan: SweepPlan, sweep: SweepReference) -> GraphInfo:
        from samevec.export.graph import contract_problems, describe_graph, sweep_problems  # noqa: PLC0415

        entry, form, width = self.entry, self.profile.graph_form, self.entry.dimensions or 1
        graph_path = self._write_graph(reference.module)
        info = describe_graph(graph_path, entry, form=form, width=width)
        problems = contract_problems(graph_path, entry, width=width, form=form)
        if not problems:
            with self.progress.step(f"load {entry.name} in ONNX Runtime"):
                session = open_session(graph_path, self.profile, max_tokens=entry.max_tokens)
            model = self._build_model(
                session, type_ids="token_type_ids" in info.inputs, pad_to_multiple=self.profile.pad_to_multiple
            )
            problems = sweep_problems(
                model,
                sweep,
                plan,
                self.lock.tolerance,
                bits_required=self.profile.bit_identical_groupings,
                progress=self.progress,
            )
        if problems:
            raise GraphContractError(entry.name, problems)
        return info

    def _write_graph(self, module: Any) -> Path:
        """Write the graph, and the place of each of the checkpoint's tensors in it."""
        from samevec.export.native import open_checkpoint  # noqa: PLC0415  loads torch
        from samevec.export.weights import native_records, require_records, traced_records, weights_table  # noqa: PLC0415

        path, weights = self._write_form(module)
        label = "compare the graph's weights with the checkpoint"
        with self.progress.step(label), open_checkpoint(self.snapshot, self.entry) as checkpoint:
            if weights is None:
                records, problems = traced_records(module, checkpoint, path)
            else:
                records, problems = native_records(checkpoint, path, weights)
            require_records(self.entry.name, records, problems)
        (self.directory / WEIGHTS_NAME).write_bytes(weights_table(records))
        return path

    def _write_form(self, module: Any) -> tuple[Path, list[Weight] | None]:
        form = self.profile.graph_form
        if self.profile.is_native:
            from samevec.export.native import write_native_graph  # noqa: PLC0415  loads torch

            return write_native_graph(self.snapshot, module.config, self.entry, self.directory, self.progress)
        from samevec.export.convert import convert  # noqa: PLC0415  loads torch and optimum

        with self.progress.step(f"export {self.entry.name} with optimum ({form})"):
            return convert(module, self.entry, form=form, directory=self.directory), None


def _pad_token_id(snapshot: Path) -> int:
    """Return the checkpoint's padding id; padding is masked, so any id would do."""
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
    """Rename a finished artifact; an intact one of the same content stays, with its receipts, a damaged one goes."""
    put_in_place(directory, final, is_intact=_is_intact)
    os.utime(final / MANIFEST_NAME)  # now the newest
    return read_artifact(final)


def _is_intact(directory: Path) -> bool:
    try:
        verify_artifact(read_artifact(directory))
    except ArtifactCorruptError:
        return False
    return True
