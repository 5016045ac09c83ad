"""Every exception samevec raises on purpose.

::

    SamevecError
      ConfigError                 a flag, setting or file of settings is wrong
      LockError                   a lock cannot be used
        LockValidationError       a value in it is wrong; names the path in the lock
        LockVersionError          written for another version of samevec
      SourceError                 the pinned files are not available
        SourceMissingError        a pinned file is not there
        DigestMismatchError       a file's size or sha256 is not the pinned one
      ArtifactError               an exported artifact cannot be used
        ArtifactMissingError      nothing has been exported for this model and profile
        ArtifactCorruptError      a file of the artifact is missing or changed
      ExportError                 the export did not produce a graph worth publishing
        GraphContractError        the graph breaks the contract or differs from PyTorch
        WeightsDifferError        a weight is not the checkpoint's, bit for bit
        AnswersDifferError        the bits of the answers are not those the lock pins
      InputError                  the caller's texts or options are wrong
        EmptyInputError           nothing to compute
        InputTooLongError         longer than the limit and truncation was declined
        BatchTooLargeError        more items than the server takes in one request
      OverloadedError             the queue is full; try again later
      DeadlineExceededError       the deadline passed before the work was done
      WorkCancelledError          the caller cancelled the work
      NotReadyError               not serving (yet, or any more)
      InferenceError              the session could not compute
        SessionLoadError          the graph could not be loaded
        ProviderUnavailableError  the requested execution provider is not available
        NativeLibraryError        the native library is not there or cannot be used here
        SessionRunError           a run failed
          ItemsFailedError        it failed for some items, even run alone; names them
        NonFiniteOutputError      a run gave NaN, infinity or a zero vector
      ParityError                 the gate does not let this be served
        ReferenceMissingError     the artifact carries no reference to compare with
        ParityFailedError         the candidate differs from the reference
        ReceiptMissingError       parity was never run here
        StaleReceiptError         something the receipt was bound to has changed

Each class carries what it knows as attributes, and a message that ends with what to do next. :data:`EXIT_CODES` maps
classes to exit codes, ``samevec.server.error_map`` to HTTP statuses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = [
    "EXIT_CODES",
    "AnswersDifferError",
    "ArtifactCorruptError",
    "ArtifactError",
    "ArtifactMissingError",
    "BatchTooLargeError",
    "ConfigError",
    "DeadlineExceededError",
    "DigestMismatchError",
    "EmptyInputError",
    "ExportError",
    "GraphContractError",
    "InferenceError",
    "InputError",
    "InputTooLongError",
    "ItemsFailedError",
    "LockError",
    "LockValidationError",
    "LockVersionError",
    "NativeLibraryError",
    "NonFiniteOutputError",
    "NotReadyError",
    "OverloadedError",
    "ParityError",
    "ParityFailedError",
    "ProviderUnavailableError",
    "ReceiptMissingError",
    "ReferenceMissingError",
    "SamevecError",
    "SessionLoadError",
    "SessionRunError",
    "SourceError",
    "SourceMissingError",
    "StaleReceiptError",
    "WeightsDifferError",
    "WorkCancelledError",
    "exit_code",
]


class SamevecError(Exception):
    """Base of every exception samevec raises on purpose."""

    @property
    def without_advice(self) -> str:
        """The message; where its advice is to run the gate, without that."""
        return str(self)


class ConfigError(SamevecError):
    """A flag, setting or settings file is wrong."""


class LockError(SamevecError):
    """A lock cannot be used."""


class LockValidationError(LockError):
    """A value in a lock is wrong; ``path`` is where, such as ``models[1].files[3].sha256`` (empty: the whole file)."""

    def __init__(self, path: str, problem: str, *, origin: str = "lock") -> None:
        self.path = path
        self.problem = problem
        self.origin = origin
        super().__init__(f"{origin}: {path}: {problem}" if path else f"{origin}: {problem}")


class LockVersionError(LockError):
    """The lock was written for another version of samevec."""

    def __init__(self, found: object, supported: int, *, origin: str = "lock") -> None:
        self.found = found
        self.supported = supported
        self.origin = origin
        super().__init__(
            f"{origin}: lock_version: {found!r} is not supported, this samevec reads {supported};"
            " install the matching samevec"
        )


class SourceError(SamevecError):
    """The pinned files of a model are not available."""


class SourceMissingError(SourceError):
    """A pinned file is not where it should be."""

    def __init__(self, path: Path, hint: str) -> None:
        self.path = path
        super().__init__(f"{path}: not found; {hint}")


class DigestMismatchError(SourceError):
    """A file's size or sha256 (``kind``) is not the pinned one."""

    def __init__(self, path: Path, kind: str, *, expected: object, found: object) -> None:
        self.path = path
        self.kind = kind
        self.expected = str(expected)
        self.found = str(found)
        super().__init__(
            f"{path}: {kind} is {found}, the lock pins {expected};"
            " the file is truncated, changed or of another revision: fetch it again"
        )


class ArtifactError(SamevecError):
    """An exported artifact cannot be used."""


class ArtifactMissingError(ArtifactError):
    """Nothing usable has been exported for this model and profile; ``fix`` is the command that exports it."""

    def __init__(self, model: str, profile: str, *, reason: str, fix: str) -> None:
        self.model = model
        self.profile = profile
        self.reason = reason
        self.fix = fix
        super().__init__(f"{model} ({profile}): {reason}; run: {fix}")


class ArtifactCorruptError(ArtifactError):
    """A file of an artifact is missing or has changed; ``fix`` is the command that replaces the artifact, if known."""

    def __init__(self, path: Path, problem: str, *, fix: str | None = None) -> None:
        self.path = path
        self.problem = problem
        self.fix = fix
        advice = "remove the directory and export again" if fix is None else f"run: {fix}"
        super().__init__(f"{path}: {problem}; {advice}")


class ExportError(SamevecError):
    """The export did not produce a graph worth publishing; nothing was published."""


def _first_of(problems: Sequence[str], most: int) -> str:
    """Return the first problems in one line, and how many more there are."""
    more = f" (and {len(problems) - most} more)" if len(problems) > most else ""
    return "; ".join(problems[:most]) + more


class GraphContractError(ExportError):
    """The exported graph breaks the contract, or differs from PyTorch; ``problems`` has every violation."""

    def __init__(self, model: str, problems: Sequence[str]) -> None:
        self.model = model
        self.problems = tuple(problems)
        super().__init__(f"{model}: the exported graph was refused: {_first_of(self.problems, 3)}")


class WeightsDifferError(ExportError):
    """Weights of checkpoint, PyTorch module and graph differ in bits; ``problems`` names every such tensor."""

    def __init__(self, model: str, problems: Sequence[str]) -> None:
        self.model = model
        self.problems = tuple(problems)
        super().__init__(f"{model}: the weights are not the checkpoint's: {_first_of(self.problems, 5)}")


class AnswersDifferError(ExportError):
    """A model does not answer with the bits that its entry in the lock pins."""

    def __init__(self, model: str, problem: str) -> None:
        self.model = model
        super().__init__(f"{model}: {problem}")


class InputError(SamevecError):
    """The caller's texts or options are wrong: the parameter ``field``, and its item ``index``, from 0, if any."""

    def __init__(self, message: str, *, field: str, index: int | None = None) -> None:
        self.problem = message
        self.field = field
        self.index = index
        where = field if index is None else f"{field}[{index}]"
        super().__init__(f"{where}: {message}")


class EmptyInputError(InputError):
    """There is nothing to compute."""


class InputTooLongError(InputError):
    """An item is longer than the limit and truncation was declined."""

    def __init__(self, *, field: str, index: int | None, n_tokens: int, limit_tokens: int) -> None:
        self.n_tokens = n_tokens
        self.limit_tokens = limit_tokens
        super().__init__(
            f"{n_tokens} tokens, the limit is {limit_tokens}; shorten it or allow truncation", field=field, index=index
        )


class BatchTooLargeError(InputError):
    """More items than one request may carry."""


class OverloadedError(SamevecError):
    """The queue is full; ``retry_after_s`` says when to try again."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


class DeadlineExceededError(SamevecError):
    """The caller's deadline passed before its work was done."""

    def __init__(self, message: str = "the deadline passed before the work was done; nothing was returned") -> None:
        super().__init__(message)


class WorkCancelledError(SamevecError):
    """The caller cancelled its work; what had not run was dropped."""

    def __init__(self, message: str = "cancelled by the caller; nothing was returned") -> None:
        super().__init__(message)


class NotReadyError(SamevecError):
    """Not serving: still starting, draining, or without a working session."""


class InferenceError(SamevecError):
    """The session could not compute."""


class SessionLoadError(InferenceError):
    """A graph could not be loaded into a session."""


class ProviderUnavailableError(InferenceError):
    """The requested execution provider is not available on this machine."""

    def __init__(self, provider: str, reason: str) -> None:
        self.provider = provider
        super().__init__(f"{provider}: {reason}")


class NativeLibraryError(InferenceError):
    """The native library is not there, or cannot be used here; ``rebuild`` says whether a new build would help."""

    def __init__(self, path: Path, problem: str, *, rebuild: bool = True) -> None:
        self.path = path
        self.problem = problem
        self.rebuild = rebuild
        build = "build it (`python native/build.py` in a checkout, elsewhere reinstall samevec), or " if rebuild else ""
        super().__init__(f"{path}: {problem}; {build}use --profile portable")


class SessionRunError(InferenceError):
    """A session run failed, because memory could not be allocated where ``out_of_memory`` is set."""

    def __init__(self, message: str, *, out_of_memory: bool = False) -> None:
        self.out_of_memory = out_of_memory
        super().__init__(message)


class ItemsFailedError(SessionRunError):
    """Some items could not be computed even alone: those at ``indices``; ``causes`` has the failure of each."""

    def __init__(self, causes: Mapping[int, SessionRunError]) -> None:
        self.causes = dict(sorted(causes.items()))
        self.indices = tuple(self.causes)
        shown = ", ".join(str(i) for i in self.indices[:5])
        shown += f" and {len(self.indices) - 5} more" if len(self.indices) > 5 else ""
        first = self.causes[self.indices[0]]
        super().__init__(
            f"{len(self.indices)} item(s) could not be computed even alone: {shown}; {first}",
            out_of_memory=any(cause.out_of_memory for cause in self.causes.values()),
        )


class NonFiniteOutputError(InferenceError):
    """The session gave NaN, infinity or a zero vector for the items at ``indices``, in the caller's order."""

    def __init__(self, indices: Sequence[int], *, what: str = "not finite") -> None:
        self.indices = tuple(indices)
        shown = ", ".join(str(i) for i in self.indices[:5])
        self._problem = f"the output for item {shown} is {what}; it was withheld"
        super().__init__(f"{self._problem}. Run `samevec parity` on this machine")

    @property
    def without_advice(self) -> str:
        """The failure alone."""
        return self._problem


class ParityError(SamevecError):
    """The gate does not let this be served; ``state`` is failed, stale or missing, ``fix`` the command to run next."""

    state = "failed"

    def __init__(self, message: str, *, fix: str) -> None:
        self.fix = fix
        super().__init__(f"{message}; run: {fix}")


class ReferenceMissingError(ParityError):
    """The artifact carries no reference for the built-in cases."""

    state = "missing"


class ParityFailedError(ParityError):
    """The candidate differs from the reference by more than the tolerance."""


class ReceiptMissingError(ParityError):
    """Parity was never run for this artifact on this machine."""

    state = "missing"


class StaleReceiptError(ParityError):
    """Something the receipt was bound to has changed; ``changes`` has items like ``"onnxruntime 1.31.1 -> 1.32.0"``."""

    state = "stale"

    def __init__(self, message: str, *, changes: Sequence[str], fix: str) -> None:
        self.changes = tuple(changes)
        super().__init__(message, fix=fix)


#: Exit code of a process that ends with an exception of a class (or of its nearest listed base).
EXIT_CODES: dict[type[BaseException], int] = {
    ParityFailedError: 1,
    GraphContractError: 1,
    WeightsDifferError: 1,
    AnswersDifferError: 1,
    ConfigError: 2,
    LockError: 2,
    SourceError: 2,
    InputError: 2,
    SamevecError: 3,
}


def exit_code(error: BaseException) -> int:
    """Return an exception's exit code by :data:`EXIT_CODES`; 3 for classes that are not listed."""
    for cls in type(error).__mro__:
        if cls in EXIT_CODES:
            return EXIT_CODES[cls]
    return 3
