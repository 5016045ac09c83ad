"""Two plots as inline SVG: error against length, and the distribution of errors in the tolerance. Pure.

The page's style sets the colours by class, for its light and dark scheme.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from samevec.parity.report.markup import element, joined

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["ErrorPoint", "error_plot", "ratio_plot"]

# In units of the drawing; the page scales it to its column, and at 350 pixels letters of 13 units are 10 pixels high.
_WIDTH, _HEIGHT = 450, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 34, 46
_BAND = 26  # a strip for values that a logarithmic axis has no place for: exact zeros, and what is not finite


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorPoint:
    """One row of one grouping."""

    series: str  # the grouping; at most two are told apart
    length_tokens: int
    error: float  # greatest absolute difference; infinite where the candidate is not finite
    fails: bool  # outside the tolerance
    label: str  # shown when pointed at


@dataclass(frozen=True, slots=True)
class _LogAxis:
    """Positions of positive numbers between two powers of a base, with strips beside them for the rest."""

    base: float
    low: int
    high: int
    start: float
    end: float

    @classmethod
    def over(cls, values: Iterable[float], *, base: float, start: float, end: float) -> _LogAxis:
        logs = [math.log(value, base) for value in values if 0 < value < math.inf] or [0.0]
        low, high = math.floor(min(logs)), math.ceil(max(logs))
        return cls(base, low, max(high, low + 1), start, end)

    def at(self, value: float) -> float:
        step = (self.end - self.start) / (self.high - self.low)
        sign = math.copysign(1, step)
        if value <= 0:
            return self.start - sign * 0.6 * _BAND
        if not math.isfinite(value):
            return self.end + sign * 0.6 * _BAND
        return self.start + (math.log(value, self.base) - self.low) * step

    def ticks(self, *, most: int) -> list[int]:
        """Return the exponents to mark: every one, or every second, third ... so that they fit."""
        stride = math.ceil((self.high - self.low + 1) / most)
        return [i for i in range(self.low, self.high + 1) if i % stride == 0]


def error_plot(points: Sequence[ErrorPoint], *, atol: float, title: str) -> Markup:
    """Draw the greatest error of one or more rows against their lengths, both logarithmic.

    The line at `atol` is the least that the tolerance allows anywhere: its limit where the reference is zero.
    """
    zero, infinite = any(p.error <= 0 for p in points), any(not math.isfinite(p.error) for p in points)
    bottom = _HEIGHT - _BOTTOM - (_BAND if zero else 0)
    y = _LogAxis.over([atol, *(p.error for p in points)], base=10, start=bottom, end=_TOP + (_BAND if infinite else 0))
    x = _LogAxis.over([max(p.length_tokens, 1) for p in points], base=2, start=_LEFT + 8, end=_WIDTH - _RIGHT - 8)
    series = list(dict.fromkeys(point.series for point in points))
    failing = sum(point.fails for point in points)
    worst = max(points, key=lambda point: point.error)
    described = (
        f"{len(points)} rows from {min(p.length_tokens for p in points)} to {max(p.length_tokens for p in points)} "
        f"tokens; greatest error {worst.error:.1e} at {worst.length_tokens} tokens; "
        f"{failing} rows outside the tolerance."
    )
    parts = [_y_axis(y, zero=zero, infinite=infinite), _x_lengths(x), _line(y.at(atol), f"{atol:g} always allowed")]
    parts += [_mark(point, x, y, square=series.index(point.series) > 0) for point in sorted(points, key=_by_failure)]
    parts += [_axis_title("tokens of the row"), _legend(series, failing=failing > 0)]
    return _figure(title, described, parts)


def _by_failure(point: ErrorPoint) -> bool:
    return point.fails  # drawn last, on top


def _mark(point: ErrorPoint, x: _LogAxis, y: _LogAxis, *, square: bool) -> Markup:
    at_x, at_y = x.at(max(point.length_tokens, 1)), y.at(point.error)
    told = element("title", point.label)
    if point.fails:
        return element("path", told, class_="mark fail", d=f"M{at_x - 4:.1f} {at_y - 4:.1f}l8 8m0-8l-8 8")
    if square:
        return element(
            "rect", told, class_="mark second", x=f"{at_x - 2.5:.1f}", y=f"{at_y - 2.5:.1f}", width=5, height=5
        )
    return element("circle", told, class_="mark first", cx=f"{at_x:.1f}", cy=f"{at_y:.1f}", r=3)


def _legend(series: Sequence[str], *, failing: bool) -> Markup:
    entries = [(name, "second" if i else "first") for i, name in enumerate(series)]
    entries += [("outside the tolerance", "fail")] if failing else []
    parts, x = [], float(_LEFT)
    for name, kind in entries:
        if kind == "fail":
            parts.append(element("path", class_="mark fail", d=f"M{x} 12l8 8m0-8l-8 8"))
        elif kind == "second":
            parts.append(element("rect", class_="mark second", x=x + 1, y=13, width=6, height=6))
        else:
            parts.append(element("circle", class_="mark first", cx=x + 4, cy=16, r=3.5))
        parts.append(element("text", name, x=x + 13, y=20))
        x += 30 + 7.2 * len(name)
    return joined(parts)


def ratio_plot(edges: Sequence[float], counts: Sequence[int], *, title: str) -> Markup:
    """Draw how many components have which share of their allowance as error; both axes logarithmic.

    `edges` are ascending and positive, 1, the tolerance line, among them. `counts` are one more: below the first (exact
    zeros too), between them, at the last and above (not finite too).
    """
    outside = sum(count for edge, count in zip(edges, counts[1:], strict=True) if edge >= 1)
    total = sum(counts)
    bottom = _HEIGHT - _BOTTOM
    x = _LogAxis.over(edges, base=10, start=_LEFT + 2 * _BAND, end=_WIDTH - _RIGHT - 2 * _BAND)
    y = _LogAxis.over([1, *counts], base=10, start=bottom - _BAND / 2, end=_TOP)
    starts = [_LEFT + 4.0, *(x.at(edge) for edge in edges)]
    ends = [*(x.at(edge) for edge in edges), _WIDTH - _RIGHT - 4.0]
    bars = [
        _bar(start, end, y.at(count), bottom, count, fails=i > 0 and edges[i - 1] >= 1, span=_span(edges, i))
        for i, (start, end, count) in enumerate(zip(starts, ends, counts, strict=True))
        if count
    ]
    described = f"{total:,} numbers compared; {outside:,} of them differ by more than the tolerance allows."
    axis = [_x_tick(x.at(10.0**i), _power(i), grid=False) for i in x.ticks(most=6)]
    at = x.at(1)
    line = joined(
        [
            element("line", class_="limit", x1=f"{at:.1f}", x2=f"{at:.1f}", y1=_TOP, y2=bottom),
            element("text", "allowed", class_="limit", x=f"{at - 5:.1f}", y=_TOP - 8, text_anchor="end"),
        ]
    )
    parts = [
        _y_axis(y, zero=False, infinite=False),
        *bars,
        *axis,
        line,
        _axis_title("error as a share of the allowance"),
    ]
    return _figure(title, described, parts)


def _span(edges: Sequence[float], i: int) -> str:
    if i == 0:
        return f"below {edges[0]:.2g}"
    return f"{edges[-1]:.2g} and above" if i == len(edges) else f"{edges[i - 1]:.2g} to {edges[i]:.2g}"


def _bar(start: float, end: float, top: float, bottom: float, count: int, *, fails: bool, span: str) -> Markup:
    return element(
        "rect",
        element("title", f"{span}: {count:,}"),
        class_="bar fail" if fails else "bar",
        x=f"{start + 0.5:.1f}",
        y=f"{top:.1f}",
        width=f"{max(end - start - 1, 1):.1f}",
        height=f"{bottom - top:.1f}",
    )


def _y_axis(y: _LogAxis, *, zero: bool, infinite: bool) -> Markup:
    ticks: list[tuple[float, object]] = [(10.0**i, _power(i)) for i in y.ticks(most=8)]
    ticks += [(0.0, "0")] if zero else []
    ticks += [(math.inf, "inf")] if infinite else []
    parts = []
    for value, words in ticks:
        at = y.at(value)
        parts.append(
            element("line", class_="grid", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=f"{at:.1f}", y2=f"{at:.1f}")
            if math.isfinite(value)
            else None
        )
        parts.append(element("text", words, x=_LEFT - 6, y=f"{at + 4:.1f}", text_anchor="end"))
    return joined(parts)


def _x_lengths(x: _LogAxis) -> Markup:
    return joined(_x_tick(x.at(2.0**i), f"{2**i:,}", grid=True) for i in x.ticks(most=7))


def _x_tick(at: float, words: object, *, grid: bool) -> Markup:
    line = element("line", class_="grid", x1=f"{at:.1f}", x2=f"{at:.1f}", y1=_TOP, y2=_HEIGHT - _BOTTOM)
    text = element("text", words, x=f"{at:.1f}", y=_HEIGHT - _BOTTOM + 17, text_anchor="middle")
    return joined([line if grid else None, text])


def _power(exponent: int) -> Markup:
    if -1 <= exponent <= 3:
        return escape(f"{10.0**exponent:g}")
    return joined(["10", element("tspan", exponent, dy="-5", font_size="75%")])


def _line(at: float, words: str) -> Markup:
    # On paper-coloured ground, since points may lie behind the words.
    return joined(
        [
            element("line", class_="limit", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=f"{at:.1f}", y2=f"{at:.1f}"),
            element("text", words, class_="limit halo", x=_WIDTH - _RIGHT - 2, y=f"{at - 5:.1f}", text_anchor="end"),
        ]
    )


def _axis_title(words: str) -> Markup:
    return element("text", words, x=(_LEFT + _WIDTH - _RIGHT) / 2, y=_HEIGHT - 8, text_anchor="middle", class_="axis")


def _figure(title: str, described: str, parts: Iterable[Markup | None]) -> Markup:
    frame = element(
        "rect", class_="frame", x=_LEFT, y=_TOP, width=_WIDTH - _LEFT - _RIGHT, height=_HEIGHT - _TOP - _BOTTOM
    )
    return element(
        "svg",
        element("title", title),
        element("desc", described),
        frame,
        *parts,
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        aria_label=f"{title}. {described}",
    )
