"""What the server is told once, at start."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from samevec.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from samevec.parity.probe import Probe
    from samevec.runtime.embedder import Embedder
    from samevec.runtime.reranker import Reranker
    from samevec.runtime.sessions.reloadable import Reloadable

__all__ = ["GateName", "ServedModel", "ServerSettings", "find_served"]

_ORIGIN = re.compile(r"https?://[^/\s?#]+")

_QUEUE_BOUNDS = ("max_queue_items", "max_queue_tokens", "max_queue_bytes")

#: Repositories that the hub has renamed and redirects since, in lower case. TrueMemory 0.7.6.2 (``reranker.py``) still
#: asks for the first.
_RENAMED = {"cross-encoder/ms-marco-minilm-l-6-v2": "cross-encoder/ms-marco-minilm-l6-v2"}

GateName = Literal["passed", "failed", "stale", "missing", "reference"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedModel:
    """A loaded model, with what the server tells about it.

    Attributes
    ----------
    model : Embedder or Reranker
    profile, backend : str
        Such as ``"cpu"`` and ``"onnx"``.
    gate : str
        State of the parity gate. Only ``"passed"`` is served, and ``"reference"``: the PyTorch reference itself, which
        has nothing to be compared with.
    artifact_digest, answers, receipt_created_at : str or None
        Shown in ``/info``; answers are the digest of the bits that the native library gives, everywhere.
    bound_to : mapping
        What the receipt is bound to, shown there too.
    reloadable : Reloadable or None
        With it the model may be unloaded while idle; its engine is then the model's.
    probe : Probe or None
        What is asked through the server's own queue at its start, and again every `reprobe_s` of the settings.
    """

    model: Embedder | Reranker
    profile: str = "cpu"
    backend: Literal["onnx", "torch"] = "onnx"
    gate: GateName = "passed"
    artifact_digest: str | None = None
    answers: str | None = None
    receipt_created_at: str | None = None
    bound_to: Mapping[str, Any] = field(default_factory=dict)
    reloadable: Reloadable | None = None
    probe: Probe | None = None
    name: str = field(init=False)

    def __post_init__(self) -> None:
        """Take the model's name in the lock."""
        object.__setattr__(self, "name", self.model.name)

    @property
    def is_open(self) -> bool:
        """Whether the gate lets this be served."""
        return self.gate == "passed" or (self.gate == "reference" and self.backend == "torch")


def find_served(name: str, candidates: Iterable[ServedModel]) -> ServedModel | None:
    """Find a model by any of its names.

    Parameters
    ----------
    name : str
        As a client spells it. The hub tells no case apart.
    candidates : iterable of ServedModel

    Returns
    -------
    ServedModel or None
    """
    asked = name.lower()
    asked = _RENAMED.get(asked, asked)
    for served in candidates:
        if asked in (served.name.lower(), served.model.entry.source.removeprefix("hf:").lower()):
            return served
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings:
    """Where to listen and how much to take on.

    Attributes
    ----------
    host, port
        TCP address; port 0 takes a free one. Not used when `uds` is given.
    uds : Path or None
        HTTP over a Unix socket, owner only, instead of TCP.
    socket : Path or None
        The framed protocol over a Unix socket, owner only.
    truememory : bool
        The framed protocol where TrueMemory's client looks for it.
    api_key_file : Path or None
        One key a line; HTTP requests must then carry one of them as a bearer token.
    token_budget : int or None
        Padded tokens of one microbatch, of every worker; None: a worker's share of the process's default.
    max_queue_items, max_queue_tokens, max_queue_bytes : int
        Accepted and unfinished work of the whole process; bytes are those of the bodies it came in.
    max_batch_items : int
        Items of one request.
    max_body_bytes : int
        Bytes of one HTTP request body, looked at before parsing.
    drain_s : float
        How long accepted work may take to finish after SIGTERM.
    client_timeout_s : float
        How long a client may take to send one request, or to take one answer.
    log_format : {"text", "json"}
    log_requests : {"none", "errors", "all"}
        Which requests get a line; ``"errors"`` are those of the server (status 500 and above).
    tls_cert, tls_key : Path or None
        PEM files; HTTP over TLS with both.
    cors_origins : tuple of str
        Origins whose pages may ask from a browser; none as a rule.
    otlp_endpoint : str or None
        Where traces go, such as ``http://127.0.0.1:4318/v1/traces``.
    idle_unload_s : float
        Seconds without a request after which a model is unloaded; 0 for never.
    reprobe_s : float
        Seconds between two probes of every loaded model; 0 for none after the start.
    """

    host: str = "127.0.0.1"
    port: int = 8765
    uds: Path | None = None
    socket: Path | None = None
    truememory: bool = False
    api_key_file: Path | None = None
    token_budget: int | None = None
    max_queue_items: int = 8192
    max_queue_tokens: int = 4_000_000
    max_queue_bytes: int = 128 << 20
    max_batch_items: int = 4096
    max_body_bytes: int = 32 << 20
    drain_s: float = 30.0
    client_timeout_s: float = 30.0
    log_format: Literal["text", "json"] = "text"
    log_requests: Literal["none", "errors", "all"] = "errors"
    tls_cert: Path | None = None
    tls_key: Path | None = None
    cors_origins: tuple[str, ...] = ()
    otlp_endpoint: str | None = None
    idle_unload_s: float = 0.0
    reprobe_s: float = 0.0
    # Chosen by measurement of nothing yet: a hook's query and a page of short documents are both within it.
    interactive_rows: int = field(default=8, repr=False)
    interactive_tokens: int = field(default=1024, repr=False)

    def __post_init__(self) -> None:
        """Refuse values that cannot work."""
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"--port {self.port}: 0 to 65535 is possible")
        for name in ("token_budget", "max_batch_items", "max_body_bytes", *_QUEUE_BOUNDS):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} {value}: at least 1 is needed")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("--tls-cert and --tls-key: both are needed, or none")
        if self.tls_cert is not None and self.uds is not None:
            raise ConfigError("--tls-cert has no use with --uds: nothing leaves this machine there")
        for origin in self.cors_origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ConfigError(f"--cors-origin {origin}: one such as https://example.org is needed, without a path")
        for name in ("drain_s", "client_timeout_s", "idle_unload_s", "reprobe_s"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} {getattr(self, name)}: a number of seconds of at least 0 is needed")
