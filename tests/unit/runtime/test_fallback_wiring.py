"""Who gets a fall-back: proved models of a profile that names one, never what the gate judges."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from makers import embedder, rows

from samevec import gate as gate_module
from samevec.errors import ReceiptMissingError, SessionRunError
from samevec.gate import _with_fallback
from samevec.hints import Commands
from samevec.lock import load_lock
from samevec.opening import Candidate
from samevec.runtime.providers.profiles import get_profile
from samevec.runtime.sessions.fake import FakeSession
from samevec.runtime.sessions.fallback import FallbackSession

LOCK = load_lock("toy")


def candidate(profile: str, session: FakeSession) -> Candidate:
    model = embedder(session)
    return Candidate(
        model=model,
        entry=model.entry,
        artifact=SimpleNamespace(),  # type: ignore[arg-type]
        profile=get_profile(profile),
        home=Path("/nowhere"),
        commands=Commands(),
    )


def full(features: Any) -> None:
    raise SessionRunError("no memory", out_of_memory=True)


def test_a_full_gpu_gives_way_to_the_proved_cpu_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def open_proved(entry: Any, *, profile: str, **_: Any) -> Candidate:
        asked.append(profile)
        return candidate(profile, FakeSession())

    monkeypatch.setattr(gate_module, "open_proved", open_proved)
    engine = _with_fallback(candidate("cuda", FakeSession(before_run=full)), LOCK.tolerance).model.engine
    assert engine.run_rows(rows((3, 4))).tolist() == embedder(FakeSession()).engine.run_rows(rows((3, 4))).tolist()
    assert asked == ["cpu"]
    assert isinstance(engine.session, FallbackSession)
    assert "profile cpu" in (engine.session.notice or "")


def test_an_unproved_cpu_profile_takes_nothing_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_proved(entry: Any, **_: Any) -> Candidate:
        raise ReceiptMissingError(f"{entry.name}: parity was never run here", fix="samevec parity")

    monkeypatch.setattr(gate_module, "open_proved", open_proved)
    engine = _with_fallback(candidate("cuda", FakeSession(before_run=full)), LOCK.tolerance).model.engine
    with pytest.raises(SessionRunError, match=r"no fall-back to profile cpu: .*never run here"):
        engine.run_rows(rows((3,)))


@pytest.mark.parametrize("profile", ["cpu", "portable", "coreml"])
def test_profiles_that_name_none_get_none(profile: str) -> None:
    one = candidate(profile, FakeSession())
    assert _with_fallback(one, LOCK.tolerance) is one
