"""Addresses the server listens at, taken before anything slow happens and given back at the end."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from samevec.errors import ConfigError, NotReadyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["BACKLOG", "Endpoints", "UnixEndpoint", "bind_tcp", "bind_unix", "http_url"]

#: Connections that may wait to be accepted.
BACKLOG = 1024
# Bytes of sun_path without its end (unix(7); 104 on the BSDs and macOS).
_MAX_PATH_BYTES = 107 if sys.platform == "linux" else 103
_PROBE_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class UnixEndpoint:
    """A listening Unix socket and the file it made.

    Attributes
    ----------
    sock : socket.socket
    path : Path
    inode : int
        Of the file, so that a successor's file is never taken for ours.
    """

    sock: socket.socket
    path: Path
    inode: int

    def close(self) -> None:
        """Stop listening and remove the file if it is still ours."""
        self.sock.close()
        with contextlib.suppress(OSError):
            if os.lstat(self.path).st_ino == self.inode:
                self.path.unlink()


@dataclass(slots=True)
class Endpoints:
    """What is listened at; a context manager that gives everything back.

    Connections made before the server runs wait in the backlog: nothing is answered, and nothing refused, while weights
    load.

    Attributes
    ----------
    http : socket.socket
    url : str
        Where HTTP clients reach it; for a Unix socket ``http+unix://PATH``.
    frames : list of socket.socket
        Sockets of the framed protocol.
    paths : list of Path
        Their files.
    """

    http: socket.socket
    url: str
    frames: list[socket.socket] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)
    _cleanups: list[Callable[[], None]] = field(default_factory=list)

    def add_frames(self, unix: UnixEndpoint) -> None:
        """Add a socket of the framed protocol."""
        self.frames.append(unix.sock)
        self.paths.append(unix.path)
        self.add_cleanup(unix.close)

    def add_cleanup(self, cleanup: Callable[[], None]) -> None:
        """Register what :meth:`close` calls, last first."""
        self._cleanups.append(cleanup)

    def close(self) -> None:
        """Close the sockets and remove files that are ours; harmless when repeated."""
        while self._cleanups:
            self._cleanups.pop()()

    def __enter__(self) -> Endpoints:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def bind_tcp(host: str, port: int) -> socket.socket:
    """Bind and listen at a TCP address.

    Parameters
    ----------
    host : str
        A name or an IPv4 or IPv6 address.
    port : int
        0 takes a free one.

    Raises
    ------
    NotReadyError
        The port is in use.
    ConfigError
        The address is none of this machine, or not permitted.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"--host {host}: {error.strerror or error}") from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        # Listening is what reserves: two sockets with SO_REUSEADDR may be bound to one port, but only one listens.
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        busy = error.errno == errno.EADDRINUSE
        if busy:
            raise NotReadyError(
                f"{host}:{port} is in use by another process; stop it or choose another --port"
            ) from error
        raise ConfigError(f"{host}:{port}: {error.strerror or error}") from error
    return sock


def http_url(sock: socket.socket, host: str) -> str:
    """Return where a client of this machine reaches a TCP socket bound to a host."""
    shown = "127.0.0.1" if host in ("0.0.0.0", "") else host  # noqa: S104 - compared with, not bound to
    return f"http://[{shown}]:{sock.getsockname()[1]}" if ":" in shown else f"http://{shown}:{sock.getsockname()[1]}"


def bind_unix(path: Path) -> UnixEndpoint:
    """Bind and listen at a Unix socket that only its owner may use.

    Parameters
    ----------
    path : Path
        A socket left by a dead process is replaced.

    Returns
    -------
    UnixEndpoint

    Raises
    ------
    NotReadyError
        A live process listens there.
    ConfigError
        Something that is no socket is there (it stays), the path is too long, or the folder does not permit it.
    """
    n_bytes = len(os.fsencode(path))
    if n_bytes > _MAX_PATH_BYTES:
        raise ConfigError(
            f"{path}: {n_bytes} bytes long, a socket's path may have {_MAX_PATH_BYTES}; choose a shorter one"
        )
    try:
        with _locked_folder(path.parent):
            _remove_stale(path)
            return _bind_owner_only(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot listen there: {error.strerror or error}") from error


@contextlib.contextmanager
def _locked_folder(folder: Path) -> Iterator[None]:
    """Hold a lock on a folder: two starters that both find a stale socket must not remove each other's new one."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_stale(path: Path) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        kind = "a symbolic link" if stat.S_ISLNK(mode) else "no socket"
        raise ConfigError(f"{path}: there is already something there, and it is {kind}; it was left as it is")
    if _is_live(path):
        raise NotReadyError(f"{path}: another process listens there; stop it or choose another path")
    path.unlink()


def _is_live(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True  # a full backlog, or no permission: in use
    return True


def _bind_owner_only(path: Path) -> UnixEndpoint:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # The mode must be right from the first instant: chmod after bind would leave a moment for others to connect.
    previous = os.umask(0o177)
    try:
        sock.bind(str(path))
    except OSError:
        sock.close()
        raise
    finally:
        os.umask(previous)
    sock.listen(BACKLOG)
    return UnixEndpoint(sock, path, os.lstat(path).st_ino)
