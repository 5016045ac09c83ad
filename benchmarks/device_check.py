"""One command for a machine with a GPU: export, prove and measure the full-shape pair there, and write it all down.

    python -m benchmarks.device_check --output device.json --files FILES [--wheels DIR] [--home DIR] [--snapshots DIR]
    python -m benchmarks.device_check --dry-run --output dry.json [--profile PROFILE]

Installs nothing. Wheels that the machine lacks (onnxruntime-gpu, say) lie in DIR, whole or cut into parts by
``split -b 40M X.whl X.whl.part-``; they are joined and unpacked into a scratch folder that only the processes started
here see. This process itself needs nothing but Python. Weights are random: no figure says anything about quality. What
does not fit into the time is listed as skipped, a step that fails is a row of the result and not the end of it, and the
result is written after every step.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.device_table import result_row, table_lines
from benchmarks.device_wheels import unpack_wheels
from benchmarks.workloads import EMBEDDER, RERANKER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["BUDGET_S", "Check", "main", "run_check"]

REPOSITORY = Path(__file__).resolve().parents[1]
#: Eight minutes less what starting and clearing away may take.
BUDGET_S = 450.0
_TOYS = ("toy-modernbert-reranker", "toy-qwen3-embedder")
#: The reranker first: it is the smaller one, so that there is a result even where time is short.
_PRODUCTS = (RERANKER, EMBEDDER)


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """What is checked where.

    Attributes
    ----------
    profile, device : str
        samevec's profile, and torch's name of the same device.
    models : tuple of str
    dry : bool
        A rehearsal with the toy pair, PyTorch on the CPU.
    home, scratch : Path
        samevec's artifacts; what is thrown away at the end.
    snapshots, files, site : Path or None
        Full-shape checkpoints, or what they are made from; unpacked wheels.
    end_s : float
        When no further step begins and the one that runs is ended, in the clock's time.
    clock : callable
    """

    profile: str
    device: str
    models: tuple[str, ...]
    dry: bool
    home: Path
    scratch: Path
    snapshots: Path | None
    files: Path | None
    site: Path | None
    end_s: float
    clock: Callable[[], float] = time.monotonic

    @property
    def environment(self) -> dict[str, str]:
        """Variables of the processes started here: unpacked wheels come before what is installed."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SAMEVEC_")}
        paths = [str(path) for path in (self.site, REPOSITORY) if path is not None]
        return {**kept, "PYTHONPATH": os.pathsep.join([*paths, *filter(None, [kept.get("PYTHONPATH")])])}

    def step(self, name: str, *command: object) -> dict[str, Any]:
        """Run one process to its end or the end of the time; return what came of it."""
        left_s = self.end_s - self.clock()
        if left_s <= 0:
            return {"step": name, "outcome": "skipped", "reason": "out of time"}
        start_s = self.clock()
        with subprocess.Popen(
            [sys.executable, *map(str, command)],
            cwd=REPOSITORY,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                out, err = process.communicate(timeout=left_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # with what it started, which would go on and hold the pipes
                process.communicate()
                return {"step": name, "outcome": "out of time", "seconds": round(self.clock() - start_s, 1)}
        outcome = "ok" if process.returncode == 0 else f"exit {process.returncode}"
        record: dict[str, Any] = {"step": name, "outcome": outcome, "seconds": round(self.clock() - start_s, 1)}
        record["output"] = _json_of(out)
        if process.returncode:
            record["stderr"] = err.splitlines()[-15:]
        return record

    def child(self, name: str, what: str, **options: object) -> dict[str, Any]:
        """Run one of the processes of :mod:`benchmarks.device_children`."""
        return self.step(name, "-m", "benchmarks.device_children", what, json.dumps(options, default=str))


def _json_of(text: str) -> Any:
    """Return the document on standard output; the last line where libraries print before it."""
    for candidate in (text, text.strip().rpartition("\n")[2]):
        try:
            return json.loads(candidate)
        except ValueError:
            continue
    return text[-2000:] or None


def run_check(check: Check, keep: Callable[[dict[str, Any]], None] = lambda record: None) -> dict[str, Any]:
    """Run every step and return the record of them.

    Parameters
    ----------
    check : Check
    keep : callable
        Told the record after every step, so that whatever ends this process, what was seen is not lost.
    """
    record: dict[str, Any] = {
        "profile": check.profile,
        "device": check.device,
        "dry_run": check.dry,
        "weights": "random: no figure says anything about quality",
        "steps": [],
        "results": [],
    }

    def note(step: dict[str, Any]) -> dict[str, Any]:
        record["steps"].append(step)
        keep(record)
        return step

    lock_path, snapshots = _prepare(check, note)
    for model in check.models:
        if lock_path is None:
            gate = {"step": model, "outcome": "the machine is not fit, see above"}
            record["results"].append(result_row(model, gate, {}))
        else:
            record["results"].append(_check_model(check, model, lock_path, snapshots, note))
    keep(record)
    return record


def _prepare(check: Check, note: Callable[[dict[str, Any]], dict[str, Any]]) -> tuple[str | None, Path | None]:
    """Look at the machine and make the checkpoints; no lock where the machine cannot do what comes next."""
    modules = note(check.child("modules", "modules"))
    if modules["outcome"] == "ok" and modules["output"]["missing"]:
        modules |= {"outcome": "missing", "reason": f"carry wheels of: {', '.join(modules['output']['missing'])}"}
        return None, None
    note(check.child("facts", "facts", device=check.device))
    if check.dry:
        return "toy", None
    snapshots = check.snapshots or check.scratch / "snapshots"
    if not (snapshots / "full.lock").is_file():
        files = ["--files", check.files] if check.files else []
        note(check.step("build checkpoints", "-m", "benchmarks.full_shape", snapshots, *files))
    target = check.scratch / "device.lock"
    adopted = note(check.child("adopt toolchain", "adopt", lock=snapshots / "full.lock", target=target))
    return (str(target) if adopted["outcome"] == "ok" else None), snapshots


def _check_model(
    check: Check, model: str, lock_path: str, snapshots: Path | None, note: Callable[[dict[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    where = ["--model", model, "--profile", check.profile, "--lock", lock_path, "--home", check.home, "--json"]
    verb = "parity" if list((check.home / "artifacts").glob(f"{model}--{check.profile}--*")) else "export"
    source = ["--from", snapshots] if verb == "export" and snapshots is not None else []
    gate = note(check.step(f"{verb} {model}", "-m", "samevec", verb, *where, *source))
    options = {
        "model": model,
        "profile": check.profile,
        "device": check.device,
        "lock": lock_path,
        "home": check.home,
        "snapshots": snapshots,
        "few": check.dry,
    }
    measured = {}
    for what in ("samevec", "torch"):
        step = note(check.child(f"measure {what} {model}", what, **options))
        measured[what] = step["output"] if step["outcome"] == "ok" else None
    return result_row(model, gate, measured)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device_check", description=__doc__)
    add = parser.add_argument
    add("--output", type=Path, required=True, help="JSON to write")
    add("--dry-run", action="store_true", help="the same steps with the toy pair and PyTorch on the CPU")
    add("--profile", help="samevec's profile (default: cuda, or cpu in a dry run)")
    add("--model", action="append", help="default: the product pair, the smaller one first")
    add("--wheels", type=Path, help="wheels that the machine lacks, whole or in parts")
    add("--files", type=Path, help="the models' real small files, to build checkpoints from")
    add("--snapshots", type=Path, help="full-shape checkpoints, if they are there")
    add("--home", type=Path, help="samevec's artifacts, if they are there; otherwise thrown away")
    add("--budget-s", type=float, default=BUDGET_S, help="when the last step is ended (default: %(default)s)")
    arguments = parser.parse_args(argv)
    if not arguments.dry_run and arguments.files is None and arguments.snapshots is None:
        parser.error("--files or --snapshots is needed, or --dry-run")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run the check; exit 0 when every model passed and was measured, 1 otherwise."""
    start_s = time.monotonic()
    arguments = _parse(argv)
    dry = arguments.dry_run

    def write(record: dict[str, Any]) -> None:
        record["elapsed_s"] = round(time.monotonic() - start_s, 1)
        part = arguments.output.with_name(f"{arguments.output.name}.part")
        part.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        part.replace(arguments.output)

    with tempfile.TemporaryDirectory(prefix="samevec-device-") as folder:
        scratch = Path(folder)
        check = Check(
            profile=arguments.profile or ("cpu" if dry else "cuda"),
            device="cpu" if dry else "cuda",
            models=tuple(arguments.model or (_TOYS if dry else _PRODUCTS)),
            dry=dry,
            home=(arguments.home or scratch / "home").resolve(),
            scratch=scratch,
            snapshots=arguments.snapshots and arguments.snapshots.resolve(),
            files=arguments.files and arguments.files.resolve(),
            site=unpack_wheels(arguments.wheels, scratch) if arguments.wheels else None,
            end_s=start_s + arguments.budget_s,
        )
        record = run_check(check, write)
        print("\n".join(table_lines(record)), flush=True)
    return 0 if all(row["parity"] == "passed" and row["speedup"] for row in record["results"]) else 1


if __name__ == "__main__":
    sys.exit(main())
