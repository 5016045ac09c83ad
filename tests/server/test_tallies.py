"""What the server's counts look like to Prometheus."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from samevec.server.telemetry.tallies import CounterTally, HistogramTally


def test_counters_add_up_from_many_threads() -> None:
    counter, go = CounterTally("n", "Words.", "route", "status"), threading.Barrier(4)

    def add(thread: int) -> None:
        go.wait(20)
        for _ in range(2000):
            counter.add(0.5, "a", str(thread % 2))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(4)))
    counter.add(7, "b", "1")
    assert counter.totals("status") == {"0": 2000, "1": 2007}
    assert counter.totals("route") == {"a": 4000, "b": 7}
    assert {tuple(one.labels.values()): one.value for one in counter.family().samples} == {
        ("a", "0"): 2000,
        ("a", "1"): 2000,
        ("b", "1"): 7,
    }
    with pytest.raises(ValueError, match="labels"):
        counter.add(1, "a")


def test_histograms_count_a_bound_as_within() -> None:
    histogram = HistogramTally("s", "Words.", "model", (1, 2.5))
    for number in (0.5, 1, 2, 2.5, 3):
        histogram.observe(number, "m")
    histogram.observe(9, "other")
    found = {(one.name, *one.labels.values()): one.value for one in histogram.family().samples}
    assert found == {
        ("s_bucket", "m", "1.0"): 2,
        ("s_bucket", "m", "2.5"): 4,
        ("s_bucket", "m", "+Inf"): 5,
        ("s_count", "m"): 5,
        ("s_sum", "m"): 9,
        ("s_bucket", "other", "1.0"): 0,
        ("s_bucket", "other", "2.5"): 0,
        ("s_bucket", "other", "+Inf"): 1,
        ("s_count", "other"): 1,
        ("s_sum", "other"): 9,
    }
