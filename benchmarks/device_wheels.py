"""Wheels that a machine lacks, carried whole or in parts: unpacked beside what is installed, never installed."""

from __future__ import annotations

import shutil
import zipfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["join_parts", "unpack_wheels"]

_PART = ".whl.part-"


def join_parts(source: Path, scratch: Path) -> list[Path]:
    """Return every wheel of a folder, those that were cut into parts joined.

    Parameters
    ----------
    source : Path
        Holds ``X.whl``, or ``X.whl.part-aa``, ``X.whl.part-ab``, ... in the order of their names.
    scratch : Path
        Gets the joined wheels.
    """
    wheels = sorted(source.glob("*.whl"))
    names = sorted({path.name.partition(_PART)[0] for path in source.glob(f"*{_PART}*")})
    for name in names:
        joined = scratch / f"{name}.whl"
        with joined.open("wb") as file:
            for part in sorted(source.glob(f"{name}{_PART}*")):
                with part.open("rb") as piece:
                    shutil.copyfileobj(piece, file)
        wheels.append(joined)
    return wheels


def unpack_wheels(source: Path, scratch: Path) -> Path:
    """Unpack every wheel of a folder into one folder for ``PYTHONPATH``, and return that.

    Raises
    ------
    SystemExit
        There is no wheel, or one is not whole: a part is missing.
    """
    site = scratch / "site"
    site.mkdir(parents=True, exist_ok=True)
    wheels = join_parts(source, scratch)
    if not wheels:
        raise SystemExit(f"{source}: holds no wheel and no part of one")
    for wheel in wheels:
        try:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(site)
        except zipfile.BadZipFile as error:
            raise SystemExit(f"{wheel.name}: not a whole wheel ({error}); is a part missing in {source}?") from error
        if wheel.parent == scratch:
            wheel.unlink()
    return site
