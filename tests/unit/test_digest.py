"""Digests of files and records."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from samevec.digest import canonical_json, digest_json, sha256_file

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("n_bytes", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 5_000_000])
def test_a_file_of_any_size(n_bytes: int, tmp_path: Path) -> None:
    content = bytes(i % 251 for i in range(min(n_bytes, 997))) * (n_bytes // 997 + 1)
    (tmp_path / "file").write_bytes(content[:n_bytes])
    advances: list[int] = []
    found = sha256_file(tmp_path / "file", on_bytes=advances.append)
    assert found == hashlib.sha256(content[:n_bytes]).hexdigest() == sha256_file(tmp_path / "file")
    assert sum(advances) == n_bytes


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(OSError, match=r"No such file|Is a directory"):
            sha256_file(path)


def test_one_text_for_a_record() -> None:
    assert canonical_json({"b": [1, 0.5, None], "a": "é"}) == b'{"a":"\\u00e9","b":[1,0.5,null]}'
    assert digest_json({"a": 1, "b": 2}) == digest_json({"b": 2, "a": 1})
    assert digest_json({}) == "sha256:" + hashlib.sha256(b"{}").hexdigest()
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json(float("nan"))
