"""The page at ``/`` for people: models, receipts, queue and memory, as one HTML document that loads nothing else."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

from samevec.server.telemetry.metrics import receipt_age_s

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

__all__ = ["PAGE_HEADERS", "PageFacts", "duration", "size", "status_page"]

_STYLE = """
:root{color-scheme:light dark;--back:#f6f7f9;--card:#fff;--ink:#1b1f24;--soft:#5b6470;--line:#dde1e6;--good:#0f7a3d;
--bad:#b3261e;--odd:#8a5a00}
@media(prefers-color-scheme:dark){:root{--back:#14171a;--card:#1d2125;--ink:#e8eaed;--soft:#a0a8b2;--line:#32383f;
--good:#5ccf8a;--bad:#ff8a80;--odd:#f0b95a}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--ink);font:15px/1.45 system-ui,sans-serif}
main{max-width:1120px;margin:0 auto;padding:20px 16px 40px}
header{display:flex;flex-wrap:wrap;gap:4px 12px;align-items:baseline;margin-bottom:16px}
h1{font-size:22px;margin:0}h2{font-size:17px;margin:0;overflow-wrap:anywhere}
h3{font-size:13px;margin:0;color:var(--soft);font-weight:600}
.soft{color:var(--soft)}.good{color:var(--good)}.bad{color:var(--bad)}.odd{color:var(--odd)}
.state{font-weight:600}
.grid{display:grid;gap:12px;grid-template-columns:repeat(auto-fit,minmax(min(100%,230px),1fr));margin-bottom:12px}
.wide{grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr))}
.card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:14px 16px;min-width:0}
.number{font-size:24px;font-variant-numeric:tabular-nums}
dl{display:grid;grid-template-columns:minmax(110px,auto) 1fr;gap:3px 14px;margin:10px 0 0}
dt{color:var(--soft)}dd{margin:0;min-width:0;overflow-wrap:anywhere;font-variant-numeric:tabular-nums}
.numbers{grid-template-columns:minmax(0,1fr) auto}.numbers dt{overflow-wrap:anywhere}
.numbers dd{white-space:nowrap;text-align:right}
.top{display:flex;flex-wrap:wrap;justify-content:space-between;gap:2px 12px;align-items:baseline}
details{margin-top:10px;border-top:1px solid var(--line);padding-top:8px}summary{cursor:pointer}
a{color:inherit}ul{margin:8px 0 0;padding-left:20px}
"""
# Replaces what is shown while somebody looks; what was unfolded stays so.
_SCRIPT = """
setInterval(async()=>{if(document.hidden)return;const old=document.querySelector("main");try{
const answer=await fetch(location.pathname,{cache:"no-store"});if(!answer.ok)throw 0;
const page=new DOMParser().parseFromString(await answer.text(),"text/html");const fresh=page.querySelector("main");
for(const one of old.querySelectorAll("details[open]")){const same=fresh.querySelector("#"+CSS.escape(one.id));
if(same)same.open=true}old.replaceWith(fresh);document.title=page.title}catch{
document.querySelector("#seen").textContent="the server does not answer; last seen "+old.dataset.time}},5000)
"""
_NO_SCRIPT_REFRESH_S = 15


def _csp_hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


#: The browser is told to load nothing, to run this script and no other, and to keep nothing.
PAGE_HEADERS = {
    "content-security-policy": (
        f"default-src 'none'; style-src {_csp_hash(_STYLE)}; script-src {_csp_hash(_SCRIPT)}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PageFacts:
    """What the page shows.

    Attributes
    ----------
    info : mapping
        What ``/info`` tells.
    reasons : sequence of str
        Why requests are refused; empty when ready.
    private_bytes, resident_bytes : int
    uptime_s : float
    requests, errors : mapping of str to int
        Requests by status, errors by kind, since the start.
    now : datetime
        With its time zone.
    """

    info: Mapping[str, Any]
    reasons: tuple[str, ...]
    private_bytes: int
    resident_bytes: int
    uptime_s: float
    requests: Mapping[str, int] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)
    now: datetime


def status_page(facts: PageFacts) -> str:
    """Return the page.

    Parameters
    ----------
    facts : PageFacts

    Returns
    -------
    str
        One HTML document; everything that is not markup of ours is escaped.
    """
    word = "ready" if not facts.reasons else "not ready"
    time = facts.now.strftime("%Y-%m-%d %H:%M:%S %Z")
    models = "".join(_model_card(model, i, facts.now) for i, model in enumerate(facts.info["models"]))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<noscript><meta http-equiv="refresh" content="{_NO_SCRIPT_REFRESH_S}"></noscript>'
        f'<title>samevec: {word}</title><link rel="icon" href="data:,"><style>{_STYLE}</style></head>'
        f'<body><main data-time="{escape(time)}"><header><h1>samevec</h1>{_state(word, good=not facts.reasons)}'
        f'<span class="soft">{escape(str(facts.info["version"]))}, up {duration(facts.uptime_s)}</span>'
        f'<span class="soft" id="seen">{escape(time)}</span></header>{_reasons(facts.reasons)}'
        f'<div class="grid">{_process_cards(facts)}</div><div class="grid wide">{models}</div>'
        '<p class="soft">For programs: <a href="/info">/info</a>, <a href="/metrics">/metrics</a>, '
        '<a href="/ready">/ready</a>. Routes: <a href="/docs">/docs</a>.</p></main>'
        f"<script>{_SCRIPT}</script></body></html>"
    )


def _state(word: str, *, good: bool) -> str:
    kind = "odd" if word == "unloaded" else "good" if good else "bad"
    return f'<span class="state {kind}">{escape(word)}</span>'


def _reasons(reasons: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(reason)}</li>" for reason in reasons)
    return f'<div class="grid"><section class="card bad"><h3>Why</h3><ul>{items}</ul></section></div>' if items else ""


def _process_cards(facts: PageFacts) -> str:
    queue, limits = facts.info["queue"], facts.info["limits"]
    n_requests, n_errors = sum(facts.requests.values()), sum(facts.errors.values())
    rate = sum(model["worker"]["tokens_per_s"] for model in facts.info["models"])
    return "".join((
        _number_card("Queue", f"{queue['items']:,} items", (
            ("room for", f"{limits['max_queue_items']:,} items"),
            ("tokens", f"{queue['tokens']:,} of {limits['max_queue_tokens']:,}"),
            ("bodies", f"{size(queue['bytes'])} of {size(limits['max_queue_bytes'])}"),
        )),
        _number_card("Private memory", size(facts.private_bytes), (
            ("with mapped files", size(facts.resident_bytes)),
        )),
        _number_card("Speed", f"{rate:,.0f} tokens/s" if rate else "not measured yet", (
            (model["name"], f"{model['worker']['tokens_per_s']:,.0f}") for model in facts.info["models"]
        )),
        _number_card("Requests", f"{n_requests:,}", (
            *((status, f"{n:,}") for status, n in facts.requests.items()),
            ("errors", f"{n_errors:,}"),
            *((_words(kind), f"{n:,}") for kind, n in facts.errors.items()),
        )),
    ))  # fmt: skip


def _number_card(heading: str, number: str, rows: Iterable[tuple[str, str]]) -> str:
    shown = f'<h3>{escape(heading)}</h3><div class="number">{escape(number)}</div>{_rows(rows, "numbers")}'
    return f'<section class="card">{shown}</section>'


def _rows(rows: Iterable[tuple[str, str]], kind: str = "facts") -> str:
    shown = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in rows)
    return f'<dl class="{kind}">{shown}</dl>'


def _model_card(model: Mapping[str, Any], number: int, now: datetime) -> str:
    worker, loaded = model["worker"], model.get("state", "loaded")
    works = worker["alive"]
    rows = [
        ("task", model["task"]),
        ("profile", f"{model['profile']}, {model['backend']}, {model['provider']}"),
        ("source", model["source"]),
        ("revision", model["revision"]),
        ("longest input", f"{model['max_tokens']:,} tokens"),
        ("microbatch", f"up to {worker['token_budget']:,} padded tokens"),
        ("restarts", str(worker["restarts"])),
    ]
    if "dimensions" in model:
        rows.insert(4, ("dimensions", f"{model['dimensions']:,} (down to {model['min_dimensions']:,})"))
    state = _state(loaded if works else "worker dead", good=works)
    return (
        f'<section class="card"><div class="top"><h2>{escape(model["name"])}</h2>{state}</div>'
        f"{_rows((name, str(value)) for name, value in rows)}{_receipt(model, number, now)}</section>"
    )


def _receipt(model: Mapping[str, Any], number: int, now: datetime) -> str:
    receipt = model["receipt"]
    if receipt["state"] == "reference":
        return '<p class="soft">PyTorch itself: no receipt is needed</p>'
    age_s = receipt_age_s(receipt["created_at"] or "", now)
    age = "of unknown age" if age_s is None else f"{duration(age_s)} old"
    bound = {
        "artifact": model["artifact"] or "unknown",
        "answers": model["answers"] or "bits not promised",
        **receipt.get("bound_to", {}),
    }
    rows = [("written", str(receipt["created_at"])), *((_words(name), _plain(value)) for name, value in bound.items())]
    summary = f"Parity {_state(receipt['state'], good=receipt['state'] == 'passed')}, receipt {escape(age)}"
    return f'<details id="receipt-{number}"><summary>{summary}</summary>{_rows(rows)}</details>'


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={one}" for name, one in value.items()) or "none"
    return str(value)


def _words(name: str) -> str:
    return name.replace("_", " ")


def size(n_bytes: int) -> str:
    """Return bytes in MB or GB, as people say them."""
    return f"{n_bytes / 1e9:,.2f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:,.0f} MB"


def duration(seconds: float) -> str:
    """Return seconds in the two largest units that say something."""
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    left = int(seconds)
    parts: list[str] = []
    for unit, length in units:
        if left >= length and len(parts) < 2:
            parts.append(f"{left // length} {unit}")
        left %= length
    return " ".join(parts) or "0 s"
