"""One self-contained HTML page about one or several verdicts: no script, nothing fetched, everything escaped. Pure."""

from __future__ import annotations

import math
import re
from importlib import resources
from typing import TYPE_CHECKING, Any

from samevec.parity.reference.torch_baseline import BASELINE_TITLE
from samevec.parity.report.markup import Html, element, joined
from samevec.parity.report.plots import ErrorPoint, error_plot, ratio_plot

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["html_page"]

# Failures beyond these are folded away: one mistake can fail every cell.
_SHOWN_FINDINGS = 12

# Columns of words, not of numbers.
_WORDED = frozenset({"what it is there for", "worst in grouping"})

_QUALITIES = {"recall_10": "Recall@10", "recall_100": "Recall@100", "mrr": "MRR", "ndcg_10": "NDCG@10"}
# Cells that have a table of their own: comparisons with PyTorch computed again, and with the model card's values.
_LIVE = ("stored_vs_live", "candidate_vs_live")
_GOLDEN = "golden"

_RANKING_NAMES = {
    "default": "candidate, one call",
    "shuffled": "candidate, in other company",
    "stored": "candidate's queries, PyTorch's stored documents",
}
_NONE = "–"  # noqa: RUF001  a dash in a table


def html_page(report: Mapping[str, Any]) -> str:
    """Return the page of a report.

    Parameters
    ----------
    report : mapping
        As ``report.json`` holds it, see :func:`samevec.parity.report.files.report_record`: ``passed``, ``created_at``,
        ``samevec_version`` and ``models``, a verdict's record each with ``binding`` beside it. Parts that a verdict
        does not have are left out of the page.

    Returns
    -------
    str
        A whole document that needs no other file and runs no script.
    """
    models = sorted(report["models"], key=lambda model: bool(model["passed"]))  # failures first
    failing = sum(not model["passed"] for model in models)
    words = "passed" if not failing else f"failed for {failing} of {len(models)} models"
    style = resources.files("samevec.parity.report").joinpath("report.css").read_text(encoding="utf-8")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        # Whatever a text of ours or of a checkpoint might smuggle in: this page loads nothing and runs nothing.
        element("meta", http_equiv="Content-Security-Policy", content="default-src 'none'; style-src 'unsafe-inline'"),
        element("title", f"samevec parity {words}"),
        element("style", Html(style)),
    )
    body = element(
        "body",
        element("main", _page_head(report, models), *(_section(model, boxed=len(models) > 1) for model in models)),
        element(
            "footer",
            f"Written by samevec {report['samevec_version']} at {report['created_at']}. "
            "The same facts for programs are in report.json beside this page.",
        ),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _page_head(report: Mapping[str, Any], models: Sequence[Mapping[str, Any]]) -> Html:
    if len(models) == 1:
        return joined([element("h1", "samevec parity report"), _verdict_box(models[0])])
    failing = sum(not model["passed"] for model in models)
    words = "Every model passed" if not failing else f"{failing} of {len(models)} models failed"
    entries = [
        element(
            "li",
            element("a", model["model"], href=f"#{_anchor(model)}"),
            f" ({model['profile']}): ",
            element("b", "passed" if model["passed"] else _count(len(model["failures"]), "finding")),
            class_=_outcome(model),
        )
        for model in models
    ]
    box = element("div", element("strong", words), class_=f"verdict {'failed' if failing else 'passed'}")
    return joined(
        [
            element("h1", "samevec parity report"),
            box,
            element("nav", element("ul", *entries), aria_label="Models"),
            element("p", element("small", _reference_words(report))) if report.get("reference") else None,
        ]
    )


def _reference_words(report: Mapping[str, Any]) -> str:
    live = report["reference"] == "live"
    return "PyTorch was computed again beside the stored reference." if live else "Compared with the stored reference."


def _anchor(model: Mapping[str, Any]) -> str:
    return "model-" + re.sub(r"[^A-Za-z0-9.-]+", "-", f"{model['model']}-{model['profile']}")


def _outcome(model: Mapping[str, Any]) -> str:
    return "passed" if model["passed"] else "failed"


def _verdict_box(model: Mapping[str, Any]) -> Html:
    big = "Passed" if model["passed"] else f"Failed: {_count(len(model['failures']), 'finding')}"
    quick = ""
    if model.get("quick"):  # a failed one has a receipt, which says that it failed
        passed = " A quick run: it finds mistakes, but no receipt lets this be served."
        quick = passed if model["passed"] else " A quick run."
    return element(
        "div",
        element("strong", big),
        element("p", _verdict_words(model) + quick),
        class_=f"verdict {_outcome(model)}",
    )


def _verdict_words(model: Mapping[str, Any]) -> str:
    cells = model["cells"]
    failing = sum(not cell["passed"] for cell in cells)
    what = f"{len(cells)} comparisons of {model['n_cases']} cases with PyTorch's float32 output"
    if model["passed"]:
        greatest = max((_number(c["comparison"]["max_abs"]) for c in cells if c["comparison"]), default=0.0)
        within = f"{what} agree within the tolerance; the greatest difference is {_figure(greatest)}."
        return within + _answers_words(model.get("answers"))
    return f"{failing} of {what} fail. samevec refuses to serve this."


def _answers_words(answers: Mapping[str, Any] | None) -> str:
    """Say that the bits are those of the export, and so of every processor."""
    if answers is None:
        return ""
    return (
        f" All {answers['n_compared']} cases have the bits of the export, as on every processor: answers "
        f"{answers['digest'][:19]}, arithmetic {answers['arithmetic']}."
    )


def _section(model: Mapping[str, Any], *, boxed: bool) -> Html:
    parts = [
        _verdict_box(model) if boxed else None,
        _findings("What failed", model["failures"], bad=True),
        _bound(model),
        _findings("What was not measured", model["not_measured"]),
        _matrix_part("Every comparison", model, _matrix_words(model), _matrix_cells(model)),
        _every_cell(model),
        _torch_baseline(model.get("torch_baseline")),
        _live(model),
        _golden(model),
        _plots(model),
        _worst_rows(model),
        _rankings(model.get("rankings")),
        _baseline(model.get("baseline_verdict")),
        _findings("Notes", model["notes"]),
    ]
    heading = element("h2", f"{model['model']} ({model['profile']}): {'passed' if model['passed'] else 'failed'}")
    return element("section", heading, *parts, id=_anchor(model))


def _findings(title: str, findings: Sequence[str], *, bad: bool = False) -> Html | None:
    if not findings:
        return None
    items = [element("li", finding) for finding in findings]
    shown, rest = items[:_SHOWN_FINDINGS], items[_SHOWN_FINDINGS:]
    kind = "findings bad" if bad else "findings"
    more = None
    if rest:
        more = element(
            "details",
            element("summary", f"and {len(rest)} more"),
            element("ol" if bad else "ul", *rest, class_=kind, start=len(shown) + 1 if bad else None),
        )
    return joined([element("h3", title), element("ol" if bad else "ul", *shown, class_=kind), more])


def _bound(model: Mapping[str, Any]) -> Html:
    """List what the verdict is about; if any of it changes, it says nothing any more."""
    binding = dict(model.get("binding") or {})
    tolerance = model["tolerance"]
    rule = f"|reference - candidate| <= {tolerance['atol']:g} + {tolerance['rtol']:g} * |reference|"
    facts: list[tuple[str, object]] = [
        ("artifact", binding.get("artifact_digest") or model.get("artifact_digest")),
        ("lock entry", binding.get("lock_entry_digest") or model.get("lock_entry_digest")),
        ("case set", model["case_set_digest"]),
        ("retrieval fixture", binding.get("fixture_digest") or (model.get("rankings") or {}).get("fixture_digest")),
        ("gate code", model.get("code_digest")),
        ("provider", model["provider"]),
        ("provider options", _options(binding.get("provider_options"))),
        ("session options", _options(binding.get("session_options"))),
        ("onnxruntime", binding.get("onnxruntime_version")),
        ("tokenizers", binding.get("tokenizers_version")),
        ("numpy", binding.get("numpy_version")),
        ("device", binding.get("device")),
        ("samevec", binding.get("samevec_version")),
        ("PyTorch reference", _options(model.get("reference_toolchain"))),
        ("tolerance", rule),
        ("repeats", f"every grouping {model['repeats']} times"),
        ("time", f"{model['elapsed_s']:.1f} s"),
    ]
    entries = [
        element("dt", name) + element("dd", element("code", value)) for name, value in facts if value not in (None, "")
    ]
    words = "If any of this changes, the verdict says nothing any more; samevec then asks for a new one."
    return joined(
        [
            element("h3", "What this is bound to"),
            element("p", element("small", words)),
            element("dl", *map(Html, entries)),
        ]
    )


def _options(options: Mapping[str, Any] | None) -> str:
    return ", ".join(f"{name} {_plain(value)}" for name, value in sorted((options or {}).items()))


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return "(" + ", ".join(f"{name} {_plain(inner)}" for name, inner in sorted(value.items())) + ")"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _table(label: str, headings: Sequence[str], rows: Iterable[Html], *, caption: str | None = None) -> Html:
    """Return a table in a box of its own that scrolls where the page is narrow, by keyboard too."""
    head = element("thead", element("tr", *(_heading(heading) for heading in headings)))
    table = element("table", head, element("tbody", *rows), aria_label=label)
    box = element("div", table, class_="scroll", role="region", tabindex=0, aria_label=label)
    # Not a caption element: that is as wide as the table, and would be cut where the table scrolls.
    return joined([element("p", element("small", caption)) if caption else None, box])


def _heading(words: str) -> Html:
    return element("th", words, scope="col", class_="words" if words in _WORDED else None)


def _row(heading: object, *cells: object) -> Html:
    return element("tr", element("th", heading, scope="row"), *(_cell(cell) for cell in cells))


def _cell(content: object) -> Html:
    return content if isinstance(content, Html) and content.startswith("<td") else element("td", content)


def _matrix_words(model: Mapping[str, Any]) -> str:
    return (
        "Greatest absolute difference to PyTorch, by level and grouping. "
        f"Every grouping ran {model['repeats']} times; what is not the same bit for bit is said in the cell."
    )


def _matrix_cells(model: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the cells of the groupings; what has a table of its own is left out."""
    return [cell for cell in model["cells"] if cell["level"] != _GOLDEN and cell["grouping"] not in _LIVE]


def _matrix_part(title: str, model: Mapping[str, Any], caption: str, chosen: Sequence[Mapping[str, Any]]) -> Html:
    return joined([element("h3", title), _matrix(title, model, caption, chosen)])


def _matrix(title: str, model: Mapping[str, Any], caption: str, chosen: Sequence[Mapping[str, Any]]) -> Html:
    levels = list(dict.fromkeys(cell["level"] for cell in chosen))
    groupings = list(dict.fromkeys(cell["grouping"] for cell in chosen))
    cells = {(cell["grouping"], cell["level"]): cell for cell in chosen}
    runs = {run["name"]: run for run in model["groupings"]}
    rows = [
        _row(
            _grouping_name(grouping, runs.get(grouping)),
            runs[grouping]["rows"] if grouping in runs else _NONE,
            len(runs[grouping]["shapes"]) if grouping in runs else _NONE,
            *(_matrix_cell(cells.get((grouping, level))) for level in levels),
            _bits([cells[grouping, level] for level in levels if (grouping, level) in cells]),
        )
        for grouping in groupings
    ]
    headings = ["grouping", "cases", "runs", *(level.replace("_", " ") for level in levels), "same bits"]
    return _table(title, headings, rows, caption=caption)


def _grouping_name(name: str, run: Mapping[str, Any] | None) -> Html:
    same_as = None if run is None else run.get("same_as")
    note = element("small", f" ran like {same_as}") if same_as else None
    return joined([name.replace("_", " "), note])


def _matrix_cell(cell: Mapping[str, Any] | None) -> Html:
    if cell is None:
        return element("td", _NONE)
    comparison = cell["comparison"]
    if comparison is None:
        return element("td", "not computed", class_="fail")
    text = _difference(cell)
    if cell["passed"]:
        return element("td", text)
    failing = len(comparison["failing_rows"])
    why = f"fails in {_count(failing, 'row')} of {comparison['rows']}" if failing else "fails: bits moved"
    return element("td", text, element("small", why), class_="fail")


def _difference(cell: Mapping[str, Any]) -> str:
    comparison = cell["comparison"]
    if "ids" in (cell["level"], cell["grouping"]):
        return "equal" if not comparison["failing_rows"] else "differ"
    return _figure(_number(comparison["max_abs"]))


def _bits(cells: Sequence[Mapping[str, Any]]) -> Html:
    """Say for a grouping whether repeats, and the same rows alone, gave the same bits."""
    valued = [cell for cell in cells if cell["level"] != "ids" and cell["comparison"] and cell["repeats"]]
    if not valued:
        return element("td", _NONE)
    required = any(cell["bits_required"] for cell in valued)
    moved = max((len(cell["moved_rows"] or ()) for cell in valued), default=0)
    drifting = any(not cell["repeats_identical"] for cell in valued)
    compared = any(cell["moved_rows"] is not None for cell in valued)
    lines = []
    if drifting:
        lines.append("repeats differ")
    if moved:
        lines.append(f"{_count(moved, 'row')} unlike alone")
    if lines:
        return element("td", ", ".join(lines), class_="fail" if required else None)
    repeated = max(cell["repeats"] for cell in valued) > 1
    same = [name for name, known in (("repeats", repeated), ("alone", compared)) if known]
    return element("td", ", ".join(same) or _NONE)


def _every_cell(model: Mapping[str, Any]) -> Html:
    rows = []
    for cell in model["cells"]:
        comparison = cell["comparison"]
        outcome = element("td", "passed") if cell["passed"] else element("td", "failed", class_="fail")
        name = f"{cell['level']}/{cell['grouping']}"
        if comparison is None:
            rows.append(_row(name, outcome, *[_NONE] * 7))
            continue
        moved = cell["moved_rows"]
        rows.append(
            _row(
                name,
                outcome,
                f"{comparison['rows']:,}",
                f"{comparison['components']:,}",
                _difference(cell),
                _NONE if cell["level"] == "ids" else _share(_number(comparison["worst_ratio"])),
                len(comparison["failing_rows"]),
                _yes(cell["repeats_identical"]) if cell["repeats"] else _NONE,
                _NONE if moved is None else _yes(not moved),
            )
        )
    headings = ["cell", "outcome", "rows", "numbers", "greatest difference", "of its allowance"]
    headings += ["failing rows", "repeats identical", "bits as alone"]
    summary = element("summary", f"All {len(rows)} cells in full")
    return element("details", summary, _table("All cells", headings, rows))


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _plots(model: Mapping[str, Any]) -> Html | None:
    figures = [*_error_figures(model), *_ratio_figures(model)]
    if not figures:
        return None
    return joined([element("h3", "Errors and the tolerance"), element("div", *figures, class_="plots")])


def _error_figures(model: Mapping[str, Any]) -> list[Html]:
    points = [
        ErrorPoint(
            series=grouping.replace("_", " "),
            length_tokens=error["tokens"],
            error=_number(error["max_abs"]),
            fails=not _number(error["ratio"]) <= 1,
            label=f"case {error['case']} ({error['tag']}), {grouping}: {error['tokens']} tokens, "
            f"{_figure(_number(error['max_abs']))}, {_share(_number(error['ratio']))} of its allowance",
        )
        for grouping, errors in (model.get("row_errors") or {}).items()
        for error in errors
    ]
    if not points:
        return []
    level = model.get("error_level") or "raw"
    plot = error_plot(points, atol=model["tolerance"]["atol"], title=f"Error against length ({level})")
    words = (
        f"Each case's greatest absolute difference at level {level}. Every number may differ by what the line says, "
        "larger numbers by more; a cross is a case that fails."
    )
    return [element("figure", plot, element("figcaption", words))]


def _ratio_figures(model: Mapping[str, Any]) -> list[Html]:
    """Draw each distribution once: groupings with the same bits have the same."""
    named: dict[tuple[int, ...], list[str]] = {}
    edges: Sequence[float] = ()
    for grouping, histogram in (model.get("histograms") or {}).items():
        edges = histogram["edges"]
        named.setdefault(tuple(histogram["counts"]), []).append(grouping.replace("_", " "))
    level = model.get("error_level") or "raw"
    figures = []
    for counts, groupings in named.items():
        names = " and ".join(groupings)
        plot = ratio_plot(edges, counts, title=f"Errors as a share of what is allowed ({level}, {names})")
        words = (
            f"How many numbers ({level}, {names}) differ by which share of their own allowance. Exact equality is in "
            "the bar at the far left; whatever is right of the line fails."
        )
        figures.append(element("figure", plot, element("figcaption", words)))
    return figures


def _worst_rows(model: Mapping[str, Any]) -> Html | None:
    worst = model.get("worst_rows") or ()
    if not worst:
        return None
    rows = [
        _row(
            f"case {error['case']}",
            element("td", error["tag"], class_="words"),
            element("td", error["grouping"].replace("_", " "), class_="words"),
            f"{error['tokens']:,}",
            _figure(_number(error["max_abs"])),
            _limited(_number(error["ratio"])),
        )
        for error in worst
    ]
    headings = [
        "case",
        "what it is there for",
        "worst in grouping",
        "tokens",
        "greatest difference",
        "of its allowance",
    ]
    caption = f"The cases that come closest to the limit at level {model.get('error_level') or 'raw'}, worst first."
    return joined([element("h3", "Worst cases"), _table("Worst cases", headings, rows, caption=caption)])


def _limited(ratio: float) -> Html:
    return element("td", _share(ratio), class_=None if ratio <= 1 else "fail")


def _rankings(rankings: Mapping[str, Any] | None) -> Html | None:
    if not rankings:
        return None
    parts: list[Html | None] = [element("h3", "Rankings over the retrieval fixture")]
    if not rankings["runs"]:
        parts.append(element("p", "Could not be computed."))
    else:
        expected = rankings["reference_quality"]
        qualities = [key for key in _QUALITIES if expected and expected[key] is not None]
        reference = [_row("PyTorch", *(f"{expected[key]:.4f}" for key in qualities), *[_NONE] * 4)] if expected else []
        rows = reference + [_ranking_row(run, qualities) for run in rankings["runs"]]
        headings = ["ranking", *(_QUALITIES[key] for key in qualities)]
        headings += ["first results changed", "members changed", "greatest move", "swapped beyond ties"]
        caption = (
            f"{rankings['n_queries']} queries, {rankings['n_items']} items each, top {rankings['top']} by "
            f"{rankings['search']}. {rankings['decided']:.1%} of PyTorch's pairs are no near ties: swapping one fails."
        )
        parts.append(_table("Rankings", headings, rows, caption=caption))
    findings = [*rankings.get("failures", ()), *rankings.get("notes", ())]
    parts.append(element("ul", *(element("li", words) for words in findings), class_="findings") if findings else None)
    return joined(parts)


def _ranking_row(run: Mapping[str, Any], qualities: Sequence[str]) -> Html:
    swapped = run["swapped_pairs"]
    return _row(
        _RANKING_NAMES.get(run["name"], run["name"]),
        *(f"{run['quality'][key]:.4f}" for key in qualities),
        run["first_changes"],
        run["member_changes"],
        f"{_count(run['displacement'], 'rank')}",
        element("td", swapped, class_="fail" if swapped else None),
    )


def _live(model: Mapping[str, Any]) -> Html | None:
    """Compare all three: stored, computed again, candidate."""
    cells = [cell for cell in model["cells"] if cell["grouping"] in _LIVE]
    if not cells:
        return None
    versions = _options(model.get("live_toolchain"))
    caption = f"Greatest absolute difference to PyTorch as this machine computes it now: {versions}."
    return _matrix_part("PyTorch, stored and computed again", model, caption, cells)


def _golden(model: Mapping[str, Any]) -> Html | None:
    cells = [cell for cell in model["cells"] if cell["level"] == _GOLDEN]
    if not cells:
        return None
    rows = [
        _row(
            cell["grouping"],
            element("td", "passed") if cell["passed"] else element("td", "failed", class_="fail"),
            _NONE if cell["comparison"] is None else cell["comparison"]["components"],
            _NONE if cell["comparison"] is None else _difference(cell),
            "equality" if not cell["limits"] else f"{cell['limits'][0]:g}",
        )
        for cell in cells
    ]
    caption = (
        "What the publisher's model card states. Cards were computed in other precisions, so these limits are wide: "
        "they say that it is the right checkpoint, not that it equals PyTorch."
    )
    headings = ["values", "outcome", "numbers", "greatest difference", "allowed"]
    return joined([element("h3", "The model card's values"), _table("Model card", headings, rows, caption=caption)])


def _baseline(baseline: Mapping[str, Any] | None) -> Html | None:
    if not baseline:
        return None
    words = (
        "PyTorch against its own stored output, in company: what batching and padding alone move "
        f"({baseline['n_cases']} cases, run {_count(baseline['repeats'], 'time')}). "
        "The candidate is judged by the tolerance, not by this."
    )
    return _matrix_part("The baseline: PyTorch against PyTorch", baseline, words, _matrix_cells(baseline))


def _torch_baseline(baseline: Mapping[str, Any] | None) -> Html | None:
    """Show what PyTorch's own batches moved at export."""
    if not baseline:
        return None
    groupings = baseline["groupings"]
    levels = list(dict.fromkeys(level["level"] for grouping in groupings for level in grouping["levels"]))
    rows = []
    for grouping in groupings:
        by_level = {level["level"]: level for level in grouping["levels"]}
        found = list(by_level.values())
        rows.append(
            _row(
                grouping["name"].replace("_", " "),
                grouping["rows"],
                grouping["runs"],
                *(_figure(_number(by_level[name]["max_abs"])) if name in by_level else _NONE for name in levels),
                _share(max((_number(level["worst_ratio"]) for level in found), default=0.0)),
                max((level["failing_rows"] for level in found), default=0),
                max((level["moved_rows"] for level in found), default=0),
            )
        )
    headings = ["PyTorch's batches", "cases", "runs", *(name.replace("_", " ") for name in levels)]
    headings += ["of its allowance", "rows outside the tolerance", "rows with other bits"]
    caption = (
        "PyTorch in batches against PyTorch one case at a time, measured at export: greatest absolute differences that "
        "batching alone makes. The candidate is judged by the tolerance, not by this."
    )
    return joined([element("h3", BASELINE_TITLE), _table(BASELINE_TITLE, headings, rows, caption=caption)])


def _number(value: float | str) -> float:
    """Return a number of a record; what JSON cannot hold is there as a word."""
    return float(value)


def _figure(value: float) -> str:
    if not math.isfinite(value):
        return "not finite"
    return "0" if value == 0 else f"{value:.1e}"


def _share(ratio: float) -> str:
    if not math.isfinite(ratio):
        return "not finite"
    if ratio == 0:
        return "0 %"
    return f"{ratio * 100:.2g} %" if ratio < 10 else f"{ratio:,.0f} times"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
