"""Records a native graph's answers to the built-in cases, on the machine that exports it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from samevec.artifact import ANSWERS_NAME, GRAPH_NAME, TOKENIZER_NAME, TRACE_NAME
from samevec.export.native.trace import write_trace
from samevec.native.library import load_library
from samevec.opening import build_model
from samevec.parity.answers import Answers, traced_cases
from samevec.parity.bisect import trace
from samevec.parity.sweep import sweep_rows
from samevec.parity.tokens import tokenize_cases
from samevec.runtime.collate import collate
from samevec.runtime.sessions.onnx import OnnxSession

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from samevec.lock import LockedModel
    from samevec.parity.answers import NodeAnswer
    from samevec.parity.cases.builtin import CaseSet
    from samevec.progress import Progress
    from samevec.runtime.providers.profiles import Profile
    from samevec.runtime.rows import TokenRow

__all__ = ["record_answers"]


def record_answers(
    entry: LockedModel,
    profile: Profile,
    case_set: CaseSet,
    sweep_ids: Sequence[Sequence[int]],
    *,
    directory: Path,
    pad_token_id: int,
    type_ids: bool,
    progress: Progress,
) -> Answers:
    """Compute every case and every row of the sweep, and write ``answers.json`` and ``trace.onnx``.

    `directory` has the graph and the tokenizer; `type_ids` says whether the graph reads segment ids.
    """
    with progress.step("record answers"):
        model = build_model(
            entry,
            OnnxSession(directory / GRAPH_NAME, profile),
            tokenizer_path=directory / TOKENIZER_NAME,
            pad_token_id=pad_token_id,
            type_ids=type_ids,
            costs=profile.costs,
        )
        rows = tokenize_cases(model, case_set, together=True)
        answers = Answers.of_rows(
            model.compute(rows),
            arithmetic=load_library().arithmetic,
            case_set_digest=case_set.digest,
            nodes=_trace(rows, profile, directory, pad_token_id),
            sweep=model.compute(sweep_rows(sweep_ids, type_ids=type_ids)),
        )
        (directory / ANSWERS_NAME).write_bytes(answers.to_bytes())
    return answers


def _trace(
    rows: list[TokenRow], profile: Profile, directory: Path, pad_token_id: int
) -> dict[int, tuple[NodeAnswer, ...]]:
    operators = write_trace(directory / GRAPH_NAME)
    session = OnnxSession(directory / TRACE_NAME, profile)
    return {
        case: trace(session, collate([rows[case]], pad_token_id=pad_token_id, pad_to_multiple=1), operators)
        for case in traced_cases([row.n_tokens for row in rows])
    }
