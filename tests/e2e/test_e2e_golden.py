"""What the toy pair shows to the outside is what was agreed on; see ``tests/golden/``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from frozen import FOLDER, frozen_pair

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.model, pytest.mark.server]


def test_everything_the_pair_shows_is_golden(home: Path) -> None:
    found = frozen_pair(home)
    golden = {path.name for pattern in ("*.json", "*.jsonl", "*.txt") for path in FOLDER.glob(pattern)}
    assert set(found) == golden - {"help.txt"}
    changed = [name for name, text in found.items() if (FOLDER / name).read_text(encoding="utf-8") != text]
    for name in changed:
        assert found[name] == (FOLDER / name).read_text(encoding="utf-8"), (
            f"{changed} changed; decided? then: python tests/golden/rewrite.py"
        )
