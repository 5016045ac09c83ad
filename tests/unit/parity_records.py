"""Records as the gate writes them, made by hand: with every part, and with what no page may take literally."""

from __future__ import annotations

from typing import Any

from samevec.parity.receipt import Binding
from samevec.parity.report.files import report_record

#: What texts, tags and messages may hold: markup, NUL, an escape sequence, a direction override, a lone surrogate.
HOSTILE = "<script>alert('x')</script> & \"q\" \x00\x1b[31m \u202eover\u202c \ud800 <|im_end|> [SEP] ]]> שלום"

GROUPINGS = ("alone", "default", "batch_1", "batch_8", "batch_32", "budget_512", "shuffled", "long_among_short")
#: Four bins a decade of error over allowance.
HISTOGRAM_EDGES = tuple(10.0 ** (step / 4) for step in range(-24, 9))
LEVELS = ("raw", "normalised", "prefix_256")
WHEN = "2030-01-01T00:00:00+00:00"


def comparison(*, rows: int = 300, max_abs: float | str = 3.1e-6, failing: tuple[int, ...] = ()) -> dict[str, Any]:
    return {
        "rows": rows,
        "components": rows * 384,
        "failing_rows": list(failing),
        "failing_components": len(failing),
        "max_abs": max_abs,
        "max_at": [0, 0],
        "worst_ratio": 212.0 if failing else 0.031,
        "min_cosine": 0.9999,
        "problems": [],
    }


def cell(level: str, grouping: str, **changes: Any) -> dict[str, Any]:
    found = {
        "level": level,
        "grouping": grouping,
        "passed": True,
        "error": "",
        "comparison": comparison(),
        "repeats": 0 if level == "ids" else 3,
        "repeats_identical": True,
        "moved_rows": None if level == "ids" or grouping == "alone" else [],
        "bits_required": level != "ids",
        "features_digest": "sha256:" + "7" * 64,
        "limits": None,
        "elapsed_s": 0.125,
    }
    return {**found, **changes}


def row_errors(*, failing: int | None = None) -> list[dict[str, Any]]:
    """Lengths over four decades of error, an exact zero and, if asked for, one that is not finite and fails."""
    found = []
    for case in range(120):
        max_abs: float | str = 0.0 if case == 5 else 2e-7 * (1 + (case * 37 % 29)) * (1 + case / 40)
        ratio: float | str = float(max_abs) / 1.3e-4
        if failing is not None and case >= failing:
            max_abs, ratio = ("inf", "inf") if case == 119 else (3e-3 * (1 + case % 7), 21.0 + case)
        tokens = 1 + case * case * 1100 // 14161
        tag = HOSTILE if case in (3, 118) else f"equal length {case}"
        found.append({"case": case, "tag": tag, "tokens": tokens, "max_abs": max_abs, "ratio": ratio})
    return found


def histogram(*, failing: bool = False) -> dict[str, Any]:
    counts = [400, *(round(90_000 * 2.718 ** (-((i - 15) ** 2) / 20)) for i in range(len(HISTOGRAM_EDGES)))]
    outside = next(i for i, edge in enumerate(HISTOGRAM_EDGES) if edge >= 1) + 1
    counts[outside:] = [37 * (i % 4) if failing else 0 for i in range(len(counts) - outside)]
    return {"edges": list(HISTOGRAM_EDGES), "counts": counts}


def rankings(**changes: Any) -> dict[str, Any]:
    quality = {"recall_10": 0.8125, "recall_100": 1.0, "mrr": 0.75, "ndcg_10": 0.7031}
    runs = [
        {
            "name": name,
            "first_changes": 0,
            "member_changes": 1,
            "displacement": 1,
            "swapped_pairs": 0,
            "quality": quality,
        }
        for name in ("default", "shuffled", "stored")
    ]
    found = {
        "task": "embed",
        "fixture_digest": "sha256:" + "f" * 64,
        "n_queries": 32,
        "n_items": 256,
        "top": 100,
        "search": "cosine distance",
        "decided": 0.9931,
        "reference_quality": quality,
        "runs": runs,
        "failures": [],
        "notes": ["rankings: the toy models' weights are generated; the ratings say nothing, only their equality does"],
        "not_measured": [],
        "elapsed_s": 1.5,
    }
    return {**found, **changes}


def groupings() -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "rows": 300,
            "shapes": [[1, 8]] * 300 if name in ("alone", "batch_1") else [[8, 64]] * 38,
            "features_digest": "sha256:" + "8" * 64,
            "same_as": None,
            "like": "alone" if name == "batch_1" else None,
            "problems": [],
            "elapsed_s": 0.002,
        }
        for name in GROUPINGS
    ]


def binding(name: str) -> dict[str, Any]:
    return {
        "model": name,
        "profile": "cpu",
        "artifact_digest": "sha256:" + "a" * 64,
        "lock_entry_digest": "sha256:" + "b" * 64,
        "case_set_digest": "sha256:" + "c" * 64,
        "fixture_digest": "sha256:" + "f" * 64,
        "provider": "CPUExecutionProvider",
        "provider_options": {},
        "session_options": {"graph_optimization_level": "all", "entries": {"session.use_device_allocator": "1"}},
        "onnxruntime_version": "1.32.0",
        "tokenizers_version": "0.22.2",
        "numpy_version": "2.4.0",
        "code": {"runtime/engine.py": "1" * 64},
        "device": "Some Processor 9000 (avx2, fma; 0123abcd)",
        "samevec_version": "0.1.0",
    }


def passed_model(name: str = "toy-qwen3-embedder", **changes: Any) -> dict[str, Any]:
    cells = [cell("ids", grouping) for grouping in ("together", "alone")]
    cells += [cell(level, grouping) for grouping in GROUPINGS for level in LEVELS]
    found = {
        "model": name,
        "task": "embed",
        "profile": "cpu",
        "provider": "CPUExecutionProvider",
        "passed": True,
        "quick": False,
        "baseline": False,
        "lock_entry_digest": "sha256:" + "b" * 64,
        "artifact_digest": "sha256:" + "a" * 64,
        "case_set_digest": "sha256:" + "c" * 64,
        "code_digest": "sha256:" + "d" * 64,
        "n_cases": 300,
        "repeats": 3,
        "tolerance": {"atol": 1e-4, "rtol": 1e-3},
        "cells": cells,
        "groupings": groupings(),
        "failures": [],
        "notes": [],
        "not_measured": ["inputs longer than 2048 tokens (the model takes 32768)", "the model card's golden values"],
        "elapsed_s": 12.345,
        "error_level": "raw",
        "row_errors": {"alone": row_errors(), "default": row_errors()},
        "worst_rows": [{"grouping": "default", **error} for error in row_errors()[-10:]],
        "histograms": {"alone": histogram(), "default": histogram()},
        "rankings": rankings(),
        "binding": binding(name),
        "reference_toolchain": {"torch": "2.13.0", "transformers": "4.57.6"},
    }
    return {**found, **changes}


def failed_model(name: str = "toy-modernbert-reranker", **changes: Any) -> dict[str, Any]:
    """Values off in one grouping, bits moved in another, a grouping that cannot run, one that is vacuous."""
    off = tuple(range(60, 120))
    model = passed_model(name)
    cells = []
    for found in model["cells"]:
        if found["level"] == "ids":
            cells.append(found)
        elif found["grouping"] == "default":
            wrong = comparison(max_abs="inf", failing=off)
            cells.append({**found, "passed": False, "comparison": wrong, "moved_rows": list(off)})
        elif found["grouping"] == "batch_8":
            cells.append({**found, "passed": False, "moved_rows": [1, 2], "repeats_identical": False})
        elif found["grouping"] == "shuffled":
            cells.append({**found, "passed": False, "comparison": None, "error": f"could not be computed: {HOSTILE}"})
        else:
            cells.append(found)
    names = [f"{level}/default" for level in LEVELS]
    failures = [f"{name}: 60 of 300 rows differ, worst row 119 component 3 ({HOSTILE})" for name in names]
    failures += [f"{level}/batch_8: 2 of 300 rows have other bits than alone, first row 1" for level in LEVELS]
    failures += [f"{level}/batch_8: repeats of the same run gave other bits" for level in LEVELS]
    failures += [
        f"raw/shuffled: could not be computed: {HOSTILE}",
        "batch_32: ran the same microbatches as default, so it proves nothing (vacuous)",
        "rankings/default: the order is another for 3 of 32 queries, beyond near ties",
        "something that belongs nowhere",
    ]
    failing = {
        "passed": False,
        "cells": cells,
        "failures": failures,
        "row_errors": {"alone": row_errors(), "default": row_errors(failing=60)},
        "worst_rows": [{"grouping": "default", **error} for error in row_errors(failing=60)[:-11:-1]],
        "histograms": {"alone": histogram(), "default": histogram(failing=True)},
        "notes": [f"a note with {HOSTILE}"],
    }
    return {**model, **failing, **changes}


def live_model(**changes: Any) -> dict[str, Any]:
    """With PyTorch computed again beside the stored reference, and the values of a model card."""
    model = passed_model()
    names = ("stored_vs_live", "candidate_vs_live")
    cells = [
        cell(level, name, repeats=1, moved_rows=None, comparison=comparison(max_abs=2e-6))
        for name in names
        for level in ("ids", *LEVELS)
    ]
    cells += [cell("golden", "ids"), cell("golden", "cosines", limits=[2e-3, 0.0], comparison=comparison(max_abs=1e-3))]
    found = {
        "cells": [*model["cells"], *cells],
        "live_toolchain": {"torch": "2.13.1"},
        "baseline_verdict": passed_model(baseline=True, repeats=1, quick=True),
    }
    return {**model, **found, **changes}


def report(*models: dict[str, Any], **facts: Any) -> dict[str, Any]:
    return report_record(list(models), created_at=WHEN, **facts)


def make_binding(**changes: Any) -> Binding:
    """What a receipt is bound to, as a record of the product."""
    values: dict[str, Any] = {
        "model": "m",
        "profile": "cpu",
        "artifact_digest": "sha256:" + "a" * 64,
        "lock_entry_digest": "sha256:" + "b" * 64,
        "case_set_digest": "sha256:" + "c" * 64,
        "fixture_digest": "sha256:" + "f" * 64,
        "provider": "CPUExecutionProvider",
        "provider_options": {},
        "session_options": {"memory_arena": True, "session_config": {"x": "0"}},
        "device": "CPU A (x86_64)",
        "samevec_version": "0.1.0",
        "onnxruntime_version": "1.31.1",
        "tokenizers_version": "0.22.2",
        "numpy_version": "2.4.0",
        "code": {"runtime/engine.py": "1", "runtime/tokenization.py": "2"},
    }
    return Binding(**(values | changes))
