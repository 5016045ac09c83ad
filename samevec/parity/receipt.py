"""Receipts: what parity found, bound to everything that could change it. Standard library only: servers import it."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from samevec.digest import canonical_json, digest_json
from samevec.errors import ArtifactError, ParityFailedError, ReceiptMissingError, StaleReceiptError

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

RECEIPT_VERSION = 1

# What receipts of before the fixture was bound, and whose verdict ranked nothing, are bound to in its place.
_NOT_RECORDED = "not recorded"
_SHOWN_DIGEST_CHARACTERS = 12


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
    onnxruntime_version : str
    device : str
        The processor's or accelerator's own name.
    samevec_version : str
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
    onnxruntime_version: str
    device: str
    samevec_version: str

    def to_dict(self) -> dict[str, Any]:
        """Return a record for JSON."""
        record = {item.name: getattr(self, item.name) for item in fields(self)}
        for name in ("provider_options", "session_options"):
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
        expected = {item.name: dict if item.name.endswith("_options") else str for item in fields(cls)}
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
        if not isinstance(content.get("passed"), bool) or not isinstance(content.get("binding"), dict):
            raise ValueError("passed or binding is missing")  # noqa: TRY004
        bound = {"fixture_digest": _ranked_fixture(content), **content["binding"]}
        try:
            return cls(**{**content, "binding": Binding.from_dict(bound)})
        except TypeError as error:
            raise ValueError(str(error)) from error

    def is_about(self, binding: Binding) -> bool:
        """Return whether this verdict is about exactly this binding.

        A failed one that says nothing of the fixture counts for any: what is known to be wrong must not be served
        because one more fact is bound since.
        """
        bound = self.binding
        if not self.passed and bound.fixture_digest == _NOT_RECORDED:
            bound = replace(bound, fixture_digest=binding.fixture_digest)
        return bound.to_dict() == binding.to_dict()


def _ranked_fixture(content: Mapping[str, Any]) -> str:
    """Return the fixture that a receipt's verdict ranked, for receipts of before it was bound."""
    summary = content.get("summary")
    rankings = summary.get("rankings") if isinstance(summary, dict) else None
    found = rankings.get("fixture_digest") if isinstance(rankings, dict) else None
    return found if isinstance(found, str) else _NOT_RECORDED


def _file_name(binding: Binding) -> str:
    return f"{binding.profile}-{binding.digest.removeprefix('sha256:')[:16]}.json"


def write_receipt(directories: Sequence[Path], receipt: Receipt) -> Path:
    """Write a receipt into the first directory that takes it.

    Parameters
    ----------
    directories : sequence of Path
        The artifact's ``receipts/`` first, then where to go when that is read-only. Made if missing.
    receipt : Receipt

    Returns
    -------
    Path
        The file: either complete or not there at all, whatever happens meanwhile.

    Raises
    ------
    ArtifactError
        No directory could be written; names each with its reason.
    """
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
            return path
    raise ArtifactError(f"the receipt could not be written: {'; '.join(problems) or 'no directory given'}")


def _write_atomically(path: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=".receipt-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)  # mkstemp makes it private; whoever serves may be another user than whoever proved
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
    record = json.loads(path.read_bytes())
    if not isinstance(record, dict):
        raise ValueError("not a receipt")  # noqa: TRY004
    return Receipt.from_dict(record)


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
    """

    state: Literal["passed", "failed", "stale", "missing"]
    changes: tuple[str, ...] = ()
    receipt: Receipt | None = None
    problems: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """One line: the state with its reason."""
        reasons = list(self.changes)
        if self.state == "failed" and self.receipt is not None:
            reasons = list(self.receipt.failures[:3])
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


def gate_state(directories: Iterable[Path], binding: Binding) -> GateState:
    """Return what the receipts say about a binding.

    Parameters
    ----------
    directories : iterable of Path
        Where receipts may lie; absent ones hold none.
    binding : Binding
        What would be served now.

    Returns
    -------
    GateState
        ``passed`` or ``failed`` from the newest receipt for exactly this binding; else ``stale`` against the newest one
        of the same model and profile; else ``missing``. A damaged receipt counts as missing.
    """
    receipts, problems, damaged = _read_all(directories, _file_name(binding))
    exact = [receipt for receipt in receipts if receipt.is_about(binding)]
    if exact:
        newest = max(exact, key=lambda one: (one.created_at, not one.passed))  # of two at once, the failed one
        return GateState(state="passed" if newest.passed else "failed", receipt=newest, problems=problems)
    same = [one for one in receipts if (one.binding.model, one.binding.profile) == (binding.model, binding.profile)]
    if not same or damaged:
        return GateState(state="missing", problems=problems)
    newest = max(same, key=lambda one: one.created_at)
    return GateState(
        state="stale", changes=describe_changes(newest.binding, binding), receipt=newest, problems=problems
    )


def _read_all(directories: Iterable[Path], exact_name: str) -> tuple[list[Receipt], tuple[str, ...], bool]:
    """Return the readable receipts, the faults of the others, and whether this binding's file is one of those."""
    receipts: list[Receipt] = []
    problems: list[str] = []
    damaged = False
    for directory in directories:
        for path in sorted(directory.glob("*.json")):
            receipt, problem = _try_read(path)
            if receipt is not None:
                receipts.append(receipt)
            else:
                problems.append(problem)
                damaged = damaged or path.name == exact_name
    return receipts, tuple(problems), damaged


def _try_read(path: Path) -> tuple[Receipt | None, str]:
    try:
        return read_receipt(path), ""
    except (OSError, ValueError) as error:  # JSON and Unicode errors are ValueErrors
        return None, f"{path.name}: not a readable receipt ({error})"


_LABELS = {
    "artifact_digest": "artifact",
    "lock_entry_digest": "lock entry",
    "case_set_digest": "case set",
    "fixture_digest": "retrieval fixture",
    "onnxruntime_version": "onnxruntime",
    "samevec_version": "samevec",
    "provider_options": "provider option",
    "session_options": "session option",
}


def describe_changes(before: Binding, after: Binding) -> tuple[str, ...]:
    """Return what differs between two bindings, in words.

    Returns
    -------
    tuple of str
        Such as ``"onnxruntime 1.31.1 -> 1.32.0"`` or ``"provider option use_tf32 1 -> 0"``.
    """
    old, new = before.to_dict(), after.to_dict()
    changes: list[str] = []
    for name in old:
        if old[name] == new[name]:
            continue
        label = _LABELS.get(name, name)
        if isinstance(old[name], dict):
            changes += _option_changes(label, old[name], new[name])
        else:
            changes.append(f"{label} {_short(old[name])} -> {_short(new[name])}")
    return tuple(changes)


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
