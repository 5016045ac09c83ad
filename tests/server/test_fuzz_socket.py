"""A few thousand of the malformed frames that ``benchmarks.fuzz_socket`` sends 100,000 of."""

from __future__ import annotations

import base64
import random
from typing import TYPE_CHECKING

import numpy as np
import pytest
from live_server import live
from stand_ins import alone

from benchmarks.fuzz_socket import (
    Outcome,
    anything,
    deep,
    framed,
    fuzz,
    known_answers,
    mutated,
    not_utf8,
    process_facts,
    stalled,
    wrong_types,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.server


def test_frames_are_the_same_every_time() -> None:
    makers: list[Callable[[random.Random], bytes]] = [mutated, wrong_types, deep, not_utf8]
    for make in makers:
        assert [make(random.Random(i)) for i in range(50)] == [make(random.Random(i)) for i in range(50)]
        assert len({make(random.Random(i)) for i in range(50)}) > 5
    assert framed(b"ab") == b"\0\0\0\2ab"
    assert any(isinstance(anything(random.Random(i)), dict) for i in range(50))


@pytest.mark.parametrize(
    "record",
    [
        {"ok": False, "error": "internal error", "type": "internal_error", "protocol": 1},
        {"ok": False, "error": "…", "type": "non_finite_output", "protocol": 1},
        {"ok": True},
        {"ok": 1, "protocol": 1},
        {},
    ],
)
def test_an_answer_that_must_not_be_is_a_fault(record: dict[str, object]) -> None:
    outcome = Outcome()
    outcome.answered({"ok": True, "protocol": 1})
    outcome.answered({"ok": False, "error": "x", "type": "invalid_request_error", "protocol": 1})
    assert outcome.n_faults == 0
    outcome.answered(record)
    assert outcome.n_faults == 1


def test_two_thousand_frames_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    outcome = Outcome()
    with live({"port": 0, "socket": str(path), "client_timeout_s": 2.0}, home=tmp_path) as server:
        at_rest = process_facts(server.process.pid)["descriptors"]
        known = known_answers(path)
        record = known[1][1]["vectors"]
        vectors = np.frombuffer(base64.b64decode(record["__ndarray__"]), dtype="<f4").reshape(record["shape"])
        assert np.array_equal(vectors, alone(["canary"])[:, :256])
        fuzz(path, outcome, frames=600, seed="warm up", clients=4, known=known)
        before = process_facts(server.process.pid, descriptors=at_rest)
        with stalled(path, 5, outcome):
            fuzz(path, outcome, frames=2000, seed="2", clients=4, known=known)
        assert (outcome.n_faults, outcome.faults) == (0, [])
        assert sum(outcome.frames.values()) >= 2600
        assert len(outcome.frames) == 12
        assert known_answers(path) == known
        after = process_facts(server.process.pid, descriptors=at_rest)
        assert after["descriptors"] <= at_rest
        assert after["private_bytes"] < 1.1 * before["private_bytes"]
        assert server.stop() == 0
        assert server.process.stderr is not None
        assert "Traceback" not in server.process.stderr.read()
