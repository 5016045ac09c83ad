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
import http.client
import json
import math
import os
import random
import statistics
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np

from benchmarks.answers import openai_vectors
from benchmarks.memory import MemorySampler, read_memory
from benchmarks.results import NOTICE, machine_record
from benchmarks.served import FrameClient, HttpClient, Served, prove_both, serving, write_result
from benchmarks.setup import add_model_arguments, models_of, say
from benchmarks.workloads import EMBEDDER, RERANKER, Writer
from samevec.load import load_embedder, load_reranker
from samevec.lock import load_lock
from samevec.parity.compare import compare
from samevec.server.config import ServedModel, ServerSettings
from samevec.server.serve import running_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from benchmarks.setup import Models
    from samevec.runtime.cancel import CancelToken
    from samevec.runtime.collate import Features
    from samevec.runtime.embedder import Embedder
    from samevec.runtime.reranker import Reranker

    Array = NDArray[np.float32]

_LIMIT = 64
#: One token each for the embedder, with and without a space before them.
_WORDS = (
    *("time", "people", "way", "day", "man", "thing", "child", "world", "school"),
    *("family", "story", "night", "water", "room", "area", "money", "right", "book"),
)
_MAX_QUEUE = 64
_MIB = 1 << 20
# The server looks every second whether it rests, and gives freed memory back the second time.
_REST_S = 4.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """One HTTP answer."""

    status: int
    retry_after: str | None
    record: Any

    @property
    def vectors(self) -> Array:
        """What the OpenAI route gave, in request order."""
        if self.status != 200:
            raise RuntimeError(f"{self.status}: {json.dumps(self.record)[:200]}")
        try:
            return openai_vectors(self.record)
        except ValueError as error:
            raise RuntimeError(f"200: {error}") from error

    @property
    def scores(self) -> Array:
        """What a rerank route gave, in request order."""
        if self.status != 200:
            raise RuntimeError(f"{self.status}: {json.dumps(self.record)[:200]}")
        scores = {item["index"]: item["relevance_score"] for item in self.record["results"]}
        return np.array([scores[i] for i in range(len(scores))], dtype=np.float32)

    @property
    def message(self) -> str:
        """What a refusal says."""
        return str(self.record.get("error", self.record)["message"])


def ask(url: str, path: str, body: dict[str, Any] | None = None, *, timeout_s: float | None = None) -> Answer:
    """Send one request over a connection of its own; `timeout_s` is told to the server."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=900)
    headers = {"Content-Type": "application/json"}
    if timeout_s is not None:
        headers["X-Request-Timeout-S"] = str(timeout_s)
    try:
        content = None if body is None else json.dumps(body).encode()
        connection.request("GET" if body is None else "POST", path, content, headers)
        response = connection.getresponse()
        raw = response.read()
    finally:
        connection.close()
    return Answer(status=response.status, retry_after=response.getheader("retry-after"), record=json.loads(raw))


def embed(url: str, texts: Sequence[str] | str, **options: Any) -> Answer:
    """Embed by the OpenAI route."""
    given = texts if isinstance(texts, str) else list(texts)
    return ask(url, "/v1/embeddings", {"model": EMBEDDER, "input": given, "encoding_format": "base64", **options})


def rerank(url: str, query: str, documents: Sequence[str], **options: Any) -> Answer:
    """Rank by the Cohere route."""
    return ask(url, "/v1/rerank", {"model": RERANKER, "query": query, "documents": list(documents), **options})


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Where the models lie, what was asked for, and the library's models and PyTorch's, each loaded when first used."""

    models: Models
    profile: str
    n_texts: int
    idle_s: float
    threads_requests: int
    length_step: int

    @functools.cached_property
    def embedder(self) -> Embedder:
        """The library's."""
        return load_embedder(EMBEDDER, profile=self.profile, home=self.models.home, lock=self.models.lock_path)

    @functools.cached_property
    def reranker(self) -> Reranker:
        """The library's."""
        return load_reranker(RERANKER, profile=self.profile, home=self.models.home, lock=self.models.lock_path)

    def reference(self, items: Sequence[Any]) -> Array:
        """Compute texts, or pairs, with PyTorch, and let the model go again."""
        from samevec.parity.reference import load_reference_model  # noqa: PLC0415 - loads torch

        name = EMBEDDER if isinstance(items[0], str) else RERANKER
        model = load_reference_model(self.models.snapshots / name, load_lock(self.models.lock_path).model(name))
        rows = model.capture_texts(items) if name == EMBEDDER else model.capture_pairs(items)
        return np.stack([row.final for row in rows])

    def outcome(self, reference: Array, candidate: Array) -> dict[str, Any]:
        """Compare with the lock's tolerance."""
        tolerance = load_lock(self.models.lock_path).tolerance
        found = compare(reference.reshape(len(reference), -1), candidate.reshape(len(reference), -1), tolerance)
        return {"rows": len(reference), "max_abs": float(found.max_abs), "within_tolerance": bool(found.passed)}

    @contextmanager
    def limited(self, *models: Embedder | Reranker, **settings: Any) -> Iterator[tuple[str, Path]]:
        """Serve models from this process; gives the URL and the socket's path."""
        folder = Path(f"/tmp/samevec-cases-{os.getpid()}")
        folder.mkdir(mode=0o700)
        try:
            chosen = ServerSettings(port=0, socket=folder / "s.sock", **settings)
            with running_server([ServedModel(model=model) for model in models], chosen) as endpoints:
                yield endpoints.url, folder / "s.sock"
        finally:
            folder.rmdir()


def _shortened(model: Any) -> Any:
    return replace(model, tokenizer=replace(model.tokenizer, max_tokens=_LIMIT))


def words(n: int, *, first: int = 0) -> str:
    """Return a text of `n` one-token words."""
    return " ".join(_WORDS[(first + i) % len(_WORDS)] for i in range(n))


def o02(bench: Bench) -> dict[str, Any]:
    """Truncation keeps the terminal token; without it, limit and count are told."""
    sizes = {_LIMIT - 1: 62, _LIMIT: 63, _LIMIT + 1: 64, 2 * _LIMIT: 127, "100,000 characters": 19_000}
    texts = [words(n) for n in sizes.values()]
    assert len(texts[-1]) >= 100_000
    with bench.limited(_shortened(bench.embedder)) as (url, path):
        answer = embed(url, texts)
        alone = np.concatenate([embed(url, [text]).vectors for text in texts[:2]])
        counts = [embed(url, [text]).record["usage"]["prompt_tokens"] for text in texts]
        refusals = {str(size): embed(url, [text], truncate=False) for size, text in zip(sizes, texts, strict=True)}
        framed = FrameClient(_at(path)).embed(texts)
    reference = bench.outcome(bench.reference(texts[:2]), alone)
    expected = alone[[0, 1, 1, 1, 1]]
    told = {size: refusal.message for size, refusal in refusals.items() if refusal.status == 400}
    stated = all(f"the limit is {_LIMIT}" in message for message in told.values())
    counted = [message.split(": ")[1].split()[0] for message in told.values()]
    return {
        "limit_tokens": _LIMIT,
        "usage": counts,
        "equal_bits_http": answer.vectors.tobytes() == expected.tobytes(),
        "equal_bits_socket": framed.tobytes() == expected.tobytes(),
        "against_pytorch": reference,
        "refused": told,
        "passed": (
            answer.vectors.tobytes() == expected.tobytes() == framed.tobytes()
            and reference["within_tolerance"]
            and counts == [_LIMIT - 1, *[_LIMIT] * 4]
            and answer.record["usage"]["prompt_tokens"] == sum(counts)
            and stated
            and counted == [str(_LIMIT + 1), str(2 * _LIMIT), str(19_001)]
        ),
    }


def _at(path: Path) -> Served:
    """Return what a FrameClient needs to know."""
    return Served(pid=0, url="", socket_path=path, ready_s=0.0, process=None)  # type: ignore[arg-type]


def _with_duplicates(items: list[str], rng: random.Random) -> list[str]:
    for _ in range(5):
        items.insert(rng.randrange(len(items)), rng.choice(items))
    return items


def _texts(task: str, lengths: Sequence[int], seed: str) -> list[str]:
    """Return distinct texts of so many content tokens, shuffled."""
    writer, rng = Writer(f"cases {seed}", task), random.Random(seed)
    texts = [writer.text(n) if n else "" for n in lengths]
    rng.shuffle(texts)
    return list(dict.fromkeys(texts))


def o04(bench: Bench, served: Served) -> dict[str, Any]:
    """Position i is text i, in several microbatches and beside seven other clients."""
    rng = random.Random(4)
    texts = _with_duplicates(_texts("embed", range(0, 257, bench.length_step), "texts"), rng)
    documents = _with_duplicates(_texts("rerank", range(1, 258), "documents"), rng)
    query = "which of these is meant"
    started_s = time.perf_counter()
    vectors, scores = embed(served.url, texts).vectors, rerank(served.url, query, documents).scores
    batch_s = time.perf_counter() - started_s
    known = {text: embed(served.url, [text]).vectors[0] for text in dict.fromkeys(texts)}
    alone = np.stack([known[text] for text in texts])
    ranked = {document: rerank(served.url, query, [document]).scores[0] for document in dict.fromkeys(documents)}
    distinct = [texts.index(text) for text in known]
    best = (vectors[distinct] @ alone[distinct].T).argmax(axis=1)
    own = [_texts("embed", range(1 + i, 65, 8), f"client {i}") for i in range(8)]
    expected = [[embed(served.url, [text]).vectors[0].tobytes() for text in mine] for mine in own]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda mine: embed(served.url, mine).vectors, own))
    together = [[row.tobytes() for row in rows] for rows in found]
    sample = [i for i in distinct if 1 < len(texts[i]) < 700][:5]
    against = bench.outcome(bench.reference([texts[i] for i in sample]), vectors[sample])
    pairs = bench.outcome(bench.reference([(query, document) for document in documents[:5]]), scores[:5])
    record = {
        "texts": len(texts),
        "content_tokens": f"0 to 256 in steps of {bench.length_step}, and 5 duplicates",
        "documents": len(documents),
        "batch_seconds": batch_s,
        "different_vectors": int((vectors != alone).any(axis=1).sum()),
        "different_scores": int((scores != np.array([ranked[document] for document in documents])).sum()),
        "best_match_is_own": bool((best == np.arange(len(distinct))).all()),
        "clients_at_once": 8,
        "their_texts": sum(map(len, own)),
        "theirs_equal": together == expected,
        "vectors_against_pytorch": against,
        "scores_against_pytorch": pairs,
    }
    good = not record["different_vectors"] and not record["different_scores"] and record["best_match_is_own"]
    close = against["within_tolerance"] and pairs["within_tolerance"]
    return record | {"passed": bool(good and record["theirs_equal"] and close)}


class _Poisoned:
    """A session that fails whenever one row is among those it is given, or always."""

    def __init__(self, session: Any, poison: tuple[int, ...]) -> None:
        self._session, self._poison = session, poison
        self.broken = False
        self.provider, self.provider_options = session.provider, session.provider_options

    def run(self, features: Features) -> Array:
        self._look(features)
        found: Array = self._session.run(features)
        return found

    def run_cancellable(self, features: Features, cancel: CancelToken) -> Array:
        self._look(features)
        found: Array = self._session.run_cancellable(features, cancel)
        return found

    def _look(self, features: Features) -> None:
        rows = zip(features.input_ids, features.attention_mask, strict=True)
        if self.broken or any(tuple(ids[mask == 1].tolist()) == self._poison for ids, mask in rows):
            raise RuntimeError("as asked")


def o15(bench: Bench) -> dict[str, Any]:
    """One failing item stops nobody else; a dead engine shows."""
    model = bench.embedder
    poison = "this text cannot be computed"
    session = _Poisoned(model.engine.session, model.tokenize([poison])[0].ids)
    spoilt = replace(model, engine=replace(model.engine, session=session, bulk=None))
    good = [f"valid text number {i}" for i in range(120)]
    known = {text: model.encode([text])[0].tobytes() for text in good}
    with bench.limited(spoilt, max_batch_items=1000) as (url, _):
        started_s = time.perf_counter()
        with ThreadPoolExecutor(21) as pool:
            bad, *first = pool.map(lambda text: embed(url, [text]), [poison, *good[:20]])
        bad_s = time.perf_counter() - started_s
        beyond = [embed(url, ["x"] * 1001), ask(url, "/v1/embeddings", {"input": "x " * 500}, timeout_s=0.001)]
        with ThreadPoolExecutor(10) as pool:
            after = list(pool.map(lambda text: embed(url, [text]), good[20:]))
        right = sum(
            answer.vectors[0].tobytes() == known[text] for text, answer in zip(good, first + after, strict=True)
        )
        ready = ask(url, "/ready").status
        session.broken = True
        broken = embed(url, ["anything"]).status
        started_s = time.perf_counter()
        while ask(url, "/ready").status != 503 and time.perf_counter() - started_s < 10:
            time.sleep(0.02)
        dead_s = time.perf_counter() - started_s
        refused = {embed(url, ["anything"]).status for _ in range(5)}
    return {
        "bad_item": {"status": bad.status, "message": bad.message, "seconds": bad_s},
        "beyond_every_limit": [answer.status for answer in beyond],
        "valid_beside_and_after": len(good),
        "right": right,
        "ready_after": ready,
        "dead": {"first_status": broken, "not_ready_after_s": dead_s, "then": sorted(refused)},
        "passed": (
            bad.status == 500
            and bad.message == "input[0]: could not be computed: RuntimeError"
            and [answer.status for answer in beyond] == [413, 504]
            and (right, ready, refused) == (len(good), 200, {503})
            and dead_s < 2
        ),
    }


def o16(bench: Bench) -> dict[str, Any]:
    """Settings of one request never reach another: 32 threads, truncation on and off, embed and rerank."""
    texts = [words(n, first=i) for i, n in enumerate(random.Random(16).choices(range(1, 150), k=60))]
    with bench.limited(_shortened(bench.embedder), _shortened(bench.reranker)) as (url, _):

        def serial(text: str) -> dict[str, Any]:
            return {kind: {cut: _essence(one(kind, text, truncate=cut)) for cut in (True, False)} for kind in kinds}

        def one(kind: str, text: str, *, truncate: bool) -> Answer:
            if kind == "embed":
                return embed(url, [text], truncate=truncate)
            return rerank(url, "which", [text], truncate=truncate)

        kinds = ("embed", "rerank")
        known = {text: serial(text) for text in texts}

        def one_thread(seed: int) -> list[tuple[int, bool]]:
            rng, seen = random.Random(seed), []
            for _ in range(bench.threads_requests):
                text, truncate, kind = rng.choice(texts), rng.random() < 0.5, rng.choice(kinds)
                answer = one(kind, text, truncate=truncate)
                seen.append((answer.status, _essence(answer) != known[text][kind][truncate]))
            return seen

        started_s = time.perf_counter()
        with ThreadPoolExecutor(32) as pool:
            seen = [pair for share in pool.map(one_thread, range(32)) for pair in share]
        seconds = time.perf_counter() - started_s
    counts = Counter(status for status, _ in seen)
    wrong = sum(differs for _, differs in seen)
    return {
        "limit_tokens": _LIMIT,
        "threads": 32,
        "requests_each": bench.threads_requests,
        "statuses": {str(status): n for status, n in sorted(counts.items())},
        "unlike_serial": wrong,
        "seconds": seconds,
        "passed": wrong == 0 and set(counts) == {200, 400},
    }


def _essence(answer: Answer) -> Any:
    """Return what must be the same each time: bits and usage, or the refusal."""
    if answer.status != 200:
        return answer.status, answer.message
    values = answer.vectors if "data" in answer.record else answer.scores
    return answer.status, values.tobytes(), answer.record["usage"]["prompt_tokens"]


def o19(bench: Bench, served: Served) -> dict[str, Any]:
    """A bulk request runs in bounded pieces, and its memory is given back."""
    ready = read_memory(served.pid)
    started_s = time.perf_counter()
    pair = rerank(served.url, "q", ["d"])
    pair_s = time.perf_counter() - started_s
    embed(served.url, ["first"])
    time.sleep(_REST_S)
    first = read_memory(served.pid)
    # The first bulk request opens a second session over the same weights, which stays.
    embed(served.url, [words(60, first=i) for i in range(32)])
    rerank(served.url, "which", [words(60, first=i) for i in range(64)])
    time.sleep(_REST_S)
    first_bulk = read_memory(served.pid)
    writer = Writer("cases o19", "embed")
    texts = [writer.text(29) for _ in range(bench.n_texts)]
    texts[bench.n_texts // 2] = writer.text(1999)
    ranker = Writer("cases o19", "rerank")
    with MemorySampler(served.pid) as sampler:
        started_s = time.perf_counter()
        vectors = embed(served.url, texts).vectors
        embed_s = time.perf_counter() - started_s
        scores = rerank(served.url, "which of these", [ranker.text(30) for _ in range(500)]).scores
    cpu_before_s, waited_s = _cpu_s(served.pid), bench.idle_s
    time.sleep(waited_s)
    idle_share = (_cpu_s(served.pid) - cpu_before_s) / waited_s
    idle = read_memory(served.pid)
    added = (sampler.peak.private_bytes - first.private_bytes) / _MIB
    return {
        "pair_of_five_tokens_s": pair_s,
        "its_tokens": pair.record["usage"]["prompt_tokens"],
        "texts": bench.n_texts,
        "text_tokens": "30 each, one of 2,000",
        "pairs": 500,
        "embed_seconds": embed_s,
        "private_mib": {
            "ready": ready.private_bytes / _MIB,
            "after_first_requests": first.private_bytes / _MIB,
            "after_first_bulk": first_bulk.private_bytes / _MIB,
            "peak": sampler.peak.private_bytes / _MIB,
            "after_idling": idle.private_bytes / _MIB,
        },
        "resident_peak_mib": sampler.peak.resident_bytes / _MIB,
        "peak_added_mib": added,
        "idle_over_first": idle.private_bytes / first.private_bytes,
        "idle_over_first_bulk": idle.private_bytes / first_bulk.private_bytes,
        "idle_s": waited_s,
        "idle_cpu_share_of_a_core": idle_share,
        "control_group": "none: memory was sampled, not capped",
        "passed": bool(
            vectors.shape == (bench.n_texts, 1024)
            and np.isfinite(vectors).all()
            and np.isfinite(scores).all()
            and len(scores) == 500
            and idle.private_bytes <= 1.15 * first.private_bytes
            and pair_s < 2
        ),
    }


def _cpu_s(pid: int) -> float:
    """Return the processor time a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def o20(bench: Bench) -> dict[str, Any]:
    """Threads follow the allowance, and rest when idle."""
    allowed = sorted(os.sched_getaffinity(0))
    writer = Writer("cases o20", "embed")
    texts = [writer.text(63) for _ in range(8)]
    found: dict[str, Any] = {}
    log = Path(f"/tmp/samevec-cases-{os.getpid()}.log")
    for n_cpus in sorted({1, len(allowed)}):
        # A process inherits the affinity of the thread that starts it, as under taskset.
        os.sched_setaffinity(0, allowed[:n_cpus])
        try:
            with serving(bench.models, bench.profile, "--workers", "1", log_path=log) as served:
                os.sched_setaffinity(0, allowed)
                embed(served.url, texts)
                rerank(served.url, "q", ["d"])
                started_s = time.perf_counter()
                embed(served.url, texts)
                seconds = time.perf_counter() - started_s
                before_s = _cpu_s(served.pid)
                time.sleep(bench.idle_s / 2)
                idle = (_cpu_s(served.pid) - before_s) / (bench.idle_s / 2)
                threads = len(list(Path(f"/proc/{served.pid}/task").iterdir()))
                found[str(n_cpus)] = {"threads": threads, "idle_cpu_share": idle, "eight_texts_of_64_tokens_s": seconds}
            found[str(n_cpus)]["affinity_complaints"] = log.read_text().lower().count("affinity")
        finally:
            os.sched_setaffinity(0, allowed)
            log.unlink(missing_ok=True)
    counts = [record["threads"] for record in found.values()]
    # Both models have a pool: the thread that asks, and the rest of the allowance. So have tokenizers and numpy's BLAS.
    per_processor = (counts[-1] - counts[0]) / max(1, len(allowed) - 1)
    return {
        "by_processors": found,
        "more_threads_a_processor": per_processor,
        "quota": "none: there is no control group to write to here",
        "passed": (
            all(record["idle_cpu_share"] < 0.02 for record in found.values())
            and not any(record["affinity_complaints"] for record in found.values())
            and per_processor <= 4
        ),
    }


def o24(bench: Bench, served: Served) -> dict[str, Any]:
    """A short query waits for one microbatch at most; over the limit all are refused alike; huge texts stop nobody."""
    queries = _beside_bulk(served)
    crowd = _over_the_limit(bench)
    huge = _huge_text(served)
    return {
        "queries_beside_bulk": queries,
        "over_the_limit": crowd,
        "huge_text": huge,
        "passed": queries["p95_over_microbatch"] <= 3 and queries["wrong"] == 0 and crowd["passed"] and huge["passed"],
    }


def _beside_bulk(served: Served) -> dict[str, Any]:
    writer = Writer("cases o24", "embed")
    budget = ask(served.url, "/info").record["models"][0]["worker"]["token_budget"]
    full = [writer.text(399) for _ in range(max(1, budget // 400))]
    walls = []
    for i in range(3):
        started_s = time.perf_counter()
        embed(served.url, [f"{text} {_WORDS[i]}" for text in full])
        walls.append(time.perf_counter() - started_s)
    microbatch_s = statistics.median(walls)
    asked = [words(4, first=i) for i in range(4)]
    known = [embed(served.url, [text]).vectors.tobytes() for text in asked]
    bulk_texts = [writer.text(399) for _ in range(40)]
    over, found_s, wrong = threading.Event(), [], []

    def client(i: int) -> None:
        while not over.is_set():
            started_s = time.perf_counter()
            answer = embed(served.url, [asked[i]])
            found_s.append(time.perf_counter() - started_s)
            wrong.append(answer.vectors.tobytes() != known[i])
            over.wait(0.1)

    with ThreadPoolExecutor(4) as pool:
        clients = [pool.submit(client, i) for i in range(4)]
        started_s = time.perf_counter()
        try:
            embed(served.url, bulk_texts)
        finally:
            bulk_s = time.perf_counter() - started_s
            over.set()
        for one in clients:
            one.result()
    ordered = sorted(found_s)
    p95_s = ordered[min(len(ordered) - 1, math.ceil(0.95 * len(ordered)) - 1)]
    return {
        "bulk": "40 texts of 400 tokens in one request",
        "bulk_seconds": bulk_s,
        "microbatch": f"{len(full)} texts of 400 tokens",
        "microbatch_s": microbatch_s,
        "queries": len(found_s),
        "p50_s": statistics.median(found_s),
        "p95_s": p95_s,
        "slowest_s": ordered[-1],
        "p95_over_microbatch": p95_s / microbatch_s,
        "wrong": sum(wrong),
    }


def _over_the_limit(bench: Bench) -> dict[str, Any]:
    """500 requests at once where 64 may wait, half as a string and half as a list."""
    texts = [words(4, first=i) for i in range(500)]
    known = {text: bench.embedder.encode([text])[0].tobytes() for text in dict.fromkeys(texts)}
    with serving(bench.models, bench.profile, "--max-queue", str(_MAX_QUEUE)) as served:
        begin = threading.Barrier(500)

        def one(i: int) -> Answer:
            begin.wait()
            return embed(served.url, texts[i] if i % 2 else [texts[i]])

        with ThreadPoolExecutor(500) as pool:
            answers = list(pool.map(one, range(500)))
        after = HttpClient(served).embed([texts[0]])
    statuses = [answer.status for answer in answers]
    served_right = all(
        answer.vectors[0].tobytes() == known[text]
        for text, answer in zip(texts, answers, strict=True)
        if answer.status == 200
    )
    refused = [answer for answer in answers if answer.status != 200]
    forms = {form: sum(s == 429 for s in statuses[start::2]) for form, start in (("list", 0), ("string", 1))}
    told = all(answer.retry_after is not None and int(answer.retry_after) >= 1 for answer in refused)
    return {
        "at_once": 500,
        "max_queue": _MAX_QUEUE,
        "answered": statuses.count(200),
        "refused_429": forms,
        "longest_retry_after_s": max((int(answer.retry_after or 0) for answer in refused), default=0),
        "passed": (
            set(statuses) == {200, 429}
            and served_right
            and told
            and all(forms.values())
            and after[0].tobytes() == known[texts[0]]
        ),
    }


def _huge_text(served: Served) -> dict[str, Any]:
    """2 MB of one text, refused for its length once it is tokenised, while others ask."""
    text = words(400_000)
    with ThreadPoolExecutor(1) as pool:
        started_s = time.perf_counter()
        huge = pool.submit(embed, served.url, text, truncate=False)
        shorts_s: list[float] = []
        health_s: list[float] = []
        while not huge.done() or not shorts_s:
            begun_s = time.perf_counter()
            embed(served.url, "short")
            shorts_s.append(time.perf_counter() - begun_s)
            begun_s = time.perf_counter()
            ask(served.url, "/health")
            health_s.append(time.perf_counter() - begun_s)
        refused, seconds = huge.result(), time.perf_counter() - started_s
    return {
        "bytes": len(text),
        "status": refused.status,
        "message": refused.message,
        "seconds": seconds,
        "short_requests_meanwhile": len(shorts_s),
        "slowest_short_s": max(shorts_s),
        "slowest_health_s": max(health_s),
        "passed": refused.status == 400 and "400001 tokens" in refused.message and len(shorts_s) > 1,
    }


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
