"""Run under another processor: which cases of an artifact have other bits there than at export.

Arguments: lock, model, home, case numbers. Prints the kernels' name and the numbers of the cases that differ.
"""

from __future__ import annotations

import sys
from pathlib import Path

from samevec.lock import load_lock
from samevec.native.library import load_library
from samevec.opening import open_candidate
from samevec.parity.answers import changed_answers
from samevec.parity.cases.builtin import builtin_cases
from samevec.parity.tokens import tokenize_cases


def main(lock: str, model: str, home: str, *numbers: str) -> None:
    """Open the artifact as a server does, compute the cases together, compare with what was recorded."""
    entry, cases = load_lock(None if lock == "packaged" else lock).model(model), [int(number) for number in numbers]
    candidate = open_candidate(entry, profile="cpu", home=Path(home))
    rows = tokenize_cases(candidate.model, builtin_cases(entry.task, prompts=entry.prompts), together=True)
    raw = candidate.model.compute([rows[case] for case in cases])
    assert candidate.answers is not None
    changed = changed_answers(candidate.answers, raw, cases)
    print(load_library().instruction_set, *changed)


if __name__ == "__main__":
    main(*sys.argv[1:])
