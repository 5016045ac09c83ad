"""Which code computes and judges: a digest of every source file of it, for receipts and reports."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from samevec.digest import digest_json
from samevec.errors import ConfigError

__all__ = ["code_digest", "code_files"]

# What neither computes nor judges: words and pages, the command line, ways over a network, and the export, whose work
# the artifact's digest binds. Everything else is bound, a new room too, until it is named here.
_APART = (
    "cli/",
    "client.py",
    "export/",
    "hints.py",
    "parity/report/",
    "progress.py",
    "server/endpoints.py",
    "server/http/",
    "server/lifecycle.py",
    "server/settings.py",
    "server/socket/",
    "server/telemetry/",
)


@functools.cache
def code_files(package: Path | None = None) -> dict[str, str]:
    r"""Return the sha256 of every source file that computes or judges.

    Parameters
    ----------
    package : Path, optional
        Folder of the package; the running one when not given.

    Returns
    -------
    dict of str to str
        64 hex digits by the file's path in the package. The same for a checkout and for an installed wheel: line ends
        count as ``\n``, and nothing but ``*.py`` is read.

    Raises
    ------
    ConfigError
        The package was installed without its sources.
    """
    root = package or Path(__file__).resolve().parents[1]
    names = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py"))
    files = {name: _sha256(root / name) for name in names if not name.startswith(_APART)}
    if not files:
        raise ConfigError(f"{root}: holds no sources, to which receipts are bound; install samevec with its .py files")
    return files


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes().replace(b"\r\n", b"\n")).hexdigest()


def code_digest(package: Path | None = None) -> str:
    """Return ``sha256:...`` of the canonical JSON of :func:`code_files`."""
    return digest_json(code_files(package))
