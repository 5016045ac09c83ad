"""Does a server under load lose, mix up or keep anything? ``python -m benchmarks.server_load``.

1. Own values: 48 texts and 48 pairs of 4 to 60 tokens, each computed alone in this process.
2. 200 clients ask for 10 s, one to four items at a time, over OpenAI's, Cohere's, Jina's and TEI's routes and (every
   third client) the framed socket. Idle for some seconds: memory is read.
3. The same for the rest of 60 s. The queue is shorter than the clients' demand, so many are refused; they come again
   after at most a second, sooner than they are told, which keeps the queue full.
4. 1,000 connections are opened, then each sends one request, all at once. Idle again: memory is read again. The same
   once more, which tells what so many connections leave once from what grows.
5. A text asked for alone, and SIGTERM.

Met when every 200 holds the texts' own vectors or scores, bit for bit, at the right index; every 429 says when to come
again; everything sent was answered with one of the two; private memory is within 5% of where it was after the first
seconds; the log has no traceback; and the exit code is 0. The machine's speed matters to the times alone.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import tempfile
import time
import urllib.request
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from benchmarks.load_clients import (
    Tally,
    ask_at_once,
    ask_in_turn,
    clients,
    known_answers,
    raise_open_files,
)
from benchmarks.memory import read_memory
from benchmarks.results import NOTICE, machine_record
from benchmarks.served import Served, serving, write_result
from benchmarks.setup import add_model_arguments, ensure_proved, models_of, say
from samevec.export.toy.checkpoint import build_toy
from samevec.load import load_embedder, load_reranker
from samevec.lock import load_lock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.load_clients import Channel, Known, Request
    from benchmarks.setup import Models

__all__ = ["add_pair_arguments", "main", "pair_of"]

_IDLE_S = 5.0
_MOST_GROWTH = 1.05
_PATIENCE_S = 1.0
# Beside connections: files, models' maps, and what the interpreter holds.
_OTHER_FILES = 200


def add_pair_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare which pair of models is served."""
    add_model_arguments(parser)
    parser.add_argument("--profile", default="cpu")
    parser.add_argument("--toy", action="store_true", help="the toy pair instead: to try this out in two minutes")


def pair_of(arguments: argparse.Namespace) -> tuple[Models, str, str]:
    """Return where the models lie, exported and proved, and the names of embedder and reranker."""
    if arguments.toy:
        arguments.snapshots = arguments.snapshots or arguments.cache / "toy-snapshots"
        arguments.home = arguments.home or arguments.cache / "toy-home"
        _write_toys(arguments.snapshots)
    models = models_of(arguments)
    by_task = {entry.task: entry.name for entry in load_lock(models.lock_path).models if not entry.optional}
    for name in by_task.values():
        ensure_proved(name, arguments.profile, models, say)
    return models, by_task["embed"], by_task["rerank"]


def _write_toys(folder: Path) -> None:
    """Write the toy pair where full-shape snapshots would lie, with its lock under their lock's name."""
    folder.mkdir(parents=True, exist_ok=True)
    for entry in load_lock("toy").models:
        (folder / entry.name).mkdir(exist_ok=True)
        build_toy(entry.name, folder / entry.name)
    lock_text = (Path(__file__).parents[1] / "samevec" / "toy.lock").read_bytes()
    (folder / "full.lock").write_bytes(lock_text)


def _known(models: Models, embedder: str, reranker: str, profile: str) -> Known:
    where: dict[str, Any] = {"profile": profile, "home": models.home, "lock": models.lock_path}
    embed, rerank = load_embedder(embedder, **where), load_reranker(reranker, **where)
    return known_answers(lambda text: embed.encode([text])[0], lambda query, one: rerank.score([(query, one)])[0])


class _Load:
    """What is asked of one server.

    Parameters
    ----------
    served : Served
    known : Known
    embedder : str
    """

    def __init__(self, served: Served, known: Known, embedder: str) -> None:
        self._served = served
        self._known = known
        self._embedder = embedder

    def _clients(self, n_clients: int, seed: int) -> Iterator[tuple[Channel, Iterator[Request]]]:
        return clients(
            n_clients,
            self._known,
            url=self._served.url,
            socket_path=self._served.socket_path,
            embedder=self._embedder,
            seed=seed,
        )

    def ask_for(self, seconds: float, n_clients: int, *, seed: int) -> tuple[Tally, float]:
        """Let clients ask for some seconds; return what became of it, and the seconds until the last answer."""
        tally, started_s = Tally(), time.monotonic()

        def until(requests: Iterator[Request]) -> Iterator[Request]:
            while time.monotonic() - started_s < seconds:
                yield next(requests)

        async def run() -> None:
            await asyncio.gather(
                *(
                    ask_in_turn(channel, until(requests), tally, patience_s=_PATIENCE_S)
                    for channel, requests in self._clients(n_clients, seed)
                )
            )

        asyncio.run(run())
        return tally, time.monotonic() - started_s

    def ask_at_once(self, n_connections: int, *, seed: int) -> tuple[Tally, float]:
        """Let each of many connections ask once."""
        tally, started_s = Tally(), time.monotonic()
        channels, requests = zip(*self._clients(n_connections, seed), strict=True)
        asyncio.run(ask_at_once(channels, [next(one) for one in requests], tally))
        return tally, time.monotonic() - started_s

    def private_bytes_idle(self) -> int:
        """Wait until nothing is queued, and some seconds more; return the server's private memory."""
        while orjson.loads(_get(f"{self._served.url}/info"))["queue"]["items"]:
            time.sleep(0.1)
        time.sleep(_IDLE_S)
        return read_memory(self._served.pid).private_bytes

    def counted(self) -> dict[str, int]:
        """Return how many requests of the routes asked here the server says it has answered, by status."""
        statuses: dict[str, int] = {}
        metrics = _get(f"{self._served.url}/metrics").decode()
        for route, status, n in re.findall(r'samevec_requests_total{route="(.+?)",status="(\d+)"} (\d+)', metrics):
            if route.startswith(("/v", "/embed", "/rerank", "socket")):
                statuses[status] = statuses.get(status, 0) + int(n)
        return statuses


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:
        content: bytes = answer.read()
    return content


def _phase(name: str, done: tuple[Tally, float]) -> dict[str, Any]:
    tally, seconds = done
    record = tally.to_dict() | {"seconds": round(seconds, 1)}
    record["answers_per_s"] = round(tally.statuses[200] / seconds, 1)
    say(f"{name}: {tally.sent} sent, {dict(tally.statuses)}, {len(tally.faults)} faults, {seconds:.1f} s")
    return record


def _open_file_limits(pid: int) -> list[str]:
    """Return soft and hard limit of a process's open files."""
    limits = Path(f"/proc/{pid}/limits").read_text()
    return next(line.split()[3:5] for line in limits.splitlines() if line.startswith("Max open files"))


def _run(load: _Load, served: Served, arguments: argparse.Namespace, log_path: Path) -> tuple[Tally, dict[str, Any]]:
    """Go through all phases; return what became of all requests, and the record."""
    warm_up = load.ask_for(arguments.warm_up_s, arguments.clients, seed=0)
    record: dict[str, Any] = {"warm_up": _phase("first seconds", warm_up)}
    memory = {"after_warm_up_private_bytes": load.private_bytes_idle()}
    steady = load.ask_for(arguments.seconds - arguments.warm_up_s, arguments.clients, seed=10_000)
    record["load"] = _phase("load", steady)
    memory["after_load_private_bytes"] = load.private_bytes_idle()
    at_once = load.ask_at_once(arguments.connections, seed=20_000)
    record["at_once"] = _phase(f"{arguments.connections} connections", at_once)
    memory["after_connections_private_bytes"] = load.private_bytes_idle()
    again = load.ask_at_once(arguments.connections, seed=20_000)
    record["again"] = _phase(f"{arguments.connections} connections again", again)
    memory["at_end_private_bytes"] = load.private_bytes_idle()
    canary = load.ask_at_once(3, seed=30_000)
    record["canary"] = _phase("canary", canary)
    tally = warm_up[0] + steady[0] + at_once[0] + again[0] + canary[0]
    record |= {"server_counted": load.counted(), "open_files_soft_and_hard": _open_file_limits(served.pid)}
    record |= {"exit_code": served.stop(), "tracebacks": log_path.read_text().count("Traceback"), "memory": memory}
    return tally, record


def _verdict(tally: Tally, record: dict[str, Any]) -> dict[str, bool]:
    memory = record["memory"]
    growth = memory["at_end_private_bytes"] / memory["after_warm_up_private_bytes"]
    memory["growth"] = round(growth, 4)
    memory["growth_again"] = round(memory["at_end_private_bytes"] / memory["after_connections_private_bytes"], 4)
    answered = tally.statuses[200] + tally.statuses[429]
    own_count = {str(status): n for status, n in tally.statuses.items()}
    return {
        "answers_right": not tally.faults and record["canary"]["answered"] == {"200": 3},
        "nothing_lost": tally.sent == answered and record["server_counted"] == own_count,
        "memory_back": growth <= _MOST_GROWTH,
        "no_traceback": record["tracebacks"] == 0,
        "clean_exit": record["exit_code"] == 0,
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and write ``server_load.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_pair_arguments(parser)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--warm-up-s", type=float, default=10.0)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--max-queue", type=int, default=256, help="the server's; below the clients' demand")
    arguments = parser.parse_args(argv)
    say(NOTICE)
    raise_open_files(max(arguments.clients, arguments.connections) + _OTHER_FILES)
    models, embedder, reranker = pair_of(arguments)
    known = _known(models, embedder, reranker, arguments.profile)
    with tempfile.TemporaryDirectory(prefix="samevec-load-") as folder:
        log_path = Path(folder) / "server.log"
        limit = ("--max-queue", str(arguments.max_queue))
        with serving(models, arguments.profile, *limit, log_path=log_path) as served:
            tally, phases = _run(_Load(served, known, embedder), served, arguments, log_path)
        say("".join(islice(log_path.open(), 20)))
    verdict = _verdict(tally, phases)
    record = {"notice": NOTICE, "machine": machine_record(), "profile": arguments.profile, "toy": arguments.toy}
    record |= {"models": [embedder, reranker], "clients": arguments.clients, "connections": arguments.connections}
    record |= {"max_queue_items": arguments.max_queue, "all": tally.to_dict(), **phases}
    write_result("server_load", {**record, "met": verdict | {"all": all(verdict.values())}}, arguments.output)


if __name__ == "__main__":
    main()
