"""One system on one workload: a process of its own, one examined pass, timed passes."""

from __future__ import annotations

import statistics
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.ceiling import ceiling_fraction
from benchmarks.environments import ensure_environment
from benchmarks.memory import Memory, MemorySampler, read_memory
from benchmarks.protocol import Child, PeerFailedError, PeerUnavailableError, without_paths
from benchmarks.reference import count_violations, read_reference
from benchmarks.results import Row
from benchmarks.setup import ensure_proved
from samevec.lock import load_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from benchmarks.setup import Models
    from benchmarks.systems import System
    from benchmarks.workloads import Workload

__all__ = ["Bench", "repeats_after", "tuning_sample"]

_TUNING_TOKENS = 2100
# Passes after the first, by how long the first took: (seconds, passes). Beyond the last the first pass itself counts.
_REPEATS = ((0.5, 30), (3.0, 7), (15.0, 2), (45.0, 1))
_QUICK_REPEATS = ((0.5, 10), (3.0, 2), (15.0, 1))


def repeats_after(first_s: float, *, quick: bool) -> int:
    """Return how many timed passes follow the examined one.

    Parameters
    ----------
    first_s : float
        How long the examined pass took.
    quick : bool

    Returns
    -------
    int
        0 where the pass is so long that its own time is as good as another.
    """
    return next((n for limit_s, n in (_QUICK_REPEATS if quick else _REPEATS) if first_s < limit_s), 0)


def tuning_sample(workload: Workload) -> list[Any]:
    """Return items spread evenly over the workload's lengths, of about 2,000 tokens and at least 32 items."""
    order = sorted(range(len(workload.items)), key=lambda i: (workload.lengths_tokens[i], i))
    n_items = min(len(order), max(32, len(order) * _TUNING_TOKENS // workload.useful_tokens))
    return [workload.items[i] for i in sorted(order[n * len(order) // n_items] for n in range(n_items))]


@dataclass(frozen=True, slots=True)
class _Passes:
    """What a process told and what was read of it."""

    load_s: float
    loaded: Memory
    peak: Memory
    examined: dict[str, Any]
    timed: dict[str, Any] | None
    outputs: list[tuple[str, NDArray[np.float32]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """Everything a measurement needs.

    Attributes
    ----------
    models : Models
    cache : Path
        Environments, conversions, references and logs.
    ceiling_gflops : float
    quick : bool
    say : callable
        Takes one line for people.
    """

    models: Models
    cache: Path
    ceiling_gflops: float
    quick: bool
    say: Callable[[str], None]

    def measure(self, system: System, workload: Workload) -> Row:
        """Measure one system on one workload; what cannot be measured is a row that says why.

        Parameters
        ----------
        system : System
        workload : Workload
            Its reference has been computed.

        Returns
        -------
        Row
        """
        row = Row(
            workload=workload.name,
            system=system.name,
            task=workload.task,
            items=len(workload.items),
            useful_tokens=workload.useful_tokens,
        )
        try:
            python, request = self._prepare(system, workload)
            note = self._tune(system, workload, python, request) if system.tuned else None
            return self._row(replace(row, note=note), workload, self._passes(system, workload, python, request))
        except PeerUnavailableError as error:
            return replace(row, status="unavailable", reason=str(error))
        except PeerFailedError as error:
            return replace(row, status="failed", reason=str(error))

    def _prepare(self, system: System, workload: Workload) -> tuple[Path, dict[str, Any]]:
        """Make environment, artifacts and converted files where they are missing; return what to load with."""
        entry = load_lock(self.models.lock_path).model(workload.model)
        options = {**system.options, "max_tokens": entry.max_tokens, "dimensions": entry.dimensions}
        request = {
            "task": workload.task,
            "model": workload.model,
            "snapshot": str(self.models.snapshots / workload.model),
            "work": "",
            "options": options,
        }
        if system.environment is None:
            ensure_proved(workload.model, options["profile"], self.models, self.say)
            where = {"home": str(self.models.home), "lock": str(self.models.lock_path)}
            options |= {**where, "unproved": self.models.unproved}
            return Path(sys.executable), request
        python = ensure_environment(system.environment, self.cache, self.say)
        if system.prepared_by is not None:
            request["work"] = str(self._converted(system.prepared_by, request, f"{entry.name}-{entry.revision[:12]}"))
        return python, request

    def _converted(self, prepared_by: str, request: dict[str, Any], name: str) -> Path:
        environment, _, script = prepared_by.partition("/")
        directory = self.cache / "converted" / environment / name
        if (directory / ".done").is_file():
            return directory
        python = ensure_environment(environment, self.cache, self.say)
        self.say(f"{environment}: converting {request['model']}")
        directory.mkdir(parents=True, exist_ok=True)
        with Child(python, script, self._log(f"prepare-{environment}-{request['model']}")) as child:
            child.ask("prepare", **{**request, "work": str(directory)})
        (directory / ".done").touch()
        return directory

    def _log(self, name: str) -> Path:
        return self.cache / "logs" / f"{name.replace('/', '-')}.log"

    @contextmanager
    def _loaded(self, system: System, name: str, python: Path, request: dict[str, Any]) -> Iterator[tuple[Child, Any]]:
        with Child(python, system.script, self._log(f"{system.name}-{name}")) as child:
            yield child, child.ask("load", **request)

    def _tune(self, system: System, workload: Workload, python: Path, request: dict[str, Any]) -> str:
        """Put the best batch size into the request; a process of its own, so that its peaks do not count."""
        if len(workload.items) == 1:
            request["options"]["batch_size"] = 1
            return "one item: batch size 1"
        with self._loaded(system, f"{workload.name}-tune", python, request) as (child, _):
            tuned = child.ask("tune", items=tuning_sample(workload))
        request["options"]["batch_size"] = tuned["batch_size"]
        return f"batch size {tuned['batch_size']} (on a sample: {tuned['note']})"

    def _passes(self, system: System, workload: Workload, python: Path, request: dict[str, Any]) -> _Passes:
        with tempfile.TemporaryDirectory(prefix="samevec-bench-") as folder:
            raw, final = Path(folder) / "raw.npy", Path(folder) / "final.npy"
            with self._loaded(system, workload.name, python, request) as (child, told):
                loaded = read_memory(child.pid)
                with MemorySampler(child.pid) as sampler:
                    examined = child.ask("examine", items=workload.items, output=str(raw))
                repeats = repeats_after(examined["wall_s"], quick=self.quick)
                timed = None
                if repeats:
                    timed = child.ask("time", items=workload.items, repeats=repeats, output=str(final))
                peak = sampler.peak.peak(read_memory(child.pid))
            outputs = [(told["levels"][0], np.load(raw))]
            outputs += [(told["levels"][1], np.load(final))] if timed else []
        return _Passes(told["load_s"], loaded, peak, examined, timed, outputs)

    def _row(self, row: Row, workload: Workload, passes: _Passes) -> Row:
        lock = load_lock(self.models.lock_path)
        try:
            reference = read_reference(workload, lock, self.cache)
            violations, greatest = count_violations(workload, reference, passes.outputs, lock.tolerance)
        except (OSError, ValueError) as error:
            raise PeerFailedError(without_paths(f"its outputs cannot be compared: {error}")) from error
        walls = passes.timed["wall_s"] if passes.timed else [passes.examined["wall_s"]]
        cpus = passes.timed["cpu_s"] if passes.timed else [passes.examined["cpu_s"]]
        wall_s = statistics.median(walls)
        speed = workload.useful_tokens / wall_s
        return replace(
            row,
            status="ok",
            useful_tokens_per_s=speed,
            latency_p50_s=wall_s,
            wall_s=wall_s,
            wall_min_s=min(walls),
            cpu_s=statistics.median(cpus),
            repeats=len(walls),
            padding_ratio=passes.examined["padded_tokens"] / workload.useful_tokens,
            private_peak_bytes=passes.peak.private_bytes,
            resident_peak_bytes=passes.peak.resident_bytes,
            private_loaded_bytes=passes.loaded.private_bytes,
            resident_loaded_bytes=passes.loaded.resident_bytes,
            load_s=passes.load_s,
            ceiling_fraction=ceiling_fraction(speed, workload.task, self.ceiling_gflops),
            violations=violations,
            compared=len(workload.compared),
            greatest_difference=greatest,
        )
