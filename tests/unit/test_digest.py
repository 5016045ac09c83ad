"""Digests of files and records."""

from __future__ import annotations

import hashlib
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from samevec import digest
from samevec.digest import ChunkedDigest, canonical_json, chunked_sha256, digest_json, sha256_file

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


def counting(n_bytes: int) -> bytes:
    return bytes(i % 251 for i in range(n_bytes))


SKIPS: list[list[tuple[int, int]]] = [
    [],
    [(0, 10)],
    [(90, 10)],
    [(0, 100)],
    [(10, 5), (15, 5), (40, 0), (60, 39)],
]


@pytest.mark.parametrize("skip", SKIPS)
def test_a_chunked_digest_sees_every_byte_that_is_not_skipped(skip: list[tuple[int, int]], tmp_path: Path) -> None:
    path, content = tmp_path / "file", counting(100)
    path.write_bytes(content)
    whole = chunked_sha256(path, skip=skip)
    skipped = {place for start, length in skip for place in range(start, start + length)}
    for place in range(100):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert (chunked_sha256(path, skip=skip) == whole) == (place in skipped)
    for changed in (content[:-1], content + b"\0"):
        path.write_bytes(changed)
        with suppress(ValueError):  # it ends before what is to be skipped
            assert chunked_sha256(path, skip=skip) != whole


def test_what_is_skipped_is_part_of_the_digest(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(100))
    assert len({chunked_sha256(tmp_path / "file", skip=skip) for skip in SKIPS}) == len(SKIPS)


@pytest.mark.parametrize(
    "skip", [[(101, 0)], [(99, 2)], [(-1, 1)], [(5, -1)], [(50, 10), (55, 10)], [(50, 1), (40, 1)]]
)
def test_ranges_that_cannot_be_skipped(skip: list[tuple[int, int]], tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(100))
    with pytest.raises(ValueError, match="cannot skip"):
        chunked_sha256(tmp_path / "file", skip=skip)


def test_chunks_in_any_number_of_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "_PARALLEL_BYTES", 1000)
    path, content = tmp_path / "file", counting(10_500)
    path.write_bytes(content)
    found = {chunked_sha256(path, skip=[(3_500, 1_000)], n_threads=n) for n in (1, 2, 7)}
    text = hashlib.sha256(b"10500")
    for start, length in ((i, 1000) for i in (0, 1000, 2000)):
        text.update(f";{start}+{length}:".encode() + hashlib.sha256(content[start : start + length]).digest())
    text.update(b";3000+500:" + hashlib.sha256(content[3000:3500]).digest())
    for start in range(4500, 10_500, 1000):
        text.update(f";{start}+1000:".encode() + hashlib.sha256(content[start : start + 1000]).digest())
    assert found == {"chunked-sha256:" + text.hexdigest()}


def test_a_digest_begun_early_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(counting(5000))
    with ChunkedDigest(tmp_path / "file") as begun:
        begun.begin(1)
        begun.begin(1)
        assert begun.result() == begun.result() == chunked_sha256(tmp_path / "file")


def test_a_digest_nobody_wants_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its threads end without reading on, and none of them would keep the process alive."""
    monkeypatch.setattr(digest, "_PARALLEL_BYTES", 1)
    (tmp_path / "file").write_bytes(bytes(1000))
    hashed: list[int] = []
    go_on = threading.Event()

    def slow(_self: object, _file: object, _buffer: object, start: int, _left: int) -> bytes:
        hashed.append(start)
        go_on.wait(30)
        return b""

    monkeypatch.setattr(ChunkedDigest, "_digest_chunk", slow)
    with ChunkedDigest(tmp_path / "file") as begun:
        begun.begin(2)
        threads = [thread for thread in threading.enumerate() if thread.name == "samevec-digest"]
        assert [thread.daemon for thread in threads] == [True, True]
    go_on.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert len(hashed) <= 2


def test_a_file_that_goes_away_while_it_is_hashed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(100))
    with ChunkedDigest(tmp_path / "file") as begun:
        (tmp_path / "file").unlink()
        with pytest.raises(FileNotFoundError):
            begun.result()
