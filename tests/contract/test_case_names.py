"""Every case of the list that releases must survive has tests that are named after it."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
CASES = [f"o{number:02}" for number in range(1, 26)]
_NAME = re.compile(r"test_(o\d\d)[a-f]?_\w+")


def test_every_case_has_tests_named_after_it() -> None:
    found: Counter[str] = Counter()
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and (match := _NAME.fullmatch(node.name)):
                found[match[1]] += 1
    assert sorted(found) == CASES
