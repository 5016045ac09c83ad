"""From a lock entry to a snapshot folder that holds the pinned files and nothing else.

Three sources: the hub by revision, the toy models samevec builds, and a folder (``--from DIR``). Files of the first two
lie in ``HOME/snapshots/<name>/<revision>/``, a folder renamed to that name once every file in it is verified.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from samevec.digest import sha256_file
from samevec.errors import DigestMismatchError, SourceError, SourceMissingError
from samevec.export.source.hub import Hub, partial_files
from samevec.progress import SilentProgress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from samevec.lock import LockedFile, LockedModel
    from samevec.progress import Progress

__all__ = ["locate_snapshot", "verify_snapshot"]

_WEIGHTS_ENDING = ".safetensors"
# Weights that are pickles, or other frameworks': reading a pickle runs code.
_PICKLE_ENDINGS = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".h5", ".msgpack")
_SILENT = SilentProgress()


def locate_snapshot(
    entry: LockedModel,
    *,
    home: Path,
    source_dir: Path | None = None,
    progress: Progress = _SILENT,
    hub: Hub | None = None,
) -> Path:
    """Return a folder that holds the pinned files of a model and nothing else.

    Parameters
    ----------
    home : Path
        samevec's data folder.
    source_dir : Path, optional
        Take them from ``DIR/<name>/``, else ``DIR/<last part of source>/``, else the hub cache's
        ``DIR/models--OWNER--NAME/snapshots/<revision>/``, else ``DIR`` itself. Symlinks are followed. If it holds other
        files too, the result is a folder of links to the pinned ones, so that no loader sees the others.
    hub : Hub, optional
        Another hub than the one huggingface_hub's settings name.

    Returns
    -------
    Path
        Verified, and repaired where damaged, if fetched or built; from `source_dir` not: call :func:`verify_snapshot`
        before anything is loaded.

    Raises
    ------
    SourceError
        The files are not available; the message says what to do.
    DigestMismatchError
        A fetched file is not the pinned one.
    """
    _refuse_unsafe_pins(entry)
    scheme, _, name = entry.source.partition(":")
    snapshots = home / "snapshots" / entry.name
    with _disk_errors(entry.name):
        if source_dir is not None:
            return _pinned_view(entry, _resolve_source(entry, source_dir), snapshots, progress)
        if scheme == "local":
            raise SourceError(f"{entry.name}: its source is a folder; pass that folder with --from DIR")
        with _exclusive(snapshots / f"{entry.revision}.lock", progress):
            if scheme == "toy":
                return _build_toy(entry, name, snapshots / entry.revision, progress)
            return _download(entry, name, snapshots / entry.revision, progress, hub or Hub())


def verify_snapshot(path: Path, entry: LockedModel, progress: Progress = _SILENT) -> None:
    """Compare every pinned file of a snapshot with its size, then its sha256, before anything is loaded.

    Parameters
    ----------
    path : Path
        The snapshot folder; its files may be symlinks.
    progress : Progress
        Gets one step, counted in bytes, and a note for every failing file if there are several.

    Raises
    ------
    SourceMissingError
        A pinned file is not there.
    DigestMismatchError
        A file is not the pinned one: the first such in the lock's order.
    SourceError
        The snapshot asks for code to be run, or a pinned file cannot be read.
    """
    _refuse_unsafe_pins(entry)
    _refuse_code_files(path, entry)
    problems = _size_problems(path, entry) or _sha256_problems(path, entry, progress, "verify")
    if len(problems) > 1:
        for problem in problems:
            progress.note(str(problem))
    if problems:
        raise problems[0]
    _refuse_remote_code(path, entry)


def _size_problems(path: Path, entry: LockedModel) -> list[SourceError]:
    problems: list[SourceError] = []
    for locked in entry.files:
        file = path / locked.path
        if not file.is_file():
            problems.append(SourceMissingError(file, _missing_hint(path, locked)))
        elif (size_bytes := file.stat().st_size) != locked.size_bytes:
            problems.append(DigestMismatchError(file, "size", expected=locked.size_bytes, found=size_bytes))
    return problems


def _missing_hint(path: Path, locked: LockedFile) -> str:
    if locked.path.endswith(_WEIGHTS_ENDING):
        pickles = sorted(file.name for file in path.glob("*") if file.suffix in _PICKLE_ENDINGS)
        if pickles:
            return f"{pickles[0]} is there, but only safetensors weights are ever loaded"
    return "the lock pins it; give a complete snapshot folder of the pinned revision"


def _sha256_problems(path: Path, entry: LockedModel, progress: Progress, verb: str) -> list[SourceError]:
    problems: list[SourceError] = []
    with progress.step(f"{verb} {entry.name}", total=entry.total_bytes, unit="bytes") as advance:
        for locked in entry.files:
            problem = _sha256_problem(path / locked.path, locked, advance)
            if problem is not None:
                problems.append(problem)
    return problems


def _sha256_problem(file: Path, locked: LockedFile, on_bytes: Callable[[float], None]) -> SourceError | None:
    try:
        found = sha256_file(file, on_bytes=on_bytes)
    except OSError as error:
        return SourceError(f"{file}: cannot be read: {error.strerror or error}")
    if found != locked.sha256:
        return DigestMismatchError(file, "sha256", expected=locked.sha256, found=found)
    return None


def _refuse_unsafe_pins(entry: LockedModel) -> None:
    # The lock's parser refuses these too; entries built in code do not pass through it.
    for locked in entry.files:
        if locked.path.endswith((*_PICKLE_ENDINGS, ".py")):
            raise SourceError(
                f"{entry.name}: {locked.path}: only safetensors weights are loaded, never pickles or code"
            )


def _refuse_code_files(path: Path, entry: LockedModel) -> None:
    code = sorted(file.relative_to(path).as_posix() for file in path.rglob("*.py"))
    if code:
        raise SourceError(f"{entry.name}: {path} holds code ({code[0]}); samevec runs none from a snapshot: remove it")


def _refuse_remote_code(path: Path, entry: LockedModel) -> None:
    """Refuse verified configurations that ask a loader to import code."""
    for locked in entry.files:
        name = locked.path.rpartition("/")[2]
        if name not in ("config.json", "tokenizer_config.json", "modules.json"):
            continue
        record = _read_json(path / locked.path)
        if isinstance(record, dict) and "auto_map" in record:
            raise SourceError(f"{entry.name}: {locked.path} has auto_map: it asks for remote code, which is never run")
        for module in record if isinstance(record, list) else ():
            kind = module.get("type") if isinstance(module, dict) else None
            if not isinstance(kind, str) or not kind.startswith("sentence_transformers."):
                raise SourceError(
                    f"{entry.name}: {locked.path} names {kind!r}: only sentence_transformers' own modules"
                )


def _read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except ValueError as error:
        raise SourceError(f"{file}: not JSON: {error}") from error


def _resolve_source(entry: LockedModel, source_dir: Path) -> Path:
    name = entry.source.partition(":")[2]
    candidates = (
        source_dir / entry.name,
        source_dir / name.rpartition("/")[2],
        source_dir / f"models--{name.replace('/', '--')}" / "snapshots" / entry.revision,
    )
    for candidate in candidates:
        if candidate.is_dir():
            return candidate
    if (source_dir / "config.json").is_file():
        return source_dir
    looked = ", ".join(str(candidate) for candidate in (*candidates, source_dir / "config.json"))
    raise SourceError(f"{entry.name}: no snapshot folder in {source_dir}; looked for {looked}")


def _pinned_view(entry: LockedModel, source: Path, snapshots: Path, progress: Progress) -> Path:
    """Return the folder itself if it holds only pinned files, else a folder of links to those."""
    _refuse_code_files(source, entry)
    for locked in entry.files:
        if not (source / locked.path).is_file():
            raise SourceMissingError(source / locked.path, _missing_hint(source, locked))
    pinned = {locked.path for locked in entry.files}
    if set(_leaves(source)) == pinned:
        return source
    targets = {path: str((source / path).resolve()) for path in pinned}
    key = hashlib.sha256(str(source.resolve()).encode()).hexdigest()[:12]
    view = snapshots / f"{entry.revision}.from-{key}"
    with _exclusive(snapshots / f"{view.name}.lock", progress):
        if _leaves(view) != targets:
            _publish(view, lambda directory: _write_links(directory, targets))
    return view


def _leaves(folder: Path) -> dict[str, str]:
    """Return everything but real folders, with its link targets; a linked folder counts as one thing."""
    return {
        file.relative_to(folder).as_posix(): str(file.readlink()) if file.is_symlink() else ""
        for file in folder.rglob("*")
        if file.is_symlink() or not file.is_dir()
    }


def _write_links(directory: Path, targets: dict[str, str]) -> None:
    for path, target in targets.items():
        link = directory / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)


def _publish(final: Path, write: Callable[[Path], None]) -> None:
    """Write a small folder beside its final name and rename it there, in place of an old one."""
    temporary = final.with_name(f"{final.name}.tmp-{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        write(temporary)
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _build_toy(entry: LockedModel, name: str, final: Path, progress: Progress) -> Path:
    if not _size_problems(final, entry) and not _sha256_problems(final, entry, progress, "check"):
        return final
    # Imported late: building needs numpy's generator and safetensors, which an intact snapshot does not.
    from samevec.export.toy.checkpoint import build_toy  # noqa: PLC0415

    def build(directory: Path) -> None:
        build_toy(name, directory)
        problems = _size_problems(directory, entry) or _sha256_problems(directory, entry, progress, "check")
        if problems:
            raise SourceError(f"{entry.name}: what samevec built here is not what its lock pins: {problems[0]}")

    _publish(final, build)
    return final


def _download(entry: LockedModel, repo: str, final: Path, progress: Progress, hub: Hub) -> Path:
    staging = final.with_name(f"{final.name}.partial")
    if final.is_dir():
        if not _size_problems(final, entry) and not _sha256_problems(final, entry, progress, "check"):
            return final
        progress.note(f"{entry.name}: {final} is damaged; fetching what is wrong again")
        shutil.rmtree(staging, ignore_errors=True)
        final.rename(staging)
    staging.mkdir(parents=True, exist_ok=True)
    missing = [locked for locked in entry.files if not _holds(staging, locked)]
    _drop_useless_partials(staging, missing)
    _require_space(entry, staging, missing)
    for locked in missing:
        _download_file(partial(hub.download, repo, entry.revision), staging, locked, progress)
    shutil.rmtree(staging / ".cache", ignore_errors=True)
    # Not synced to disk first: a power cut may leave wrong bytes under the final name, but every use verifies them.
    staging.rename(final)
    return final


def _holds(directory: Path, locked: LockedFile) -> bool:
    """Whether a folder holds a pinned file; a wrong one is removed."""
    file = directory / locked.path
    if not file.is_file():
        return False
    if file.stat().st_size == locked.size_bytes and sha256_file(file) == locked.sha256:
        return True
    file.unlink()
    return False


def _drop_useless_partials(staging: Path, missing: list[LockedFile]) -> None:
    """Keep a partial file only if it can be resumed: named by a pinned sha256, and not longer than the whole."""
    for leftover in partial_files(staging):
        size_bytes = leftover.stat().st_size
        if not any(locked.sha256 in leftover.name and size_bytes <= locked.size_bytes for locked in missing):
            leftover.unlink()


def _require_space(entry: LockedModel, staging: Path, missing: list[LockedFile]) -> None:
    have_bytes = sum(file.stat().st_size for file in partial_files(staging))
    needed_bytes = sum(locked.size_bytes for locked in missing) - have_bytes
    free_bytes = shutil.disk_usage(staging).free
    if needed_bytes > free_bytes:
        raise SourceError(
            f"{entry.name}: needs {needed_bytes / 1e6:.0f} MB on the disk of {staging.parent}, of which"
            f" {free_bytes / 1e6:.0f} MB are free; free space or choose another SAMEVEC_HOME"
        )


def _download_file(get: Callable[..., None], staging: Path, locked: LockedFile, progress: Progress) -> None:
    file = staging / locked.path
    with progress.step(f"download {locked.path}", total=locked.size_bytes, unit="bytes") as advance:
        get(locked.path, staging, on_bytes=advance)
    found_bytes = file.stat().st_size
    problem: SourceError | None = None
    if found_bytes != locked.size_bytes:
        problem = DigestMismatchError(file, "size", expected=locked.size_bytes, found=found_bytes)
    else:
        problem = _sha256_problem(file, locked, lambda n_bytes: None)
    if problem is not None:
        # Left in place, huggingface_hub would take it as complete and not download it again.
        file.unlink()
        raise problem


@contextmanager
def _exclusive(lock_file: Path, progress: Progress) -> Iterator[None]:
    """Hold a lock among processes, so that two fetches of a snapshot do not share a partial folder."""
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    with lock_file.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.note(f"waiting for another samevec that fetches into {lock_file.parent}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _disk_errors(name: str) -> Iterator[None]:
    """Turn errors of the disk into one clear sentence."""
    try:
        yield
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise SourceError(f"{name}: {where}{error.strerror or error}; free space or check permissions") from error
