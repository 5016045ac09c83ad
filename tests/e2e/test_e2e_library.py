"""The library: from a name to vectors and scores, or to the reason why not."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from e2e_tools import EMBEDDER, LOCK, RERANKER, artifact_of, copy_home, rewrite_receipt
from e2e_tools import samevec as run_samevec

import samevec
from samevec import gate
from samevec.errors import (
    ArtifactCorruptError,
    ArtifactMissingError,
    ConfigError,
    DeadlineExceededError,
    EmptyInputError,
    InputError,
    InputTooLongError,
    LockError,
    ParityError,
    ParityFailedError,
    ReceiptMissingError,
    StaleReceiptError,
)
from samevec.parity.compare import compare

if TYPE_CHECKING:
    from e2e_tools import ToyHome
    from numpy.typing import NDArray

    from samevec.runtime.collate import Features
    from samevec.runtime.embedder import Embedder
    from samevec.runtime.reranker import Reranker
    from samevec.runtime.sessions.onnx import OnnxSession

pytestmark = pytest.mark.model

TEXTS = ["a longer text than the others, by far", "short", "", "Ω ≈ 3", "five"]
QUERY, DOCUMENTS = "when does the ferry leave", ["at seven", "", "x y z " * 60, "at seven"]


@pytest.fixture(scope="module")
def embedder(exported: ToyHome) -> Embedder:
    return samevec.load_embedder(EMBEDDER, lock="toy", home=exported.path)


@pytest.fixture(scope="module")
def reranker(exported: ToyHome) -> Reranker:
    return samevec.load_reranker(RERANKER, lock="toy", home=str(exported.path))


def bits(vectors: NDArray[np.float32]) -> bytes:
    return vectors.tobytes()


def same(reference: NDArray[np.float32], candidate: NDArray[np.float32]) -> None:
    outcome = compare(reference.reshape(len(reference), -1), candidate.reshape(len(candidate), -1), LOCK.tolerance)
    assert outcome.passed, outcome.words


@pytest.fixture
def shapes(monkeypatch: pytest.MonkeyPatch, embedder: Embedder) -> list[tuple[int, int]]:
    """Rows and padded tokens of every session run, whichever model runs."""
    seen: list[tuple[int, int]] = []
    kind: type[OnnxSession] = type(embedder.engine.session)  # type: ignore[assignment]
    run = kind.run

    def recorded(self: OnnxSession, features: Features, **how: Any) -> NDArray[np.float32]:
        seen.append(features.shape)
        return run(self, features, **how)

    monkeypatch.setattr(kind, "run", recorded)
    return seen


def test_vectors(embedder: Embedder) -> None:
    vectors = embedder.encode(TEXTS)
    assert vectors.dtype == np.float32
    assert vectors.shape == (5, 384)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=0, atol=1e-6)
    for i, text in enumerate(TEXTS):
        assert bits(embedder.encode([text])[0]) == bits(vectors[i])  # neighbours change nothing
    raw = embedder.encode(TEXTS, normalize=False)
    assert (np.linalg.norm(raw, axis=1) > 1.5).all()
    same(vectors, raw / np.linalg.norm(raw, axis=1, keepdims=True))


def test_prompts(embedder: Embedder) -> None:
    prompt = LOCK.model(EMBEDDER).prompts["query"]
    assert bits(embedder.encode(["x"], prompt="query")) == bits(embedder.encode([prompt + "x"]))
    assert bits(embedder.encode(["x"], prompt="document")) == bits(embedder.encode(["x"]))
    with pytest.raises(InputError, match=r"^prompt: 'passage' is not a prompt of .* \(it has: document, query\)$"):
        embedder.encode(["x"], prompt="passage")


def test_dimensions(embedder: Embedder) -> None:
    full, cut = embedder.encode(TEXTS), embedder.encode(TEXTS, dimensions=64)
    assert cut.shape == (5, 64)
    same(full[:, :64] / np.linalg.norm(full[:, :64], axis=1, keepdims=True), cut)
    for wrong in (0, 385, 1.5, True):
        with pytest.raises(InputError, match=r"^dimensions: "):
            embedder.encode(TEXTS, dimensions=wrong)  # type: ignore[arg-type]


def test_batch_size(embedder: Embedder, reranker: Reranker, shapes: list[tuple[int, int]]) -> None:
    expected = embedder.encode(TEXTS)
    shapes.clear()
    assert bits(embedder.encode(TEXTS, batch_size=1)) == bits(expected)
    assert [rows for rows, _ in shapes] == [1] * 5
    shapes.clear()
    assert bits(embedder.encode(TEXTS, batch_size=8)) == bits(expected)
    assert [rows for rows, _ in shapes] == [5]
    shapes.clear()
    assert bits(embedder.encode(TEXTS, batch_size=2)) == bits(expected)
    assert shapes == [(2, 38), (2, 6), (1, 1)]
    shapes.clear()
    pairs = [(QUERY, document) for document in DOCUMENTS]
    scores = reranker.score(pairs, batch_size=1)
    assert [rows for rows, _ in shapes] == [1] * 3  # the fourth is the first again
    assert bits(scores) == bits(reranker.score(pairs))


def test_limits(embedder: Embedder) -> None:
    assert bits(embedder.encode(["a" * 50], max_tokens=16)) == bits(embedder.encode(["a" * 15]))
    with pytest.raises(InputTooLongError, match=r"^input\[1\]: 51 tokens, the limit is 16"):
        embedder.encode(["a", "a" * 50], max_tokens=16, truncate=False)
    with pytest.raises(EmptyInputError):
        embedder.encode([])
    with pytest.raises(DeadlineExceededError):
        embedder.encode(TEXTS, deadline_s=0)


def test_scores(reranker: Reranker) -> None:
    pairs = [(QUERY, document) for document in DOCUMENTS]
    scores, logits = reranker.score(pairs), reranker.score(pairs, raw=True)
    assert scores.dtype == np.float32
    assert scores.shape == (4,)
    same((1 / (1 + np.exp(-logits))).astype(np.float32), scores)
    assert scores[0] == scores[3]
    ranked = reranker.rank(QUERY, DOCUMENTS)
    order = sorted(range(4), key=lambda i: (-scores[i], i))
    assert [item.index for item in ranked] == order
    assert [item.score for item in ranked] == [float(scores[i]) for i in order]
    assert reranker.rank(QUERY, DOCUMENTS, top_n=2) == ranked[:2]
    assert reranker.rank(QUERY, DOCUMENTS, top_n=9) == ranked
    for wrong in (0, -1):
        with pytest.raises(InputError, match=r"^top_n: "):
            reranker.rank(QUERY, DOCUMENTS, top_n=wrong)


def test_what_loading_left_is_given_back(exported: ToyHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """As much as twice the model's own private memory, of a full-shape one."""
    given: list[bool] = []
    monkeypatch.setattr(gate, "give_back_memory", lambda: given.append(True))
    samevec.load_embedder(EMBEDDER, lock="toy", home=exported.path)
    samevec.load_reranker(RERANKER, lock="toy", home=exported.path)
    assert given == [True, True]


def test_names(exported: ToyHome) -> None:
    with pytest.raises(LockError, match="no model named 'other'"):
        samevec.load_embedder("other", lock="toy", home=exported.path)
    with pytest.raises(ConfigError, match="is a reranking model, an embedding model is needed"):
        samevec.load_embedder(RERANKER, lock="toy", home=exported.path)
    with pytest.raises(ConfigError, match="profile 'tpu' is not known"):
        samevec.load_reranker(RERANKER, lock="toy", home=exported.path, profile="tpu")
    with pytest.raises(ArtifactMissingError) as missing:
        samevec.load_embedder("qwen3-embedding-0.6b", home=exported.path)
    assert missing.value.fix.endswith(f"--profile cpu --home '{exported.path}'")


@pytest.mark.parametrize(
    ("content", "kind", "words"),
    [
        ({"passed": False, "failures": ["raw/alone: far"]}, ParityFailedError, "parity failed here: raw/alone: far"),
        ({"samevec_version": "0.0.0"}, StaleReceiptError, "the parity receipt is stale: samevec 0.0.0 -> "),
        (None, ReceiptMissingError, "parity has not been proved on this machine"),
    ],
)
def test_no_open_gate_no_model(content: dict[str, Any] | None, kind: type[ParityError], words: str, home: Path) -> None:
    if content is None:
        shutil.rmtree(artifact_of(home, EMBEDDER).receipts_path)
    else:
        rewrite_receipt(home, EMBEDDER, **content)
    with pytest.raises(kind) as refused:
        samevec.load_embedder(EMBEDDER, lock="toy", home=home)
    assert str(refused.value).startswith(f"{EMBEDDER}: {words}")
    verb = "export" if kind is ParityFailedError else "parity"
    assert refused.value.fix == f"samevec {verb} --model {EMBEDDER} --profile cpu --lock toy --home {home}"


def test_a_changed_file_is_refused_before_loading(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = artifact_of(home, EMBEDDER).tokenizer_path
    path.write_bytes(path.read_bytes().replace(b'"model"', b'"Model"'))
    monkeypatch.setattr("samevec.opening.open_session", None)
    with pytest.raises(ArtifactCorruptError) as refused:
        samevec.load_embedder(EMBEDDER, lock="toy", home=home)
    assert str(refused.value).startswith(f"{path}: sha256 is ")
    assert refused.value.fix == f"samevec export --model {EMBEDDER} --profile cpu --lock toy --home {home}"


def test_a_copied_artifact_keeps_its_receipt(exported: ToyHome, embedder: Embedder, tmp_path: Path) -> None:
    copied = copy_home(exported.path, tmp_path / "copied")
    found = samevec.load_embedder(EMBEDDER, lock="toy", home=copied).encode(TEXTS)
    assert bits(found) == bits(embedder.encode(TEXTS))


def test_through_links_and_from_any_folder(
    exported: ToyHome, embedder: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = bits(embedder.encode(TEXTS))
    (tmp_path / "whole").symlink_to(exported.path, target_is_directory=True)
    (tmp_path / "single" / "artifacts").mkdir(parents=True)
    artifact = artifact_of(exported.path, EMBEDDER)
    (tmp_path / "single" / "artifacts" / artifact.path.name).symlink_to(artifact.path, target_is_directory=True)
    monkeypatch.chdir("/")
    relative = os.path.relpath(exported.path, "/")
    for home in (tmp_path / "whole", tmp_path / "single", Path(relative)):
        assert bits(samevec.load_embedder(EMBEDDER, lock="toy", home=home).encode(TEXTS)) == expected


def test_a_read_only_artifact(home: Path, tmp_path: Path) -> None:
    """Receipts then go under the home."""
    artifact = artifact_of(home, EMBEDDER).path
    shutil.rmtree(artifact / "receipts")
    for path in (*artifact.iterdir(), artifact):
        path.chmod(0o555 if path.is_dir() else 0o444)
    where = ("--lock", "toy", "--home", home)
    try:
        done = run_samevec("parity", *where, "--model", EMBEDDER, folder=tmp_path, unprivileged=True)
        if done.code == 77:
            pytest.skip("this root may not give up its privilege to write everywhere")
        assert done.code == 0, done.err
        assert "receipts" not in {path.name for path in artifact.iterdir()}
        assert len(list((home / "receipts" / artifact.name).iterdir())) == 1
        assert samevec.load_embedder(EMBEDDER, lock="toy", home=home).encode(["x"]).shape == (1, 384)
    finally:
        artifact.chmod(0o755)
