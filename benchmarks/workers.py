"""How many workers? ``python -m benchmarks.workers``: 1, 2, 4 and 8, the budget divided among them or fixed for each.

Every setting is a process of its own that embeds the same texts twice; the second pass counts. With a divided budget
peak memory should stay about flat as workers grow. The vectors of all settings must be the same bits.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.memory import MemorySampler, read_memory
from benchmarks.protocol import REPOSITORY
from benchmarks.results import NOTICE, machine_record
from benchmarks.served import write_result
from benchmarks.setup import add_model_arguments, ensure_proved, models_of, say
from benchmarks.workloads import EMBEDDER, Writer
from samevec.load import load_embedder
from samevec.runtime.batching.plan import MAX_WORKER_TOKENS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.setup import Models

_WORKERS = (1, 2, 4, 8)
# Equal lengths fill every microbatch to its budget, so that the budget shows; 48 x 170 tokens are two budgets.
_TEXTS, _TEXT_TOKENS = 48, 170


def _texts() -> list[str]:
    writer = Writer("samevec workers", "embed")
    return [writer.text(_TEXT_TOKENS) for _ in range(_TEXTS)]


def _one(arguments: argparse.Namespace) -> None:
    """Measure one setting in this process, and print it."""
    models = models_of(arguments)
    model = load_embedder(
        EMBEDDER, profile=arguments.profile, home=models.home, lock=models.lock_path, workers=arguments.one
    )
    rows = model.tokenize(_texts())
    # The size is named, so that every microbatch is filled to the budget; by cost they would be far smaller.
    size = max(1, model.engine.token_budget // _TEXT_TOKENS)
    loaded = read_memory(os.getpid())
    model.compute(rows, batch_size=size)
    with MemorySampler(os.getpid()) as sampler:
        started_s = time.perf_counter()
        raw = model.compute(rows, batch_size=size)
        wall_s = time.perf_counter() - started_s
    peak = sampler.peak.peak(read_memory(os.getpid()))
    record = {"workers": model.engine.workers, "budget_tokens": model.engine.token_budget, "wall_s": wall_s}
    record |= {"private_loaded_bytes": loaded.private_bytes, "private_peak_bytes": peak.private_bytes}
    print(json.dumps({**record, "useful_tokens": sum(row.n_tokens for row in rows), "bits": _digest(raw.tobytes())}))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _measure(n_workers: int, *, fixed: bool, profile: str, models: Models) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.workers", "--one", str(n_workers), "--profile", profile]
    command += ["--home", str(models.home), "--snapshots", str(models.snapshots)]
    environment = os.environ | ({"SAMEVEC_TOKEN_BUDGET": str(MAX_WORKER_TOKENS)} if fixed else {})
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=REPOSITORY, env=environment)
    record: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    record["budget"] = "fixed" if fixed else "divided"
    say(
        f"{n_workers} workers, {record['budget']} budget of {record['budget_tokens']}: {record['wall_s']:.2f} s, "
        f"private {record['private_peak_bytes'] / 1e6:,.0f} MB"
    )
    return record


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and write ``workers.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_arguments(parser)
    parser.add_argument("--profile", default="cpu")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.one is not None:
        _one(arguments)
        return
    say(NOTICE)
    models = models_of(arguments)
    ensure_proved(EMBEDDER, arguments.profile, models, say)
    rows = [
        _measure(n, fixed=fixed, profile=arguments.profile, models=models) for fixed in (False, True) for n in _WORKERS
    ]
    same_bits = len({row["bits"] for row in rows}) == 1
    say("all settings gave the same bits" if same_bits else "BITS DIFFER between settings")
    record = {"notice": NOTICE, "machine": machine_record(), "profile": arguments.profile, "same_bits": same_bits}
    write_result("workers", {**record, "rows": rows}, Path(arguments.output))


if __name__ == "__main__":
    main()
