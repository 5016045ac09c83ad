"""The framed protocol without Unix sockets: loopback TCP, a token before the first frame, port and token in files.

References
----------
truememory 0.7.6.2: ``model_server.py`` (token before port, both owner-only and renamed into place, the token compared
in constant time, silence for who has none) and ``model_client.py`` (the files' names and contents).
"""

from __future__ import annotations

import contextlib
import getpass
import logging
import os
import secrets
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from samevec.server.endpoints import bind_tcp

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["TOKEN_BYTES", "LoopbackEndpoint", "bind_loopback", "publish_loopback"]

_log = logging.getLogger(__name__)

TOKEN_BYTES = 32
_HOST = "127.0.0.1"
PORT_NAME, TOKEN_NAME = "model_server.port", "model_server.token"


@dataclass(frozen=True, slots=True)
class LoopbackEndpoint:
    """A listening TCP socket and what clients must send first.

    Attributes
    ----------
    sock : socket.socket
    token : bytes
        32 random bytes, new at every start.
    """

    sock: socket.socket
    token: bytes

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.sock.getsockname()[1])

    @property
    def address(self) -> str:
        """For people: ``127.0.0.1:PORT``."""
        return f"{_HOST}:{self.port}"


def bind_loopback() -> LoopbackEndpoint:
    """Listen at a free port that only this machine reaches.

    Raises
    ------
    ConfigError
        There is no loopback.
    """
    return LoopbackEndpoint(bind_tcp(_HOST, 0), secrets.token_bytes(TOKEN_BYTES))


def publish_loopback(endpoint: LoopbackEndpoint, folder: Path) -> Callable[[], None]:
    """Write port and token where clients look.

    Parameters
    ----------
    endpoint : LoopbackEndpoint
    folder : Path
        Exists; the caller holds its lock.

    Returns
    -------
    callable
        Removes the files again, where they are still these.

    Raises
    ------
    OSError
        A file cannot be written.
    """
    # The port last: a client that finds it takes the token for written.
    files = {folder / TOKEN_NAME: endpoint.token.hex(), folder / PORT_NAME: str(endpoint.port)}
    for path, text in files.items():
        _write_private(path, text)

    def remove() -> None:
        for path, text in reversed(files.items()):
            with contextlib.suppress(OSError):
                if path.read_text(encoding="ascii") == text:
                    path.unlink()

    return remove


def _write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read, from its first byte on."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600)
    try:
        if sys.platform == "win32":
            _keep_to_owner(temporary)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _keep_to_owner(path: Path) -> None:
    """Take everyone but the owner out of a file's access list: modes say nothing on Windows."""
    grant = ["icacls", str(path), "/inheritance:r", "/grant:r", f"{getpass.getuser()}:F"]
    try:
        subprocess.run(grant, check=True, capture_output=True, timeout=10)
    except (OSError, subprocess.SubprocessError) as error:
        _log.warning("%s: other users of this machine may be able to read it: %s", path, error)
