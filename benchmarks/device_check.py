"""One command for a machine with a GPU: export, prove and measure the full-shape pair there, and write it all down.

    python -m benchmarks.device_check --output device.json --files FILES [--wheels DIR] [--home DIR] [--snapshots DIR]
    python -m benchmarks.device_check --dry-run --output dry.json

Installs nothing. Wheels that the machine lacks (onnxruntime-gpu, say) lie in DIR, whole or cut into parts by
``split -b 40M X.whl X.whl.part-``; they are joined and unpacked into a scratch folder that only the processes started
here see. Weights are random: no figure says anything about quality. What does not fit into the time is listed as
skipped, and a step that fails is a row of the result, not the end of it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.workloads import EMBEDDER, RERANKER, Writer, make_workload
from samevec.lock import Toolchain, dump_lock, load_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from samevec.lock import Lock, LockedModel

__all__ = ["Check", "join_parts", "main", "mixed_items", "table_lines", "unpack_wheels"]

REPOSITORY = Path(__file__).resolve().parents[1]
_TOYS = ("toy-modernbert-reranker", "toy-qwen3-embedder")
#: The reranker first: it is the smaller one, so that there is a result even where time is short.
_PRODUCTS = (RERANKER, EMBEDDER)
_PART = ".whl.part-"
_PASSES, _QUERIES = 5, 20


def join_parts(source: Path, scratch: Path) -> list[Path]:
    """Return every wheel of a folder, those that were cut into parts joined.

    Parameters
    ----------
    source : Path
        Holds ``X.whl``, or ``X.whl.part-aa``, ``X.whl.part-ab``, ... in the order of their names.
    scratch : Path
        Gets the joined wheels.
    """
    wheels = sorted(source.glob("*.whl"))
    names = sorted({path.name.partition(_PART)[0] for path in source.glob(f"*{_PART}*")})
    for name in names:
        joined = scratch / f"{name}.whl"
        with joined.open("wb") as file:
            for part in sorted(source.glob(f"{name}{_PART}*")):
                with part.open("rb") as piece:
                    shutil.copyfileobj(piece, file)
        wheels.append(joined)
    return wheels


def unpack_wheels(source: Path, scratch: Path) -> Path:
    """Unpack every wheel of a folder into one folder for ``PYTHONPATH``, and return that.

    Raises
    ------
    SystemExit
        A wheel is not whole: a part is missing.
    """
    site = scratch / "site"
    site.mkdir(parents=True, exist_ok=True)
    for wheel in join_parts(source, scratch):
        try:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(site)
        except zipfile.BadZipFile as error:
            raise SystemExit(f"{wheel.name}: not a whole wheel ({error}); is a part missing in {source}?") from error
    return site


def mixed_items(task: str, *, few: bool) -> list[Any]:
    """Return 100 texts of 6 to 304 tokens, or 100 pairs of 48 to 766; eight short ones for a dry run."""
    if few:
        writer = Writer("samevec device check", task)
        return [writer.text(5 + 2 * i) if task == "embed" else writer.pair(5 + 2 * i) for i in range(8)]
    if task == "rerank":
        return list(make_workload("pairs100").items)
    writer = Writer("samevec device check", task)
    return [*make_workload("mixed64").items, *(writer.text(6 + (7 * i) % 250) for i in range(36))]


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """What is checked where.

    Attributes
    ----------
    profile, device : str
        samevec's profile, and torch's name of the same device.
    models : tuple of str
    dry : bool
        A rehearsal on the CPU with the toy pair.
    home, scratch : Path
        samevec's artifacts; what is thrown away at the end.
    snapshots, files, site : Path or None
        Full-shape checkpoints, or what they are made from; unpacked wheels.
    end_s : float
        When no further step begins, in the clock's time.
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
        try:
            done = subprocess.run(
                [sys.executable, *map(str, command)],
                cwd=REPOSITORY,
                env=self.environment,
                capture_output=True,
                text=True,
                timeout=left_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"step": name, "outcome": "out of time", "seconds": round(self.clock() - start_s, 1)}
        record: dict[str, Any] = {"step": name, "outcome": "ok" if done.returncode == 0 else f"exit {done.returncode}"}
        record |= {"seconds": round(self.clock() - start_s, 1), "output": _json_of(done.stdout)}
        if done.returncode:
            record["stderr"] = done.stderr.splitlines()[-15:]
        return record

    def child(self, name: str, what: str, **options: object) -> dict[str, Any]:
        """Run one of this module's own measuring processes."""
        return self.step(name, "-m", "benchmarks.device_check", "--child", what, json.dumps(options, default=str))


def _json_of(text: str) -> Any:
    """Return the document on standard output; the last line where libraries print before it."""
    for candidate in (text, text.strip().rpartition("\n")[2]):
        try:
            return json.loads(candidate)
        except ValueError:
            continue
    return text[-2000:] or None


def adopt_toolchain(lock: Lock, installed: Mapping[str, str]) -> tuple[Lock, list[str]]:
    """Return the lock with this machine's versions where they differ, and the differences in words.

    Installing nothing is the point here; the artifacts are thrown away. What is not installed stays as pinned, and the
    export says so.
    """
    versions = dict(lock.toolchain.versions)
    changes = [
        f"{name} {installed[name]} instead of {version}"
        for name, version in versions.items()
        if installed.get(name, "missing") not in ("missing", version)
    ]
    versions |= {name: installed[name] for name in versions if installed.get(name, "missing") != "missing"}
    return replace(lock, toolchain=Toolchain(versions=versions)), changes


def run_check(check: Check) -> dict[str, Any]:
    """Run every step and return the record that is written.

    Parameters
    ----------
    check : Check
    """
    steps = [check.child("facts", "facts", device=check.device)]
    lock_path, snapshots = "toy", None
    if not check.dry:
        snapshots = check.snapshots or check.scratch / "snapshots"
        if not (snapshots / "full.lock").is_file():
            files = ["--files", check.files] if check.files else []
            steps.append(check.step("build checkpoints", "-m", "benchmarks.full_shape", snapshots, *files))
        lock_path = str(check.scratch / "device.lock")
        steps.append(check.child("adopt toolchain", "adopt", lock=snapshots / "full.lock", target=lock_path))
    results = [_check_model(check, model, lock_path, snapshots, steps) for model in check.models]
    return {
        "profile": check.profile,
        "device": check.device,
        "dry_run": check.dry,
        "weights": "random: no figure says anything about quality",
        "steps": steps,
        "results": results,
    }


def _check_model(
    check: Check, model: str, lock_path: str, snapshots: Path | None, steps: list[dict[str, Any]]
) -> dict[str, Any]:
    where = ["--model", model, "--profile", check.profile, "--lock", lock_path, "--home", check.home, "--json"]
    verb = ["parity"] if list((check.home / "artifacts").glob(f"{model}--{check.profile}--*")) else ["export"]
    source = ["--from", snapshots] if verb == ["export"] and snapshots is not None else []
    gate = check.step(f"{verb[0]} {model}", "-m", "samevec", *verb, *where, *source)
    steps.append(gate)
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
        steps.append(check.child(f"measure {what} {model}", what, **options))
        measured[what] = steps[-1]["output"] if steps[-1]["outcome"] == "ok" else None
    return result_row(model, gate, measured)


def result_row(model: str, gate: Mapping[str, Any], measured: Mapping[str, Any]) -> dict[str, Any]:
    """Put one model's figures together.

    Parameters
    ----------
    model : str
    gate : mapping
        The step that ran the gate.
    measured : mapping
        By ``"samevec"`` and ``"torch"``: seconds of a pass and of a query, bytes; None where it did not run.
    """
    ours, theirs = measured.get("samevec"), measured.get("torch")
    row: dict[str, Any] = {"model": model, "parity": _gate_words(gate), "samevec": None, "torch": None, "speedup": None}
    useful_tokens = ours["useful_tokens"] if ours else None
    for name, figures in (("samevec", ours), ("torch", theirs)):
        if figures and useful_tokens:
            row[name] = {**figures, "useful_tokens_per_s": round(useful_tokens / figures["pass_s"], 1)}
    if ours and theirs:
        row["speedup"] = round(theirs["pass_s"] / ours["pass_s"], 3)
    return row


def _gate_words(gate: Mapping[str, Any]) -> str:
    if gate["outcome"] == "ok":
        return "passed"
    return "failed" if gate["outcome"] == "exit 1" else f"not run: {gate['outcome']}"


def table_lines(record: Mapping[str, Any]) -> list[str]:
    """Return the result as a Markdown table, then what did not run."""
    lines = [
        "| model | parity | system | useful tokens/s | query ms | device MB | speed-up |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in record["results"]:
        for name in ("samevec", "torch"):
            figures = row[name]
            cells = ["not measured", "", ""]
            if figures:
                memory = figures["device_bytes"]
                cells = [f"{figures['useful_tokens_per_s']:,.0f}", f"{figures['query_s'] * 1e3:.1f}"]
                cells.append("" if memory is None else f"{memory / 1e6:,.0f}")
            gain = f"{row['speedup']:.2f}" if name == "samevec" and row["speedup"] else ""
            lines.append(
                "| " + " | ".join([row["model"], row["parity"] if name == "samevec" else "", name, *cells, gain]) + " |"
            )
    failed = [step for step in record["steps"] if step["outcome"] != "ok"]
    return lines + [f"{step['step']}: {step['outcome']}" for step in failed]


# What follows runs in processes of its own: each loads what it measures, and nothing else.


def _child_facts(options: Mapping[str, Any]) -> dict[str, Any]:
    from samevec.export.pipeline import installed_toolchain  # noqa: PLC0415
    from samevec.runtime.providers import read_facts  # noqa: PLC0415

    facts = read_facts()
    return {
        "python": sys.version.split()[0],
        "toolchain": installed_toolchain(),
        "onnxruntime": dict(facts.packages),
        "providers": list(facts.available),
        "built_for_cuda": facts.built_for_cuda,
        "driver_cuda": facts.driver.cuda,
        "devices": list(facts.driver.devices),
        "load_message": facts.load_message,
    }


def _child_adopt(options: Mapping[str, Any]) -> dict[str, Any]:
    from samevec.export.pipeline import installed_toolchain  # noqa: PLC0415

    lock, changes = adopt_toolchain(load_lock(options["lock"]), installed_toolchain())
    Path(options["target"]).write_text(dump_lock(lock), encoding="utf-8")
    return {"adopted": changes}


def _child_samevec(options: Mapping[str, Any]) -> dict[str, Any]:
    from samevec.load import open_candidate  # noqa: PLC0415

    entry = load_lock(options["lock"]).model(options["model"])
    model: Any = open_candidate(entry, profile=options["profile"], home=Path(options["home"])).model
    items = mixed_items(entry.task, few=options["few"])
    run = model.encode if entry.task == "embed" else model.score
    figures = _measure(run, items)
    return {
        **figures,
        "useful_tokens": sum(row.n_tokens for row in model.tokenize(items)),
        "provider": model.engine.session.provider,
        "device_bytes": _device_bytes(options["device"]),
    }


def _child_torch(options: Mapping[str, Any]) -> dict[str, Any]:
    import torch  # noqa: PLC0415

    from samevec.export.fetch import locate_snapshot  # noqa: PLC0415
    from samevec.parity.reference import load_reference_model  # noqa: PLC0415
    from samevec.progress import SilentProgress  # noqa: PLC0415

    entry: LockedModel = load_lock(options["lock"]).model(options["model"])
    source = None if options["snapshots"] is None else Path(options["snapshots"])
    snapshot = locate_snapshot(entry, home=Path(options["home"]), source_dir=source, progress=SilentProgress())
    pipeline = load_reference_model(snapshot, entry).pipeline.to(options["device"])
    torch.backends.cuda.matmul.allow_tf32 = False
    items = mixed_items(entry.task, few=options["few"])
    run = pipeline.encode if entry.task == "embed" else pipeline.predict
    return {
        **_measure(lambda part: run(part, batch_size=32, show_progress_bar=False), items),
        "torch": torch.__version__,
        "device_bytes": _device_bytes(options["device"]),
    }


def _measure(run: Callable[[Sequence[Any]], Any], items: Sequence[Any]) -> dict[str, float]:
    """Return the median seconds of a pass and of a lone item; both warmed up, results on the host."""
    run(items)
    passes_s = [_timed(run, items) for _ in range(_PASSES)]
    run(items[:1])
    queries_s = [_timed(run, items[:1]) for _ in range(_QUERIES)]
    return {"pass_s": statistics.median(passes_s), "query_s": statistics.median(queries_s)}


def _timed(run: Callable[[Sequence[Any]], Any], items: Sequence[Any]) -> float:
    start_s = time.perf_counter()
    run(items)
    return time.perf_counter() - start_s


def _device_bytes(device: str) -> int | None:
    """Return what the GPU holds now, all processes together, as ``nvidia-smi`` tells; None on a CPU."""
    if device != "cuda":
        return None
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    try:
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()) * 2**20
    except (OSError, subprocess.CalledProcessError, ValueError):
        return None


_CHILDREN = {"facts": _child_facts, "adopt": _child_adopt, "samevec": _child_samevec, "torch": _child_torch}


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device_check", description=__doc__)
    add = parser.add_argument
    add("--output", type=Path, help="JSON to write")
    add("--dry-run", action="store_true", help="the same steps on the CPU with the toy pair")
    add("--profile", default="cuda", help="samevec's profile (default: cuda)")
    add("--model", action="append", help="default: the product pair, the smaller one first")
    add("--wheels", type=Path, help="wheels that the machine lacks, whole or in parts")
    add("--files", type=Path, help="the models' real small files, to build checkpoints from")
    add("--snapshots", type=Path, help="full-shape checkpoints, if they are there")
    add("--home", type=Path, help="samevec's artifacts, if they are there; otherwise thrown away")
    add("--budget-s", type=float, default=480.0, help="when no further step begins (default: 480)")
    add("--child", nargs=2, metavar=("WHAT", "JSON"), help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.child is None and arguments.output is None:
        parser.error("--output is needed")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run the check; exit 0 when every model passed and was measured, 1 otherwise."""
    arguments = _parse(argv)
    if arguments.child is not None:
        what, options = arguments.child
        print(json.dumps(_CHILDREN[what](json.loads(options))))
        return 0
    dry = arguments.dry_run
    with tempfile.TemporaryDirectory(prefix="samevec-device-") as folder:
        scratch = Path(folder)
        check = Check(
            profile="cpu" if dry else arguments.profile,
            device="cpu" if dry else "cuda",
            models=tuple(arguments.model or (_TOYS if dry else _PRODUCTS)),
            dry=dry,
            home=(arguments.home or scratch / "home").resolve(),
            scratch=scratch,
            snapshots=arguments.snapshots and arguments.snapshots.resolve(),
            files=arguments.files and arguments.files.resolve(),
            site=unpack_wheels(arguments.wheels, scratch) if arguments.wheels else None,
            end_s=time.monotonic() + arguments.budget_s,
        )
        record = run_check(check)
    arguments.output.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print("\n".join(table_lines(record)))
    return 0 if all(row["parity"] == "passed" and row["speedup"] for row in record["results"]) else 1


if __name__ == "__main__":
    sys.exit(main())
