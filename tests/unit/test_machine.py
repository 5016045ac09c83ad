"""What a container really allows, read from files made here."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from samevec import machine
from samevec.machine import allowed_cpus, cgroup_cpu_quota, cpu_name

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def quota(root: Path, member_of: str | None = None) -> float | None:
    """The quota under a made-up mount, for a process in the groups given as lines of /proc/self/cgroup."""
    if member_of is not None:
        write(root / "membership", member_of)
    return cgroup_cpu_quota(root, membership=root / "membership")


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("200000 100000\n", 2.0),
        ("50000 100000\n", 0.5),
        ("150000 100000\n", 1.5),
        ("max 100000\n", None),
        ("max\n", None),
        ("", None),
        ("100000\n", None),
        ("100000 0\n", None),
        ("nonsense here\n", None),
        ("-1 100000\n", None),
    ],
)
def test_version_2_at_the_mount(text: str, cores: float | None, tmp_path: Path) -> None:
    write(tmp_path / "cpu.max", text)
    assert quota(tmp_path) == cores


@pytest.mark.parametrize(
    ("limit", "period", "cores"),
    [
        ("200000\n", "100000\n", 2.0),
        ("50000\n", "100000\n", 0.5),
        ("-1\n", "100000\n", None),
        ("0\n", "100000\n", None),
        ("100000\n", "0\n", None),
        ("100000\n", None, None),
        ("", "100000\n", None),
    ],
)
def test_version_1_at_the_mount(limit: str, period: str | None, cores: float | None, tmp_path: Path) -> None:
    write(tmp_path / "cpu" / "cpu.cfs_quota_us", limit)
    if period is not None:
        write(tmp_path / "cpu" / "cpu.cfs_period_us", period)
    assert quota(tmp_path) == cores


def test_no_control_groups_is_no_limit(tmp_path: Path) -> None:
    assert quota(tmp_path) is None
    assert cgroup_cpu_quota(tmp_path / "none", membership=tmp_path / "none") is None


def test_the_process_own_group_and_those_above_it_are_read(tmp_path: Path) -> None:
    # As on a host: the mount itself has no cpu.max, systemd sets it on slices and services.
    group = tmp_path / "system.slice" / "samevec.service"
    write(group / "cpu.max", "300000 100000\n")
    write(tmp_path / "system.slice" / "cpu.max", "max 100000\n")
    assert quota(tmp_path, "0::/system.slice/samevec.service\n") == 3.0
    write(tmp_path / "system.slice" / "cpu.max", "150000 100000\n")
    assert quota(tmp_path, "0::/system.slice/samevec.service\n") == 1.5
    assert quota(tmp_path, "0::/system.slice/other.service\n") == 1.5
    assert quota(tmp_path, "0::/user.slice\n") is None
    assert quota(tmp_path, "0::/\n") is None


def test_version_1_groups_are_found_by_their_controller(tmp_path: Path) -> None:
    group = tmp_path / "cpu" / "docker" / "ab12"
    write(group / "cpu.cfs_quota_us", "250000\n")
    write(group / "cpu.cfs_period_us", "100000\n")
    lines = "5:memory:/docker/ab12\n4:cpu,cpuacct:/docker/ab12\n3:cpuset:/other\n0::/\n"
    assert quota(tmp_path, lines) == 2.5
    assert quota(tmp_path, "5:memory:/docker/ab12\n3:cpuset:/docker/ab12\n") is None


@pytest.mark.parametrize("lines", ["", "\n", "nonsense\n", "0::/../../x\n", "0::\n", "a:b\n"])
def test_odd_membership_is_no_limit(lines: str, tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    write(tmp_path / "x" / "cpu.max", "100000 100000\n")
    inner.mkdir(parents=True)
    assert quota(inner, lines) is None


@pytest.mark.parametrize(
    ("n_affine", "cores", "threads"),
    [(8, 2.0, 2), (8, 1.5, 2), (8, 0.5, 1), (2, 16.0, 2), (1, 0.01, 1), (4, 4.0, 4)],
)
def test_threads_follow_the_smaller_of_affinity_and_quota(
    n_affine: int, cores: float, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(n_affine)), raising=False)
    assert allowed_cpus(cores) == threads
    monkeypatch.setattr(machine, "cgroup_cpu_quota", lambda: cores)
    assert allowed_cpus() == threads


def test_without_a_quota_affinity_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cgroup_cpu_quota", lambda: None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 5, 6}, raising=False)
    assert allowed_cpus() == 3


def test_without_affinity_the_count_of_processors_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cgroup_cpu_quota", lambda: None)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert allowed_cpus() == 7
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert allowed_cpus() == 1


def test_this_machine_answers() -> None:
    assert 1 <= allowed_cpus() <= (os.cpu_count() or 1)
    assert cpu_name() == cpu_name()
    assert cpu_name().endswith(")")
    assert "\n" not in cpu_name()


FREED = """
import ctypes, threading
from samevec.machine import give_back_memory, process_memory_bytes
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p

def work():
    blocks = [libc.malloc(64 << 10) for _ in range(600)]
    for block in blocks:
        ctypes.memset(block, 1, 64 << 10)
    libc.malloc(64 << 10)  # lies above them: they cannot be given back from the end
    for block in blocks:
        libc.free(ctypes.c_void_p(block))

thread = threading.Thread(target=work)
thread.start()
thread.join()
kept = process_memory_bytes()[0]
assert give_back_memory()
print(kept - process_memory_bytes()[0])
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the call is glibc's")
def test_freed_memory_goes_back() -> None:
    done = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 30 << 20


RETURNED = """
import ctypes, sys, threading
from samevec.machine import process_memory_bytes, return_freed_memory
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
size = 8 << 20
if sys.argv[1] == "set":
    assert return_freed_memory()

def work():
    for _ in range(2):  # the first one teaches glibc to keep such blocks
        block = libc.malloc(size)
        ctypes.memset(block, 1, size)
        libc.free(ctypes.c_void_p(block))
    freed.set()
    done.wait(20)  # an idle thread, with a heap of its own

freed, done = threading.Event(), threading.Event()
thread = threading.Thread(target=work)
before = process_memory_bytes()[0]
thread.start()
assert freed.wait(20)
print(process_memory_bytes()[0] - before)
done.set()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is glibc's")
def test_idle_threads_keep_no_freed_memory() -> None:
    kept_bytes = {}
    for how in ("set", "as it is"):
        command = [sys.executable, "-c", RETURNED, how]
        kept_bytes[how] = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert kept_bytes["set"] < 2 << 20
    assert kept_bytes["as it is"] > 6 << 20


OPEN_FILES = """
import resource
from samevec.machine import allow_open_files
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 500))
print(allow_open_files(400), allow_open_files(300), allow_open_files(), resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_open_files_are_allowed_up_to_the_hard_limit_and_never_fewer() -> None:
    done = subprocess.run([sys.executable, "-c", OPEN_FILES], capture_output=True, text=True, check=True)
    assert done.stdout == "400 400 500 (500, 500)\n"
