"""A real ``samevec serve`` process to measure, and clients that speak to it as others would."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from benchmarks.answers import framed_array, openai_vectors
from benchmarks.protocol import REPOSITORY
from benchmarks.setup import ensure_proved, say
from benchmarks.workloads import EMBEDDER, RERANKER

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from benchmarks.setup import Models

__all__ = ["FrameClient", "HttpClient", "Served", "prove_both", "serving", "write_result"]

_STOP_TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """A server that has said it is ready.

    Attributes
    ----------
    pid : int
    url : str
    socket_path : Path
        Where it speaks the framed protocol.
    ready_s : float
        From starting the process to its ready line: interpreter, imports, digests, gate, loading, first row.
    process : subprocess.Popen
    """

    pid: int
    url: str
    socket_path: Path
    ready_s: float
    process: subprocess.Popen[str]

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        self.process.terminate()
        return self.process.wait(_STOP_TIMEOUT_S)


def prove_both(models: Models, profile: str) -> None:
    """Export and prove both models where that was not done."""
    for name in (EMBEDDER, RERANKER):
        ensure_proved(name, profile, models, say)


@contextmanager
def serving(models: Models, profile: str, *arguments: str, log_path: Path | None = None) -> Iterator[Served]:
    """Run ``samevec serve`` with both models while a block runs.

    Parameters
    ----------
    models : Models
    profile : str
    *arguments : str
        More flags.
    log_path : Path, optional
        Takes the server's log; else it goes where this process's standard error goes.

    Yields
    ------
    Served

    Raises
    ------
    RuntimeError
        It ended before it was ready; it has said why on standard error.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="samevec-bench-"))
        socket_path = Path(folder) / "frames.sock"
        command = [sys.executable, "-m", "samevec", "serve", "--profile", profile, "--lock", str(models.lock_path)]
        command += ["--home", str(models.home), "--port", "0", "--socket", str(socket_path), "--log-format", "json"]
        log = stack.enter_context(log_path.open("w")) if log_path is not None else None
        started_s = time.perf_counter()
        process = subprocess.Popen(
            [*command, *arguments], cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=log, text=True
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            ready_s = time.perf_counter() - started_s
            if not line:
                raise RuntimeError(f"samevec serve ended with {process.wait()} before it was ready")
            yield Served(
                pid=process.pid,
                url=json.loads(line)["url"],
                socket_path=socket_path,
                ready_s=ready_s,
                process=process,
            )
        finally:
            process.terminate()
            process.communicate(timeout=_STOP_TIMEOUT_S)


class HttpClient:
    """One kept-alive connection.

    Parameters
    ----------
    served : Served
    """

    def __init__(self, served: Served) -> None:
        address = urlsplit(served.url)
        self._connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=600)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Send one request and return the parsed answer."""
        headers = {"Content-Type": "application/json"}
        self._connection.request("POST", path, json.dumps(body).encode(), headers)
        response = self._connection.getresponse()
        content = response.read()
        if response.status != 200:
            raise RuntimeError(f"{path} answered {response.status}: {content[:200]!r}")
        return json.loads(content)

    def embed(self, texts: Sequence[str], *, encoding: str = "base64") -> NDArray[np.float32]:
        """Embed by the OpenAI route."""
        answer = self.post("/v1/embeddings", {"model": EMBEDDER, "input": list(texts), "encoding_format": encoding})
        return openai_vectors(answer)

    def rerank(self, query: str, documents: Sequence[str]) -> Any:
        """Rank documents by the Cohere route."""
        return self.post("/v1/rerank", {"model": RERANKER, "query": query, "documents": list(documents)})


class FrameClient:
    """One connection of the framed protocol.

    Parameters
    ----------
    served : Served
    """

    def __init__(self, served: Served) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(str(served.socket_path))
        self._file = self._socket.makefile("rb")

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send one frame and return the answer."""
        body = json.dumps(request).encode()
        self._socket.sendall(struct.pack(">I", len(body)) + body)
        (size,) = struct.unpack(">I", self._file.read(4))
        answer: dict[str, Any] = json.loads(self._file.read(size))
        if not answer["ok"]:
            raise RuntimeError(f"the socket answered {answer['error']}")
        return answer

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed as TrueMemory's client does, with full vectors."""
        return framed_array(self.ask({"op": "embed", "texts": list(texts), "tier": EMBEDDER})["vectors"])


def write_result(name: str, record: dict[str, Any], directory: Path) -> None:
    """Write ``<name>.json`` beside the other results, and print it."""
    text = json.dumps(record, indent=1) + "\n"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{name}.json").write_text(text, encoding="utf-8", newline="\n")
    print(text, end="")
