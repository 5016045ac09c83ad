"""Runs a command where nobody answers and notes which names it asks for.

This file run as a script, in network and mount namespaces of its own (`way_in`)::

    quiet_room.py FOLDER LIMIT_S COMMAND...

The namespace has a loopback and nothing else. What a library wants from outside begins with a name: here
``/etc/resolv.conf`` leads to a socket of this process, which hears every question and answers none. That needs no
tracer, and hears all threads and children. The command ends by itself, at the first question, or at the limit.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

#: Namespaces as root of a user namespace, or as root; the user's ids stay what they are in the files.
_WAYS = (["unshare", "--map-root-user", "--net", "--mount"], ["unshare", "--net", "--mount"])
_ASK = "import socket; socket.getaddrinfo('somewhere.example', 443)"
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1


@dataclass(frozen=True)
class Visit:
    """What a command did: exit code, names it asked for, and when it first asked, in seconds since its start."""

    code: int
    asked: list[str]
    after_s: float
    err: str


def way_in(folder: Path) -> list[str] | None:
    """Return what starts a command in a room that hears; None where namespaces are not permitted, or do not hear."""
    for way in _WAYS if sys.platform == "linux" else ():
        try:
            command, environ = [sys.executable, "-c", _ASK], dict(os.environ)
            asked = visit(way, command, folder=folder, cwd=folder, environ=environ, limit_s=20).asked
        except (OSError, ValueError):
            continue
        if asked == ["somewhere.example"]:
            return way
    return None


def visit(
    way: list[str] | None, command: list[str], *, folder: Path, cwd: Path, environ: dict[str, str], limit_s: float
) -> Visit:
    """Run a command in the room, or without one. ``folder`` is for the room's own files."""
    room = [] if way is None else [*way, sys.executable, __file__, str(folder), str(limit_s)]
    done = subprocess.run(
        [*room, *command], cwd=cwd, env=environ, capture_output=True, text=True, timeout=limit_s + 60, check=False
    )
    if way is None:
        return Visit(done.returncode, [], 0.0, done.stderr)
    return Visit(**json.loads(done.stdout), err=done.stderr)


def _furnish(folder: Path) -> socket.socket:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
    ear = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    ear.bind(("127.0.0.1", 53))
    for name, text in (("resolv.conf", "nameserver 127.0.0.1\n"), ("nsswitch.conf", "hosts: files dns\n")):
        (folder / name).write_text(text)
        if Path("/etc", name).exists():
            subprocess.run(["mount", "--bind", str(folder / name), f"/etc/{name}"], check=True)
    return ear


def _name(question: bytes) -> str:
    """The name in a DNS message: labels after the header of 12 bytes, each behind its length."""
    labels, at = [], 12
    while question[at]:
        labels.append(question[at + 1 : at + 1 + question[at]].decode("ascii", "replace"))
        at += 1 + question[at]
    return ".".join(labels)


def main() -> None:
    folder, limit_s, *command = sys.argv[1:]
    ear = _furnish(Path(folder))
    ear.settimeout(0.05)
    asked: list[str] = []
    start_s = time.monotonic()
    with subprocess.Popen(command, stdout=sys.stderr, start_new_session=True) as process:
        try:
            while process.poll() is None and not asked and time.monotonic() < start_s + float(limit_s):
                try:
                    asked.append(_name(ear.recv(512)))
                except TimeoutError:
                    continue
            after_s = time.monotonic() - start_s
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # with what it started
    ear.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        asked += [] if asked else [_name(ear.recv(512))]  # a question asked as it ended
    print(json.dumps({"code": process.returncode, "asked": asked, "after_s": after_s}))


if __name__ == "__main__":
    main()
