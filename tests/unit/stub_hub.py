"""A hub on this machine that answers what huggingface_hub really asks, and misbehaves on demand."""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from samevec.lock import Golden, LockedFile, LockedModel

if TYPE_CHECKING:
    from collections.abc import Mapping

REPO = "Owner/tiny-embedder"
REVISION = "0123456789abcdef0123456789abcdef01234567"
SMALL_FILES: Mapping[str, bytes] = {
    "config.json": b'{"model_type": "qwen3"}',
    "tokenizer.json": b'{"version": "1.0"}',
    "1_Pooling/config.json": b'{"pooling_mode_lasttoken": true}',
    "modules.json": b'[{"idx": 0, "type": "sentence_transformers.models.Transformer"}]',
}


def snapshot_files(weights: bytes = b"weights" * 1000) -> dict[str, bytes]:
    """The files of a small snapshot."""
    return {"model.safetensors": weights, **SMALL_FILES}


def entry_for(files: Mapping[str, bytes], source: str = f"hf:{REPO}", name: str = "tiny") -> LockedModel:
    """A lock entry that pins files by what they hold."""
    return LockedModel(
        name=name,
        task="embed",
        source=source,
        revision=REVISION,
        license="Apache-2.0",
        architecture="qwen3",
        pooling="last_token",
        normalize=True,
        dimensions=8,
        matryoshka_min_dimensions=None,
        max_tokens=16,
        activation=None,
        prompts={},
        golden=Golden(),
        files=tuple(
            LockedFile(path=path, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
            for path, content in files.items()
        ),
    )


@dataclass
class StubHub:
    """What a stub serves, how it misbehaves, and what it was asked.

    Attributes
    ----------
    files : dict
        Bytes by path, at REVISION.
    error : (status, X-Error-Code) or None
        Answer everything with this.
    cut_after_bytes : dict
        Break the connection of a file's GET after so many bytes.
    stall_after_bytes : dict
        Send so many bytes of a file, then nothing until `resume` is set.
    requests : list of (method, path, Range header)
    """

    files: dict[str, bytes]
    error: tuple[int, str] | None = None
    cut_after_bytes: dict[str, int] = field(default_factory=dict)
    stall_after_bytes: dict[str, int] = field(default_factory=dict)
    resume: threading.Event = field(default_factory=threading.Event)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    revision: str = REVISION

    def __enter__(self) -> StubHub:
        stub = self

        class Handler(_Handler):
            hub = stub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.resume.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def endpoint(self) -> str:
        """The stub's address."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def asked(self, method: str, path: str) -> list[str | None]:
        """The Range headers of the requests of a kind."""
        return [ranges for seen, where, ranges in self.requests if (seen, where) == (method, path)]


class _Handler(BaseHTTPRequestHandler):
    hub: StubHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self._answer("HEAD")

    def do_GET(self) -> None:
        self._answer("GET")

    def _answer(self, method: str) -> None:
        if self.hub.error is not None:
            self._send(self.hub.error[0], {"X-Error-Code": self.hub.error[1]})
            return
        if self.path == f"/api/models/{REPO}/revision/{REVISION}?blobs=True":
            self.hub.requests.append((method, "api", None))
            self._send(200, {"Content-Type": "application/json"}, json.dumps(self._info()).encode())
            return
        prefix = f"/{REPO}/resolve/{REVISION}/"
        path = self.path.removeprefix(prefix)
        if not self.path.startswith(prefix):
            self._send(404, {"X-Error-Code": "RevisionNotFound"})
        elif path not in self.hub.files:
            self._send(404, {"X-Error-Code": "EntryNotFound"})
        else:
            self._send_file(method, path)

    def _send_file(self, method: str, path: str) -> None:
        content = self.hub.files[path]
        ranges = self.headers.get("Range")
        self.hub.requests.append((method, path, ranges))
        start = int(ranges.removeprefix("bytes=").rstrip("-")) if ranges else 0
        headers = {"X-Repo-Commit": self.hub.revision, "ETag": f'"{_etag(path, content)}"'}
        if path.endswith(".safetensors"):
            headers["X-Linked-Size"] = str(len(content))
        if method == "HEAD":
            self._send(200, headers, content, body=False)
            return
        if ranges:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self._send(206 if ranges else 200, headers, content[start:], path=path)

    def _send(
        self, status: int, headers: dict[str, str], content: bytes = b"", *, body: bool = True, path: str = ""
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if not body:
            return
        limit = min(
            self.hub.cut_after_bytes.get(path, len(content)), self.hub.stall_after_bytes.get(path, len(content))
        )
        try:
            self.wfile.write(content[:limit])
            if limit < len(content):
                self.wfile.flush()
                if path in self.hub.stall_after_bytes:
                    self.hub.resume.wait(30)
                self.close_connection = True
        except OSError:
            self.close_connection = True

    def _info(self) -> dict[str, Any]:
        siblings = []
        for path, content in self.hub.files.items():
            sibling: dict[str, Any] = {"rfilename": path, "size": len(content), "blobId": "0" * 40}
            if path.endswith(".safetensors"):
                digest = hashlib.sha256(content).hexdigest()
                sibling["lfs"] = {"size": len(content), "sha256": digest, "pointerSize": 134}
            siblings.append(sibling)
        return {"id": REPO, "modelId": REPO, "sha": self.hub.revision, "siblings": siblings, "tags": []}


def _etag(path: str, content: bytes) -> str:
    """The hub's rule: sha256 of what is kept with LFS, the git blob's hash of the rest."""
    if path.endswith(".safetensors"):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
