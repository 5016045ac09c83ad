"""Which code judged and ran: a digest that reports carry beside those of lock, artifact and cases."""

from __future__ import annotations

import functools
from pathlib import Path

from samevec._version import __version__
from samevec.digest import digest_json, sha256_file

__all__ = ["driver_digest"]

_ROOMS = ("parity", "runtime")


@functools.cache
def driver_digest(package: Path | None = None) -> str:
    """Return the digest of samevec's version and of every source file of ``parity`` and ``runtime``.

    Parameters
    ----------
    package : Path, optional
        Folder of the package; the running one when not given.

    Returns
    -------
    str
        ``sha256:...`` of the canonical JSON of version, file names and their sha256.
    """
    root = package or Path(__file__).resolve().parents[1]
    paths = sorted(path for room in _ROOMS for path in (root / room).rglob("*.py"))
    files = {path.relative_to(root).as_posix(): sha256_file(path) for path in paths}
    return digest_json({"version": __version__, "files": files})
