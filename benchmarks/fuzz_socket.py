"""Malformed frames at a live toy server: ``python -m benchmarks.fuzz_socket --frames 100000``.

Seeded: mutated and valid JSON, wrong types, deep nesting, invalid UTF-8, empty frames, lengths that promise too much,
frames broken off, half-closes, connections cut with a reset, several frames at once, stalled senders held open beside
it all. Every connection must answer or end within a bound, known requests must get the same bytes as at the start, no
error may be the server's own, its log must hold no traceback, and its memory and descriptors must stay where they were.
The toy models compute, so nothing here says anything about speed.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.memory import read_memory
from benchmarks.protocol import REPOSITORY
from benchmarks.results import machine_record
from benchmarks.served import write_result
from benchmarks.setup import say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = ["Outcome", "fuzz", "process_facts"]

_HEADER = struct.Struct(">I")
_MAX_FRAME_BYTES = 10 << 20
# An answer of the toy server takes milliseconds; this long without one is a hang.
_PATIENCE_S = 30.0
#: Error types that say the client is at fault, or came too late or at a busy time. Any other is the server's own.
_CLIENT_ERRORS = {"invalid_request_error", "deadline_exceeded", "overloaded"}
_MOST_FAULTS = 20
# The server looks every second whether it rests, and gives memory back the second time.
_REST_S = 4.0

#: Requests whose answers are known from the start.
REQUESTS: tuple[dict[str, Any], ...] = (
    {"op": "ping"},
    {"op": "embed", "texts": ["canary"], "tier": "base"},
    {"op": "embed", "texts": ["", "a", "Ω ≈ 3,14"], "tier": "pro", "dimensions": 32, "prompt_name": "query"},
    {"op": "rerank", "pairs": [["q", "d"], ["", "x y z"]], "model_name": None, "batch_size": 1},
)
_SEEDS = (
    *REQUESTS,
    {"op": "embed", "texts": ["a"], "deadline": 4e9, "protocol": 1},
    {"op": "rerank", "pairs": [["q", "d"]], "model_name": "toy-modernbert-reranker"},
)
_SPLICES = (b"[", b"{", b'"', b"1e999", b"null", b"\\u0000", b"\\ud800", b",", b":", b"}]", b"-", b"\xc3\x28", b"\x00")
_KEYS = ("op", "texts", "tier", "pairs", "model_name", "batch_size", "dimensions", "prompt_name", "deadline", "x")


@dataclass
class Outcome:
    """What became of the frames; filled by several threads.

    Attributes
    ----------
    frames : Counter
        Sent, by kind.
    answers : Counter
        ``ok``, error types, and ``ended`` for connections that ended without an answer, as they were asked to.
    faults : list of str
        What must not happen; the first of them.
    n_faults : int
    connections : int
    """

    frames: collections.Counter[str] = field(default_factory=collections.Counter)
    answers: collections.Counter[str] = field(default_factory=collections.Counter)
    faults: list[str] = field(default_factory=list)
    n_faults: int = 0
    connections: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def sent(self, kind: str, n_frames: int) -> None:
        """Count frames of a kind."""
        with self._lock:
            self.frames[kind] += n_frames

    def connected(self) -> None:
        """Count a connection."""
        with self._lock:
            self.connections += 1

    def answered(self, record: Mapping[str, Any]) -> None:
        """Count an answer, and say what is wrong with it."""
        ok, kind = record.get("ok"), record.get("type")
        with self._lock:
            self.answers["ok" if ok is True else str(kind)] += 1
        if record.get("protocol") != 1 or not (ok is True or (ok is False and kind in _CLIENT_ERRORS)):
            self.fault(f"answered {json.dumps(record)[:300]}")

    def ended(self) -> None:
        """Count a connection that ended as it should."""
        with self._lock:
            self.answers["ended"] += 1

    def fault(self, words: str) -> None:
        """Note what must not happen."""
        with self._lock:
            self.n_faults += 1
            if len(self.faults) < _MOST_FAULTS:
                self.faults.append(words)

    def to_dict(self) -> dict[str, Any]:
        """Return what is written down."""
        return {
            "frames": sum(self.frames.values()),
            "frames_by_kind": dict(sorted(self.frames.items())),
            "connections": self.connections,
            "answers": dict(sorted(self.answers.items())),
            "faults": self.n_faults,
            "first_faults": self.faults,
        }


class Wire:
    """A connection that is never waited on for ever.

    Parameters
    ----------
    path : Path
    patience_s : float
        For each operation.
    """

    def __init__(self, path: Path, patience_s: float = _PATIENCE_S) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(patience_s)
        try:
            self.sock.connect(str(path))
        except OSError:
            self.sock.close()
            raise

    def send(self, data: bytes) -> None:
        """Send bytes; a server that has closed already is no fault."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self.sock.sendall(data)

    def answer(self) -> dict[str, Any]:
        """Read one answer; EOFError when the connection ended."""
        (n_bytes,) = _HEADER.unpack(self._exactly(_HEADER.size))
        record: dict[str, Any] = json.loads(self._exactly(n_bytes))
        return record

    def _exactly(self, n_bytes: int) -> bytes:
        received = bytearray()
        while len(received) < n_bytes:
            chunk = self.sock.recv(n_bytes - len(received))
            if not chunk:
                raise EOFError
            received += chunk
        return bytes(received)

    def reset(self) -> None:
        """Close without any farewell."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


def framed(body: bytes) -> bytes:
    """Return a frame of a body."""
    return _HEADER.pack(len(body)) + body


def mutated(rng: random.Random) -> bytes:
    """Return a request with up to four bytes or pieces changed, removed or put in."""
    body = bytearray(json.dumps(rng.choice(_SEEDS)).encode())
    for _ in range(rng.randrange(1, 5)):
        how, at = rng.randrange(3), rng.randrange(len(body))
        if how == 0:
            body[at] = rng.randrange(256)
        elif how == 1:
            del body[at : at + rng.randrange(1, 9)]
        else:
            body[at:at] = rng.choice((*_SPLICES, rng.randbytes(3)))
        body = body or bytearray(b" ")
    return bytes(body)


def anything(rng: random.Random, depth: int = 0) -> Any:
    """Return any JSON value, small."""
    if depth < 3 and rng.random() < 0.4:
        if rng.random() < 0.5:
            return [anything(rng, depth + 1) for _ in range(rng.randrange(4))]
        return {rng.choice(_KEYS): anything(rng, depth + 1) for _ in range(rng.randrange(4))}
    return rng.choice((None, True, False, 0, -1, 1, 2**63, 10**30, 1.5, 1e300, "", "a", "base", "ping", "\x00", "é"))


def wrong_types(rng: random.Random) -> bytes:
    """Return a request in which keys hold anything."""
    request = anything(rng) if rng.random() < 0.2 else dict(rng.choice(_SEEDS))
    if isinstance(request, dict):
        for key in rng.sample(_KEYS, rng.randrange(1, 4)):
            request[key] = anything(rng)
    return json.dumps(request).encode()


def deep(rng: random.Random) -> bytes:
    """Return JSON nested deeper than any parser likes, whole or not."""
    n = rng.choice((100, 1_000, 1_025, 10_000, 100_000))
    if rng.random() < 0.5:
        return b"[" * n + (b"]" * n if rng.random() < 0.5 else b"")
    start = b'{"op":"embed","texts":' if rng.random() < 0.5 else b""
    return start + b'{"a":' * n + b"1" + (b"}" * n if rng.random() < 0.5 else b"")


def not_utf8(rng: random.Random) -> bytes:
    """Return random bytes, or a request around some."""
    noise = rng.randbytes(rng.randrange(1, 2000))
    return noise if rng.random() < 0.5 else b'{"op":"embed","texts":["' + noise + b'"]}'


class _Client:
    """One thread's share of the frames.

    Parameters
    ----------
    path : Path
    rng : random.Random
    known : sequence of (bytes, dict)
        Requests and the answers they must get.
    outcome : Outcome
    """

    def __init__(
        self, path: Path, rng: random.Random, known: Sequence[tuple[bytes, dict[str, Any]]], outcome: Outcome
    ) -> None:
        self.path = path
        self.rng = rng
        self.known = known
        self.outcome = outcome
        self.wire: Wire | None = None
        self.kinds: dict[str, Callable[[Wire], int]] = {
            "valid": self.valid,
            "mutated": lambda wire: self.body(wire, mutated(rng)),
            "wrong types": lambda wire: self.body(wire, wrong_types(rng)),
            "deep": lambda wire: self.body(wire, deep(rng)),
            "not UTF-8": lambda wire: self.body(wire, not_utf8(rng)),
            "empty": lambda wire: self.body(wire, b""),
            "in pieces": self.in_pieces,
            "several at once": self.several,
            "too long": self.too_long,
            "broken off, half-closed": self.half_closed,
            "broken off, closed": self.cut,
            "unread": self.unread,
        }
        self.weights = (20, 25, 20, 2, 8, 4, 4, 5, 4, 4, 2, 2)

    def run(self, n_frames: int) -> None:
        """Send about so many frames."""
        left = n_frames
        while left > 0:
            (kind,) = self.rng.choices(tuple(self.kinds), self.weights)
            try:
                wire = self.connection()
            except OSError as error:
                self.outcome.fault(f"no connection any more: {error!r}")
                return
            n_sent = self.exchange(kind, wire)
            self.outcome.sent(kind, n_sent)
            left -= n_sent
        self.close()

    def connection(self) -> Wire:
        """Return the open connection, or now and then a new one."""
        if self.wire is None or self.rng.random() < 0.05:
            self.close()
            self.wire = Wire(self.path)
            self.outcome.connected()
        return self.wire

    def exchange(self, kind: str, wire: Wire) -> int:
        """Send frames of a kind, look at what comes, and return how many they were."""
        try:
            return self.kinds[kind](wire)
        except TimeoutError:
            self.outcome.fault(f"{kind}: nothing came within {_PATIENCE_S:g} s")
        except (EOFError, OSError, ValueError) as error:
            self.outcome.fault(f"{kind}: {error!r} instead of an answer")
        self.close()
        return 1

    def close(self) -> None:
        """Let the connection go."""
        if self.wire is not None:
            self.wire.sock.close()
        self.wire = None

    def expect(self, wire: Wire, expected: dict[str, Any]) -> None:
        """Read an answer that is known."""
        record = wire.answer()
        self.outcome.answered(record)
        if record != expected:
            self.outcome.fault(f"another answer than at the start: {json.dumps(record)[:300]}")

    def valid(self, wire: Wire) -> int:
        request, expected = self.rng.choice(self.known)
        wire.send(framed(request))
        self.expect(wire, expected)
        return 1

    def body(self, wire: Wire, body: bytes) -> int:
        wire.send(framed(body))
        self.outcome.answered(wire.answer())
        return 1

    def in_pieces(self, wire: Wire) -> int:
        request, expected = self.rng.choice(self.known)
        data = framed(request)
        while data:
            n = self.rng.randrange(1, 12)
            wire.send(data[:n])
            data = data[n:]
        self.expect(wire, expected)
        return 1

    def several(self, wire: Wire) -> int:
        chosen = [self.rng.choice(self.known) for _ in range(self.rng.randrange(2, 12))]
        wire.send(b"".join(framed(request) for request, _ in chosen))
        half_close = self.rng.random() < 0.5
        if half_close:
            wire.sock.shutdown(socket.SHUT_WR)
        for _, expected in chosen:
            self.expect(wire, expected)
        if half_close:
            self.expect_end(wire)
        return len(chosen)

    def expect_end(self, wire: Wire) -> None:
        if wire.sock.recv(1):
            self.outcome.fault("more than was asked for")
        self.outcome.ended()
        self.close()

    def too_long(self, wire: Wire) -> int:
        n_bytes = self.rng.choice((_MAX_FRAME_BYTES + 1, 2**31, 2**32 - 1, self.rng.randrange(2**24, 2**32)))
        wire.send(_HEADER.pack(n_bytes) + self.rng.randbytes(self.rng.choice((0, 1, 1000, 70_000))))
        self.outcome.answered(wire.answer())
        self.expect_end(wire)
        return 1

    def part_of_a_frame(self) -> bytes:
        data = framed(self.rng.choice(self.known)[0])
        if self.rng.random() < 0.3:
            data = _HEADER.pack(self.rng.randrange(1000, _MAX_FRAME_BYTES)) + self.rng.randbytes(999)
        return data[: self.rng.randrange(1, len(data))]

    def half_closed(self, wire: Wire) -> int:
        wire.send(self.part_of_a_frame())
        wire.sock.shutdown(socket.SHUT_WR)
        self.outcome.answered(wire.answer())
        self.expect_end(wire)
        return 1

    def cut(self, wire: Wire) -> int:
        wire.send(self.part_of_a_frame())
        self.leave(wire)
        return 1

    def unread(self, wire: Wire) -> int:
        wire.send(framed(self.rng.choice(self.known)[0]))
        self.leave(wire)
        return 1

    def leave(self, wire: Wire) -> None:
        if self.rng.random() < 0.5:
            wire.reset()
        self.close()
        self.outcome.ended()


def fuzz(
    path: Path,
    outcome: Outcome,
    *,
    frames: int,
    seed: str,
    clients: int,
    known: Sequence[tuple[bytes, dict[str, Any]]],
) -> None:
    """Send frames from several threads.

    Parameters
    ----------
    path : Path
        A server's Unix socket.
    outcome : Outcome
        Counts them, and takes what must not happen.
    frames, clients : int
        About so many frames in all.
    seed : str
        Threads have seeds made of it.
    known : sequence of (bytes, dict)
        From :func:`known_answers`.
    """
    shares = [_Client(path, random.Random(f"{seed}/{i}"), known, outcome) for i in range(clients)]
    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(lambda share: share.run(-(-frames // clients)), shares))


def known_answers(path: Path) -> list[tuple[bytes, dict[str, Any]]]:
    """Ask a server what its known requests give, one at a time."""
    found = []
    for request in REQUESTS:
        wire, body = Wire(path), json.dumps(request).encode()
        wire.send(framed(body))
        found.append((body, wire.answer()))
        wire.sock.close()
    refused = [record for _, record in found if record.get("ok") is not True]
    if refused:
        raise RuntimeError(f"the server does not answer well-formed requests: {refused[0]}")
    return found


@contextmanager
def stalled(path: Path, n: int, outcome: Outcome) -> Iterator[None]:
    """Hold connections whose frames never come whole; at the end each must have been told, and closed."""
    wires = [Wire(path) for _ in range(n)]
    for i, wire in enumerate(wires):
        wire.send(_HEADER.pack(_MAX_FRAME_BYTES - i) + b"{")
    try:
        yield
        for wire in wires:
            wire.sock.settimeout(2 * _PATIENCE_S)  # a frame has 30 s
            try:
                record = wire.answer()
                ended = wire.sock.recv(1) == b""
            except (OSError, EOFError) as error:
                outcome.fault(f"stalled: {error!r}")
                continue
            outcome.answered(record)
            if not ended:
                outcome.fault("stalled: told, and not closed")
    finally:
        for wire in wires:
            wire.sock.close()


def process_facts(pid: int, *, descriptors: int = 0) -> dict[str, int]:
    """Return what of a process should not grow: private bytes, open descriptors, threads.

    Parameters
    ----------
    pid : int
    descriptors : int
        Waited for, within bounds: connections that clients have closed are closed by the server a moment later.
    """
    proc = Path(f"/proc/{pid}")
    for _ in range(500):
        if not descriptors or len(list((proc / "fd").iterdir())) <= descriptors:
            break
        time.sleep(0.01)
    return {
        "private_bytes": read_memory(pid).private_bytes,
        "descriptors": len(list((proc / "fd").iterdir())),
        "threads": len(list((proc / "task").iterdir())),
    }


@contextmanager
def _toy_server(home: Path, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run ``samevec serve`` with the toy pair; exported first where the home has none."""
    samevec, where = [sys.executable, "-m", "samevec"], ["--lock", "toy", "--home", str(home)]
    if not (home / "artifacts").is_dir():
        say("samevec export --lock toy: once, this takes a minute or two")
        subprocess.run([*samevec, "export", *where], check=True, cwd=REPOSITORY, stdout=sys.stderr)
    command = [*samevec, "serve", *where, "--port", "0", "--socket", str(folder / "s.sock")]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise RuntimeError(f"samevec serve ended: {(folder / 'log').read_text()}")
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def _at_rest(pid: int, descriptors: int) -> dict[str, int]:
    """Look at a process when the server has given freed memory back."""
    time.sleep(_REST_S)
    return process_facts(pid, descriptors=descriptors)


def _measure(process: subprocess.Popen[str], folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    path = folder / "s.sock"
    descriptors = process_facts(process.pid)["descriptors"]
    known = known_answers(path)
    outcome, facts = Outcome(), []
    started_s = time.perf_counter()
    with stalled(path, 20, outcome):
        # The first quarter meets every code path and fills allocators; what memory does after it is compared.
        for quarter in range(4):
            seed = f"{arguments.seed}/{quarter}"
            fuzz(path, outcome, frames=arguments.frames // 4, seed=seed, clients=arguments.clients, known=known)
            facts.append(_at_rest(process.pid, descriptors + 20))
    seconds = time.perf_counter() - started_s
    if known_answers(path) != known:
        outcome.fault("the canaries changed")
    facts.append(_at_rest(process.pid, descriptors))
    return {
        "seed": arguments.seed,
        "clients": arguments.clients,
        "seconds": seconds,
        **outcome.to_dict(),
        "after_each_quarter_and_at_the_end": facts,
        "private_growth": facts[-1]["private_bytes"] / facts[0]["private_bytes"] - 1,
        "descriptors_left": facts[-1]["descriptors"] - descriptors,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Fuzz, write ``fuzz_socket.json`` and return 1 if anything happened that must not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--frames", type=int, default=100_000)
    add("--seed", type=int, default=20)
    add("--clients", type=int, default=4, help="threads that send")
    add("--home", type=Path, help="artifacts of the toy pair (default: exported into a temporary folder)")
    add("--output", type=Path, default=Path(__file__).parent / "results", help="default: benchmarks/results")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="samevec-fuzz-") as name:
        folder = Path(name)
        with _toy_server(arguments.home or folder / "home", folder) as process:
            record = _measure(process, folder, arguments)
        log = (folder / "log").read_text()
    lines = log.splitlines()
    record |= {"exit_code": process.returncode, "tracebacks": log.count("Traceback"), "log_lines": len(lines)}
    record["some_log_lines"] = lines[:: max(1, len(lines) // 5)]
    record["passed"] = (
        not record["faults"] + record["tracebacks"] + record["exit_code"] + record["descriptors_left"]
        and record["private_growth"] < 0.05
    )
    write_result("fuzz_socket", {"machine": machine_record(), **record}, arguments.output)
    return 0 if record["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
