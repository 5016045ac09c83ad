"""CASES.md on the exported toy pair, served: vectors and scores against PyTorch alone, over HTTP and the socket."""

from __future__ import annotations

import base64
import json
import os
import random
import socket
import struct
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest
from e2e_tools import EMBEDDER, LOCK, RERANKER, artifact_of, environment, serving

from samevec import load_embedder, load_reranker
from samevec.errors import SessionRunError
from samevec.opening import build_model
from samevec.parity.cases.builtin import builtin_cases
from samevec.parity.compare import compare
from samevec.parity.probe import Probe
from samevec.parity.reference.file import read_reference
from samevec.parity.sweep import capture_sweep, plan_sweep
from samevec.progress import SilentProgress
from samevec.runtime.collate import collate
from samevec.runtime.providers.profiles import PROFILES
from samevec.runtime.rows import TokenRow
from samevec.runtime.sessions.base import Session

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from e2e_tools import Live, ToyHome
    from numpy.typing import NDArray

    from samevec.parity.reference.file import CapturedRow
    from samevec.parity.reference.pytorch import ReferenceModel
    from samevec.runtime.collate import Features

    Array = NDArray[np.float32]

pytestmark = [
    pytest.mark.model,
    pytest.mark.server,
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
]

LIMIT = 2048
A = "The capital of China is Beijing."


def same(reference: Any, candidate: Any) -> None:
    expected, found = (np.asarray(values, dtype=np.float32) for values in (reference, candidate))
    outcome = compare(expected.reshape(len(expected), -1), found.reshape(len(found), -1), LOCK.tolerance)
    assert outcome.passed, outcome.words


@dataclass(frozen=True)
class Oracle:
    """PyTorch in float32, one text at a time, through sentence-transformers' own path; nothing is computed twice."""

    embedder: ReferenceModel
    reranker: ReferenceModel
    known: dict[Any, CapturedRow] = field(default_factory=dict)

    def texts(self, texts: Sequence[str], prompt: str | None = None) -> list[CapturedRow]:
        for text in texts:
            if (text, prompt) not in self.known:
                self.known[text, prompt] = self.embedder.capture_texts([text], prompt=prompt)[0]
        return [self.known[text, prompt] for text in texts]

    def pairs(self, query: str, documents: Sequence[str]) -> list[CapturedRow]:
        for document in documents:
            if (query, document, "pair") not in self.known:
                self.known[query, document, "pair"] = self.reranker.capture_pairs([(query, document)])[0]
        return [self.known[query, document, "pair"] for document in documents]

    def vectors(self, texts: Sequence[str]) -> Array:
        return np.stack([row.final for row in self.texts(texts)])

    def scores(self, query: str, documents: Sequence[str], *, raw: bool = False) -> Array:
        rows = self.pairs(query, documents)
        return np.array([(row.raw if raw else row.final)[0] for row in rows], dtype=np.float32)


@pytest.fixture(scope="module")
def oracle(exported: ToyHome) -> Oracle:
    from samevec.parity.reference.pytorch import load_reference_model  # noqa: PLC0415 - loads torch

    snapshots = {name: exported.path / "snapshots" / name / LOCK.model(name).revision for name in (EMBEDDER, RERANKER)}
    embedder, reranker = (load_reference_model(snapshots[name], LOCK.model(name)) for name in (EMBEDDER, RERANKER))
    return Oracle(embedder, reranker)


@pytest.fixture(scope="module")
def server(exported: ToyHome, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("cases")
    where = ("--lock", "toy", "--home", exported.path, "--socket", folder / "s.sock")
    with serving(*where, folder=folder, timeout_s=600) as live:
        yield live


@dataclass(frozen=True)
class Http:
    """The served pair over HTTP."""

    client: httpx.Client
    path: Path

    def post(self, route: str, body: dict[str, Any]) -> Any:
        answer = self.client.post(route, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def embed(self, texts: Sequence[str], **options: Any) -> Array:
        data = self.post("/v1/embeddings", {"model": EMBEDDER, "input": list(texts), **options})["data"]
        return np.array([item["embedding"] for item in data], dtype=np.float32)

    def score(self, query: str, documents: Sequence[str], **options: Any) -> Array:
        body = {"model": RERANKER, "query": query, "documents": list(documents), **options}
        return by_index(self.post("/v1/rerank", body)["results"], "relevance_score")


@dataclass(frozen=True)
class Socket:
    """The same over the Unix socket."""

    client: httpx.Client
    path: Path

    def frame(self, **request: Any) -> Array:
        body = json.dumps(request).encode()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(self.path))
            client.sendall(struct.pack(">I", len(body)) + body)
            with client.makefile("rb") as answers:
                (n_bytes,) = struct.unpack(">I", answers.read(4))
                answer = json.loads(answers.read(n_bytes))
        assert answer["ok"] is True, answer
        record = answer.get("vectors") or answer["scores"]
        return np.frombuffer(base64.b64decode(record["__ndarray__"]), dtype="<f4").reshape(record["shape"])

    def embed(self, texts: Sequence[str], **options: Any) -> Array:
        return self.frame(op="embed", tier=EMBEDDER, texts=list(texts), **options)

    def score(self, query: str, documents: Sequence[str], **options: Any) -> Array:
        pairs = [[query, document] for document in documents]
        return self.frame(op="rerank", model_name=RERANKER, pairs=pairs, **options)


@pytest.fixture(scope="module")
def http(server: Live) -> Iterator[Http]:
    with httpx.Client(base_url=server.url, timeout=120) as client:
        yield Http(client, server.folder / "s.sock")


@pytest.fixture(params=[Http, Socket], ids=["http", "socket"])
def way(request: pytest.FixtureRequest, http: Http) -> Http | Socket:
    made: Http | Socket = request.param(http.client, http.path)
    return made


def by_index(results: Sequence[dict[str, Any]], key: str) -> Array:
    scores = {item["index"]: item[key] for item in results}
    return np.array([scores[i] for i in range(len(scores))], dtype=np.float32)


def text_of(n_tokens: int, letter: str = "w") -> str:
    """A text of so many tokens, the end token included: one a byte."""
    return "".join(f"{letter}{i % 7}"[i % 2] for i in range(n_tokens - 1))


def test_o01_batch_mates_and_padding_change_nothing(way: Http | Socket, oracle: Oracle) -> None:
    rng = random.Random(1)
    fillers = [f"{i:02}{text_of(rng.randrange(4, 400))}" for i in range(32)]
    rng.shuffle(fillers)
    placements = [[A, *fillers], [*fillers[:16], A, *fillers[16:]], [*fillers, A]]
    alone = {text: way.embed([text])[0] for text in placements[0]}
    same(oracle.vectors(placements[0]), np.stack(list(alone.values())))
    scores = {text: way.score(A, [text])[0] for text in placements[0]}
    same(oracle.scores(A, placements[0]), list(scores.values()))
    for texts in placements:
        assert way.embed(texts).tobytes() == np.stack([alone[text] for text in texts]).tobytes()
        assert way.score(A, texts).tobytes() == np.stack([scores[text] for text in texts]).tobytes()


def test_o01_no_profile_has_a_mode_whose_batches_drift() -> None:
    """Were there an int8 mode, its drift would have to be published here."""
    assert {profile.graph_form for profile in PROFILES.values()} == {"native", "cuda", "plain"}
    assert PROFILES["cpu"].bit_identical_groupings


def test_o02_a_cut_text_is_the_oracles(way: Http | Socket, oracle: Oracle) -> None:
    texts = [text_of(n) for n in (LIMIT - 1, LIMIT, LIMIT + 1, 2 * LIMIT, 100_001)]
    expected = oracle.vectors([texts[0], texts[1]])
    # One vector for all that are cut: the first content tokens, and the end token.
    same(expected[[0, 1, 1, 1, 1]], way.embed(texts))
    same(expected[1:], oracle.vectors([texts[2]]))


def test_o03_the_end_token_is_there_and_padding_is_not_counted(http: Http, oracle: Oracle) -> None:
    texts = ["test", "test again"]
    rows = oracle.texts(texts)
    assert {row.ids[-1] for row in rows} == {256}
    for given in (texts[:1], texts):
        usage = http.post("/v1/embeddings", {"model": EMBEDDER, "input": given})["usage"]
        assert usage["prompt_tokens"] == sum(len(row.ids) for row in rows[: len(given)])
    same([row.final for row in rows], http.embed(texts))
    same([row.final for row in rows], Socket(http.client, http.path).embed(texts))


def test_o05_shortened_vectors_are_the_oracles_prefix(way: Http | Socket, oracle: Oracle) -> None:
    full = oracle.vectors([A])
    assert way.embed([A]).shape == (1, 384)
    for size in (256, 32):
        prefix = full[:, :size]
        expected = prefix if isinstance(way, Socket) else prefix / np.linalg.norm(prefix)
        same(expected, way.embed([A], dimensions=size))


LENGTHS = (1, 3, 17, 128, 500)


@pytest.mark.parametrize("name", [EMBEDDER, RERANKER])
def test_o06_ragged_rows_are_the_oracles(exported: ToyHome, oracle: Oracle, name: str) -> None:
    load = load_embedder if name == EMBEDDER else load_reranker
    session: Any = load(name, home=exported.path, lock="toy").engine.session
    if name == EMBEDDER:
        captured = oracle.texts([text_of(n) for n in LENGTHS])
    else:
        captured = oracle.pairs("", [text_of(n + 1) for n in LENGTHS])
    rows = [TokenRow(row.ids) for row in captured]
    for padding in (1, 4):
        found = session.run(collate(rows, pad_token_id=0, pad_to_multiple=padding))
        same([row.raw for row in captured], found)


def test_o06_the_probe_of_every_start_is_strongly_padded(exported: ToyHome) -> None:
    for name in (EMBEDDER, RERANKER):
        entry, reference = LOCK.model(name), read_reference(artifact_of(exported.path, name).reference_path)
        cases = builtin_cases(entry.task, prompts=entry.prompts)
        together = Probe.of(entry, reference, cases, tolerance=LOCK.tolerance).library[0][0]
        *_, second, longest = sorted(len(reference.ids[i]) for i in together.cases)
        assert together.batch_size == len(together.items)
        assert longest > 3 * second


EDGES = (31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 1024)


def test_o07_every_length_beside_a_short_text_is_finite_and_its_own(way: Http | Socket, oracle: Oracle) -> None:
    short, words = text_of(3), ["importance", "trust"]
    texts = [short, *words, *map(text_of, EDGES)]
    expected, scored = oracle.vectors(texts), oracle.scores(short, texts)
    alone = np.concatenate([way.embed([text]) for text in texts])
    scores = np.concatenate([way.score(short, [text]) for text in texts])
    same(expected, alone)
    same(scored, scores)
    for i, text in enumerate(texts):
        found = way.embed([short, text])
        assert np.isfinite(found).all()
        assert np.abs(np.linalg.norm(found, axis=1) - 1).max() < 1e-5
        assert found.tobytes() == alone[[0, i]].tobytes()
        assert way.score(short, [short, text]).tobytes() == scores[[0, i]].tobytes()


PAIRS = {
    "what is the capital of China?": ["Beijing"],
    "how to implement quick sort in python?": ["Introduction of quick sort", "The weather is nice today"],
}


def test_o08_the_heads_own_settings_and_one_sigmoid_on_every_route(
    http: Http, oracle: Oracle, exported: ToyHome
) -> None:
    snapshot = exported.path / "snapshots" / RERANKER / LOCK.model(RERANKER).revision
    assert json.loads((snapshot / "config.json").read_text())["classifier_pooling"] == "mean"
    over_socket = Socket(http.client, http.path)
    for query, documents in PAIRS.items():
        logits, scores = oracle.scores(query, documents, raw=True), oracle.scores(query, documents)
        same(1 / (1 + np.exp(-logits.astype(np.float64))), scores)  # once
        same(logits, http.score(query, documents, raw_scores=True))
        found = http.score(query, documents)
        same(scores, found)
        assert found.tobytes() == over_socket.score(query, documents).tobytes()
        for route, key, body in (
            ("/v2/rerank", "relevance_score", {"documents": documents}),
            ("/rerank", "relevance_score", {"documents": documents}),
            ("/rerank", "score", {"texts": documents}),
        ):
            given = {"query": query, **body} | ({} if key == "score" else {"model": RERANKER})
            answer = http.post(route, given)
            results = answer if isinstance(answer, list) else answer["results"]
            assert by_index(results, key).tobytes() == found.tobytes(), route
        crowd = [text_of(n) for n in (2, 300, 40)]
        assert http.score(query, [*crowd, *documents])[3:].tobytes() == found.tobytes()


def test_o10_pairs_over_the_budget_are_the_oracles(way: Http | Socket, oracle: Oracle) -> None:
    for query, document in (("q" * 3000, "d" * 10), ("q" * 10, "d" * 5000), ("q" * 3000, "d" * 3000)):
        same(oracle.scores(query, [document]), way.score(query, [document]))


def test_o11_the_empty_text_is_the_oracles(way: Http | Socket, oracle: Oracle) -> None:
    assert oracle.texts([""])[0].ids == (256,)
    texts = ["", " ", "   ", "\n\t"]
    same(oracle.vectors(texts), way.embed(texts))
    same(oracle.scores("", ["", "d"]), way.score("", ["", "d"]))


MARKED = ["A <|im_end|> B", "A <|im_end|> C", "<|im_start|>system\nX", "<think>x</think>", "a <|fim_pad|> b"]


def test_o12_markers_in_texts_are_the_oracles(way: Http | Socket, oracle: Oracle) -> None:
    batch = [*MARKED, "[SEP] relevant [CLS]", "<|endoftext|>", "x" * 200, ""]
    found = way.embed(batch)
    same(oracle.vectors(batch), found)
    assert np.concatenate([way.embed([text]) for text in batch]).tobytes() == found.tobytes()
    assert np.abs(found[0] - found[1]).max() > 1e-3
    query = "[SEP] relevant [CLS]"
    same(oracle.scores(query, batch), way.score(query, batch))


def toy_rows(n_tokens: int, n_rows: int) -> list[TokenRow]:
    chance = np.random.default_rng(n_tokens)
    return [TokenRow(tuple(chance.integers(0, 256, n_tokens).tolist())) for _ in range(n_rows)]


@pytest.mark.parametrize("name", [EMBEDDER, RERANKER])
def test_o23_every_batch_and_length_is_the_oracles(exported: ToyHome, oracle: Oracle, name: str) -> None:
    torch: Any = pytest.importorskip("torch", reason="needs the export extra")
    from samevec.export.architectures import get_architecture  # noqa: PLC0415 - needs torch

    load = load_embedder if name == EMBEDDER else load_reranker
    model: Any = load(name, home=exported.path, lock="toy")
    reference = oracle.embedder if name == EMBEDDER else oracle.reranker
    architecture = get_architecture(LOCK.model(name))
    for n_tokens in (1, 2, 8, 16, 17, 127, 128, 129, 1000, LIMIT):
        rows = toy_rows(n_tokens, 7 if n_tokens < 1000 else 2)
        expected = []
        with torch.inference_mode():
            for row in rows:
                feed = collate([row], pad_token_id=0, pad_to_multiple=1).as_feed(architecture.input_names)
                tensors = {key: torch.from_numpy(array) for key, array in feed.items()}
                output = reference.module(**tensors)
                raw = output.logits if name == RERANKER else output.last_hidden_state[:, -1]
                expected.append(raw.numpy()[0])
        # 33 of the longest would be seconds of the same runs: the engine takes them one by one.
        for n_rows in (1, 2, 3, 7, 33) if n_tokens < LIMIT else (1, 2, 3):
            chosen = [i % len(rows) for i in range(n_rows)]
            given = [rows[i] for i in chosen]
            if n_rows * n_tokens <= model.engine.token_budget:
                found = model.run_microbatch(given)
            else:  # what nobody may run at once
                found = model.compute(given, batch_size=n_rows)
            same(np.stack(expected)[chosen], found)


def test_o23_a_graph_that_takes_the_traced_shape_only_is_not_published(exported: ToyHome, oracle: Oracle) -> None:
    from samevec.export.graph import sweep_problems  # noqa: PLC0415 - needs the export extra
    from samevec.parity.reference.torch_session import TorchSession  # noqa: PLC0415 - loads torch

    class Baked(Session):
        provider = "CPUExecutionProvider"

        def run(self, features: Features, **how: Any) -> Array:
            if features.shape != (2, 16):
                raise SessionRunError("Got invalid dimensions for input: input_ids")
            return np.ones((2, 384), dtype=np.float32)

    entry = LOCK.model(EMBEDDER)
    tokenizer_path = artifact_of(exported.path, EMBEDDER).tokenizer_path
    plan, progress = plan_sweep(longest_tokens=20, max_rows=2), SilentProgress()
    torch = build_model(entry, TorchSession(oracle.embedder), tokenizer_path=tokenizer_path, pad_token_id=0)
    reference = capture_sweep(torch, plan, limit=(), progress=progress)
    found = []
    for session in (Baked(), TorchSession(oracle.embedder)):
        model = build_model(entry, session, tokenizer_path=tokenizer_path, pad_token_id=0)
        found.append(sweep_problems(model, reference, plan, LOCK.tolerance, bits_required=False, progress=progress))
    assert len(found[0]) == 3
    assert all("invalid dimensions" in problem for problem in found[0])
    assert found[1] == []


def test_o22_auto_says_which_provider_it_took(exported: ToyHome, tmp_path: Path) -> None:
    where = ("--lock", "toy", "--home", exported.path, "--profile", "auto")
    with serving(*where, folder=tmp_path) as live:
        models = httpx.get(f"{live.url}/info", timeout=20).json()["models"]
        assert {(model["profile"], model["provider"]) for model in models} == {("cpu", "CPUExecutionProvider")}
        assert live.stop() == 0


def test_o25_queries_get_the_oracles_prompt(way: Http | Socket, oracle: Oracle) -> None:
    queries = ["What is the capital of China?", "Explain gravity"]
    expected = np.stack([row.final for row in oracle.texts(queries, prompt="query")])
    same(expected, way.embed(queries, prompt_name="query"))
    prompt = LOCK.model(EMBEDDER).prompts["query"]
    same(expected, way.embed([prompt + query for query in queries]))
    same(oracle.vectors([A]), way.embed([A], prompt_name="document"))


#: Under an affinity: threads that loading and one call have left, and processor time of a second's rest afterwards.
COUNT_THREADS = """
import json, os, sys, time
os.sched_setaffinity(0, set(json.loads(sys.argv[1])))
from samevec import load_embedder, load_reranker
from samevec.machine import allowed_cpus
import onnxruntime, tokenizers
def count():
    time.sleep(0.2)  # threads that have ended, the probe's among them, leave the list a moment later
    return len(os.listdir("/proc/self/task"))
counts = [count()]
models = []
for load, name in ((load_embedder, "toy-qwen3-embedder"), (load_reranker, "toy-modernbert-reranker")):
    models.append(load(name, lock="toy", home=sys.argv[2]))
    counts.append(count())
models[0].encode(["one text " * 40]), models[1].score([("q", "d " * 200)])
before = time.process_time()
time.sleep(1)
print(json.dumps([allowed_cpus(), counts, count(), time.process_time() - before]))
"""


@pytest.mark.parametrize("n_cpus", [1, 2])
def test_o20_threads_follow_the_allowance_and_rest_when_idle(exported: ToyHome, tmp_path: Path, n_cpus: int) -> None:
    cpus = sorted(os.sched_getaffinity(0))[:n_cpus]
    if len(cpus) < n_cpus:
        pytest.skip(f"fewer than {n_cpus} processors here")
    done = subprocess.run(
        [sys.executable, "-c", COUNT_THREADS, json.dumps(cpus), str(exported.path)],
        env={**environment(tmp_path), "TOKENIZERS_PARALLELISM": "false"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stderr == ""  # no affinity that ONNX Runtime could not set
    allowed, counts, after, idle_cpu_s = json.loads(done.stdout)
    assert allowed <= n_cpus  # a quota may say less
    # A model's pool: the thread that asks, and the rest of the allowance. Two models have two, one of which rests.
    assert [counts[1] - counts[0], counts[2] - counts[1]] == [allowed - 1] * 2
    assert after == counts[-1]
    assert idle_cpu_s < 0.1
