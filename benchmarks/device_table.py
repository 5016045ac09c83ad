"""A device check's steps in, rows and a table out. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["result_row", "table_lines"]


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
    return lines + [_step_words(step) for step in record["steps"] if step["outcome"] != "ok"]


def _step_words(step: Mapping[str, Any]) -> str:
    """Return what came of a step that did not end well, with its last words."""
    reason = step.get("reason") or (step.get("stderr") or [""])[-1]
    return f"{step['step']}: {step['outcome']}" + (f" ({reason})" if reason else "")
