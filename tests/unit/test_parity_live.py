"""A live reference: the stored one and the candidate, each beside what PyTorch gives now."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
from gate_stand_ins import LOCK, REFERENCES, WrongSession, make_model

from samevec.errors import SessionRunError
from samevec.parity.reference.baseline import run_baseline

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from samevec.runtime.collate import Features


def test_a_live_reference_is_compared_with_the_stored_one_and_the_candidate() -> None:
    for task, first in (("embed", "raw"), ("rerank", "logits")):
        stored = REFERENCES[task]
        cells = run_baseline(make_model(task), stored, stored, tolerance=LOCK.tolerance)
        assert all(cell.passed for cell in cells)
        assert {cell.grouping for cell in cells} == {"stored_vs_live", "candidate_vs_live"}
        raw = stored.raw.copy()
        raw[7] += np.float32(0.01)
        live = dataclasses.replace(stored, raw=raw)
        failing = [
            cell.name
            for cell in run_baseline(make_model(task), stored, live, tolerance=LOCK.tolerance)
            if not cell.passed
        ]
        assert {f"{first}/stored_vs_live", f"{first}/candidate_vs_live"} <= set(failing)
        assert not any(name.startswith("ids/") for name in failing)


def test_a_live_reference_with_other_ids_is_refused() -> None:
    stored = REFERENCES["rerank"]
    live = dataclasses.replace(stored, ids=((1, 2), *stored.ids[1:]))
    cells = run_baseline(make_model("rerank"), stored, live, tolerance=LOCK.tolerance)
    assert [cell.name for cell in cells if not cell.passed] == ["ids/stored_vs_live", "ids/candidate_vs_live"]


def test_a_candidate_that_cannot_run_leaves_the_stored_reference_compared() -> None:
    def fails(raw: NDArray[np.float32], _features: Features) -> NDArray[np.float32]:
        raise SessionRunError("out of luck")

    model = make_model("rerank", WrongSession(1, fails))
    cells = run_baseline(model, REFERENCES["rerank"], REFERENCES["rerank"], tolerance=LOCK.tolerance)
    assert cells[-1].failures == ("logits/candidate_vs_live: could not be computed: out of luck",)
    assert all(cell.passed for cell in cells[:-1])
