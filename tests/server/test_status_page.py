"""The page for people: what it shows, that it escapes everything, that it loads nothing."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from typing import Any

from test_metrics import NOW, facts

from samevec.server.http.status_page import PAGE_HEADERS, PageFacts, duration, size, status_page

HOSTILE = '<script>alert("x")</script>&\'"'


def page_facts(**changes: Any) -> PageFacts:
    info = facts()
    model = info["models"][0]
    model |= {
        "source": "hf:owner/m",
        "revision": "0" * 40,
        "max_tokens": 2048,
        "dimensions": 1024,
        "min_dimensions": 32,
        "artifact": "sha256:" + "a" * 64,
        "answers": "sha256:" + "b" * 64,
    }
    model["receipt"]["bound_to"] = {"onnxruntime_version": "1.32.0", "device": "a processor"}
    info["limits"] = {"max_queue_items": 8192, "max_queue_tokens": 4_000_000, "max_queue_bytes": 128 << 20}
    given: dict[str, Any] = {
        "info": info,
        "reasons": (),
        "private_bytes": 61_000_000,
        "resident_bytes": 2_610_000_000,
        "uptime_s": 93_784.0,
        "requests": {"200": 1200, "429": 3},
        "errors": {"overloaded": 3},
        "now": NOW,
    }
    return PageFacts(**(given | changes))


class Reader(HTMLParser):
    """Collects words, tags and attributes; fails where tags do not close in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self._open: list[str] = []
        self.feed(page)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "link"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("style", "script"):
            self.words.append(data)


def test_it_shows_models_receipts_queue_memory_and_rates() -> None:
    shown = Reader(status_page(page_facts())).words
    for words in (
        "ready",
        "0.1.0, up 1 d 2 h",
        "3 items",
        "44 of 4,000,000",
        "61 MB",
        "2.61 GB",
        "123 tokens/s",
        "1,203",
        "overloaded",
        "m",
        "unloaded",
        "cpu, onnx, CPUExecutionProvider",
        "1,024 (down to 32)",
        "passed",
        ", receipt 1 h old",
        "sha256:" + "a" * 64,
        "onnxruntime version",
        "a processor",
    ):
        assert words in shown, words


def test_reasons_stand_on_top_when_it_is_not_ready() -> None:
    page = status_page(page_facts(reasons=("m: its worker died", "shutting down")))
    assert "<title>samevec: not ready</title>" in page
    shown = Reader(page).words
    assert shown.index("m: its worker died") < shown.index("Queue")


def test_a_dead_worker_a_reference_and_an_unreadable_age() -> None:
    dead, torch = page_facts(), page_facts()
    dead.info["models"][0]["worker"]["alive"] = False
    dead.info["models"][0]["receipt"]["created_at"] = None
    shown = Reader(status_page(dead)).words
    assert "worker dead" in shown
    assert ", receipt of unknown age" in shown
    torch.info["models"][0]["receipt"] = {"state": "reference", "created_at": None}
    assert "PyTorch itself: no receipt is needed" in Reader(status_page(torch)).words


def test_everything_is_escaped() -> None:
    facts_ = page_facts(reasons=(HOSTILE,), requests={HOSTILE: 1}, errors={HOSTILE: 1})
    model = facts_.info["models"][0]
    for name in ("name", "task", "profile", "backend", "provider", "source", "revision", "artifact"):
        model[name] = HOSTILE
    model["receipt"] = {"state": HOSTILE, "created_at": HOSTILE, "bound_to": {HOSTILE: HOSTILE}}
    page = status_page(facts_)
    read = Reader(page)
    assert read.tags.count("script") == 1
    assert HOSTILE not in page
    assert sum(HOSTILE in words for words in read.words) >= 14


def test_it_loads_nothing_and_works_without_a_script() -> None:
    page = status_page(page_facts())
    links = [value or "" for name, value in Reader(page).attributes if name in ("href", "src")]
    assert set(links) == {"data:,", "/info", "/metrics", "/ready", "/docs"}
    assert '<noscript><meta http-equiv="refresh"' in page
    assert "url(" not in page
    assert "@import" not in page
    assert not re.search(r"\son[a-z]+=|\sstyle=", page)


def test_the_browser_is_told_to_run_exactly_this_script_and_style() -> None:
    page, policy = status_page(page_facts()), PAGE_HEADERS["content-security-policy"]
    for tag in ("script", "style"):
        content = re.search(rf"<{tag}>(.*?)</{tag}>", page, flags=re.DOTALL)
        assert content is not None
        digest = base64.b64encode(hashlib.sha256(content[1].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_sizes_and_durations() -> None:
    assert [size(n) for n in (0, 61_400_000, 999_000_000, 1_210_000_000)] == ["0 MB", "61 MB", "999 MB", "1.21 GB"]
    given = (0, 59.9, 61, 3600, 93_784, 86_400 * 3 + 5)
    assert [duration(s) for s in given] == ["0 s", "59 s", "1 min 1 s", "1 h", "1 d 2 h", "3 d 5 s"]
