"""``samevec demo``: exports, proves and serves the toy pair, and sends three real requests."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samevec.export.pipeline import export_model
from samevec.gate import open_proved, prove
from samevec.lock import load_lock
from samevec.opening import open_candidate
from samevec.server.lifecycle import running_server
from samevec.server.settings import ServedModel, ServerSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from samevec.lock import Lock, LockedModel
    from samevec.parity.verdict import Verdict
    from samevec.progress import Progress

__all__ = ["REQUESTS", "run_demo"]

_EMBEDDER, _RERANKER = "toy-qwen3-embedder", "toy-modernbert-reranker"

#: The three requests: route and body.
REQUESTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/embeddings", {"model": _EMBEDDER, "input": ["the same text, the same vector"]}),
    (
        "/v1/embeddings",
        {"model": _EMBEDDER, "input": ["short", "a longer text"], "input_type": "query", "dimensions": 64},
    ),
    ("/v1/rerank", {"model": _RERANKER, "query": "who?", "documents": ["a person", "a place", "a thing"], "top_n": 2}),
)


def run_demo(
    progress: Progress, *, show_verdict: Callable[[Verdict], None], say: Callable[[str], None], keep: Path | None = None
) -> int:
    """Run the whole path from export to answered requests; return 0 if all passed, else 1.

    `keep` is a home that stays; without it a temporary one is removed.
    """
    started_s = time.monotonic()
    lock = load_lock("toy")
    home = Path(tempfile.mkdtemp(prefix="samevec-demo-")) if keep is None else keep
    say("samevec demo: the toy pair is made of fixed random integers. It proves the path; its vectors mean nothing.")
    try:
        for number, name in enumerate((_EMBEDDER, _RERANKER), 1):
            say(f"\n[{number}/3] export and prove {name}")
            if not _export_and_prove(lock.model(name), lock, home, progress, show_verdict):
                return 1
        say("\n[3/3] serve both and ask")
        _serve_and_ask(lock, home, say)
    finally:
        if keep is None:
            shutil.rmtree(home, ignore_errors=True)
    say(f"\ndone in {time.monotonic() - started_s:.0f} s. Next: samevec export (the real models), then samevec serve")
    return 0


def _export_and_prove(
    entry: LockedModel, lock: Lock, home: Path, progress: Progress, show_verdict: Callable[[Verdict], None]
) -> bool:
    export_model(entry, lock, profile="cpu", home=home, progress=progress)
    candidate = open_candidate(entry, profile="cpu", home=home)
    verdict = prove(candidate, tolerance=lock.tolerance, progress=progress)
    show_verdict(verdict)
    return verdict.passed


def _serve_and_ask(lock: Lock, home: Path, say: Callable[[str], None]) -> None:
    served = []
    for entry in lock.models:
        candidate = open_proved(entry, tolerance=lock.tolerance, profile="cpu", home=home)
        served.append(ServedModel(model=candidate.model, artifact_digest=candidate.artifact.digest))
    with running_server(served, ServerSettings(port=0)) as endpoints:
        say(f"serving at {endpoints.url}")
        for route, body in REQUESTS:
            say(f"\nPOST {route} {json.dumps(body)}")
            say(f"  -> {_shortened(_post(f'{endpoints.url}{route}', body))}")
    say("stopped")


def _post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(  # noqa: S310  the demo's own loopback address
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        return json.load(answer)


def _shortened(value: Any) -> str:
    """Return JSON with long arrays of numbers cut, for one line of a terminal."""

    def cut(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: cut(inner) for key, inner in item.items()}
        if isinstance(item, list) and len(item) > 4 and all(isinstance(inner, float) for inner in item):
            return [*[round(inner, 4) for inner in item[:3]], f"... {len(item)} numbers"]
        return [cut(inner) for inner in item] if isinstance(item, list) else item

    return json.dumps(cut(value))
