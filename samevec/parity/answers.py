"""Answers: the bits of every built-in case at export; where the native library computes, every machine gives them.

The reference judges whether numbers are right, within the tolerance; answers judge whether they are the same, to the
last bit. Beside each case's digest the file keeps, for three cases, a digest of every node's output, by which
:mod:`samevec.parity.bisect` finds the first operator that computes otherwise.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from samevec.digest import array_digest, canonical_json, digest_json
from samevec.errors import AnswersDifferError, ReferenceMissingError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from samevec.lock import LockedModel

__all__ = ["Answers", "NodeAnswer", "changed_answers", "read_answers", "require_pinned", "traced_cases"]

#: 2 since it holds the sweep's rows.
ANSWERS_VERSION = 2
# Tokens that the three traced cases are taken near to: short, past a block of keys, past a local window.
_TRACED_TOKENS = (1, 100, 200)


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """What one node gave.

    Attributes
    ----------
    output : str
        Name of the value.
    operator : str
    digest : str
        sha256 of its bytes, 64 hex digits.
    """

    output: str
    operator: str
    digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Answers:
    """The bits of one model's built-in cases.

    Attributes
    ----------
    arithmetic : int
        The native library's number: equal numbers mean equal bits.
    case_set_digest : str
    cases : tuple of str
        sha256 (64 hex digits) of each case's raw output, little-endian float32.
    nodes : mapping of int to tuple of NodeAnswer
        By case: every node's output, in the order in which they run.
    sweep : tuple of str
        The same as `cases` of each row of the sweep; no part of the digest, which is about the case set alone.
    """

    arithmetic: int
    case_set_digest: str
    cases: tuple[str, ...]
    nodes: Mapping[int, tuple[NodeAnswer, ...]]
    sweep: tuple[str, ...] = ()

    @classmethod
    def of_rows(
        cls,
        raw: NDArray[np.float32],
        *,
        arithmetic: int,
        case_set_digest: str,
        nodes: Mapping[int, tuple[NodeAnswer, ...]],
        sweep: Iterable[NDArray[np.float32]] = (),
    ) -> Answers:
        """Return the answers of raw rows in the order of their cases, and of the sweep's."""
        cases, others = tuple(map(array_digest, raw)), tuple(map(array_digest, sweep))
        return cls(arithmetic=arithmetic, case_set_digest=case_set_digest, cases=cases, nodes=nodes, sweep=others)

    @property
    def digest(self) -> str:
        """``sha256:...`` over arithmetic, case set and every case; what a lock pins."""
        return digest_json({"arithmetic": self.arithmetic, "case_set": self.case_set_digest, "cases": list(self.cases)})

    def to_bytes(self) -> bytes:
        """Return the bytes of ``answers.json``."""
        nodes = {
            str(case): [[node.output, node.operator, node.digest] for node in found]
            for case, found in self.nodes.items()
        }
        record = {
            "answers_version": ANSWERS_VERSION,
            "arithmetic": self.arithmetic,
            "case_set_digest": self.case_set_digest,
            "cases": list(self.cases),
            "nodes": nodes,
            "sweep": list(self.sweep),
        }
        return canonical_json(record)


def read_answers(path: Path, *, fix: str) -> Answers:
    """Read ``answers.json``.

    Parameters
    ----------
    path : Path
    fix : str
        The command that makes it anew, for the message.

    Raises
    ------
    ReferenceMissingError
        It is not there or not readable.
    """
    try:
        return _from_record(json.loads(path.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ReferenceMissingError(f"{path}: no readable answers ({error})", fix=fix) from error


def _from_record(record: Mapping[str, Any]) -> Answers:
    if record["answers_version"] != ANSWERS_VERSION:
        raise ValueError(f"answers_version {record['answers_version']!r} is not {ANSWERS_VERSION}")
    nodes = {int(case): tuple(NodeAnswer(*node) for node in found) for case, found in record["nodes"].items()}
    return Answers(
        arithmetic=int(record["arithmetic"]),
        case_set_digest=str(record["case_set_digest"]),
        cases=tuple(map(str, record["cases"])),
        nodes=nodes,
        sweep=tuple(map(str, record["sweep"])),
    )


def require_pinned(entry: LockedModel, answers: Answers) -> None:
    """Refuse answers that are not the ones an entry of the lock pins; one that pins none takes any.

    Raises
    ------
    AnswersDifferError
        With both digests, or since the lock's are about another arithmetic or another case set.
    """
    pinned = entry.answers
    if pinned is None:
        return
    subject = (answers.arithmetic, answers.case_set_digest)
    if (pinned.arithmetic, pinned.case_set_digest) != subject:
        raise AnswersDifferError(
            entry.name,
            f"the lock's answers are of arithmetic {pinned.arithmetic} and case set {pinned.case_set_digest[:19]}, "
            f"this samevec has arithmetic {answers.arithmetic} and case set {answers.case_set_digest[:19]}; "
            "take the lock of this release, or remove the entry's answers and export again",
        )
    if pinned.digest != answers.digest:
        raise AnswersDifferError(
            entry.name,
            f"the bits of its answers are {answers.digest}, the lock pins {pinned.digest}: the weights, the operators "
            "or this processor compute something else; run: samevec parity --selftest",
        )


def changed_answers(answers: Answers, raw: NDArray[np.float32], numbers: Sequence[int]) -> tuple[int, ...]:
    """Return the cases whose bits are not those recorded at export.

    Parameters
    ----------
    answers : Answers
    raw : ndarray of float32, shape (n, width)
    numbers : sequence of int
        The case of each row.
    """
    return tuple(case for case, row in zip(numbers, raw, strict=True) if array_digest(row) != answers.cases[case])


def traced_cases(lengths: Sequence[int]) -> tuple[int, ...]:
    """Return the three cases of which every node's output is recorded: short, middling and longer ones."""
    chosen = [min(range(len(lengths)), key=lambda i: (abs(lengths[i] - n), i)) for n in _TRACED_TOKENS]
    return tuple(dict.fromkeys(chosen))
