"""One self-contained HTML page about one or several verdicts, from ``page.html.j2``. Pure."""

from __future__ import annotations

import functools
import math
import re
from importlib import resources
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup

from samevec.parity.reference.torch_baseline import BASELINE_TITLE
from samevec.parity.report.markup import visible
from samevec.parity.report.plots import ErrorPoint, error_plot, ratio_plot

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["html_page"]

# Failures beyond these are folded away: one mistake can fail every cell.
_SHOWN_FINDINGS = 12
# Columns of words, not of numbers.
_WORDED = frozenset({"what it is there for", "worst in grouping"})
_QUALITIES = {"recall_10": "Recall@10", "recall_100": "Recall@100", "mrr": "MRR", "ndcg_10": "NDCG@10"}
# Comparisons with PyTorch computed again; like the model card's values they have a table of their own.
_LIVE = ("stored_vs_live", "candidate_vs_live")
_RANKING_NAMES = {
    "default": "candidate, one call",
    "shuffled": "candidate, in other company",
    "stored": "candidate's queries, PyTorch's stored documents",
}
_NONE = "–"  # noqa: RUF001  a dash in a table


def html_page(report: Mapping[str, Any]) -> str:
    """Return a report as one HTML document that needs no other file and runs no script.

    `report` is as in ``report.json``, see :func:`samevec.parity.report.files.report_record`; parts that a verdict does
    not have are left out.
    """
    models = sorted(report["models"], key=lambda model: bool(model["passed"]))  # failures first
    return _template().render(report=report, models=models)


@functools.cache
def _template() -> jinja2.Template:
    folder = resources.files("samevec.parity.report")
    page, style = (folder.joinpath(name).read_text(encoding="utf-8") for name in ("page.html.j2", "report.css"))
    environment = jinja2.Environment(autoescape=True, finalize=_shown, undefined=_Absent)
    environment.globals.update(
        anchor=_anchor,
        baseline_title=BASELINE_TITLE,
        cells_by_place=_cells_by_place,
        count=_count,
        difference=_difference,
        facts=_facts,
        figure=_figure,
        figures=_figures,
        greatest=_greatest,
        known_qualities=_known_qualities,
        live_groupings=_LIVE,
        none_sign=_NONE,
        options=_options,
        ranking_names=_RANKING_NAMES,
        runs_by_name=_runs_by_name,
        same_bits=_same_bits,
        share=_share,
        shown_findings=_SHOWN_FINDINGS,
        style=Markup(style),  # noqa: S704  # a file of this package
        usual_cells=_usual_cells,
        verdict_words=_verdict_words,
        within=_within,
        worded=_WORDED,
    )
    return environment.from_string(page)


class _Absent(jinja2.ChainableUndefined):
    """A part that a verdict's record does not have; it may be read, and shows as nothing."""


def _shown(value: object) -> object:
    """Escape invisible characters in everything that is not markup already."""
    return value if isinstance(value, Markup | jinja2.Undefined) else visible(str(value))


def _anchor(model: Mapping[str, Any]) -> str:
    return "model-" + re.sub(r"[^A-Za-z0-9.-]+", "-", f"{model['model']}-{model['profile']}")


def _verdict_words(model: Mapping[str, Any]) -> str:
    cells = model["cells"]
    failing = sum(not cell["passed"] for cell in cells)
    what = f"{len(cells)} comparisons of {model['n_cases']} cases with PyTorch's float32 output"
    if not model["passed"]:
        return f"{failing} of {what} fail. samevec refuses to serve this."
    greatest = _greatest([c["comparison"] for c in cells if c["comparison"]], "max_abs")
    words = f"{what} agree within the tolerance; the greatest difference is {_figure(greatest)}."
    answers = model.get("answers")
    if answers is None:
        return words
    return (
        f"{words} All {answers['n_compared']} cases have the bits of the export, as on every processor: answers "
        f"{answers['digest'][:19]}, arithmetic {answers['arithmetic']}."
    )


def _facts(model: Mapping[str, Any]) -> list[tuple[str, object]]:
    """List what the verdict is about and depends on."""
    binding = dict(model.get("binding") or {})
    tolerance = model["tolerance"]
    rule = f"|reference - candidate| <= {tolerance['atol']:g} + {tolerance['rtol']:g} * |reference|"
    return [
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


def _options(options: Mapping[str, Any] | None) -> str:
    return ", ".join(f"{name} {_plain(value)}" for name, value in sorted((options or {}).items()))


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return "(" + ", ".join(f"{name} {_plain(inner)}" for name, inner in sorted(value.items())) + ")"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _usual_cells(model: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the cells of the groupings; those with a table of their own are left out."""
    return [cell for cell in model["cells"] if cell["level"] != "golden" and cell["grouping"] not in _LIVE]


def _cells_by_place(cells: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], Mapping[str, Any]]:
    return {(cell["grouping"], cell["level"]): cell for cell in cells}


def _runs_by_name(model: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {run["name"]: run for run in model["groupings"]}


def _difference(cell: Mapping[str, Any]) -> str:
    comparison = cell["comparison"]
    if "ids" in (cell["level"], cell["grouping"]):
        return "equal" if not comparison["failing_rows"] else "differ"
    return _figure(comparison["max_abs"])


def _same_bits(
    grid: Mapping[tuple[str, str], Mapping[str, Any]], grouping: str, levels: Sequence[str]
) -> tuple[str, bool]:
    """Return for a grouping whether repeats, and the same rows alone, gave the same bits; and whether that fails."""
    cells = [grid[grouping, level] for level in levels if (grouping, level) in grid]
    valued = [cell for cell in cells if cell["level"] != "ids" and cell["comparison"] and cell["repeats"]]
    if not valued:
        return _NONE, False
    moved = max(len(cell["moved_rows"] or ()) for cell in valued)
    differing = []
    if any(not cell["repeats_identical"] for cell in valued):
        differing.append("repeats differ")
    if moved:
        differing.append(f"{_count(moved, 'row')} unlike alone")
    if differing:
        return ", ".join(differing), any(cell["bits_required"] for cell in valued)
    repeated = max(cell["repeats"] for cell in valued) > 1
    compared = any(cell["moved_rows"] is not None for cell in valued)
    same = [name for name, known in (("repeats", repeated), ("alone", compared)) if known]
    return ", ".join(same) or _NONE, False


def _known_qualities(expected: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the figures that PyTorch's own ranking has, with their headings."""
    return {name: heading for name, heading in _QUALITIES.items() if expected and expected[name] is not None}


def _figures(model: Mapping[str, Any]) -> list[tuple[Markup, str]]:
    return [*_error_figures(model), *_ratio_figures(model)]


def _error_figures(model: Mapping[str, Any]) -> list[tuple[Markup, str]]:
    points = [
        ErrorPoint(
            series=grouping.replace("_", " "),
            length_tokens=error["tokens"],
            error=float(error["max_abs"]),
            fails=not _within(error["ratio"]),
            label=f"case {error['case']} ({error['tag']}), {grouping}: {error['tokens']} tokens, "
            f"{_figure(error['max_abs'])}, {_share(error['ratio'])} of its allowance",
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
    return [(plot, words)]


def _ratio_figures(model: Mapping[str, Any]) -> list[tuple[Markup, str]]:
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
        figures.append((plot, words))
    return figures


# Numbers of a record, where infinity and NaN are words, since JSON cannot hold them.


def _greatest(records: Iterable[Mapping[str, Any]], name: str) -> float:
    return max((float(record[name]) for record in records), default=0.0)


def _within(ratio: float | str) -> bool:
    return float(ratio) <= 1


def _figure(value: float | str) -> str:
    number = float(value)
    if not math.isfinite(number):
        return "not finite"
    return "0" if number == 0 else f"{number:.1e}"


def _share(ratio: float | str) -> str:
    number = float(ratio)
    if not math.isfinite(number):
        return "not finite"
    if number == 0:
        return "0 %"
    return f"{number * 100:.2g} %" if number < 10 else f"{number:,.0f} times"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
