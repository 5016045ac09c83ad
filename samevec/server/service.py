"""Requests in, arrays out: admission, tokenising, the workers, and what readiness and /info say. Knows no protocol."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from samevec._version import __version__
from samevec.errors import BatchTooLargeError, DeadlineExceededError, InputError, NotReadyError
from samevec.machine import allowed_cpus
from samevec.runtime.checks import require_usable
from samevec.server.error_map import UnknownModelError
from samevec.server.http.tokens import list_tokens
from samevec.server.idle import IdleModels
from samevec.server.queue.admission import Admission
from samevec.server.queue.work_queue import QueueLimits
from samevec.server.queue.workers import ModelWorker
from samevec.server.reprobe import Reprobing
from samevec.server.requests import EmbedRequest, RerankRequest
from samevec.server.settings import find_served
from samevec.server.telemetry.records import Observers, Phase, current_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from samevec.parity.probe import ProbeCall
    from samevec.runtime.rows import TokenRow
    from samevec.server.http.tokens import Token
    from samevec.server.queue.admission import Received
    from samevec.server.requests import Request, TokenizeRequest
    from samevec.server.settings import ServedModel, ServerSettings
    from samevec.server.telemetry.records import Observer

    _Tokenized = TypeVar("_Tokenized")

__all__ = ["Embedded", "Scored", "Service"]


# Up to this many characters tokenise on the event loop: some 0.1 ms, less than handing over to a thread and back, and
# so never behind a huge text.
_INLINE_CHARACTERS = 2048
# Of one request whose tokens are to be listed: each token takes some 100 bytes of answer, and more while it is made.
_MAX_LISTED_CHARACTERS = 1_000_000


@dataclass(frozen=True, slots=True)
class Embedded:
    """Vectors and what is told about them.

    Attributes
    ----------
    model : str
    vectors : ndarray of float32, shape (n, d)
    n_tokens : int
        Counted as computed: prompt and special ones too, padding never.
    cut : tuple of (int, int)
        Positions of the items that were cut, and how many tokens each lost.
    """

    model: str
    vectors: NDArray[np.float32]
    n_tokens: int
    cut: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Scored:
    """Scores, shape (n,), otherwise as :class:`Embedded`."""

    model: str
    scores: NDArray[np.float32]
    n_tokens: int
    cut: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class _Computed:
    """Raw outputs of one request, and the same facts as :class:`Embedded`."""

    raw: NDArray[np.float32]
    n_tokens: int
    cut: tuple[tuple[int, int], ...]


class Service:
    """The served models behind one bounded queue.

    Parameters
    ----------
    models : sequence of ServedModel
        Names differ.
    settings : ServerSettings
    clock : callable
        Seconds, monotonic.
    """

    def __init__(
        self, models: Sequence[ServedModel], settings: ServerSettings, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.settings = settings
        self.models = tuple(models)
        self.clock = clock
        self.is_draining = False
        self._observers: list[Observer] = []
        self.observer = Observers(self._observers)
        self._workers = {served.name: self._worker(served) for served in self.models}
        self._admission = Admission(
            max_items=settings.max_queue_items,
            max_tokens=settings.max_queue_tokens,
            max_bytes=settings.max_queue_bytes,
            retry_after_s=self._time_for_tokens,
        )
        reloadable = {one.name: one.reloadable for one in self.models if one.reloadable is not None}
        self._idle = IdleModels(reloadable, after_s=settings.idle_unload_s, clock=clock)
        probes = {one.name: one.probe for one in self.models if one.probe is not None}
        self.reprobing = Reprobing(probes, self._answer_probe, holding=self._idle.holding)
        self._tokenizing = ThreadPoolExecutor(max_workers=max(2, min(4, allowed_cpus())), thread_name_prefix="tokenize")

    def _worker(self, served: ServedModel) -> ModelWorker:
        model = served.model
        limits = QueueLimits(
            token_budget=self._budget_tokens(served),
            max_rows=model.engine.max_rows,
            cost=model.engine.cost,
            pad_to_multiple=model.engine.pad_to_multiple,
            interactive_rows=self.settings.interactive_rows,
            interactive_tokens=self.settings.interactive_tokens,
        )
        canary = model.tokenize(["ready"]) if model.task == "embed" else model.tokenize([("ready", "ready")])
        return ModelWorker(
            model.name, served.model.engine, limits, canary=canary[0], clock=self.clock, observer=self.observer
        )

    def observe(self, observer: Observer) -> None:
        """Add an observer of requests and microbatches; before :meth:`start`."""
        self._observers.append(observer)

    def _budget_tokens(self, served: ServedModel) -> int:
        """Return the padded tokens of one microbatch."""
        if self.settings.token_budget is not None:
            return self.settings.token_budget
        return served.model.engine.token_budget

    def _time_for_tokens(self, n_tokens: int) -> float:
        rate = sum(worker.tokens_per_s for worker in self._workers.values())
        return n_tokens / rate if rate else 0.0

    async def start(self) -> None:
        """Start the workers, wait until each has computed a first row, and probe every model through them.

        Raises
        ------
        NotReadyError
            A first row could not be computed, or a probe differs.
        """
        for worker in self._workers.values():
            worker.start()
        for worker in self._workers.values():
            await worker.wait_started()
        await self.reprobing.require_passed()

    def begin_drain(self) -> None:
        """Refuse new work; what was accepted goes on."""
        self.is_draining = True

    async def wait_drained(self) -> None:
        """Wait until no accepted work is left."""
        while self._admission.items:
            await asyncio.sleep(0.01)

    def comes_to_rest(self) -> bool:
        """Say once after work that there has been none since the last call."""
        return self._admission.comes_to_rest()

    def release_memory(self) -> None:
        """Release the models' work memory that no run uses, see :meth:`samevec.runtime.engine.Engine.release_memory`.

        Raises
        ------
        SessionRunError
            A run failed.
        """
        for served in self.models:
            served.model.engine.release_memory()

    def receive(self) -> Received:
        """Begin to count the bytes of a request; held as long as the request is."""
        return self._admission.receive()

    def stop(self, *, timeout_s: float = 5.0) -> None:
        """End the workers; what is still queued fails with NotReadyError."""
        self.is_draining = True
        for worker in self._workers.values():
            worker.stop(timeout_s=timeout_s)
        self._tokenizing.shutdown(wait=False, cancel_futures=True)

    @property
    def is_held_up(self) -> bool:
        """Whether some worker is still in a session run, also after :meth:`stop`."""
        return any(worker.is_running for worker in self._workers.values())

    def not_ready_reasons(self) -> list[str]:
        """Return why requests would be refused now; empty when ready."""
        reasons = ["shutting down"] if self.is_draining else []
        reasons += [f"{m.name}: the parity gate is {m.gate}" for m in self.models if not m.is_open]
        for name, worker in self._workers.items():
            if not worker.is_alive:
                reasons.append(worker.failure or f"{name}: its worker is not running")
        return [*reasons, *self._idle.failures, *self.reprobing.failures.values()]

    def unload_idle(self) -> list[str]:
        """Unload the models without requests for long enough; return their names. Call it now and then."""
        return self._idle.unload_due()

    def model_states(self) -> dict[str, str]:
        """Return for each model ``"loaded"``, or ``"unloaded"`` when the next request loads it first."""
        return {served.name: self._idle.state(served.name) for served in self.models}

    def embedders(self) -> list[ServedModel]:
        """Return the embedders, in the order served."""
        return [served for served in self.models if served.model.task == "embed"]

    def rerankers(self) -> list[ServedModel]:
        """Return the rerankers, in the order served."""
        return [served for served in self.models if served.model.task == "rerank"]

    async def embed(self, request: EmbedRequest, *, is_probe: bool = False) -> Embedded:
        """Embed texts.

        Parameters
        ----------
        request : EmbedRequest
        is_probe : bool
            It keeps no model from being unloaded.

        Returns
        -------
        Embedded
            Row i belongs to item i.

        Raises
        ------
        UnknownModelError, InputError, OverloadedError, DeadlineExceededError, NotReadyError, InferenceError
        """
        served = _select(request.model, self.embedders(), self.models)
        model = served.model
        assert model.task == "embed"  # noqa: S101 - embedders() holds nothing else
        model.validate_dimensions(request.dimensions)
        if model.prompt_text(request.prompt_name, field=request.prompt_field) and request.token_ids:
            message = f"{request.prompt_name!r} cannot be put before token ids; send text"
            raise InputError(message, field=request.prompt_field)

        def tokenize() -> list[TokenRow]:
            if request.token_ids:
                return model.tokenizer.rows_from_ids(request.token_ids, field=request.field)
            return model.tokenize(
                request.texts, prompt=request.prompt_name, truncate=request.truncate, field=request.field
            )

        done = await self._compute(served, tokenize, request, is_probe=is_probe)
        vectors = model.finish(
            done.raw, dimensions=request.dimensions, normalize=request.normalize, renormalize=request.renormalize
        )
        require_usable(vectors, may_be_zero=True)  # a last look: JSON would turn NaN into null under status 200
        return Embedded(model.name, vectors, done.n_tokens, done.cut)

    async def rerank(self, request: RerankRequest, *, is_probe: bool = False) -> Scored:
        """Score pairs, see :meth:`embed`.

        Parameters
        ----------
        request : RerankRequest

        Returns
        -------
        Scored
            Score i belongs to pair i.
        """
        served = _select(request.model, self.rerankers(), self.models)
        model = served.model
        assert model.task == "rerank"  # noqa: S101 - rerankers() holds nothing else

        def tokenize() -> list[TokenRow]:
            return model.tokenize(
                request.pairs,
                truncate=request.truncate,
                max_document_tokens=request.max_document_tokens,
                field=request.field,
            )

        done = await self._compute(served, tokenize, request, is_probe=is_probe)
        scores = model.finish(done.raw, raw=request.raw_scores)
        require_usable(scores[:, None], may_be_zero=True)
        return Scored(model.name, scores, done.n_tokens, done.cut)

    async def list_tokens(
        self, request: TokenizeRequest, encode: Callable[[Iterator[Iterator[list[Token]]]], _Tokenized]
    ) -> _Tokenized:
        """List the tokens of texts, see :meth:`embed`. Takes its place in the queue's bounds as other work does.

        Parameters
        ----------
        request : TokenizeRequest
        encode : callable
            Makes an answer of them while they are listed, see :func:`samevec.server.http.tokens.list_tokens`.

        Raises
        ------
        BatchTooLargeError
            The texts are too long together.
        """
        served = self.models[0] if request.model is None else _select(request.model, self.models, self.models)
        prompt = served.model.prompt_text(request.prompt_name, field=request.prompt_field)
        if request.n_characters > _MAX_LISTED_CHARACTERS:
            raise BatchTooLargeError(
                f"{request.n_characters} characters, the limit is {_MAX_LISTED_CHARACTERS}; send several",
                field=request.field,
            )

        def tokenize() -> _Tokenized:
            tokenizer = served.model.tokenizer
            return encode(
                list_tokens(tokenizer, request.texts, prompt=prompt, add_special_tokens=request.add_special_tokens)
            )

        record = current_record()
        record.model, record.items = served.name, request.n_items
        self._require_open(served)
        with self._admission.admit(request.n_items), self._phase("tokenise"):
            answer: _Tokenized = await self._before(request.deadline_s, self._tokenize(tokenize, request))
            return answer

    def _require_open(self, served: ServedModel) -> None:
        if self.is_draining:
            raise NotReadyError("shutting down; nothing new is accepted")
        if not served.is_open:
            raise NotReadyError(f"{served.name}: the parity gate is {served.gate}")
        self._require_probed(served)

    def _require_probed(self, served: ServedModel) -> None:
        failure = self.reprobing.failures.get(served.name)
        if failure is not None:
            raise NotReadyError(failure)

    async def _compute(
        self,
        served: ServedModel,
        tokenize: Callable[[], list[TokenRow]],
        request: EmbedRequest | RerankRequest,
        *,
        is_probe: bool,
    ) -> _Computed:
        record = current_record()
        record.model, record.items = served.name, request.n_items
        self._require_open(served)
        with self._admission.admit(request.n_items) as ticket:
            with self._phase("tokenise"):
                rows = await self._before(request.deadline_s, self._tokenize(tokenize, request))
            n_tokens = sum(row.n_tokens for row in rows)
            cut = tuple((i, row.cut_tokens) for i, row in enumerate(rows) if row.cut_tokens)
            record.tokens, record.cut_items = n_tokens, len(cut)
            record.cut_tokens = sum(n for _, n in cut)
            ticket.add_tokens(n_tokens)
            run = self._run_loaded if is_probe else self._run
            raw = await self._before(request.deadline_s, run(served, rows, request))
        self._require_probed(served)  # it may have failed meanwhile
        return _Computed(raw, n_tokens, cut)

    async def _answer_probe(self, name: str, call: ProbeCall) -> NDArray[np.float32]:
        """Answer a call of the probe as a request."""
        items: Any = call.items
        if any(served.name == name for served in self.rerankers()):
            pairs = RerankRequest(model=name, pairs=items, raw_scores=call.raw, batch_size=call.batch_size)
            return (await self.rerank(pairs, is_probe=True)).scores
        texts = EmbedRequest(
            model=name,
            texts=items,
            prompt_name=call.prompt,
            dimensions=call.dimensions,
            normalize=not call.raw,
            batch_size=call.batch_size,
        )
        return (await self.embed(texts, is_probe=True)).vectors

    async def _run(self, served: ServedModel, rows: list[TokenRow], request: EmbedRequest | RerankRequest) -> Any:
        """Wait for a model's worker, and note how long the rows were queued and run."""
        async with self._idle.using(served.name):
            return await self._run_loaded(served, rows, request)

    async def _run_loaded(
        self, served: ServedModel, rows: list[TokenRow], request: EmbedRequest | RerankRequest
    ) -> Any:
        started_s: list[float] = []
        queued_s = self.clock()
        future = self._workers[served.name].submit(
            rows,
            batch_size=request.batch_size,
            deadline_s=request.deadline_s,
            field=request.field,
            on_start=started_s.append,
        )
        try:
            return await asyncio.wrap_future(future)
        finally:
            end_s = self.clock()
            split_s = started_s[0] if started_s else end_s
            phases = current_record().phases
            phases.append(Phase("queue", queued_s, split_s))
            if started_s:
                phases.append(Phase("run", split_s, end_s))

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        start_s = self.clock()
        try:
            yield
        finally:
            current_record().phases.append(Phase(name, start_s, self.clock()))

    async def _tokenize(self, tokenize: Callable[[], _Tokenized], request: Request) -> _Tokenized:
        if request.n_characters <= _INLINE_CHARACTERS:
            return tokenize()
        return await asyncio.get_running_loop().run_in_executor(self._tokenizing, tokenize)

    async def _before(self, deadline_s: float | None, step: Any) -> Any:
        """Await something until a deadline; what it had queued is dropped with it."""
        if deadline_s is None:
            return await step
        try:
            return await asyncio.wait_for(step, max(0.0, deadline_s - self.clock()))
        except TimeoutError:
            raise DeadlineExceededError from None

    def info(self) -> dict[str, Any]:
        """Return what ``/info`` tells."""
        settings = self.settings
        return {
            "service": "samevec",
            "version": __version__,
            "ready": not self.not_ready_reasons(),
            "models": [self._model_info(served) for served in self.models],
            "limits": {
                "max_batch_items": settings.max_batch_items,
                "max_body_bytes": settings.max_body_bytes,
                "max_queue_items": settings.max_queue_items,
                "max_queue_tokens": settings.max_queue_tokens,
                "max_queue_bytes": settings.max_queue_bytes,
            },
            "queue": {
                "items": self._admission.items,
                "tokens": self._admission.tokens,
                "bytes": self._admission.bytes,
            },
            "versions": _versions(("numpy", "onnxruntime", "onnxruntime-gpu", "tokenizers")),
        }

    def _model_info(self, served: ServedModel) -> dict[str, Any]:
        model, entry = served.model, served.model.entry
        info: dict[str, Any] = {
            "name": served.name,
            "task": entry.task,
            "source": entry.source,
            "revision": entry.revision,
            "license": entry.license,
            "backend": served.backend,
            "profile": served.profile,
            "provider": model.engine.session.provider,
            "state": self._idle.state(served.name),
            "receipt": {
                "state": served.gate,
                "created_at": served.receipt_created_at,
                "bound_to": dict(served.bound_to),
            },
            "artifact": served.artifact_digest,
            "answers": served.answers,
            "max_tokens": model.max_tokens,
            "max_rows": model.engine.max_rows,
            "truncation": "right, the terminal token stays" if model.task == "embed" else "longest_first",
            "worker": self._worker_info(served),
        }
        if served.probe is not None and self.settings.reprobe_s:
            info["probes"] = self.reprobing.counts(served.name)
        if model.engine.session.notice is not None:
            info["fallback"] = model.engine.session.notice
        if model.task == "embed":
            least = entry.matryoshka_min_dimensions or model.dimensions
            info |= {"dimensions": model.dimensions, "min_dimensions": least, "prompts": sorted(entry.prompts)}
        return info

    def _worker_info(self, served: ServedModel) -> dict[str, Any]:
        worker, engine = self._workers[served.name], served.model.engine
        return {
            "alive": worker.is_alive,
            "restarts": worker.n_restarts,
            "interactive_beside_bulk": engine.overlapping,
            "token_budget": self._budget_tokens(served),
            "tokens_per_s": round(worker.tokens_per_s, 1),
        }


def _select(name: str | None, candidates: Sequence[ServedModel], served: Iterable[ServedModel]) -> ServedModel:
    """Find a model by any of its names; without a name there must be one candidate only."""
    if name is None and len(candidates) == 1:
        return candidates[0]
    names = ", ".join(candidate.name for candidate in candidates) or "none"
    if name is None:
        raise InputError(f"missing; it must be one of: {names}", field="model")
    found = find_served(name, candidates)
    if found is not None:
        return found
    if find_served(name, served) is not None:
        raise UnknownModelError(f"{name!r} is served, but not for this task (for it: {names})", field="model")
    raise UnknownModelError(f"{name!r} is not served (for this task: {names})", field="model")


def _versions(names: Sequence[str]) -> dict[str, str]:
    """Return versions of the installed among some distributions, without importing them."""
    found = {}
    for name in names:
        # One of two builds of onnxruntime is always absent.
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
