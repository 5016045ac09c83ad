"""Settings from outside: the only module that reads ``os.environ``, and the one variable it sets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

from samevec.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

__all__ = [
    "ENV_PREFIX",
    "debug_requested",
    "default_home",
    "default_snapshots",
    "default_token_budget",
    "silence_onnxruntime",
]

#: Every flag has an environment variable: this, then the flag's name in capitals.
ENV_PREFIX = "SAMEVEC"


def default_home(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of artifacts: ``$SAMEVEC_HOME``, else the platform's user data folder."""
    given = environ.get(f"{ENV_PREFIX}_HOME")
    return Path(given).expanduser() if given else platformdirs.user_data_path("samevec", appauthor=False)


def default_snapshots(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return ``$SAMEVEC_SNAPSHOTS``, a folder of local checkpoint files, or None."""
    given = environ.get(f"{ENV_PREFIX}_SNAPSHOTS")
    return Path(given).expanduser() if given else None


def default_token_budget(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return ``$SAMEVEC_TOKEN_BUDGET``, the padded tokens of one microbatch, or None; ConfigError if not 1 or more."""
    return _whole_number(environ, "TOKEN_BUDGET", least=1)


def _whole_number(environ: Mapping[str, str], name: str, *, least: int) -> int | None:
    given = environ.get(f"{ENV_PREFIX}_{name}")
    if not given:
        return None
    if not given.isdecimal() or int(given) < least:
        raise ConfigError(f"{ENV_PREFIX}_{name} is {given!r}; a whole number of at least {least} is needed")
    return int(given)


def debug_requested(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether ``$SAMEVEC_DEBUG`` asks for tracebacks."""
    return environ.get(f"{ENV_PREFIX}_DEBUG", "") not in ("", "0")


def silence_onnxruntime(environ: MutableMapping[str, str] = os.environ) -> None:
    """Switch ONNX Runtime's telemetry off, unless ``ORT_DISABLE_TELEMETRY`` is set already.

    onnxruntime reads the variable when it is imported. Without it, releases from 1.29 on write a database and a device
    id under ``~/.cache/Microsoft`` and ``.ses`` under ``TMPDIR`` (Linux, macOS), and look up a collector.
    """
    environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
