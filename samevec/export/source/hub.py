"""The only module that talks to the hub, always by a full commit, and that knows its exceptions."""

from __future__ import annotations

import errno
import hashlib
import logging
import tempfile
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from samevec.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["Hub", "HubFile", "HubFiles", "partial_files"]

# Advice for downloads; a list of files has no other source.
_OR_FROM = " or pass a snapshot folder with --from DIR"
# Interval between looks at a download's bytes on disk.
_POLL_S = 0.25
_LIST_TIMEOUT_S = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class HubFile:
    """One file of a repository at a commit."""

    path: str
    size_bytes: int
    sha256: str | None  # None for files kept in git itself: the hub knows only their git hash


class HubFiles(Protocol):
    """The hub's part in ``samevec lock update``."""

    def list_files(self, repo: str, revision: str) -> Sequence[HubFile]:
        """Return every file of a repository at a commit."""
        ...

    def sha256(self, repo: str, revision: str, path: str) -> str:
        """Return the sha256 of a file's bytes."""
        ...


class Hub:
    """The hub, through huggingface_hub and its settings (``HF_ENDPOINT``, ``HF_HUB_OFFLINE``, its token)."""

    def __init__(self, endpoint: str | None = None) -> None:
        self._endpoint = endpoint

    def list_files(self, repo: str, revision: str) -> Sequence[HubFile]:
        """Return every file of ``OWNER/NAME`` at a commit; SourceError if the hub lacks it or does not answer."""
        with _hub_errors(repo, revision) as hub, _quiet():
            api = hub.HfApi(endpoint=self._endpoint)
            # Without a timeout it waits for ever.
            info = api.model_info(repo, revision=revision, files_metadata=True, timeout=_LIST_TIMEOUT_S)
        if info.sha != revision:
            raise SourceError(f"{repo}: asked for revision {revision}, the hub answered with {info.sha}")
        return [
            HubFile(
                path=sibling.rfilename,
                size_bytes=sibling.lfs.size if sibling.lfs is not None else sibling.size or 0,
                sha256=sibling.lfs.sha256 if sibling.lfs is not None else None,
            )
            for sibling in info.siblings or ()
        ]

    def sha256(self, repo: str, revision: str, path: str) -> str:
        """Return the sha256 of a file's bytes by downloading it: for the small files kept in git itself."""
        with tempfile.TemporaryDirectory(prefix="samevec-hub-") as directory:
            self.download(repo, revision, path, Path(directory))
            return hashlib.sha256((Path(directory) / path).read_bytes()).hexdigest()

    def download(
        self, repo: str, revision: str, path: str, directory: Path, *, on_bytes: Callable[[float], None] | None = None
    ) -> None:
        """Download one file into ``directory/path``, resuming an earlier attempt; SourceError if it is not available.

        The directory also gets huggingface_hub's notes and partial files, in ``.cache``. `on_bytes` is called, perhaps
        from another thread, with the number of bytes that arrived since the last call.
        """
        with (
            _hub_errors(repo, revision, path, other_way=_OR_FROM) as hub,
            _quiet(),
            _watched(directory, path, on_bytes),
        ):
            hub.hf_hub_download(repo, path, revision=revision, local_dir=directory, endpoint=self._endpoint)


@contextmanager
def _hub_errors(repo: str, revision: str, path: str = "", *, other_way: str = "") -> Iterator[Any]:
    """Yield huggingface_hub, and turn any of its failures into one clear sentence."""
    try:
        import huggingface_hub  # noqa: PLC0415 - an extra, and slow to import
    except ImportError as error:
        raise SourceError("the hub needs huggingface-hub; run: pip install 'samevec[export]'") from error
    what = f"{repo} at {revision[:12]}" + (f": {path}" if path else "")
    try:
        yield huggingface_hub
    # requests and the hub raise OSErrors, its validators ValueErrors, its native transport RuntimeErrors too.
    except (OSError, RuntimeError, ValueError) as error:
        raise SourceError(f"{what}: {_sentence(error, other_way)}") from error


def _sentence(error: BaseException, other_way: str) -> str:
    """Explain an exception of huggingface_hub, or of its dependencies, to the user."""
    from huggingface_hub import errors  # noqa: PLC0415

    # This class hides the first failure, which is its cause.
    if isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__ is not None:
        return _sentence(error.__cause__, other_way)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full; free space or choose another SAMEVEC_HOME, then run it again: it goes on where it was"
    for classes, sentence in _sentences(other_way):
        if isinstance(error, classes):
            return sentence
    return _other_sentence(error, other_way)


def _sentences(other_way: str) -> tuple[tuple[tuple[type[BaseException], ...], str], ...]:
    """Return the meaning of each class; the first match wins, so subclasses stand before their bases."""
    from huggingface_hub import errors  # noqa: PLC0415
    from requests import exceptions as http  # noqa: PLC0415

    return (
        ((errors.OfflineModeIsEnabled,), f"HF_HUB_OFFLINE forbids asking the hub; unset it{other_way}"),
        ((errors.RevisionNotFoundError,), f"the hub has no such revision; check the revision{other_way}"),
        ((errors.LocalEntryNotFoundError,), f"the hub cannot be reached; check the network{other_way}"),
        ((errors.EntryNotFoundError,), f"the hub has no such file at this revision; check the revision{other_way}"),
        ((errors.GatedRepoError,), f"gated; accept its terms on the hub and log in with `hf auth login`{other_way}"),
        ((errors.RepositoryNotFoundError,), f"not on the hub, or private; log in with `hf auth login`{other_way}"),
        ((errors.DisabledRepoError,), f"disabled on the hub; choose another model{other_way}"),
        ((http.Timeout, TimeoutError), f"the hub did not answer in time; run it again{other_way}"),
        ((http.SSLError, http.ProxyError), f"no secure way to the hub; check proxy and certificates{other_way}"),
        ((http.ChunkedEncodingError,), "the connection broke off; run it again: it goes on where it was"),
        ((http.ConnectionError, ConnectionError), f"the hub cannot be reached; check the network{other_way}"),
    )


def _other_sentence(error: BaseException, other_way: str) -> str:
    response = getattr(error, "response", None)
    if response is not None:
        return f"the hub answered {response.status_code}; run it again later{other_way}"
    if "Consistency check failed" in str(error):
        return "the file arrived truncated; run it again: it goes on where it was"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror} ({error.filename})" if error.filename else error.strerror
    reason = str(error).strip().splitlines()
    return f"the download failed ({type(error).__name__}{': ' + reason[0] if reason else ''}); run it again{other_way}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep huggingface_hub from drawing bars and logging each retry, which samevec reports itself."""
    from huggingface_hub import constants  # noqa: PLC0415
    from huggingface_hub.utils import logging as hub_logging  # noqa: PLC0415
    from huggingface_hub.utils.tqdm import (  # noqa: PLC0415
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    verbosity = hub_logging.get_verbosity()
    hub_logging.set_verbosity(max(verbosity, logging.ERROR))
    # Where the user's environment decides about bars, these functions only warn.
    switch = constants.HF_HUB_DISABLE_PROGRESS_BARS is None and not are_progress_bars_disabled()
    if switch:
        disable_progress_bars()
    try:
        yield
    finally:
        hub_logging.set_verbosity(verbosity)
        if switch:
            enable_progress_bars()


@contextmanager
def _watched(directory: Path, path: str, on_bytes: Callable[[float], None] | None) -> Iterator[None]:
    """Report the bytes a download has on disk: huggingface_hub's own hook does not cover all its transports."""
    if on_bytes is None:
        yield
        return
    done = threading.Event()
    reported = 0

    def report() -> None:
        nonlocal reported
        n_bytes = max([_size(directory / path), *map(_size, partial_files(directory))])
        if n_bytes > reported:
            on_bytes(n_bytes - reported)
            reported = n_bytes

    def watch() -> None:
        while not done.wait(_POLL_S):
            report()

    watcher = threading.Thread(target=watch, name="samevec-download-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
        report()


def partial_files(directory: Path) -> list[Path]:
    """Return the partial files that huggingface_hub keeps below a download folder for resuming."""
    return list((directory / ".cache").rglob("*.incomplete"))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
