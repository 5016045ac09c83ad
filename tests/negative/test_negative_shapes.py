"""Graphs and limits wrong where no case is: refused by the sweep at export, and by the gate on the serving machine.

Each would pass a gate without the sweep.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from typing import TYPE_CHECKING, Any

import negative_graphs as graphs
import pytest
from negative_tools import EMBEDDER, LOCK, PORTABLE, RERANKER, cell_of

from samevec.parity.gate import run_gate
from samevec.parity.sweep import capture_sweep, plan_sweep
from samevec.progress import SilentProgress
from samevec.runtime.engine import DEFAULT_ROWS
from samevec.runtime.tokenization import Tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from negative_tools import Toy

    from samevec.parity.reference.file import Reference
    from samevec.parity.sweep import SweepPlan
    from samevec.parity.verdict import Verdict

pytest_plugins = ("negative_fixtures",)
pytestmark = pytest.mark.model

RAW = {EMBEDDER: "raw", RERANKER: "logits"}
BOTH = pytest.mark.parametrize("name", [EMBEDDER, RERANKER])


@functools.cache
def swept(toy: Toy) -> tuple[SweepPlan, Reference]:
    """What PyTorch gives for the sweep of a toy model's cases, as the export captures it."""
    session: Any = importlib.import_module("samevec.parity.reference.torch_session").TorchSession
    plan = plan_sweep(longest_tokens=max(map(len, toy.reference.ids)), max_rows=DEFAULT_ROWS[toy.entry.task])
    sweep = capture_sweep(
        toy.model(session(toy.torch)), plan, limit=toy.torch.capture_limit(), progress=SilentProgress()
    )
    return plan, dataclasses.replace(toy.reference, sweep=sweep)


def judge(toy: Toy, model: Any, reference: Reference, *, quick: bool = False) -> Verdict:
    """Ask the gate about the toy's cases, once each."""
    return run_gate(
        model,
        reference,
        tolerance=LOCK.tolerance,
        profile=PORTABLE,
        case_set=toy.cases,
        repeats=1,
        golden=False,
        quick=quick,
    )


def refused_at_export(toy: Toy, model: Any) -> list[str]:
    problems: Any = importlib.import_module("samevec.export.graph").sweep_problems
    plan, reference = swept(toy)
    found: list[str] = problems(
        model, reference.sweep, plan, LOCK.tolerance, bits_required=False, progress=SilentProgress()
    )
    return found


@functools.cache
def untried(toy: Toy, axis: int) -> int:
    """A size of an axis that the sweep has and the cases have not."""
    with_sweep, without = (
        {shape[axis] for run in judge(toy, toy.model(pad_to_multiple=1), reference).runs for shape in run.shapes}
        for reference in (swept(toy)[1], toy.reference)
    )
    return max(with_sweep - without)


@BOTH
def test_the_right_graph_passes_the_sweep(name: str, toys: dict[str, Toy]) -> None:
    toy = toys[name]
    model = toy.model(pad_to_multiple=1)
    assert refused_at_export(toy, model) == []
    assert judge(toy, model, swept(toy)[1]).failures == ()


@BOTH
@pytest.mark.parametrize(("axis", "grouping"), [(1, "widths"), (0, "row_counts")])
def test_A2_a_graph_wrong_at_a_single_width_or_row_count(
    name: str, axis: int, grouping: str, toys: dict[str, Toy], tmp_path: Path
) -> None:
    toy = toys[name]
    model = toy.model(toy.edited(graphs.wrong_at(axis, untried(toy, axis)), tmp_path), pad_to_multiple=1)
    assert judge(toy, model, toy.reference).passed  # as before the sweep was
    cell = f"{RAW[name]}/{grouping}"
    assert refused_at_export(toy, model)[0].startswith(f"{cell}: ")
    verdict = judge(toy, model, swept(toy)[1])
    assert verdict.failures[0].startswith(f"{cell}: ")
    comparison = cell_of(verdict, cell).comparison
    assert comparison is not None
    assert comparison.worst_ratio > 10


@BOTH
@pytest.mark.parametrize("off_by", [-1, 1])
def test_A7_a_limit_off_by_one(name: str, off_by: int, toys: dict[str, Toy]) -> None:
    toy = toys[name]
    model = toy.model()
    wrong = dataclasses.replace(model, tokenizer=Tokenizer(model.tokenizer.raw, model.max_tokens + off_by))
    assert judge(toy, wrong, toy.reference, quick=True).passed
    (failure,) = judge(toy, wrong, swept(toy)[1], quick=True).failures
    assert failure.startswith("ids/limit: ")
