"""A server process for tests, this file run as a script: ``live_server.py SETTINGS_JSON [SCRIPT_JSON]``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samevec.errors import SamevecError, exit_code
from samevec.server.lifecycle import ServedModel, ServerSettings, reserve_endpoints, run_server

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    options = json.loads(sys.argv[1])
    for name in ("uds", "socket", "api_key_file", "tls_cert", "tls_key"):
        if options.get(name):
            options[name] = Path(options[name])
    script = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    settings = ServerSettings(**options)
    try:
        with reserve_endpoints(settings) as endpoints:
            sys.stderr.write("loading weights\n")
            from stand_ins import Script, embedder, reranker  # noqa: PLC0415 - stands for the slow part

            models = [ServedModel(model=embedder(Script(**script))), ServedModel(model=reranker())]
            return run_server(models, settings, endpoints)
    except SamevecError as error:
        sys.stderr.write(f"samevec: {error}\n")
        return exit_code(error)


@dataclass
class Live:
    """A running server process."""

    process: subprocess.Popen[str]
    ready: str

    @property
    def url(self) -> str:
        return str(json.loads(self.ready)["url"])

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(40)


def start(settings: dict[str, Any], *, home: Path, script: dict[str, Any] | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, json.dumps({"log_format": "json", **settings})]
    return subprocess.Popen(
        [*command, json.dumps(script or {})],
        env={**os.environ, "HOME": str(home), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        umask=0,  # files must be private whatever the umask
    )


@contextmanager
def live(settings: dict[str, Any], *, home: Path, script: dict[str, Any] | None = None) -> Iterator[Live]:
    with start(settings, home=home, script=script) as process:
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                assert process.stderr is not None
                raise AssertionError(process.stderr.read())
            yield Live(process, line)
        finally:
            watchdog.cancel()
            process.kill()


def refused(settings: dict[str, Any], *, home: Path) -> tuple[int, str]:
    """Start a server that must not start; return its exit code and message."""
    with start(settings, home=home) as process:
        out, error = process.communicate(timeout=30)
        assert out == ""  # no ready line
        assert "Traceback" not in error
        assert "loading weights" not in error
        return process.returncode, error


if __name__ == "__main__":
    sys.exit(main())
