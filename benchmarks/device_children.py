"""The processes of a device check: each loads what it looks at or measures, and nothing else.

    python -m benchmarks.device_children WHAT JSON

One JSON document comes back on standard output. Nothing but the standard library is imported before WHAT is known.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.workloads import Writer, make_workload

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from samevec.lock import Lock, LockedModel

__all__ = ["MODULES", "adopt_toolchain", "missing_packages", "mixed_items"]

#: What exporting, proving and measuring import, and the package that brings it.
MODULES = {
    "click": "click",
    "huggingface_hub": "huggingface-hub",
    "numpy": "numpy",
    "onnx": "onnx",
    "onnxruntime": "onnxruntime-gpu",
    "optimum": "optimum",
    "optimum.exporters.onnx": "optimum-onnx",
    "orjson": "orjson",
    "platformdirs": "platformdirs",
    "psutil": "psutil",
    "rich": "rich",
    "safetensors": "safetensors",
    "sentence_transformers": "sentence-transformers",
    "tokenizers": "tokenizers",
    "tomli_w": "tomli-w",
    "torch": "torch",
    "transformers": "transformers",
}
_PASSES, _QUERIES = 5, 20


def missing_packages(found: Callable[[str], bool]) -> list[str]:
    """Return which packages must be carried, by what can be imported."""
    return [package for module, package in MODULES.items() if not found(module)]


def _can_import(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package it lies in
        return False


def mixed_items(task: str, *, few: bool) -> list[Any]:
    """Return 100 texts of 6 to 304 tokens, or 100 pairs of 48 to 766; eight short ones for a dry run."""
    if few:
        writer = Writer("samevec device check", task)
        return [writer.text(5 + 2 * i) if task == "embed" else writer.pair(5 + 2 * i) for i in range(8)]
    if task == "rerank":
        return list(make_workload("pairs100").items)
    writer = Writer("samevec device check", task)
    return [*make_workload("mixed64").items, *(writer.text(6 + (7 * i) % 250) for i in range(36))]


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
    return replace(lock, toolchain=replace(lock.toolchain, versions=versions)), changes


def _modules(_options: Mapping[str, Any]) -> dict[str, Any]:
    return {"python": sys.version.split()[0], "missing": missing_packages(_can_import)}


def _facts(options: Mapping[str, Any]) -> dict[str, Any]:
    from samevec.export.pipeline import installed_toolchain  # noqa: PLC0415
    from samevec.runtime.providers.detect import read_facts  # noqa: PLC0415

    facts = read_facts()
    return {
        "toolchain": installed_toolchain(),
        "onnxruntime": dict(facts.packages),
        "providers": list(facts.available),
        "built_for_cuda": facts.built_for_cuda,
        "driver_cuda": facts.driver.cuda,
        "devices": list(facts.driver.devices),
        "load_message": facts.load_message,
        "device_bytes_before": _device_bytes(options["device"]),
    }


def _adopt(options: Mapping[str, Any]) -> dict[str, Any]:
    from samevec.export.pipeline import installed_toolchain  # noqa: PLC0415
    from samevec.lock import dump_lock, load_lock  # noqa: PLC0415

    lock, changes = adopt_toolchain(load_lock(options["lock"]), installed_toolchain())
    Path(options["target"]).write_text(dump_lock(lock), encoding="utf-8")
    return {"adopted": changes}


def _samevec(options: Mapping[str, Any]) -> dict[str, Any]:
    from samevec.lock import load_lock  # noqa: PLC0415
    from samevec.opening import open_candidate  # noqa: PLC0415

    entry = load_lock(options["lock"]).model(options["model"])
    model: Any = open_candidate(entry, profile=options["profile"], home=Path(options["home"])).model
    items = mixed_items(entry.task, few=options["few"])
    run = model.encode if entry.task == "embed" else model.score
    return {
        **_measure(run, items),
        "useful_tokens": sum(row.n_tokens for row in model.tokenize(items)),
        "provider": model.engine.session.provider,
        "device_bytes": _device_bytes(options["device"]),
    }


def _torch(options: Mapping[str, Any]) -> dict[str, Any]:
    import torch  # noqa: PLC0415

    from samevec.export.source.snapshot import locate_snapshot  # noqa: PLC0415
    from samevec.lock import load_lock  # noqa: PLC0415
    from samevec.parity.reference.pytorch import load_reference_model  # noqa: PLC0415
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


_CHILDREN = {"modules": _modules, "facts": _facts, "adopt": _adopt, "samevec": _samevec, "torch": _torch}

if __name__ == "__main__":
    print(json.dumps(_CHILDREN[sys.argv[1]](json.loads(sys.argv[2]))))
