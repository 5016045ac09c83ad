"""Right graphs asked in a wrong way: what lies between the gate and a caller, at load and in a server."""

from __future__ import annotations

import asyncio
import itertools
import threading
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gate_stand_ins import EXACT, LOCK, REFERENCES, WIDTH, make_model

from samevec.errors import NotReadyError, ParityFailedError
from samevec.parity.cases.builtin import builtin_cases
from samevec.parity.gate import run_gate
from samevec.parity.probe import Probe, require_probe
from samevec.runtime import embedder as embedder_module
from samevec.runtime import long_text, tokenization
from samevec.runtime.embedder import Embedder
from samevec.runtime.engine import Engine, Outcome
from samevec.runtime.pooling import shorten
from samevec.runtime.reranker import Ranked, Reranker
from samevec.runtime.rows import TokenRow
from samevec.runtime.sessions.fake import FakeSession
from samevec.server.queue.jobs import Job
from samevec.server.queue.workers import ModelWorker
from samevec.server.service import Service
from samevec.server.settings import ServedModel, ServerSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from samevec.runtime.collate import Features

    Model = Embedder | Reranker

TASKS = ("embed", "rerank")
PROBES = {
    task: Probe.of(
        make_model(task).entry,
        REFERENCES[task],
        builtin_cases(task, prompts=make_model(task).entry.prompts),
        tolerance=LOCK.tolerance,
    )
    for task in TASKS
}


def load(model: Model) -> None:
    """Probe a model as every start does."""
    require_probe(model, PROBES[model.entry.task])


def start(model: Model) -> None:
    """Start a server of one model, and stop it."""
    service = Service([ServedModel(model=model, probe=PROBES[model.entry.task])], ServerSettings())
    try:
        asyncio.run(service.start())
    finally:
        service.stop()


def require_refused_at_load(model: Model) -> None:
    with pytest.raises(ParityFailedError, match="the start-up probe differs from the reference: "):
        load(model)


def require_refused_at_start(model: Model) -> None:
    with pytest.raises(NotReadyError, match="the start-up probe through the server differs from the reference: "):
        start(model)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("overlapping", [False, True])
def test_what_is_right_passes_both(task: str, overlapping: bool) -> None:
    model = make_model(task)
    model = replace(model, engine=replace(model.engine, overlapping=overlapping))
    load(model)
    start(model)


def test_a6_a_cache_that_forgets_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    encode, known = Embedder.encode, {}

    def remembered(self: Embedder, texts: Sequence[str], *, prompt: str | None = None, **options: Any) -> Any:
        key = tuple(texts), tuple(options.items())
        if key not in known:
            known[key] = encode(self, texts, prompt=prompt, **options)
        return known[key]

    monkeypatch.setattr(Embedder, "encode", remembered)
    require_refused_at_load(make_model("embed"))


def test_a6_a_cache_of_requests_that_forgets_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    embed, known = Service.embed, {}

    async def remembered(self: Service, work: Any, **how: Any) -> Any:
        key = replace(work, prompt_name=None)
        if key not in known:
            known[key] = await embed(self, work, **how)
        return known[key]

    monkeypatch.setattr(Service, "embed", remembered)
    require_refused_at_start(make_model("embed"))


def test_a6_a_prompt_with_a_space_more(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenize = Embedder.tokenize

    def spaced(self: Embedder, texts: Sequence[str], *, prompt: str | None = None, **options: Any) -> list[TokenRow]:
        return tokenize(self, [" " * (prompt is not None) + text for text in texts], prompt=prompt, **options)

    monkeypatch.setattr(Embedder, "tokenize", spaced)
    require_refused_at_load(make_model("embed"))
    require_refused_at_start(make_model("embed"))


def test_a6_query_and_document_swapped(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenize = Reranker.tokenize

    def swapped(self: Reranker, pairs: Sequence[tuple[str, str]], **options: Any) -> list[TokenRow]:
        return tokenize(self, [(document, query) for query, document in pairs], **options)

    monkeypatch.setattr(Reranker, "tokenize", swapped)
    require_refused_at_load(make_model("rerank"))
    require_refused_at_start(make_model("rerank"))


@pytest.mark.parametrize("change", [lambda ranked: ranked[::-1], lambda ranked: ranked[:-1]], ids=["order", "lost"])
def test_a6_a_wrong_ranking(change: Callable[[list[Ranked]], list[Ranked]], monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Reranker.rank
    monkeypatch.setattr(Reranker, "rank", lambda self, *asked: change(rank(self, *asked)))
    require_refused_at_load(make_model("rerank"))


@pytest.mark.parametrize("narrow", [False, True])
def test_a6_another_prefix_length_is_wrong(narrow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the prefix that the gate compares is right, and those shorter or longer."""

    def shifted(raw: NDArray[np.float32], *, dimensions: int | None, **how: Any) -> NDArray[np.float32]:
        wrong = dimensions is not None and (dimensions < WIDTH // 2 if narrow else dimensions > WIDTH // 2)
        return shorten(np.roll(raw, 1, axis=1) if wrong else raw, dimensions=dimensions, **how)

    monkeypatch.setattr(embedder_module, "shorten", shifted)
    require_refused_at_load(make_model("embed"))
    require_refused_at_start(make_model("embed"))


class Reversed(FakeSession):
    """Gives the rows of a run that can be cancelled in reverse."""

    def run(self, features: Features, *, cancel: Any = None, **how: Any) -> NDArray[np.float32]:
        raw = super().run(features, cancel=cancel, **how)
        return raw if cancel is None else raw[::-1]


@pytest.mark.parametrize("task", TASKS)
def test_a6_a_run_that_can_be_cancelled_is_reversed(task: str) -> None:
    """What serves is what the gate runs, so that it refuses this too."""
    model = make_model(task, Reversed(WIDTH if task == "embed" else 1))
    require_refused_at_load(model)
    require_refused_at_start(model)
    assert not run_gate(model, REFERENCES[task], tolerance=LOCK.tolerance, profile=EXACT, quick=True).passed


@pytest.mark.parametrize("task", TASKS)
def test_a6_a_microbatch_of_requests_is_reversed(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Engine.run_guarded

    def turned(self: Engine, rows: Sequence[TokenRow], **how: Any) -> Outcome:
        done = run(self, rows, **how)
        return Outcome(done.raw[::-1], done.errors)

    monkeypatch.setattr(Engine, "run_guarded", turned)
    load(make_model(task))  # no library call goes this way
    require_refused_at_start(make_model(task))


@pytest.mark.parametrize("task", TASKS)
def test_a6_a_seam_that_loses_a_token(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def losing(encode: Any, text: str, **how: Any) -> long_text.Content:
        whole = long_text.encode_long(encode, text, **how)
        return long_text.Content(whole.ids[:7] + whole.ids[8:], whole.n_tokens)

    monkeypatch.setattr(tokenization, "encode_long", losing)
    require_refused_at_load(make_model(task))


@pytest.mark.parametrize("task", TASKS)
def test_a6_truncation_from_the_left(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = type(make_model(task))
    tokenize = kind.tokenize

    def from_the_left(self: Any, items: Any, *, max_tokens: int | None = None, **how: Any) -> list[TokenRow]:
        rows: list[TokenRow] = tokenize(self, items, **how)
        return [TokenRow(row.ids[-(max_tokens or self.max_tokens) :]) for row in rows]

    monkeypatch.setattr(kind, "tokenize", from_the_left)
    require_refused_at_load(make_model(task))


@pytest.mark.parametrize("task", TASKS)
def test_a6_rows_in_the_order_in_which_they_ran(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run, submit = Engine.run_rows, ModelWorker.submit

    def longest_first(rows: Sequence[TokenRow]) -> list[int]:
        return sorted(range(len(rows)), key=lambda i: -rows[i].n_tokens)

    def in_sorted_order(self: Engine, rows: Sequence[TokenRow], **how: Any) -> NDArray[np.float32]:
        return run(self, rows, **how)[longest_first(rows)]

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "run_rows", in_sorted_order)
        require_refused_at_load(make_model(task))

    def queued_in_sorted_order(self: ModelWorker, rows: Sequence[TokenRow], **how: Any) -> Any:
        return submit(self, [rows[i] for i in longest_first(rows)], **how)

    monkeypatch.setattr(ModelWorker, "submit", queued_in_sorted_order)
    require_refused_at_start(make_model(task))


class SharedOutput(FakeSession):
    """Computes every run into the same memory; two runs after the first few are read when both have computed."""

    def __init__(self, width: int, *, n_before: int) -> None:
        super().__init__(width)
        self._memory = np.empty((64, width), dtype=np.float32)
        self._order = itertools.count(-n_before)
        self._both_computed = threading.Barrier(2)

    def run(self, features: Features, **how: Any) -> NDArray[np.float32]:
        raw = super().run(features, **how)
        self._memory[: len(raw)] = raw
        if next(self._order) in (0, 1):
            self._both_computed.wait(20)
        return self._memory[: len(raw)]


@pytest.mark.parametrize(("task", "n_alone"), [("embed", 0), ("rerank", 1)])
def test_a6_an_output_buffer_shared_by_overlapping_runs(task: str, n_alone: int) -> None:
    def model(n_before: int) -> Model:
        made = make_model(task, SharedOutput(WIDTH if task == "embed" else 1, n_before=n_before))
        return replace(made, engine=replace(made.engine, overlapping=True))

    require_refused_at_load(model(n_alone))
    require_refused_at_start(model(1))  # the canary


@pytest.mark.parametrize("task", TASKS)
def test_a6_a_job_that_keeps_its_rows_in_reverse(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    deliver = Job.deliver
    monkeypatch.setattr(Job, "deliver", lambda self, slot, raw: deliver(self, len(self.rows) - 1 - slot, raw))
    require_refused_at_start(make_model(task))


def test_a6_a_queue_that_delivers_to_the_wrong_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two requests of one row get each other's."""
    submit = ModelWorker.submit
    waiting: list[tuple[Future[Any], Future[Any]]] = []

    def exchanged(self: ModelWorker, rows: Sequence[TokenRow], **how: Any) -> Future[Any]:
        own = submit(self, rows, **how)
        if len(rows) > 1 or rows[0].n_tokens == 1:
            return own
        given: Future[Any] = Future()
        waiting.append((own, given))
        if len(waiting) == 2:
            (first, for_first), (second, for_second) = waiting
            first.add_done_callback(lambda done: for_second.set_result(done.result()))
            second.add_done_callback(lambda done: for_first.set_result(done.result()))
        return given

    monkeypatch.setattr(ModelWorker, "submit", exchanged)
    require_refused_at_start(make_model("embed"))
