"""The part of ``samevec status`` about a running server, from one request to its ``/info``."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

from samevec.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Fetch = Callable[[str, dict[str, str]], tuple[int, bytes]]

__all__ = ["running_lines"]

_TIMEOUT_S = 2.0


def _fetch(url: str, headers: dict[str, str]) -> tuple[int, bytes]:
    """Send one request, past any proxy, since the server is near."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT_S) as answer:  # noqa: S310
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, b""


def running_lines(url: str, api_key_file: Path | None = None, *, fetch: Fetch = _fetch) -> list[str]:
    """Return lines about the server at a URL; none if it does not answer. The first key of `api_key_file` is sent.

    ConfigError if the address is not an HTTP one, or the key file cannot be used.
    """
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"--url {url}: http://HOST:PORT or https://HOST:PORT is needed")
    headers = {}
    if api_key_file is not None:
        from samevec.server.lifecycle import read_api_keys  # noqa: PLC0415  only where there is a key to read

        headers["authorization"] = f"Bearer {read_api_keys(api_key_file)[0]}"
    try:
        status, body = fetch(f"{url.rstrip('/')}/info", headers)
        info = json.loads(body) if status == 200 else {}
    except (OSError, ValueError):
        return []
    if status == 401:
        return ["", f"running at {url}: asks for a key; give --api-key-file"]
    return _lines(url, info) if isinstance(info, dict) and info.get("service") == "samevec" else []


def _lines(url: str, info: dict[str, Any]) -> list[str]:
    state, queue = "ready" if info["ready"] else "not ready", info["queue"]
    lines = ["", f"running at {url}: samevec {info['version']}, {state}, {queue['items']} items queued"]
    for model in info["models"]:
        receipt = model["receipt"]
        words = [model["profile"], model["provider"], model.get("state", "loaded"), f"parity {receipt['state']}"]
        lines.append(f"  {model['name']}: {', '.join(words)}")
    return lines
