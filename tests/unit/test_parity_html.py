"""The report page: complete, self-contained, escaped, readable in both schemes, failures first."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from importlib import resources
from typing import TYPE_CHECKING, Any

import parity_records as records
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markupsafe import Markup

from samevec.parity.report.files import write_report
from samevec.parity.report.markup import element, visible
from samevec.parity.report.page import html_page
from samevec.parity.report.plots import ErrorPoint, error_plot, ratio_plot

if TYPE_CHECKING:
    from pathlib import Path

CSS = resources.files("samevec.parity.report").joinpath("report.css").read_text(encoding="utf-8")
VOID = {"meta", "br"}

#: A busy machine is no failure.
untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Page(HTMLParser):
    """Elements and text of a page; nesting must be right."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def page(*models: dict[str, Any], **facts: Any) -> Page:
    return Page(html_page(records.report(*models, **facts)))


def test_a_passed_page_says_so_and_what_it_rests_on() -> None:
    found = page(records.passed_model())
    assert "samevec parity passed" in found.text
    assert "Passed 26 comparisons of 300 cases" in found.text
    assert "What failed" not in found.text
    for fact in (
        *("sha256:" + letter * 64 for letter in "abcdf"),
        "CPUExecutionProvider",
        "entries (session.use_device_allocator 1), graph_optimization_level all",
        "1.32.0",
        "Some Processor 9000",
        "torch 2.13.0",
        "|reference - candidate| <= 0.0001 + 0.001 * |reference|",
        "inputs longer than 2048 tokens",
        "by cosine distance",
    ):
        assert fact in found.text, fact


def test_every_level_and_grouping_is_in_the_matrix() -> None:
    text = page(records.passed_model()).text
    for name in (*records.GROUPINGS, *records.LEVELS):
        assert name.replace("_", " ") in text
    assert "All 26 cells in full" in text


def test_a_failed_page_shows_every_failure_before_anything_else() -> None:
    model = records.failed_model()
    found = page(model)
    assert "Failed: 13 findings" in found.text
    at = [found.text.index(" ".join(visible(failure).split())) for failure in model["failures"]]
    assert at == sorted(at)
    assert at[-1] < found.text.index("What this is bound to")
    for words in (
        "fails in 60 rows of 300",
        "fails: bits moved",
        "not computed",
        "repeats differ, 2 rows unlike alone",
    ):
        assert words in found.text
    assert "and 1 more" in found.text


def test_models_have_anchors_and_the_failed_one_comes_first() -> None:
    found = page(records.passed_model(), records.failed_model())
    assert "1 of 2 models failed" in found.text
    links = [attributes["href"] for attributes in found.all("a")]
    assert links == ["#model-toy-modernbert-reranker-cpu", "#model-toy-qwen3-embedder-cpu"]
    assert [f"#{attributes['id']}" for attributes in found.all("section")] == links


def test_a_quick_run_says_that_it_is_no_leave_to_serve() -> None:
    assert "no receipt lets this be served" in page(records.passed_model(quick=True)).text
    assert "quick" not in page(records.passed_model()).text
    failed = page(records.failed_model(quick=True)).text
    assert "refuses to serve this. A quick run." in failed
    assert "no receipt" not in failed


def test_the_live_reference_and_the_baseline_are_shown_where_there_are_any() -> None:
    found = page(records.live_model(), reference="live")
    live = found.text.index("PyTorch, stored and computed again")
    for words in ("as this machine computes it now: torch 2.13.1", "stored vs live", "candidate vs live"):
        assert found.text.index(words) >= live, words  # not among the groupings above
    assert "The baseline: PyTorch against PyTorch" in found.text
    assert "candidate vs live – – equal 2.0e-06 2.0e-06 2.0e-06 –" in found.text  # noqa: RUF001  run once: no repeats
    for words in ("computed again", "The baseline", "model card's values"):
        assert words not in page(records.passed_model()).text


def test_the_model_cards_values_have_limits_of_their_own() -> None:
    text = page(records.live_model()).text
    assert "cosines passed 115200 1.0e-03 0.002" in text
    assert "ids passed 115200 equal equality" in text


def test_rankings_that_swap_more_than_ties_are_marked() -> None:
    run = {**records.rankings()["runs"][0], "swapped_pairs": 7, "displacement": 1}
    found = page(records.passed_model(rankings=records.rankings(runs=[run], failures=["rankings/default: bad"])))
    assert "rankings/default: bad" in found.text
    assert {"class": "fail"} in found.all("td")
    assert "Could not be computed." in page(records.passed_model(rankings=records.rankings(runs=[]))).text


@pytest.mark.parametrize("part", ["rankings", "row_errors", "histograms", "worst_rows", "code_digest", "binding"])
def test_a_part_that_is_not_there_is_left_out(part: str) -> None:
    model = records.passed_model()
    del model[part]
    page(model)


def test_nothing_hostile_becomes_markup() -> None:
    hostile = records.HOSTILE
    model = records.failed_model(f"evil {hostile}", not_measured=[hostile], profile=hostile, provider=hostile)
    model["cells"][0]["grouping"] = hostile
    model["binding"]["device"] = hostile
    model["rankings"]["search"] = hostile
    text = html_page(records.report(model, records.passed_model()))
    found = Page(text)
    assert found.all("script") == []
    assert "<script>alert('x')</script>" in found.text
    assert not any(name.startswith("on") for _, attributes in found.elements for name in attributes)
    text.encode("utf-8")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", text)
    assert r"\x00\x1b[31m \u202eover\u202c \ud800" in found.text


def test_the_page_needs_nothing_else() -> None:
    text = html_page(records.report(records.passed_model(), records.failed_model()))
    found = Page(text)
    assert not {"script", "link", "img", "iframe", "object", "embed", "base"} & {name for name, _ in found.elements}
    assert not any({"src", "srcset", "xlink:href", "style"} & set(attributes) for _, attributes in found.elements)
    assert "url(" not in CSS
    assert "@import" not in CSS
    assert "://" not in text
    policy = next(a for a in found.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy["content"] == "default-src 'none'; style-src 'unsafe-inline'"


def test_the_page_can_be_read_by_ear_and_by_keyboard() -> None:
    found = page(records.passed_model(), records.failed_model())
    assert found.all("html") == [{"lang": "en"}]
    assert all(attributes.get("scope") in ("col", "row") for attributes in found.all("th"))
    boxes = [attributes for attributes in found.all("div") if attributes.get("class") == "scroll"]
    assert len(boxes) == len(found.all("table"))
    assert all(box["tabindex"] == "0" and box["aria-label"] for box in boxes)
    for attributes in found.all("svg"):
        assert attributes["role"] == "img"
        assert attributes["aria-label"]
    drawings = re.findall(r"<svg[^>]*>(.{8})", html_page(records.report(records.passed_model())))
    assert set(drawings) == {"<title>E"}
    # Not by colour alone: every marked cell has words of its own, and every table a heading for each column.
    assert len(found.all("h1")) == 1


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_have_contrast(scheme: int) -> None:
    # WCAG 2.2, 1.4.3: 4.5 to 1 for text of this size.
    block = re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)[scheme]
    colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", block))
    on_paper = [(name, "paper") for name in ("ink", "muted", "good", "bad", "warn", "first", "second")]
    on_ground = [("good", "good-ground"), ("bad", "bad-ground"), ("ink", "good-ground"), ("ink", "bad-ground")]
    for front, back in (*on_paper, *on_ground, ("ink", "panel")):
        light, dark = sorted((luminance(colours[front]), luminance(colours[back])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (front, back)


@untimed
@given(st.text())
def test_what_is_made_visible_is_escaped_and_stays(text: str) -> None:
    found = Page(element("p", text, title=text))
    assert "".join(found.texts) == visible(text)
    assert found.elements == [("p", {"title": visible(text)})]
    visible(text).encode("utf-8")


def test_markup_is_not_escaped_twice() -> None:
    assert element("p", element("b", "<"), None, 3) == "<p><b>&lt;</b>3</p>"
    assert element("p", lang=None, id="<") == '<p id="&lt;"></p>'
    assert isinstance(element("p"), Markup)


def points(*errors: float) -> list[ErrorPoint]:
    return [
        ErrorPoint(series="alone", length_tokens=2**i, error=error, fails=not error <= 1e-4, label=f"case {i}")
        for i, error in enumerate(errors)
    ]


def positions(svg: str, pattern: str) -> list[float]:
    return [float(found) for found in re.findall(pattern, svg)]


def test_the_error_plot_puts_larger_errors_higher_and_longer_rows_further_right() -> None:
    svg = error_plot(points(1e-7, 1e-6, 1e-5), atol=1e-4, title="t")
    heights, places = positions(svg, r'cy="([\d.]+)" r="3"'), positions(svg, r'cx="([\d.]+)" cy="[\d.]+" r="3"')
    assert heights == sorted(heights, reverse=True)
    assert places == sorted(places)
    (line,) = positions(svg, r'class="limit" x1="\d+" x2="\d+" y1="([\d.]+)"')
    assert line < min(heights)  # above every point: all are allowed
    assert heights[0] - heights[1] == pytest.approx(heights[1] - heights[2], abs=0.11)  # equal steps a decade


def test_the_error_plot_shows_zeros_and_what_is_not_finite_inside_its_frame() -> None:
    svg = error_plot(points(0.0, 1e-6, 1e-2, math.inf), atol=1e-4, title="t")
    assert len(re.findall(r'class="mark fail" d="M[\d.]+ ([\d.]+)', svg)) == 3  # two points and the legend
    assert ">0</text>" in svg
    assert ">inf</text>" in svg
    zero = positions(svg, r'cy="([\d.]+)" r="3"')[0]
    one = positions(svg, r'cy="([\d.]+)" r="3"')[1]
    assert one < zero < 320 - 46
    assert "4 rows from 1 to 8 tokens; greatest error inf at 8 tokens; 2 rows outside the tolerance." in svg


def test_the_ratio_plot_marks_what_lies_beyond_the_line() -> None:
    svg = ratio_plot([0.01, 0.1, 1.0, 10.0], [5, 0, 100, 3, 1], title="t")
    assert len(re.findall(r'class="bar"', svg)) == 2  # the empty bin has no bar
    assert len(re.findall(r'class="bar fail"', svg)) == 2
    assert "109 numbers compared; 4 of them" in svg
    (line,) = positions(svg, r'class="limit" x1="([\d.]+)"')
    starts = positions(svg, r'class="bar fail" x="([\d.]+)"')
    assert line == pytest.approx(starts[0], abs=0.6)


@untimed
@given(
    st.lists(
        st.builds(
            ErrorPoint,
            series=st.sampled_from(["alone", "default"]),
            length_tokens=st.integers(0, 40_000),
            error=st.one_of(st.just(0.0), st.just(math.inf), st.floats(1e-30, 1e30)),
            fails=st.booleans(),
            label=st.text(max_size=3),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_every_mark_is_inside_the_drawing(found: list[ErrorPoint]) -> None:
    svg = error_plot(found, atol=1e-4, title="t")
    Page(svg)
    numbers = positions(svg, r'(?<!d)(?:cx|cy|x|y)="(-?[\d.e+-]+)"')
    assert all(0 <= number <= 450 for number in numbers)


def test_report_json_holds_the_same(tmp_path: Path) -> None:
    report = records.report(records.passed_model(), records.failed_model())
    html, record = write_report(tmp_path / "new" / "folder", report)
    assert json.loads(record.read_bytes()) == json.loads(json.dumps(report))
    assert html.read_text(encoding="utf-8") == html_page(report)
    assert json.loads(record.read_bytes())["passed"] is False
