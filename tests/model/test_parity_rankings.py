"""Rankings of the toy pair: what PyTorch itself ranks in other company passes, wrong pooling and no mask do not."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from samevec.export.toy.checkpoint import TOY_EMBEDDER, TOY_RERANKER, build_toy
from samevec.lock import load_lock
from samevec.parity.cases.builtin import builtin_cases
from samevec.parity.rankings.check import check_rankings
from samevec.parity.rankings.retrieval import builtin_fixture
from samevec.parity.reference.pytorch import ReferenceModel, capture_reference, load_reference_model
from samevec.parity.reference.torch_session import TorchSession
from samevec.runtime.embedder import Embedder
from samevec.runtime.engine import Engine
from samevec.runtime.reranker import Reranker
from samevec.runtime.tokenization import Tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from samevec.parity.cases.builtin import CaseSet
    from samevec.parity.rankings.figures import Rankings
    from samevec.parity.reference.file import Reference
    from samevec.runtime.collate import Features

pytestmark = pytest.mark.model
pytest.importorskip("sentence_transformers", reason="needs the export extra")

LOCK = load_lock("toy")


@dataclasses.dataclass(frozen=True)
class Toy:
    snapshot: Path
    model: ReferenceModel
    reference: Reference

    def check(self, session: Any = None) -> Rankings:
        entry = self.model.entry
        engine = Engine(session=session or TorchSession(self.model), width=entry.dimensions or 1, pad_to_multiple=1)
        tokenizer = Tokenizer.from_file(self.snapshot / "tokenizer.json", max_tokens=entry.max_tokens)
        kind = Embedder if entry.task == "embed" else Reranker
        candidate = kind(entry=entry, tokenizer=tokenizer, engine=engine)
        return check_rankings(candidate, self.reference, tolerance=LOCK.tolerance, bits_required=False)


def one_case(task: str) -> CaseSet:
    cases = builtin_cases(task)
    return dataclasses.replace(cases, texts=cases.texts[:1], pairs=cases.pairs[:1])


def toy(name: str, directory: Path) -> Toy:
    build_toy(name, directory)
    entry = LOCK.model(name)
    model = load_reference_model(directory, entry)
    versions = LOCK.toolchain.versions
    return Toy(
        directory, model, capture_reference(model, one_case(entry.task), toolchain=versions, fixture=builtin_fixture())
    )


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    return toy(TOY_EMBEDDER, tmp_path_factory.mktemp("toy") / "embedder")


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    return toy(TOY_RERANKER, tmp_path_factory.mktemp("toy") / "reranker")


def test_the_reference_ranks_as_itself(embedder: Toy, reranker: Toy) -> None:
    for one in (embedder, reranker):
        found = one.check()
        assert found.failures == ()
        assert found.decided > 0.9  # few results are near ties, so there is an order to keep


class FirstToken(TorchSession):
    """Pools the first token; for an embedder whose head is the last."""

    def run(self, features: Features, **how: Any) -> NDArray[np.float32]:
        torch = pytest.importorskip("torch")
        feed = features.as_feed(("input_ids", "attention_mask"))
        with torch.inference_mode():
            output = self._reference.module(**{name: torch.from_numpy(array) for name, array in feed.items()})
        hidden: NDArray[np.float32] = output.last_hidden_state.numpy()
        # The first token alone is the same for nearly all: pool the first few, as a mask shifted to the left would.
        return np.ascontiguousarray(hidden[:, :4].mean(axis=1))


class NoMask(TorchSession):
    """Lets padding into the attention."""

    def run(self, features: Features, **how: Any) -> NDArray[np.float32]:
        return super().run(dataclasses.replace(features, attention_mask=np.ones_like(features.attention_mask)), **how)


def test_pooling_the_first_tokens_is_refused_by_the_rankings_alone(embedder: Toy) -> None:
    found = embedder.check(FirstToken(embedder.model))
    for run in found.runs:
        assert run.member_changes > 32
        assert any("other members" in failure for failure in run.failures)
        assert any("another order" in failure for failure in run.failures)


def test_a_dropped_mask_is_refused_by_the_rankings_alone(reranker: Toy) -> None:
    found = reranker.check(NoMask(reranker.model))
    assert [failure for run in found.runs for failure in run.failures if "another order" in failure]
