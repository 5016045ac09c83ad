"""Two replicas on different processors give the same answers, byte for byte."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from e2e_tools import serving
from emulation import haswell

if TYPE_CHECKING:
    from e2e_tools import Live, ToyHome

pytestmark = [pytest.mark.model, pytest.mark.server]

TEXTS = ["The ferry leaves at seven.", "", "\u00d6l \U0001f98a", "a b c d e f g h " * 12]
#: Small: the emulated processor computes some hundred times slower.
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    *(("/v1/embeddings", {"input": text, "encoding_format": "base64"}) for text in TEXTS),
    ("/v1/embeddings", {"input": TEXTS, "encoding_format": "base64", "prompt_name": "query", "dimensions": 256}),
    ("/embed", {"inputs": TEXTS[:2], "normalize": False}),
    ("/rerank", {"query": "when does it leave", "documents": TEXTS, "raw_scores": True}),
    ("/rerank", {"query": "when does it leave", "texts": TEXTS}),
]
#: What differs between any two answers.
OWN_HEADERS = ("date", "x-request-id")


def answers(url: str) -> list[tuple[int, dict[str, str], bytes]]:
    """Every request's status, headers and body."""
    found = []
    with httpx.Client(base_url=url, timeout=120) as client:
        for path, body in REQUESTS:
            answer = client.post(path, json=body)
            headers = {name: value for name, value in answer.headers.items() if name not in OWN_HEADERS}
            found.append((answer.status_code, headers, answer.content))
    return found


def require_emulated(server: Live) -> None:
    assert Path(f"/proc/{server.process.pid}/exe").readlink().name.startswith("qemu")


def test_a_replica_on_another_processor_gives_the_same_bytes(exported: ToyHome, home: Path, tmp_path: Path) -> None:
    """The emulated one is a whole ``samevec serve``, gate and probe included.

    Its receipt is the native one's, since qemu-user shows the host's /proc/cpuinfo; ``--prove`` would write another
    into its own copy of the home, which takes minutes. What its library computes with is AVX2.
    """
    if haswell.problem is not None:
        pytest.skip(haswell.problem)
    folders = [tmp_path / "native", tmp_path / "emulated"]
    for folder in folders:
        folder.mkdir()
    here = ("--lock", "toy", "--home", exported.path)
    there = ("--lock", "toy", "--home", home, "--prove")
    with (
        serving(*here, folder=folders[0]) as native,
        serving(*there, folder=folders[1], processor=haswell) as emulated,
    ):
        require_emulated(emulated)
        ours, theirs = answers(native.url), answers(emulated.url)
        for request, one, other in zip(REQUESTS, ours, theirs, strict=True):
            assert one[0] == 200, (request, one)
            assert one == other, request
        vector = base64.b64decode(json.loads(ours[0][2])["data"][0]["embedding"])
        assert theirs[0][1]["x-samevec-digest"] == f"sha256:{hashlib.sha256(vector).hexdigest()}"
        assert (native.stop(), emulated.stop()) == (0, 0)
