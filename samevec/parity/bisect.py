"""Which operator computes otherwise here: every node's output of three cases, beside what it was at export."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from samevec.digest import array_digest
from samevec.parity.answers import NodeAnswer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from samevec.parity.answers import Answers
    from samevec.runtime.collate import Features
    from samevec.runtime.sessions.onnx import OnnxSession

__all__ = ["Difference", "bisect", "trace"]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first node of a case whose output has other bits.

    Attributes
    ----------
    case : int
    output, operator : str
        Empty where every node gave the same bits.
    """

    case: int
    output: str = ""
    operator: str = ""

    @property
    def words(self) -> str:
        """One line."""
        if not self.output:
            return f"case {self.case}: every node gave the bits of the export"
        return f"case {self.case}: the first node with other bits is {self.output} ({self.operator})"


def trace(session: OnnxSession, features: Features, operators: Sequence[tuple[str, str]]) -> tuple[NodeAnswer, ...]:
    """Run a graph whose outputs are all its nodes' and return their digests.

    Parameters
    ----------
    session : OnnxSession
        Of ``trace.onnx``.
    features : Features
        One case.
    operators : sequence of (str, str)
        Output and operator, in the order in which nodes run.
    """
    outputs = session.run_all(features)
    return tuple(NodeAnswer(name, operator, array_digest(outputs[name])) for name, operator in operators)


def bisect(session: OnnxSession, answers: Answers, case: int, features: Features) -> Difference:
    """Return the first node of a case whose output differs from the export's.

    Parameters
    ----------
    session : OnnxSession
        Of the artifact's ``trace.onnx``.
    answers : Answers
    case : int
        One of ``answers.nodes``.
    features : Features
    """
    expected = answers.nodes[case]
    found = trace(session, features, [(node.output, node.operator) for node in expected])
    for before, now in zip(expected, found, strict=True):
        if before.digest != now.digest:
            return Difference(case, now.output, now.operator)
    return Difference(case)
