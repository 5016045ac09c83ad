"""How much memory a container really has left, read from files made here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import psutil
import pytest

from samevec.machine import available_memory_bytes

if TYPE_CHECKING:
    from pathlib import Path

MACHINE_BYTES = 10_000


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=MACHINE_BYTES))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def version_2(group: Path, limit: str, used: int, stat: str = "") -> None:
    write(group / "memory.max", f"{limit}\n")
    write(group / "memory.current", f"{used}\n")
    write(group / "memory.stat", stat)


def version_1(group: Path, limit: int, used: int, stat: str = "") -> None:
    write(group / "memory.limit_in_bytes", f"{limit}\n")
    write(group / "memory.usage_in_bytes", f"{used}\n")
    write(group / "memory.stat", stat)


def room(root: Path, member_of: str = "") -> int:
    write(root / "membership", member_of)
    return available_memory_bytes(root, membership=root / "membership")


def test_without_control_groups_the_machine_decides(tmp_path: Path) -> None:
    assert room(tmp_path) == MACHINE_BYTES
    assert available_memory_bytes(tmp_path / "none", membership=tmp_path / "none") == MACHINE_BYTES


@pytest.mark.parametrize(
    ("limit", "used", "expected"),
    [("4000", 1500, 2500), ("4000", 4200, 0), ("max", 1500, MACHINE_BYTES), ("90000", 10, MACHINE_BYTES)],
)
def test_version_2_at_the_mount(limit: str, used: int, expected: int, tmp_path: Path) -> None:
    version_2(tmp_path, limit, used)
    assert room(tmp_path) == expected


def test_version_2_counts_file_pages_as_room(tmp_path: Path) -> None:
    version_2(tmp_path, "4000", 3900, "anon 900\nfile 3000\ninactive_file 2000\nactive_file 700\nslab_reclaimable 30\n")
    assert room(tmp_path) == 100 + 2000 + 700 + 30


def test_version_1_reads_the_totals(tmp_path: Path) -> None:
    stat = "inactive_file 1\nactive_file 2\ntotal_inactive_file 2000\ntotal_active_file 700\n"
    version_1(tmp_path / "memory", 4000, 3900, stat)
    assert room(tmp_path) == 100 + 2000 + 700


def test_version_1_without_a_limit_is_none(tmp_path: Path) -> None:
    version_1(tmp_path / "memory", 9223372036854771712, 3900)
    assert room(tmp_path) == MACHINE_BYTES


def test_the_least_room_of_all_groups_above_counts(tmp_path: Path) -> None:
    group = tmp_path / "system.slice" / "samevec.service"
    version_2(group, "6000", 1000)
    version_2(tmp_path / "system.slice", "7000", 4000)
    assert room(tmp_path, "0::/system.slice/samevec.service\n") == 3000
    version_2(tmp_path / "system.slice", "max", 4000)
    assert room(tmp_path, "0::/system.slice/samevec.service\n") == 5000
    assert room(tmp_path, "0::/user.slice\n") == MACHINE_BYTES


def test_version_1_groups_are_found_by_their_controller(tmp_path: Path) -> None:
    version_1(tmp_path / "memory" / "docker" / "ab12", 4000, 1000)
    assert room(tmp_path, "5:memory:/docker/ab12\n4:cpu,cpuacct:/other\n") == 3000
    assert room(tmp_path, "4:cpu,cpuacct:/docker/ab12\n") == MACHINE_BYTES


@pytest.mark.parametrize("broken", ["memory.max", "memory.current", "memory.stat"])
def test_files_that_cannot_be_read_are_no_limit(broken: str, tmp_path: Path) -> None:
    version_2(tmp_path, "4000", 1500)
    (tmp_path / broken).unlink()
    assert room(tmp_path) == MACHINE_BYTES
    if broken != "memory.stat":
        write(tmp_path / broken, "nonsense\n")
        assert room(tmp_path) == MACHINE_BYTES
