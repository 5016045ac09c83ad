"""What ``status`` says of a running server; nothing where none answers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from samevec.cli.running import running_lines
from samevec.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

URL = "http://127.0.0.1:8765"
INFO = {
    "service": "samevec",
    "version": "0.1.0",
    "ready": True,
    "queue": {"items": 2, "tokens": 9, "bytes": 50},
    "models": [
        {"name": "m", "profile": "cpu", "provider": "P", "state": "unloaded", "receipt": {"state": "passed"}},
    ],
}


def answering(status: int, record: Any) -> Any:
    return lambda url, headers: (status, json.dumps(record).encode())


def test_a_server_that_answers() -> None:
    assert running_lines(URL, fetch=answering(200, INFO)) == [
        "",
        "running at http://127.0.0.1:8765: samevec 0.1.0, ready, 2 items queued",
        "  m: cpu, P, unloaded, parity passed",
    ]


def test_a_server_that_wants_a_key(tmp_path: Path) -> None:
    assert running_lines(URL, fetch=answering(401, {})) == [
        "",
        "running at http://127.0.0.1:8765: asks for a key; give --api-key-file",
    ]
    keys = tmp_path / "keys"
    keys.write_text("one\ntwo\n")
    asked: list[tuple[str, dict[str, str]]] = []

    def fetch(url: str, headers: dict[str, str]) -> tuple[int, bytes]:
        asked.append((url, headers))
        return 200, json.dumps(INFO).encode()

    assert len(running_lines(f"{URL}/", keys, fetch=fetch)) == 3
    assert asked == [(f"{URL}/info", {"authorization": "Bearer one"})]


def refusing(url: str, headers: dict[str, str]) -> tuple[int, bytes]:
    raise ConnectionRefusedError


def test_nothing_is_said_where_nothing_or_something_else_answers() -> None:
    assert running_lines(URL, fetch=refusing) == []
    assert running_lines(URL, fetch=answering(200, {"service": "another"})) == []
    assert running_lines(URL, fetch=answering(200, ["x"])) == []
    assert running_lines(URL, fetch=answering(404, {})) == []
    assert running_lines(URL, fetch=lambda url, headers: (200, b"<html>")) == []


def test_an_address_that_is_none() -> None:
    with pytest.raises(ConfigError, match="--url file:///etc/x: http://HOST:PORT"):
        running_lines("file:///etc/x")
