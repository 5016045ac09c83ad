"""Receipts: what parity found, bound to everything that could change it. Light: servers and `status` import it."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from samevec.digest import canonical_json, digest_json
from samevec.errors import ArtifactError, ParityFailedError, ReceiptMissingError, StaleReceiptError
from samevec.lock import FROZEN_TOLERANCE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "RECEIPT_VERSION",
    "Binding",
    "GateState",
    "Receipt",
    "describe_changes",
    "gate_state",
    "read_receipt",
    "require_passed",
    "write_receipt",
]

#: 2 since the code and the libraries are bound.
RECEIPT_VERSION = 2

_LIBRARIES = ("onnxruntime_version", "tokenizers_version", "numpy_version")
_MAPPINGS = ("provider_options", "session_options", "code")
_SHOWN_DIGEST_CHARACTERS = 12
_SHOWN_FILES = 4
#: One has 0.1 MB.
_MAX_RECEIPT_BYTES = 16_000_000
#: By how much the clocks of two machines that share a home may differ.
_CLOCK_SLACK = timedelta(days=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Binding:
    """Everything a verdict depends on; if any of it changes, the verdict says nothing any more.

    Attributes
    ----------
    model, profile : str
        Which receipts are about the same thing; the rest is what may have changed since.
    artifact_digest, lock_entry_digest, case_set_digest, fixture_digest : str
        ``sha256:...``; the last of the retrieval fixture: documents, queries, labels.
    provider : str
        The execution provider that really computes.
    provider_options, session_options : mapping
        Made of JSON values.
    device : str
        The processor's or accelerator's own name.
    samevec_version, onnxruntime_version, tokenizers_version, numpy_version : str
    code : mapping of str to str
        The sha256 of every source file that computes or judges (:func:`samevec.parity.code_digest.code_files`).
    """

    model: str
    profile: str
    artifact_digest: str
    lock_entry_digest: str
    case_set_digest: str
    fixture_digest: str
    provider: str
    provider_options: Mapping[str, Any]
    session_options: Mapping[str, Any]
    device: str
    samevec_version: str
    onnxruntime_version: str
    tokenizers_version: str
    numpy_version: str
    code: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Return a record for JSON."""
        record = {item.name: getattr(self, item.name) for item in fields(self)}
        for name in _MAPPINGS:
            # Through JSON and back, so that a binding made here equals one that was read from a file.
            record[name] = json.loads(canonical_json(dict(record[name])))
        return record

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Binding:
        """Return the binding of a record.

        Raises
        ------
        ValueError
            A key is missing or unknown, or a value is of another type.
        """
        expected = {item.name: dict if item.name in _MAPPINGS else str for item in fields(cls)}
        if set(record) != set(expected):
            raise ValueError(f"binding keys are {sorted(record)}, not {sorted(expected)}")
        for name, kind in expected.items():
            if not isinstance(record[name], kind):
                raise ValueError(f"binding.{name} is not of type {kind.__name__}")  # noqa: TRY004
        return cls(**record)

    @property
    def digest(self) -> str:
        """``sha256:...`` of the record."""
        return digest_json(self.to_dict())

    def facts(self) -> dict[str, Any]:
        """Return the record for people and programs that show it: one digest in the place of a line a source file."""
        record = self.to_dict()
        return {**record, "code": digest_json(record["code"])}


@dataclass(frozen=True, kw_only=True, slots=True)
class Receipt:
    """A verdict on file.

    Attributes
    ----------
    binding : Binding
    passed : bool
    created_at : str
        ISO 8601 in UTC, as the caller's clock gave it.
    tolerance : mapping of str to float
        ``atol`` and ``rtol`` of the rule that was applied.
    failures : sequence of str
        Every failure in words; empty when passed.
    summary : mapping
        The verdict's cells and facts, made of JSON values.
    not_measured : sequence of str
        What this verdict does not cover, in words.
    """

    binding: Binding
    passed: bool
    created_at: str
    tolerance: Mapping[str, float]
    failures: Sequence[str] = ()
    summary: Mapping[str, Any] = field(default_factory=dict)
    not_measured: Sequence[str] = ()

    @property
    def file_name(self) -> str:
        """Name of the receipt's file: one a binding, so that a new verdict replaces the old one."""
        return _file_name(self.binding)

    def to_dict(self) -> dict[str, Any]:
        """Return a record for JSON, with a digest over the rest of it."""
        record = {
            "receipt_version": RECEIPT_VERSION,
            "passed": self.passed,
            "created_at": self.created_at,
            "binding": self.binding.to_dict(),
            "tolerance": dict(self.tolerance),
            "failures": list(self.failures),
            "not_measured": list(self.not_measured),
            "summary": dict(self.summary),
        }
        return {**record, "digest": digest_json(record)}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Receipt:
        """Return the receipt of a record.

        Raises
        ------
        ValueError
            Of another version, changed since it was written, or misshapen.
        """
        content = dict(record)
        digest = content.pop("digest", None)
        version = content.pop("receipt_version", None)
        if version != RECEIPT_VERSION:
            raise ValueError(f"receipt_version {version!r} is not {RECEIPT_VERSION}")
        if digest != digest_json({**content, "receipt_version": version}):
            raise ValueError("its content does not match its digest")
        _check_shape(content)
        found = cls(**{**content, "binding": Binding.from_dict(content["binding"])})
        if found.passed:
            _check_passed(found)
        return found

    @property
    def written_at(self) -> datetime:
        """When it was written."""
        return datetime.fromisoformat(self.created_at)

    def is_about(self, binding: Binding) -> bool:
        """Return whether this verdict is about exactly this binding."""
        return self.binding.to_dict() == binding.to_dict()


_SHAPE = {
    "passed": bool,
    "binding": dict,
    "created_at": str,
    "tolerance": dict,
    "failures": list,
    "summary": dict,
    "not_measured": list,
}


def _check_shape(content: Mapping[str, Any]) -> None:
    """Refuse keys and types that no receipt has."""
    if set(content) != set(_SHAPE):
        raise ValueError(f"its keys are {sorted(content)}, not {sorted(_SHAPE)}")
    for name, kind in _SHAPE.items():
        if not isinstance(content[name], kind):
            raise ValueError(f"{name} is not of type {kind.__name__}")  # noqa: TRY004
    if not all(isinstance(words, str) for words in (*content["failures"], *content["not_measured"])):
        raise ValueError("failures or not_measured holds something other than text")
    if datetime.fromisoformat(content["created_at"]).tzinfo is None:
        raise ValueError(f"created_at {content['created_at']} has no time zone")


def _check_passed(receipt: Receipt) -> None:
    """Refuse a pass that contradicts itself; a failure counts in any case."""
    if receipt.failures:
        raise ValueError("it says passed and lists failures")
    if receipt.tolerance != FROZEN_TOLERANCE.to_dict():
        raise ValueError(f"it passed under the tolerance {receipt.tolerance}, not {FROZEN_TOLERANCE.to_dict()}")


def _file_name(binding: Binding) -> str:
    return f"{binding.profile}-{binding.digest.removeprefix('sha256:')[:16]}.json"


def write_receipt(directories: Sequence[Path], receipt: Receipt) -> Path:
    """Write a receipt into the first directory that takes it, and remove older ones of its binding.

    Parameters
    ----------
    directories : sequence of Path
        The artifact's ``receipts/`` first, then where to go when that is read-only. Made if missing.
    receipt : Receipt
        Of one that failed, the older ones are removed before anything is written, so that a full disk keeps no pass.

    Returns
    -------
    Path
        The file: either complete or not there at all, whatever happens meanwhile.

    Raises
    ------
    ArtifactError
        No directory could be written; names each with its reason.
    """
    older = [directory / receipt.file_name for directory in directories]
    if not receipt.passed:
        _discard(older)
    content = json.dumps(receipt.to_dict(), indent=1, sort_keys=True, allow_nan=False).encode("ascii") + b"\n"
    problems = []
    for directory in directories:
        path = directory / receipt.file_name
        try:
            directory.mkdir(parents=True, exist_ok=True)
            _write_atomically(path, content)
        except OSError as error:
            problems.append(f"{directory}: {error.strerror or error}")
        else:
            _discard(one for one in older if one != path)
            return path
    if not receipt.passed:
        _mark(older)
    raise ArtifactError(f"the receipt could not be written: {'; '.join(problems) or 'no directory given'}")


def _discard(paths: Iterable[Path]) -> None:
    """Remove files; empty those that a directory does not let go of. What resists both is found by reading again."""
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError:
            with contextlib.suppress(OSError):
                os.truncate(path, 0)


def _mark(paths: Iterable[Path]) -> None:
    """Leave an empty file, for which a full disk has room: beside it no pass of the same binding counts."""
    for path in paths:
        with contextlib.suppress(OSError):
            path.touch()


def _write_atomically(path: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=".receipt-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)  # mkstemp makes it private; the serving user may be another than the proving one
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    """Make the rename itself survive a power cut, where directories can be synced."""
    with contextlib.suppress(OSError):
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def read_receipt(path: Path) -> Receipt:
    """Read one receipt file.

    Raises
    ------
    ValueError
        Not a receipt, or damaged.
    OSError
        It cannot be read.
    """
    if not path.is_file() or path.stat().st_size > _MAX_RECEIPT_BYTES:
        raise ValueError("not a file, or too large to be a receipt")
    content = path.read_bytes()
    if not content:
        raise ValueError("empty: the verdict could not be written")
    try:
        record = json.loads(content)
        if not isinstance(record, dict):
            raise ValueError("not a receipt")  # noqa: TRY004
        return Receipt.from_dict(record)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


@dataclass(frozen=True, kw_only=True, slots=True)
class GateState:
    """What the receipts say about the present binding.

    Attributes
    ----------
    state : str
        ``"passed"``, ``"failed"``, ``"stale"`` or ``"missing"``.
    changes : tuple of str
        For ``"stale"``: what has changed since the newest receipt, in words.
    receipt : Receipt or None
        The receipt the state rests on.
    problems : tuple of str
        Receipt files that could not be read; each counts as missing.
    libraries : tuple of str
        For ``"stale"``: what a pass was given under, such as ``"onnxruntime 1.31.1"``, where nothing but versions of
        libraries has changed since; else empty.
    """

    state: Literal["passed", "failed", "stale", "missing"]
    changes: tuple[str, ...] = ()
    receipt: Receipt | None = None
    problems: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """One line: the state with its reason."""
        reasons = list(self.changes)
        if self.state == "failed" and self.receipt is not None:
            reasons = list(self.receipt.failures[:3])
        if self.state == "missing":
            reasons += self.problems
        return self.state + (f" ({'; '.join(reasons)})" if reasons else "")

    def to_dict(self) -> dict[str, Any]:
        """Return a record for JSON."""
        return {
            "state": self.state,
            "changes": list(self.changes),
            "problems": list(self.problems),
            "created_at": None if self.receipt is None else self.receipt.created_at,
        }


def gate_state(directories: Iterable[Path], binding: Binding, *, now: datetime | None = None) -> GateState:
    """Return what the receipts say about a binding.

    Parameters
    ----------
    directories : iterable of Path
        Where receipts may lie; absent ones hold none.
    binding : Binding
        What would be served now.
    now : datetime, optional
        With a time zone; the machine's clock when not given.

    Returns
    -------
    GateState
        ``failed`` if any receipt for exactly this binding says so, whatever the dates; ``passed`` if one says that and
        no other file of this binding is damaged; else ``stale`` against the newest of the same model and profile; else
        ``missing``. A damaged receipt counts as missing, and so does a pass dated in the future.
    """
    receipts, problems, damaged = _read_all(directories, _file_name(binding), now or datetime.now(UTC))
    exact = [receipt for receipt in receipts if receipt.is_about(binding)]
    failed = [receipt for receipt in exact if not receipt.passed]
    if failed or (exact and not damaged):
        newest = max(failed or exact, key=lambda one: one.written_at)
        return GateState(state="failed" if failed else "passed", receipt=newest, problems=problems)
    same = [one for one in receipts if (one.binding.model, one.binding.profile) == (binding.model, binding.profile)]
    if not same or damaged:
        return GateState(state="missing", problems=problems)
    newest = max(same, key=lambda one: one.written_at)
    return GateState(
        state="stale",
        changes=describe_changes(newest.binding, binding),
        receipt=newest,
        problems=problems,
        libraries=_changed_libraries(newest.binding, binding) if newest.passed else (),
    )


def _changed_libraries(before: Binding, after: Binding) -> tuple[str, ...]:
    """Return the libraries before that are of another version now, if nothing else has changed."""
    old, new = before.to_dict(), after.to_dict()
    changed = [name for name in old if old[name] != new[name]]
    return tuple(f"{_LABELS[name]} {old[name]}" for name in changed) if set(changed) <= set(_LIBRARIES) else ()


def _read_all(
    directories: Iterable[Path], exact_name: str, now: datetime
) -> tuple[list[Receipt], tuple[str, ...], bool]:
    """Return the readable receipts, the faults of the others, and whether this binding's file is one of those."""
    receipts: list[Receipt] = []
    problems: list[str] = []
    damaged = False
    for directory in directories:
        for path in sorted(directory.glob("*.json")):
            receipt, problem = _try_read(path, now)
            if receipt is not None:
                receipts.append(receipt)
            else:
                problems.append(problem)
                damaged = damaged or path.name == exact_name
    return receipts, tuple(problems), damaged


def _try_read(path: Path, now: datetime) -> tuple[Receipt | None, str]:
    try:
        found = read_receipt(path)
    except (OSError, ValueError) as error:  # JSON and Unicode errors are ValueErrors
        return None, f"{path.name}: not a readable receipt ({error})"
    if found.passed and found.written_at > now + _CLOCK_SLACK:
        clock = f"{now:%Y-%m-%dT%H:%M%z}"
        return None, f"{path.name}: dated {found.created_at}, in the future of this machine's clock ({clock})"
    return found, ""


# In this order changes are told: causes before what follows from them.
_LABELS = {
    "samevec_version": "samevec",
    "onnxruntime_version": "onnxruntime",
    "tokenizers_version": "tokenizers",
    "numpy_version": "numpy",
    "device": "device",
    "code": "code",
    "provider": "provider",
    "provider_options": "provider option",
    "session_options": "session option",
    "lock_entry_digest": "lock entry",
    "artifact_digest": "artifact",
    "case_set_digest": "case set",
    "fixture_digest": "retrieval fixture",
}


def describe_changes(before: Binding, after: Binding) -> tuple[str, ...]:
    """Return what differs between two bindings, in words.

    Returns
    -------
    tuple of str
        Such as ``"onnxruntime 1.31.1 -> 1.32.0"``, ``"code of runtime/engine.py"`` or ``"provider option use_tf32 1 ->
        0"``; what may be the cause of other changes comes first.
    """
    old, new = before.to_dict(), after.to_dict()
    changes: list[str] = []
    for name, label in _LABELS.items():
        if old[name] == new[name]:
            continue
        if name == "code":
            changes.append(_code_change(old[name], new[name]))
        elif isinstance(old[name], dict):
            changes += _option_changes(label, old[name], new[name])
        else:
            changes.append(f"{label} {_short(old[name])} -> {_short(new[name])}")
    return tuple(changes)


def _code_change(old: dict[str, str], new: dict[str, str]) -> str:
    """Name the source files that changed, came or went."""
    names = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
    more = f" and {len(names) - _SHOWN_FILES} more files" if len(names) > _SHOWN_FILES else ""
    return f"code of {', '.join(names[:_SHOWN_FILES])}{more}"


def _option_changes(label: str, old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    changes: list[str] = []
    for key in sorted({*old, *new}):
        a, b = old.get(key), new.get(key)
        if a == b and (key in old) == (key in new):
            continue
        if isinstance(a, dict) and isinstance(b, dict):
            changes += _option_changes(label, a, b)
        else:
            changes.append(
                f"{label} {key} {_short(a) if key in old else 'unset'} -> {_short(b) if key in new else 'unset'}"
            )
    return changes


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text[: len("sha256:") + _SHOWN_DIGEST_CHARACTERS] if text.startswith("sha256:") else text


def require_passed(state: GateState, *, model: str, fix: str) -> None:
    """Let only a passed state through.

    Parameters
    ----------
    state : GateState
    model : str
        For the message.
    fix : str
        The one command that mends it.

    Raises
    ------
    ParityFailedError
        Parity was run here and failed.
    StaleReceiptError
        Something the receipt was bound to has changed.
    ReceiptMissingError
        There is no readable receipt.
    """
    if state.state == "passed":
        return
    if state.state == "failed":
        reasons = "; ".join(state.receipt.failures[:3]) if state.receipt is not None else ""
        raise ParityFailedError(f"{model}: parity failed here{': ' + reasons if reasons else ''}", fix=fix)
    if state.state == "stale":
        message = f"{model}: the parity receipt is stale: {'; '.join(state.changes)}"
        raise StaleReceiptError(message, changes=state.changes, fix=fix)
    reasons = f" ({'; '.join(state.problems)})" if state.problems else ""
    raise ReceiptMissingError(f"{model}: parity has not been proved on this machine{reasons}", fix=fix)
