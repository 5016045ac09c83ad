"""Targets of ratios between systems, as far as rows of one run can answer them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.results import Row

__all__ = ["Found", "target_lines"]

_OWN = "samevec/cpu"
_OPENVINO = "sentence-transformers/openvino-f32-b1"
_TORCH, _TORCH_BEST = "sentence-transformers/torch-b32", "sentence-transformers/torch-best"


class Found:
    """Rows that ran, by workload and system.

    Parameters
    ----------
    rows : sequence of Row
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = {(row.workload, row.system): row for row in rows if row.status == "ok"}

    def wall_s(self, workload: str, system: str = _OWN) -> float | None:
        """Return a median wall time, or None where nothing ran."""
        row = self._rows.get((workload, system))
        return None if row is None else row.wall_s

    def speedup(self, workload: str, peer: str) -> float | None:
        """Return how many times the peer's speed samevec/cpu's is."""
        own, other = self.wall_s(workload), self.wall_s(workload, peer)
        return None if own is None or other is None else other / own

    def best_peer(self, workload: str) -> str | None:
        """Return the fastest system that is not samevec and has no violation."""
        passing = [
            (row.wall_s, system)
            for (name, system), row in self._rows.items()
            if name == workload and not system.startswith("samevec/") and not row.violations and row.wall_s
        ]
        return min(passing)[1] if passing else None

    def own(self, workload: str, field: str, system: str = _OWN) -> float | None:
        """Return a number of samevec's own row."""
        row = self._rows.get((workload, system))
        value = None if row is None else getattr(row, field)
        return None if value is None else float(value)

    def growth(self, long: str, short: str) -> float | None:
        """Return one samevec/cpu wall time over another."""
        numerator, denominator = self.wall_s(long), self.wall_s(short)
        return None if numerator is None or denominator is None else numerator / denominator

    def added_mb(self, workload: str) -> float | None:
        """Return private memory that running added to what loading took."""
        peak, loaded = self.own(workload, "private_peak_bytes"), self.own(workload, "private_loaded_bytes")
        return None if peak is None or loaded is None else (peak - loaded) / 1e6


_Target = tuple[str, str, "Callable[[Found], float | None]", "Callable[[float], bool]"]


def _at_least(limit: float) -> Callable[[float], bool]:
    return lambda value: value >= limit


def _at_most(limit: float) -> Callable[[float], bool]:
    return lambda value: value <= limit


def _speed_targets() -> list[_Target]:
    targets: list[_Target] = []
    ceilings = {"mixed64": (1.2, 0.85), "pairs50": (1.1, 0.80), "pairs100": (1.1, 0.80)}
    for name, (over_openvino, ceiling) in ceilings.items():
        targets += [
            (f"{name} over OpenVINO f32", f">= {over_openvino}x", _over(name, _OPENVINO), _at_least(over_openvino)),
            (f"{name} of the ceiling", f">= {ceiling:.0%}", _number(name, "ceiling_fraction"), _at_least(ceiling)),
            (f"{name} over the best torch batch size", ">= 2.5x", _over(name, _TORCH_BEST), _at_least(2.5)),
            (f"{name} over torch's default", ">= 5x", _over(name, _TORCH), _at_least(5.0)),
            (f"{name} over the fastest peer without violations", ">= 1x", _over_best(name), _at_least(1.0)),
        ]
    return targets


def _over(workload: str, peer: str) -> Callable[[Found], float | None]:
    return lambda found: found.speedup(workload, peer)


def _over_best(workload: str) -> Callable[[Found], float | None]:
    def best(found: Found) -> float | None:
        peer = found.best_peer(workload)
        return None if peer is None else found.speedup(workload, peer)

    return best


def _number(workload: str, field: str, *, scale: float = 1.0) -> Callable[[Found], float | None]:
    def number(found: Found) -> float | None:
        value = found.own(workload, field)
        return None if value is None else value * scale

    return number


def _time_over(workload: str, peer: str) -> Callable[[Found], float | None]:
    def ratio(found: Found) -> float | None:
        speedup = found.speedup(workload, peer)
        return None if speedup is None else 1 / speedup

    return ratio


def _other_targets() -> list[_Target]:
    resident = _number("mixed64", "resident_peak_bytes", scale=1e-9)
    return [
        ("query16, ms", "<= 80", _number("query16", "latency_p50_s", scale=1e3), _at_most(80.0)),
        ("pair16, ms", "<= 80", _number("pair16", "latency_p50_s", scale=1e3), _at_most(80.0)),
        ("pair16 time over OpenVINO f32's", "<= 1.0", _time_over("pair16", _OPENVINO), _at_most(1.0)),
        ("text2048 time over OpenVINO f32's", "<= 0.85", _time_over("text2048", _OPENVINO), _at_most(0.85)),
        ("text4096 over 4 x 1,024", "<= 1.35", lambda found: found.growth("text4096", "texts4x1024"), _at_most(1.35)),
        ("pair4096 over 4 x 1,024", "<= 1.2", lambda found: found.growth("pair4096", "pairs4x1024"), _at_most(1.2)),
        ("private added, mixed64, MB", "<= 200", lambda found: found.added_mb("mixed64"), _at_most(200.0)),
        ("private added, pairs100, MB", "<= 200", lambda found: found.added_mb("pairs100"), _at_most(200.0)),
        ("private added, text4096, MB", "<= 350", lambda found: found.added_mb("text4096"), _at_most(350.0)),
        ("private added, pair4096, MB", "<= 350", lambda found: found.added_mb("pair4096"), _at_most(350.0)),
        ("embedder resident, mixed64, GB", "<= 1.5", resident, _at_most(1.5)),
        ("padded over useful tokens, mixed64", "<= 1.06", _number("mixed64", "padding_ratio"), _at_most(1.06)),
    ]


def target_lines(rows: Sequence[Row]) -> list[str]:
    """Return the table of targets as Markdown lines.

    Parameters
    ----------
    rows : sequence of Row

    Returns
    -------
    list of str
        Only targets that these rows can answer; empty when there are none.
    """
    found = Found(rows)
    lines = []
    for what, target, measure, holds in (*_speed_targets(), *_other_targets()):
        value = measure(found)
        if value is not None:
            lines.append(f"| {what} | {target} | {value:.3g} | {'yes' if holds(value) else '**no**'} |")
    if not lines:
        return []
    return ["## Targets", "", "| what (samevec/cpu) | target | measured | met |", "|---|---|---:|---|", *lines, ""]
