"""The --help of every command is the one that was agreed on."""

from __future__ import annotations

from frozen import FOLDER, frozen_help


def test_help_of_every_command_is_the_golden_one() -> None:
    expected = (FOLDER / "help.txt").read_text(encoding="utf-8")
    assert frozen_help() == expected, "decided? then: python tests/golden/rewrite.py --help-only"
