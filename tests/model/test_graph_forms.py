"""Every graph form by value against PyTorch and the plain export, around every edge of blocks, windows and kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from samevec.export.toy import TOY_EMBEDDER, TOY_RERANKER, build_toy
from samevec.lock import load_lock
from samevec.parity.compare import compare
from samevec.runtime.collate import collate
from samevec.runtime.profiles import get_profile
from samevec.runtime.rows import TokenRow
from samevec.runtime.session import OnnxSession

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from samevec.lock import LockedModel

pytestmark = [
    pytest.mark.model,
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]

# Blocks of 64, a window of 64 either side, one block up to 256; steps of 4, 16 and 128 in ONNX Runtime's kernels.
EDGES = (1, 2, 3, 4, 63, 64, 65, 66, 127, 128, 129, 130, 191, 192, 193, 194, 255, 256, 257, 258, 1000)
# Twice the longest input of the built-in cases, and of what is cut: two rows, since plain graphs hold S x S scores.
LONG = 4096
FORMS = ("plain", "fused", "compact")
TOLERANCE = load_lock("toy").tolerance


@dataclass(frozen=True, slots=True)
class Subject:
    """One toy model: what PyTorch gives for each row alone, and a session for each form of its graph."""

    rows: dict[int, list[TokenRow]]
    expected: dict[int, NDArray[np.float32]]
    sessions: dict[str, OnnxSession]

    def run(self, form: str, rows: Sequence[TokenRow]) -> NDArray[np.float32]:
        # Plain graphs are padded by nothing at all; ours to a multiple of 4, as the profiles do.
        return self.sessions[form].run(collate(rows, pad_token_id=0, pad_to_multiple=1 if form == "plain" else 4))


def reference_of(module: Any, entry: LockedModel, rows: Sequence[TokenRow]) -> NDArray[np.float32]:
    torch = pytest.importorskip("torch", reason="needs the export extra")
    from samevec.export.architectures import get_architecture  # noqa: PLC0415 - needs torch

    architecture = get_architecture(entry)
    found = []
    with torch.inference_mode():
        for row in rows:
            feed = collate([row], pad_token_id=0, pad_to_multiple=1).as_feed(architecture.input_names)
            tensors = {name: torch.from_numpy(array) for name, array in feed.items()}
            found.append(architecture.reference_rows(module, tensors, entry.pooling).numpy()[0])
    return np.stack(found)


@pytest.fixture(scope="module", params=[TOY_EMBEDDER, TOY_RERANKER])
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    pytest.importorskip("optimum", reason="needs the export extra")
    from samevec.export.compact import compact  # noqa: PLC0415 - the export extra, as the next two
    from samevec.export.convert import convert  # noqa: PLC0415
    from samevec.parity.reference import load_reference_model  # noqa: PLC0415

    entry, folder = load_lock("toy").model(request.param), tmp_path_factory.mktemp(request.param)
    build_toy(request.param, folder / "snapshot")
    module = load_reference_model(folder / "snapshot", entry).module
    entry = replace(entry, max_tokens=LONG)  # how far the positions in a graph reach; the toys stop at 2,048
    stream = np.random.default_rng(11)
    n_ids = int(module.config.vocab_size)
    # Three rows of each length, so that equal lengths meet.
    n_rows = dict.fromkeys(EDGES, 3) | {LONG: 2}
    rows = {n: [TokenRow(tuple(stream.integers(0, n_ids, n).tolist())) for _ in range(n_rows[n])] for n in n_rows}
    expected = {n: reference_of(module, entry, rows[n]) for n in n_rows}
    sessions = {}
    for form in FORMS:
        target: Path = folder / form
        target.mkdir()
        graph = convert(module, entry, form="plain" if form == "plain" else "fused", directory=target)
        if form == "compact":
            compact(graph)
        sessions[form] = OnnxSession(graph, get_profile("cpu-compact" if form == "compact" else "cpu"), n_threads=1)
    return Subject(rows, expected, sessions)


@pytest.mark.parametrize("form", FORMS)
def test_alone_and_in_equal_length_every_row_is_pytorchs(subject: Subject, form: str) -> None:
    for n in EDGES:
        equal = subject.run(form, subject.rows[n])
        alone = np.concatenate([subject.run(form, [row]) for row in subject.rows[n]])
        for found in (alone, equal):
            outcome = compare(subject.expected[n], found, TOLERANCE)
            assert outcome.passed, f"{n} tokens: {outcome.words}"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("step", [1, 4, 7])
def test_in_ragged_company_every_row_is_pytorchs(subject: Subject, form: str, step: int) -> None:
    for first in range(len(EDGES) - step):
        lengths = (EDGES[first], EDGES[first + step], EDGES[first])
        found = subject.run(form, [subject.rows[n][i] for i, n in enumerate(lengths)])
        expected = np.stack([subject.expected[n][i] for i, n in enumerate(lengths)])
        outcome = compare(expected, found, TOLERANCE)
        assert outcome.passed, f"{lengths} tokens: {outcome.words}"


@pytest.mark.parametrize("form", ["fused", "compact"])
def test_our_forms_equal_the_plain_export(subject: Subject, form: str) -> None:
    for n in EDGES:
        outcome = compare(subject.run("plain", subject.rows[n]), subject.run(form, subject.rows[n]), TOLERANCE)
        assert outcome.passed, f"{n} tokens: {outcome.words}"


@pytest.mark.parametrize("form", ["fused", "compact"])
def test_our_forms_give_a_row_the_same_bits_in_any_company(subject: Subject, form: str) -> None:
    for i, n in enumerate(EDGES):
        alone = subject.run(form, [subject.rows[n][0]])[0]
        for other in EDGES[i:]:
            beside = subject.run(form, [subject.rows[other][1], subject.rows[n][0]])[1]
            assert alone.tobytes() == beside.tobytes(), f"{n} tokens beside {other}"


def test_4096_tokens_are_pytorchs_in_the_plain_export(subject: Subject) -> None:
    outcome = compare(subject.expected[LONG][:1], subject.run("plain", subject.rows[LONG][:1]), TOLERANCE)
    assert outcome.passed, outcome.words


@pytest.mark.parametrize("form", ["fused", "compact"])
def test_4096_tokens_are_pytorchs_alone_in_equal_and_in_ragged_company(subject: Subject, form: str) -> None:
    long, short = subject.rows[LONG], subject.rows[130][0]
    alone = np.concatenate([subject.run(form, [row]) for row in long])
    equal = subject.run(form, long)
    ragged = subject.run(form, [short, long[1]])
    right = subject.expected[LONG]
    beside = np.stack([subject.expected[130][0], right[1]])
    for found, expected in ((alone, right), (equal, right), (ragged, beside)):
        outcome = compare(expected, found, TOLERANCE)
        assert outcome.passed, outcome.words
    assert alone.tobytes() == equal.tobytes()
    assert alone[1].tobytes() == ragged[1].tobytes()
    assert ragged[0].tobytes() == subject.run(form, [short])[0].tobytes()
