"""``samevec lock update NAME``: the only writer of a lock, by revision or with a model's answers."""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from samevec.errors import LockError, LockValidationError, SourceError
from samevec.lock import LockedFile, PinnedAnswers, dump_lock, is_revision, parse_lock, read_lock, revision_problem

if TYPE_CHECKING:
    from samevec.export.source.hub import HubFile, HubFiles
    from samevec.lock import Lock, LockedModel
    from samevec.parity.answers import Answers

__all__ = ["pin_answers", "update_lock"]

# Files that loading reads: weights, configurations, the tokenizer in each of its forms, and the folders of
# sentence-transformers' modules. Not read: cards, other frameworks' weights, ready-made ONNX files.
_NEEDED = re.compile(
    r"(?:(?:model(?:-\d+-of-\d+)?\.safetensors|model\.safetensors\.index\.json"
    r"|config\.json|tokenizer\.json|tokenizer_config\.json|special_tokens_map\.json|added_tokens\.json"
    r"|vocab\.json|vocab\.txt|merges\.txt|chat_template\.jinja"
    r"|modules\.json|config_sentence_transformers\.json|sentence_bert_config\.json)"
    r"|\d+_[A-Za-z]+/(?:config\.json|model\.safetensors))",
    re.ASCII,
)


def update_lock(path: Path, name: str, revision: str, *, hub: HubFiles) -> list[str]:
    """Pin another revision, a full commit, of a model: rewrite its files in the lock by one rename, without comments.

    The entry's other facts, golden values among them, stay: export and parity check them. Returns the changes, such as
    ``"config.json: b5bf1f51fc45 (727 bytes) -> ..."``; without any, the lock stays as it is.

    Raises
    ------
    LockError
        The lock is not valid, has no such model, cannot be written, or the new entry would not be valid.
    LockValidationError
        `revision` is not a full commit.
    SourceError
        The model's source is not the hub, or the hub does not have the revision.
    """
    lock = read_lock(path)
    entry = lock.model(name)
    if not is_revision(revision):
        where = f"models[{lock.names.index(name)}].revision"
        raise LockValidationError(where, revision_problem(revision), origin=lock.origin)
    scheme, _, repo = entry.source.partition(":")
    if scheme != "hf":
        raise SourceError(f"{name}: its source is {entry.source}, and only hf: sources can be asked for a revision")
    files = _pin(entry, repo, revision, hub)
    # The answers belong to the old weights; the next export records new ones.
    updated = replace(entry, revision=revision, files=files, answers=None if files != entry.files else entry.answers)
    changes = _changes(entry, updated)
    if changes:
        _put(path, lock, updated)
    return changes


def pin_answers(path: Path, name: str, answers: Answers) -> list[str]:
    """Pin the bits that a model gives, as its export recorded them; return the changes, one line each.

    The lock is replaced by one rename, and only if something changes; LockError if it is not valid, has no such model,
    or cannot be written.
    """
    lock = read_lock(path)
    entry = lock.model(name)
    pinned = PinnedAnswers(
        arithmetic=answers.arithmetic, case_set_digest=answers.case_set_digest, digest=answers.digest
    )
    if pinned == entry.answers:
        return []
    _put(path, lock, replace(entry, answers=pinned))
    before = "not pinned" if entry.answers is None else entry.answers.digest
    return [f"answers: {before} -> {pinned.digest}"]


def _put(path: Path, lock: Lock, entry: LockedModel) -> None:
    models = tuple(entry if model.name == entry.name else model for model in lock.models)
    _write(path, replace(lock, models=models))


def _pin(entry: LockedModel, repo: str, revision: str, hub: HubFiles) -> tuple[LockedFile, ...]:
    """Return the files of a revision to pin: those pinned before in their order, then new ones by name."""
    before = [file.path for file in entry.files]
    listed = [f for f in hub.list_files(repo, revision) if f.path in before or _NEEDED.fullmatch(f.path)]
    paths = {file.path for file in listed}
    missing = [path for path in ("config.json", "tokenizer.json") if path not in paths]
    missing += [] if any(path.endswith(".safetensors") for path in paths) else ["safetensors weights"]
    if missing:
        raise SourceError(f"{repo} at {revision[:12]}: has no {', no '.join(missing)}; it cannot be pinned")
    listed.sort(key=lambda file: (before.index(file.path) if file.path in before else len(before), file.path))
    return tuple(
        LockedFile(path=file.path, size_bytes=file.size_bytes, sha256=_sha256(file, repo, revision, hub))
        for file in listed
    )


def _sha256(file: HubFile, repo: str, revision: str, hub: HubFiles) -> str:
    return file.sha256 if file.sha256 is not None else hub.sha256(repo, revision, file.path)


def _changes(old: LockedModel, new: LockedModel) -> list[str]:
    changes = [] if old.revision == new.revision else [f"revision: {old.revision} -> {new.revision}"]
    before = {file.path: file for file in old.files}
    after = {file.path: file for file in new.files}
    changed = [path for path in before | after if before.get(path) != after.get(path)]
    return changes + [f"{path}: {_shown(before.get(path))} -> {_shown(after.get(path))}" for path in changed]


def _shown(file: LockedFile | None) -> str:
    return "not pinned" if file is None else f"{file.sha256[:12]} ({file.size_bytes} bytes)"


def _write(path: Path, lock: Lock) -> None:
    """Replace a lock in one rename, after checking that the new text can be read."""
    text = dump_lock(lock)
    if parse_lock(text, origin=lock.origin) != lock:
        raise LockError(f"{lock.origin}: what would be written does not read back as what it says; nothing was written")
    # The target of a symlink, so that the link stays.
    target = path.resolve()
    try:
        mode = target.stat().st_mode & 0o777
        descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).chmod(mode)
            Path(temporary).replace(target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise LockError(f"{lock.origin}: cannot be written: {error.strerror or error}") from error
