"""Counters and histograms that are added to in place, and become families of the Prometheus client when asked.

The client's own keep every number as a Python object, made anew at each change. Made while a burst of requests fills
fresh memory, a few dozen of them keep all of it: 8 MB after 1,000 connections at once.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.utils import INF, floatToGoString

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["CounterTally", "HistogramTally"]


class _Tally:
    """Numbers for each set of label values, side by side in one array. Thread-safe."""

    def __init__(self, name: str, words: str, labels: Sequence[str], n_numbers: int) -> None:
        self.name = name
        self.words = words
        self.labels = tuple(labels)
        self._n_numbers = n_numbers
        self._lock = threading.Lock()
        self._numbers = array("d")
        self._places: dict[tuple[str, ...], int] = {}

    def _add(self, values: tuple[str, ...], *amounts: tuple[int, float]) -> None:
        """Add to numbers, each named by its position."""
        if len(values) != len(self.labels):
            raise ValueError(f"{self.name}: {values} given for the labels {self.labels}")
        with self._lock:
            place = self._places.get(values)
            if place is None:
                place = self._places[values] = len(self._numbers)
                self._numbers.extend([0.0] * self._n_numbers)
            for position, amount in amounts:
                self._numbers[place + position] += amount

    def _rows(self) -> Iterator[tuple[tuple[str, ...], list[float]]]:
        with self._lock:
            places, numbers = dict(self._places), self._numbers.tolist()
        for values, place in places.items():
            yield values, numbers[place : place + self._n_numbers]


class CounterTally(_Tally):
    """A counter.

    Parameters
    ----------
    name, words : str
        Without ``_total``; what it says of itself.
    *labels : str
        Names of its labels.
    """

    def __init__(self, name: str, words: str, *labels: str) -> None:
        super().__init__(name, words, labels, 1)

    def add(self, amount: float, *values: str) -> None:
        """Add to the counter of these label values."""
        self._add(values, (0, amount))

    def totals(self, label: str) -> dict[str, int]:
        """Return the sums by the values of one label, in their order."""
        at, totals = self.labels.index(label), dict[str, int]()
        for values, (number,) in self._rows():
            totals[values[at]] = totals.get(values[at], 0) + int(number)
        return dict(sorted(totals.items()))

    def family(self) -> CounterMetricFamily:
        """Return it as the Prometheus client shows it."""
        family = CounterMetricFamily(self.name, self.words, labels=self.labels)
        for values, (number,) in self._rows():
            family.add_metric(values, number)
        return family


class HistogramTally(_Tally):
    """A histogram.

    Parameters
    ----------
    name, words : str
    label : str
        Name of its one label.
    bounds : sequence of float
        Upper bounds of its buckets, inclusive, ascending; what exceeds the last is counted all the same.
    """

    def __init__(self, name: str, words: str, label: str, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        super().__init__(name, words, (label,), len(self._bounds) + 2)

    def observe(self, number: float, value: str) -> None:
        """Count a number in the histogram of this label value."""
        self._add((value,), (bisect_left(self._bounds, number), 1), (len(self._bounds) + 1, number))

    def family(self) -> HistogramMetricFamily:
        """Return it as the Prometheus client shows it."""
        family = HistogramMetricFamily(self.name, self.words, labels=self.labels)
        names = [str(floatToGoString(bound)) for bound in (*self._bounds, INF)]  # type: ignore[no-untyped-call]
        for values, (*counts, total) in self._rows():
            family.add_metric(values, list(zip(names, accumulate(counts), strict=True)), total)
        return family
