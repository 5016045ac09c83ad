"""A client of the framed protocol, with the names and signatures of TrueMemory's proxies.

TrueMemory's own client drops options; this one sends those the server knows and refuses the others by name. It needs
numpy and the standard library, and starts no server.

References
----------
truememory 0.7.6.2, ``model_client.py``: signatures, frames and errors.
"""

from __future__ import annotations

import base64
import json
import math
import socket
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

__all__ = [
    "DEFAULT_TIMEOUT_S",
    "EmbeddingProxy",
    "ModelServerError",
    "ProtocolMismatchError",
    "RerankerProxy",
    "default_address",
    "ping",
]

#: The default time limit of a request, as in TrueMemory's client.
DEFAULT_TIMEOUT_S = 120.0

_PROTOCOL_VERSION = 1
_MAX_FRAME_BYTES = 10 << 20
_HEADER = struct.Struct(">I")
_PING_TIMEOUT_S = 5.0
#: Options of sentence-transformers' own methods, with the one value that is accepted.
_NEUTRAL_OPTIONS = {"show_progress_bar": False, "convert_to_numpy": True}


class ModelServerError(RuntimeError):
    """The server answered with an error of type ``kind``, such as ``"overloaded"``; ``retry_after_s`` may be set."""

    def __init__(self, message: str, *, kind: str, retry_after_s: int | None = None) -> None:
        self.kind = kind
        self.retry_after_s = retry_after_s
        super().__init__(f"Model server error: {message}")


class ProtocolMismatchError(ConnectionError):
    """The server speaks another protocol."""


def default_address() -> Path:
    """Return the address of TrueMemory's client, ``~/.truememory/model.sock``."""
    return Path.home() / ".truememory" / "model.sock"


class EmbeddingProxy:
    """An embedding model behind the socket, with sentence-transformers' ``encode``.

    Parameters
    ----------
    tier : str
        A tier of TrueMemory (vectors of 256 dimensions), or the name of a served embedder (full vectors).
    address : path, optional
        Where the server listens; :func:`default_address` otherwise.
    """

    def __init__(self, tier: str = "", *, address: str | Path | None = None) -> None:
        self._tier = tier
        self._address = address

    def encode(
        self,
        texts: str | Iterable[str],
        timeout: float | None = None,
        *,
        batch_size: int | None = None,
        dimensions: int | None = None,
        prompt_name: str | None = None,
        **options: Any,
    ) -> NDArray[np.float32]:
        """Embed texts.

        Parameters
        ----------
        texts : str or iterable of str
            One string counts as one text.
        timeout : float, optional
            Seconds for the whole request, sent as its deadline; `DEFAULT_TIMEOUT_S` when None.
        batch_size : int, optional
            Most rows of any session run that holds one of these texts.
        dimensions : int, optional
            Cut vectors to this length, without scaling again (sentence-transformers' ``truncate_dim``).
        prompt_name : {"query", "document"}, optional
        **options
            Only ``show_progress_bar=False`` and ``convert_to_numpy=True``, the behaviour in any case.

        Returns
        -------
        ndarray of float32, shape (n_texts, dimensions)

        Raises
        ------
        TypeError
            The server does not know an option; names it.
        TimeoutError, ConnectionError, ModelServerError
        """
        _refuse_options("encode", options)
        request = {
            "op": "embed",
            "texts": [texts] if isinstance(texts, str) else list(texts),
            "tier": self._tier,
            "batch_size": batch_size,
            "dimensions": dimensions,
            "prompt_name": prompt_name,
        }
        return _array(_request(request, self._address, timeout), "vectors")


class RerankerProxy:
    """A reranking model behind the socket, with CrossEncoder's ``predict``.

    Parameters
    ----------
    model_name : str, optional
        A served reranker, by its name in the lock or on the hub.
    address : path, optional
        As for :class:`EmbeddingProxy`.
    """

    def __init__(self, model_name: str | None = None, *, address: str | Path | None = None) -> None:
        self._model_name = model_name
        self._address = address

    def predict(
        self,
        pairs: Iterable[Sequence[str]],
        timeout: float | None = None,
        *,
        batch_size: int | None = None,
        **options: Any,
    ) -> NDArray[np.float32]:
        """Score (query, document) pairs; options and errors as in :meth:`EmbeddingProxy.encode`.

        Returns
        -------
        ndarray of float32, shape (n_pairs,)
            Activated scores.
        """
        _refuse_options("predict", options)
        request = {
            "op": "rerank",
            "pairs": [list(pair) for pair in pairs],
            "model_name": self._model_name,
            "batch_size": batch_size,
        }
        return _array(_request(request, self._address, timeout), "scores")


def ping(address: str | Path | None = None, *, timeout: float = _PING_TIMEOUT_S) -> bool:
    """Return whether a server answers at an address."""
    try:
        _request({"op": "ping"}, address, timeout)
    except (OSError, ModelServerError):
        return False
    return True


def _refuse_options(method: str, options: dict[str, Any]) -> None:
    unknown = sorted(
        name for name, value in options.items() if name not in _NEUTRAL_OPTIONS or value is not _NEUTRAL_OPTIONS[name]
    )
    if unknown:
        named = ", ".join(f"{name}={options[name]!r}" for name in unknown)
        raise TypeError(f"{method}() cannot send {named}: the model server has no such option")


def _request(request: dict[str, Any], address: str | Path | None, timeout: float | None) -> dict[str, Any]:
    """Send one request on a connection of its own and return its answer."""
    timeout_s = DEFAULT_TIMEOUT_S if timeout is None else float(timeout)
    if not timeout_s > 0:
        raise TimeoutError(f"timeout={timeout_s:g}: the deadline has passed before the request was sent")
    record = {name: value for name, value in request.items() if value is not None}
    if math.isfinite(timeout_s):
        record["deadline"] = time.time() + timeout_s
    body = json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    if len(body) > _MAX_FRAME_BYTES:
        raise ValueError(f"the request has {len(body)} bytes, one may have {_MAX_FRAME_BYTES}; send several")
    try:
        return _checked(_exchange(body, default_address() if address is None else address, timeout_s))
    except TimeoutError as error:
        raise TimeoutError(f"the model server did not answer within {timeout_s:g} s") from error


def _exchange(body: bytes, address: str | Path, timeout_s: float) -> bytes:
    deadline_s = time.monotonic() + timeout_s
    with _connect(address, deadline_s) as connection:
        _arm(connection, deadline_s)
        connection.sendall(_HEADER.pack(len(body)) + body)
        (n_bytes,) = _HEADER.unpack(_receive(connection, _HEADER.size, deadline_s))
        if n_bytes > _MAX_FRAME_BYTES:
            raise ProtocolMismatchError(f"{address}: the answer claims {n_bytes} bytes; no model server does")
        return _receive(connection, n_bytes, deadline_s)


def _connect(address: str | Path, deadline_s: float) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _arm(connection, deadline_s)
        connection.connect(str(address))
    except TimeoutError:
        connection.close()
        raise
    except OSError as error:
        connection.close()
        raise ConnectionError(
            f"no model server at {address} ({error.strerror or error}); start: samevec serve"
        ) from error
    return connection


def _arm(connection: socket.socket, deadline_s: float) -> None:
    """Limit the next operation to the time left before the request's deadline."""
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    connection.settimeout(left_s if math.isfinite(left_s) else None)


def _receive(connection: socket.socket, n_bytes: int, deadline_s: float) -> bytes:
    received = bytearray()
    while len(received) < n_bytes:
        _arm(connection, deadline_s)
        chunk = connection.recv(min(n_bytes - len(received), 1 << 20))
        if not chunk:
            raise ConnectionError("the model server closed the connection before its answer was whole")
        received += chunk
    return bytes(received)


def _checked(body: bytes) -> dict[str, Any]:
    """Parse an answer; errors become exceptions."""
    try:
        answer = json.loads(body)
    except ValueError as error:
        raise ProtocolMismatchError("the answer is not JSON: another program, or an old model server") from error
    if not isinstance(answer, dict) or answer.get("protocol", _PROTOCOL_VERSION) != _PROTOCOL_VERSION:
        raise ProtocolMismatchError(f"the answer is not of protocol {_PROTOCOL_VERSION}: an incompatible server")
    if answer.get("ok"):
        return answer
    message, kind = str(answer.get("error", "unknown")), str(answer.get("type", "unknown"))
    if kind == "deadline_exceeded":
        raise TimeoutError(message)
    retry_after_s = answer.get("retry_after_s")
    raise ModelServerError(message, kind=kind, retry_after_s=retry_after_s if type(retry_after_s) is int else None)


def _array(answer: dict[str, Any], name: str) -> NDArray[np.float32]:
    try:
        record = answer[name]
        values = np.frombuffer(base64.b64decode(record["__ndarray__"], validate=True), dtype="<f4")
        return values.reshape(record["shape"]).astype(np.float32)  # a copy: frombuffer's is read-only
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolMismatchError(f"the answer holds no array {name!r}: an incompatible server") from error
