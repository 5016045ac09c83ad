"""The page for people: one static document that loads nothing, and shows /info as text."""

from __future__ import annotations

import base64
import hashlib
import re

from stand_ins import in_process


def test_the_page_is_open_and_asks_for_a_key() -> None:
    with in_process(api_keys=("secret",)) as server:
        page = server.ask("GET", "/")
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert "fetch(path, options)" in page.text
        assert server.ask("GET", "/info").status_code == 401
        known = server.ask("GET", "/info", headers={"authorization": "Bearer secret"}).json()
    shown = set(re.findall(r"(?:model|worker|queue|limits|info)\.(\w+)", page.text)) - {
        "status",
        "ok",
        "json",
        "models",
    }
    model = known["models"][0]
    known = {*known, *known["queue"], *known["limits"], *model, *model["worker"]}
    assert shown <= known  # every name that the script reads is one that the server writes


def test_it_loads_nothing_and_writes_text_only() -> None:
    with in_process() as server:
        page = server.ask("GET", "/").text
    links = set(re.findall(r'(?:href|src)="([^"]*)"', page))
    assert links == {"data:,", "/info", "/metrics", "/ready", "/docs"}
    for never in ("url(", "@import", "innerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert never not in page
    assert not re.search(r"\son[a-z]+=|\sstyle=", page)


def test_the_browser_is_told_to_run_exactly_this_script_and_style() -> None:
    with in_process() as server:
        answer = server.ask("GET", "/")
    policy = answer.headers["content-security-policy"]
    for tag in ("script", "style"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", answer.text, flags=re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
