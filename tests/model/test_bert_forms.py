"""BERT under the CPU profiles, by value against PyTorch; the toy pair is in test_graph_forms.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from form_subjects import SUBJECTS, Subject, make_subject

from samevec.lock import load_lock
from samevec.parity.compare import compare
from samevec.runtime.collate import collate
from samevec.runtime.profiles import get_profile
from samevec.runtime.session import OnnxSession

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.model,
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]

TOLERANCE = load_lock("toy").tolerance
BERTS = [name for name in SUBJECTS if name.startswith("bert")]


@pytest.fixture(scope="module", params=BERTS)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    pytest.importorskip("optimum", reason="needs the export extra")
    return make_subject(request.param, tmp_path_factory.mktemp("bert"))


@pytest.mark.parametrize("profile", ["cpu", "cpu-compact"])
def test_rows_are_pytorchs_and_have_the_same_bits_in_any_company(
    subject: Subject, profile: str, tmp_path: Path
) -> None:
    from samevec.export.compact import compact  # noqa: PLC0415 - the export extra, as the next
    from samevec.export.convert import convert  # noqa: PLC0415

    graph = convert(subject.module, subject.entry, form="fused", directory=tmp_path)
    if profile == "cpu-compact":
        compact(graph)
    session = OnnxSession(graph, get_profile(profile), n_threads=1)
    step = get_profile(profile).pad_to_multiple
    for lengths in ((1,), (8, 3), (64, 65, 1), (255, 17, 256), (300, 2, 257)):
        rows = subject.rows(lengths)
        found = session.run(collate(rows, pad_token_id=0, pad_to_multiple=step))
        outcome = compare(subject.reference(rows), found, TOLERANCE)
        assert outcome.passed, f"{lengths} tokens: {outcome.words}"
        for i, row in enumerate(rows):
            alone = session.run(collate([row], pad_token_id=0, pad_to_multiple=step))
            assert alone[0].tobytes() == found[i].tobytes(), f"row {i} of {lengths}"
