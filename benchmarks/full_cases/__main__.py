"""Seven cases on the full-shape pair: ``python -m benchmarks.full_cases``.

O02, O04, O15, O16, O19, O20 and O24 of the public faults that must not happen here; the tests run all 25 on the toy
pair. Each case writes whether it passed, and its figures. Vectors are compared bit by bit with those of the same text
alone through the same server, and a handful with PyTorch in float32, one text at a time. Sizes are cut to what two
cores do in ten minutes; every record states them. Where a limit of 32,768 tokens would take hours (O02, O16), and where
a run must fail (O15), the server runs in this process: with the library's models, a limit of 64 tokens, or a session
that refuses one row. The others ask a real ``samevec serve``.

Times mean something only where nothing else runs; passing depends on them in O24's ratio alone.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from typing import TYPE_CHECKING, Any

from benchmarks.full_cases.bench import Bench
from benchmarks.full_cases.o02_truncation import o02
from benchmarks.full_cases.o04_positions import o04
from benchmarks.full_cases.o15_failures import o15
from benchmarks.full_cases.o16_settings import o16
from benchmarks.full_cases.o19_memory import o19
from benchmarks.full_cases.o20_threads import o20
from benchmarks.full_cases.o24_fairness import o24
from benchmarks.results import NOTICE, machine_record
from benchmarks.served import Served, prove_both, serving, write_result
from benchmarks.setup import add_model_arguments, models_of, say

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


#: Those that ask one running server, and those that make their own.
SHARED: dict[str, Callable[[Bench, Served], dict[str, Any]]] = {"O19": o19, "O24": o24, "O04": o04}
OWN: dict[str, Callable[[Bench], dict[str, Any]]] = {"O20": o20, "O02": o02, "O15": o15, "O16": o16}


def run_cases(bench: Bench, names: Sequence[str], note: Callable[[str, dict[str, Any]], None]) -> None:
    """Run cases, and tell each one's record; one that raises has not passed, and says why."""

    def run(name: str, case: Callable[[], dict[str, Any]]) -> None:
        say(f"{name} ...")
        started_s = time.perf_counter()
        try:
            record = case()
        except Exception as error:  # the other cases still say something
            record = {"passed": False, "error": f"{type(error).__name__}: {error}"}
        record["case_seconds"] = time.perf_counter() - started_s
        say(f"{name}: {'passed' if record['passed'] else 'FAILED'} in {record['case_seconds']:.0f} s")
        note(name, record)

    for name, case in OWN.items():
        if name in names:
            run(name, functools.partial(case, bench))
    shared = [name for name in SHARED if name in names]
    if shared:
        with serving(bench.models, bench.profile) as served:
            for name in shared:
                run(name, functools.partial(SHARED[name], bench, served))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases, write ``full_cases.json`` and return 1 if one did not pass."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.full_cases",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model_arguments(parser)
    add = parser.add_argument
    add("--profile", default="cpu")
    add("--cases", default=",".join(sorted([*SHARED, *OWN])), help="default: all; others keep what the file says")
    add("--texts", type=int, default=2000, help="of O19's request")
    add("--idle-s", type=float, default=60.0, help="of O19, and half of it of O20")
    add("--length-step", type=int, default=2, help="between the lengths of O04's texts, 0 to 256 tokens")
    add("--thread-requests", type=int, default=40, help="of each of O16's 32 threads")
    arguments = parser.parse_args(argv)
    names = arguments.cases.split(",")
    unknown = sorted(set(names) - {*SHARED, *OWN})
    if unknown:
        parser.error(f"--cases: {', '.join(unknown)} is not here")
    say(NOTICE)
    models = models_of(arguments)
    prove_both(models, arguments.profile)
    bench = Bench(
        models=models,
        profile=arguments.profile,
        n_texts=arguments.texts,
        idle_s=arguments.idle_s,
        threads_requests=arguments.thread_requests,
        length_step=arguments.length_step,
    )
    path = arguments.output / "full_cases.json"
    cases: dict[str, Any] = json.loads(path.read_text())["cases"] if path.is_file() else {}
    record = {"notice": NOTICE, "machine": machine_record(), "profile": arguments.profile}

    def note(name: str, case: dict[str, Any]) -> None:
        cases[name] = case
        write_result("full_cases", {**record, "cases": dict(sorted(cases.items()))}, arguments.output)

    run_cases(bench, names, note)
    return 0 if all(cases[name]["passed"] for name in names) else 1


if __name__ == "__main__":
    raise SystemExit(main())
