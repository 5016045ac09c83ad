"""A full device, as those see it who watch the server: who computes now, why, and for how long."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from stand_ins import EMBEDDER, alone, embedder, in_process, vectors_of

from samevec.errors import SessionRunError
from samevec.runtime.sessions.fake import FakeSession
from samevec.runtime.sessions.fallback import FallbackSession
from samevec.runtime.sessions.reloadable import Reloadable
from samevec.server.settings import ServedModel, ServerSettings

if TYPE_CHECKING:
    from samevec.runtime.collate import Features
    from samevec.runtime.embedder import Embedder


class Device(FakeSession):
    """A device that is full once it is told so."""

    provider = "CUDAExecutionProvider"
    is_full = False

    def __init__(self, width: int) -> None:
        super().__init__(width, before_run=self._require_room)

    def _require_room(self, _features: Features) -> None:
        if self.is_full:
            raise SessionRunError("Available memory of 0 is smaller than requested bytes of 9", out_of_memory=True)


def on_device(device: Device) -> Embedder:
    model = embedder()
    session = FallbackSession(device, lambda: FakeSession(device.width), profile="cpu", budget_tokens=4096)
    return replace(model, engine=replace(model.engine, session=session))


def test_what_took_over_is_told_and_answers_go_on() -> None:
    device = Device(embedder().engine.width)
    with in_process(ServedModel(model=on_device(device), profile="cuda")) as server:
        [before] = server.ask("GET", "/info").json()["models"]
        assert (before["provider"], "fallback" in before) == ("CUDAExecutionProvider", False)
        device.is_full = True
        answer = server.embed({"model": EMBEDDER, "input": ["one", "two"]})
        assert vectors_of(answer).tobytes() == alone(["one", "two"]).tobytes()
        [after] = server.ask("GET", "/info").json()["models"]
    assert after["provider"] == "FakeExecutionProvider"
    assert after["fallback"].startswith("CUDAExecutionProvider had no memory for a single row; profile cpu")
    assert after["fallback"].endswith("computes until restart")


def test_a_model_that_has_given_way_is_not_unloaded_since_it_would_go_back() -> None:
    now, device = [0.0], Device(embedder().engine.width)
    model = on_device(device)
    reloadable = Reloadable(model.engine, lambda: on_device(Device(device.width)).engine)
    served = ServedModel(model=replace(model, engine=reloadable.engine), profile="cuda", reloadable=reloadable)
    with in_process(served, settings=ServerSettings(idle_unload_s=60), clock=lambda: now[0]) as server:
        device.is_full = True
        server.embed({"model": EMBEDDER, "input": "one"})
        now[0] += 3600
        assert server.service.unload_idle() == []
        [info] = server.ask("GET", "/info").json()["models"]
    assert (info["state"], info["provider"]) == ("loaded", "FakeExecutionProvider")
    assert info["fallback"].endswith("computes until restart")
