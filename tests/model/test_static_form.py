"""The graph form for CoreML as it runs there, in fixed shapes; by value on the CPU provider."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import onnx
import pytest
from form_subjects import SUBJECTS, Subject, make_subject

from samevec.lock import load_lock
from samevec.parity.compare import compare
from samevec.runtime.collate import collate
from samevec.runtime.providers.profiles import get_profile
from samevec.runtime.sessions.static_shapes import StaticShapeSession, open_session

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.model,
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]

COREML = get_profile("coreml")
TOLERANCE = load_lock("toy").tolerance


@pytest.fixture(scope="module", params=SUBJECTS)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Subject, Path]:
    pytest.importorskip("optimum", reason="needs the export extra")
    from samevec.export.convert import convert  # noqa: PLC0415 - needs torch

    folder = tmp_path_factory.mktemp("static")
    subject = make_subject(request.param, folder)
    return subject, convert(subject.module, subject.entry, form=COREML.graph_form, directory=folder)


def test_the_graph_has_none_of_onnxruntimes_own_operators(exported: tuple[Subject, Path]) -> None:
    model = onnx.load(str(exported[1]), load_external_data=False)
    assert {node.domain for node in model.graph.node} <= {"", "ai.onnx"}


def test_ragged_rows_in_fixed_shapes_are_pytorchs(exported: tuple[Subject, Path]) -> None:
    subject, path = exported
    on_cpu = replace(COREML, provider="CPUExecutionProvider", provider_options={}, most_cpu_percent=100)
    session = open_session(path, on_cpu, max_tokens=subject.entry.max_tokens, n_threads=1)
    assert isinstance(session, StaticShapeSession)
    for lengths in ((1,), (33, 3), (64, 65, 1), (5,) * 9, (300, 2, 257)):
        rows = subject.rows(lengths)
        found = session.run(collate(rows, pad_token_id=0, pad_to_multiple=COREML.pad_to_multiple))
        outcome = compare(subject.reference(rows), found, TOLERANCE)
        assert outcome.passed, f"{lengths} tokens: {outcome.words}"
    assert len(session.open_shapes) > 2
