"""The parent's half of the protocol: a child process, one JSON object a line each way."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

__all__ = [
    "REPOSITORY",
    "Child",
    "PeerFailedError",
    "PeerUnavailableError",
    "parse_answer",
    "peer_environment",
    "without_paths",
]

REPOSITORY = Path(__file__).resolve().parents[1]
_ANSWER_TIMEOUT_S = 2400.0


class PeerFailedError(Exception):
    """A peer answered that something went wrong, or did not answer."""


class PeerUnavailableError(PeerFailedError):
    """A peer does not offer what was asked, or cannot be installed."""


def without_paths(text: str, *, limit: int = 300) -> str:
    """Return one line that says nothing about where things lie on this machine.

    Parameters
    ----------
    text : str
    limit : int
        Most characters.

    Returns
    -------
    str
        White space collapsed; of every absolute path only the last part is kept.
    """
    line = " ".join(text.split())
    return re.sub(r"(?<![\w.])/(?:[^\s/:'\"]+/)+([^\s/:'\"]*)", r"\1", line)[:limit]


def parse_answer(line: str) -> dict[str, Any]:
    """Parse one line a peer answered.

    Parameters
    ----------
    line : str
        Empty when the peer is gone.

    Returns
    -------
    dict
        What it has to tell beside ``ok``.

    Raises
    ------
    PeerUnavailableError, PeerFailedError
        It says so, or the line is no answer.
    """
    if not line:
        raise PeerFailedError("the process ended without an answer")
    try:
        answer = json.loads(line)
        if answer.pop("ok"):
            return dict(answer)
        kind = PeerUnavailableError if answer["kind"] == "unavailable" else PeerFailedError
        message = str(answer["error"])
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise PeerFailedError(f"not an answer: {line[:80]!r}") from error
    raise kind(without_paths(message))


def peer_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a peer's process: our modules, no hub, no telemetry.

    Notes
    -----
    The peers import onnxruntime without samevec, which would switch its telemetry off. The user's choice stands.
    """
    ours = {"PYTHONPATH": str(REPOSITORY), "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    return {"ORT_DISABLE_TELEMETRY": "1", **environ, **ours}


class Child:
    """A peer script running in its environment; a context manager that ends it.

    Parameters
    ----------
    python : Path
        The environment's interpreter.
    script : str
        Module under ``benchmarks.peers``.
    log : Path
        Gets whatever the libraries print.
    """

    def __init__(self, python: Path, script: str, log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log.open("wb")
        self._process = subprocess.Popen(
            [str(python), "-m", f"benchmarks.peers.{script}"],
            cwd=REPOSITORY,
            env=peer_environment(os.environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            encoding="utf-8",
        )

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def ask(self, op: str, **request: Any) -> dict[str, Any]:
        """Send a request and return the answer, see :func:`parse_answer`."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        timer = threading.Timer(_ANSWER_TIMEOUT_S, self._process.kill)
        timer.start()
        try:
            stdin.write(json.dumps({"op": op, **request}) + "\n")
            stdin.flush()
            line = stdout.readline()
        except OSError:
            line = ""
        finally:
            timer.cancel()
        if not line:
            code = self._process.wait()
            raise PeerFailedError(f"the process ended with {code} during {op} (its log is in the cache folder)")
        return parse_answer(line)

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()  # nothing to save: artifacts and conversions are written before they are answered
        self._process.communicate()
        self._log.close()
