"""``python -m samevec``, and the command ``samevec``."""

from __future__ import annotations

import contextlib
import os
import sys

from samevec.cli.main import main as run_command
from samevec.machine import has_glibc
from samevec.settings import server_environment

__all__ = ["main"]


def main() -> None:
    """Run the command line; a server in an interpreter that takes its memory from the C library."""
    environment = server_environment(sys.argv[1:], is_glibc=has_glibc())
    if environment is not None and sys.executable:
        with contextlib.suppress(OSError):  # then it serves as it is
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606 - this command
    run_command()


if __name__ == "__main__":
    main()
