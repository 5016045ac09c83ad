"""Measure samevec against its peers: one command, one run, one table.

Everything that is missing is made first and kept: full-shape checkpoints with random weights, samevec's artifacts
(exported and proved), the peers' environments and converted models, PyTorch's reference values. Then every system runs
every workload, each in a process of its own. Results go to benchmarks/results/ after every row.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarks.ceiling import measure_ceiling
from benchmarks.environments import ensure_environment
from benchmarks.measure import Bench
from benchmarks.protocol import REPOSITORY, PeerUnavailableError
from benchmarks.reference import ensure_references
from benchmarks.results import NOTICE, Report, machine_record, write_report
from benchmarks.setup import add_model_arguments, ensure_proved, models_of, say
from benchmarks.systems import SYSTEMS
from benchmarks.workloads import WORKLOADS, make_workload

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.results import Row
    from benchmarks.setup import Models
    from benchmarks.systems import System
    from benchmarks.workloads import Workload

_QUICK_WORKLOADS = ("mixed64", "query16", "text2048", "pairs50", "pair16")


def _names(text: str, known: Sequence[str]) -> list[str]:
    """Read a comma-separated list; a name that ends with ``/`` or ``*`` takes all that begin so."""
    chosen = []
    for part in text.split(","):
        start = part.strip().removesuffix("*")
        found = [name for name in known if name == start or (start != part.strip() and name.startswith(start))]
        found = found or [name for name in known if start.endswith("/") and name.startswith(start)]
        if not found:
            raise argparse.ArgumentTypeError(f"{part.strip()!r} is none of {', '.join(known)}")
        chosen += [name for name in found if name not in chosen]
    return chosen


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="samevec/cpu alone, five workloads, few repeats: under 3 minutes")
    add("--systems", type=lambda t: _names(t, list(SYSTEMS)), help="comma-separated, `samevec/*` takes all of them")
    add("--workloads", type=lambda t: _names(t, list(WORKLOADS)), help="comma-separated")
    add_model_arguments(parser)
    return parser.parse_args(argv)


def _chosen(arguments: argparse.Namespace) -> list[tuple[Workload, System]]:
    """Return what to run: workload by workload, so that compared rows lie close in time."""
    default_systems = ["samevec/cpu"] if arguments.quick else list(SYSTEMS)
    default_workloads = _QUICK_WORKLOADS if arguments.quick else tuple(WORKLOADS)
    systems = [SYSTEMS[name] for name in arguments.systems or default_systems]
    chosen = []
    for name in arguments.workloads or default_workloads:
        workload, everyone = make_workload(name), not WORKLOADS[name] or arguments.workloads
        chosen += [(workload, system) for system in systems if everyone or system.is_own]
    return chosen


def _prove_first(chosen: Sequence[tuple[Workload, System]], models: Models) -> None:
    """Export and prove before the ceiling is measured; what cannot be is a row later on."""
    for model, profile in dict.fromkeys((w.model, s.options["profile"]) for w, s in chosen if s.is_own):
        with suppress(PeerUnavailableError):
            ensure_proved(model, profile, models, say)


def _describe(row: Row) -> str:
    if row.useful_tokens_per_s is None or row.latency_p50_s is None or row.private_peak_bytes is None:
        return f"{row.status}: {row.reason}"
    return (
        f"{row.useful_tokens_per_s:,.0f} tokens/s, p50 {row.latency_p50_s * 1e3:,.1f} ms, "
        f"private {row.private_peak_bytes / 1e6:,.0f} MB, {row.violations} of {row.compared} outside the tolerance"
    )


def _plot(output: Path, cache: Path) -> None:
    try:
        python = ensure_environment("plots", cache, say)
    except PeerUnavailableError as error:
        say(f"no plots: {error}")
        return
    subprocess.run([str(python), "-m", "benchmarks.plots", str(output)], check=False, cwd=REPOSITORY)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark.

    Parameters
    ----------
    argv : sequence of str, optional

    Returns
    -------
    int
        0: it ran; whether a target was met is for the reader.
    """
    arguments = _parse(argv)
    cache = arguments.cache.resolve()
    chosen = _chosen(arguments)
    say(NOTICE)
    models = models_of(arguments)
    _prove_first(chosen, models)
    workloads = list(dict.fromkeys(workload for workload, _ in chosen))
    ensure_references(workloads, lock_path=models.lock_path, snapshots=models.snapshots, cache=cache)
    ceiling = measure_ceiling()
    say(f"matrix-product ceiling: {ceiling:,.0f} GFLOP/s")
    report = Report(
        machine=machine_record(), ceiling_gflops=ceiling, quick=arguments.quick, unproved=arguments.unproved
    )
    bench = Bench(models=models, cache=cache, ceiling_gflops=ceiling, quick=arguments.quick, say=say)
    started_s = time.monotonic()
    for i, (workload, system) in enumerate(chosen, 1):
        row = bench.measure(system, workload)
        report.rows.append(row)
        write_report(report, arguments.output)
        say(
            f"[{i}/{len(chosen)} {time.monotonic() - started_s:,.0f} s] {workload.name} {system.name}: {_describe(row)}"
        )
    write_report(replace(report, ceiling_gflops_after=measure_ceiling()), arguments.output)
    _plot(arguments.output, cache)
    return 0


if __name__ == "__main__":
    sys.exit(main())
