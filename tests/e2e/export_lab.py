"""A process that has loaded the exporter once and forks a child for every experiment.

Run as a script it reads one JSON line an experiment, ``{"name", "home", "argument"}``, and answers with
the child's exit status. Children may be killed, run out of disk, or do what nobody should: none of it outlives them.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from unittest import mock

from e2e_tools import EMBEDDER, LOCK, RERANKER, ROOT, environment

from samevec.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Callable

unfinished: Any = importlib.import_module("samevec.staging")


def room(name: str) -> Any:
    """A module of the export, as something to be patched; most of them load torch."""
    return importlib.import_module(f"samevec.export.{name}")


def export(home: Path, name: str) -> None:
    room("pipeline").export_model(LOCK.model(name), LOCK, profile="cpu", home=home)


def die(*_arguments: Any, **_options: Any) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def after(call: Callable[..., Any], n_calls: int) -> Callable[..., Any]:
    """Return the function, which kills the process after its nth call."""
    calls = iter(range(1, n_calls + 1))

    def counted(*arguments: Any, **options: Any) -> Any:
        result = call(*arguments, **options)
        return die() if next(calls) == n_calls else result

    return counted


def killed(home: Path, moment: str) -> None:
    native, graph, pipeline = room("native"), room("native.graph"), room("pipeline")

    moments: dict[str, tuple[Any, str, Callable[..., Any]]] = {
        "after the reference": (pipeline, "write_reference", after(pipeline.write_reference, 1)),
        "after the exporter": (native, "write_native_graph", after(native.write_native_graph, 1)),
        "inside the data file": (graph, "append_external", after(graph.append_external, 5)),
        "in the digests": (pipeline, "sha256_file", after(pipeline.sha256_file, 2)),
        "before the name": (pipeline, "_publish", die),
        "while synced": (
            unfinished,
            "_sync",
            after(unfinished._sync, 3),
        ),
    }
    target, name, replacement = moments[moment]
    with mock.patch.object(target, name, replacement):
        export(home, EMBEDDER)


def beside_another(home: Path, barrier: str) -> None:
    """Export when a second child has come as far as this one."""
    pipeline = room("pipeline")
    publish = pipeline._publish

    def meet(*arguments: Any) -> Any:
        folder = Path(barrier)
        (folder / str(os.getpid())).touch()
        end_s = time.monotonic() + 120
        while len(list(folder.iterdir())) < 2:
            assert time.monotonic() < end_s
            time.sleep(0.01)
        return publish(*arguments)

    with mock.patch.object(pipeline, "_publish", meet):
        export(home, EMBEDDER)


def full_disk(home: Path, moment: str) -> int:
    """Export by the command line on a disk that is full from some moment on."""
    native, graph, pipeline = room("native"), room("native.graph"), room("pipeline")

    def full(*_arguments: Any, **_options: Any) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(home / "somewhere"))

    moments = {
        "reference": (pipeline, "write_reference"),
        "exporter": (native, "write_native_graph"),
        "data": (graph, "append_external"),
        "tokenizer": (pipeline.shutil, "copyfile"),
        "sync": (unfinished, "_sync"),
    }
    target, name = moments[moment]
    with mock.patch.object(target, name, full):
        return main(["export", "--lock", "toy", "--home", str(home), "--model", EMBEDDER])


def small_files(home: Path, limit_bytes: str) -> int:
    """Export by the command line where no file may grow beyond a limit: a real refusal by the kernel."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit_bytes), int(limit_bytes)))
    return main(["export", "--lock", "toy", "--home", str(home), "--model", EMBEDDER])


def wrong_pooling(home: Path, kind: str) -> int:
    """Export by the command line with one mistake in the graph that is written."""
    from samevec.cli.main import main  # noqa: PLC0415

    with _pooled_wrongly(kind):
        name = EMBEDDER if kind.startswith("embedder") else RERANKER
        return main(["export", "--lock", "toy", "--home", str(home), "--model", name])


def unswept_mistake(home: Path, kind: str) -> None:
    """Export with a mistake and without the exporter's own check: only the gate is left to see it."""
    with (
        _pooled_wrongly(kind),
        mock.patch.object(room("graph"), "sweep_problems", return_value=[]),
        mock.patch.object(room("pipeline"), "require_pinned"),  # for a lock that pins no answers
    ):
        export(home, EMBEDDER)


def _pooled_wrongly(kind: str) -> Any:
    """Put another operator in the place of the one that pools."""
    right, wrong = {
        "embedder, first": ("LastToken", "FirstToken"),
        "embedder, mean": ("LastToken", "MeanPool"),
        "reranker, first": ("MeanPool", "FirstToken"),
    }[kind]
    builder = room("native.graph").GraphBuilder
    node = builder.node

    def written(self: Any, op_type: str, *inputs: str, **given: Any) -> Any:
        return node(self, wrong if op_type == right else op_type, *inputs, **given)

    return mock.patch.object(builder, "node", written)


EXPERIMENTS: dict[str, Callable[[Path, str], int | None]] = {
    "export": export,
    "killed": killed,
    "beside another": beside_another,
    "full disk": full_disk,
    "small files": small_files,
    "wrong pooling": wrong_pooling,
    "unswept mistake": unswept_mistake,
}


def child(order: dict[str, str]) -> NoReturn:
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    code = 99
    try:
        code = EXPERIMENTS[order["name"]](Path(order["home"]), order["argument"]) or 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def serve() -> None:
    for name in ("architectures.modernbert", "architectures.qwen3", "graph", "convert", "pipeline"):
        room(name)
    importlib.import_module("sentence_transformers")  # what loading a reference imports

    for line in sys.stdin:
        children = []
        for order in json.loads(line):
            pid = os.fork()
            if pid == 0:
                child(order)
            children.append(pid)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
        sys.stdout.write(json.dumps(codes) + "\n")
        sys.stdout.flush()


class Lab:
    """The process, from the side of the tests."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._errors = (folder / "lab.log").open("w")
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            cwd=ROOT,
            env=environment(folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def run(self, name: str, home: Path, argument: str = "", *, copies: int = 1) -> tuple[list[int], str]:
        """Run an experiment, several times side by side if asked; give exit codes and what was printed."""
        logs = [self._folder / f"child{i}.log" for i in range(copies)]
        orders = [{"name": name, "home": str(home), "argument": argument, "log": str(log)} for log in logs]
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(orders) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, (self._folder / "lab.log").read_text()
        return json.loads(answer), "\n".join(log.read_text() for log in logs)

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=60)
        self._errors.close()


if __name__ == "__main__":
    serve()
