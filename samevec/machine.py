"""Facts of the machine: the compute and memory a container really has, and the processor's name."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import math
import os
import platform
import resource
import sys
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "allow_open_files",
    "allowed_cpus",
    "available_memory_bytes",
    "cgroup_cpu_quota",
    "cpu_name",
    "give_back_memory",
    "process_memory_bytes",
    "return_freed_memory",
]

_CGROUP_ROOT, _CGROUP_MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def cgroup_cpu_quota(root: Path = _CGROUP_ROOT, *, membership: Path = _CGROUP_MEMBERSHIP) -> float | None:
    """Return the CPU quota of this process's control group.

    Parameters
    ----------
    root : Path
        Where the cgroup file system is mounted.
    membership : Path
        The kernel's list of the groups this process is in.

    Returns
    -------
    float or None
        Cores' worth of time, such as 0.5 or 2.0: the smallest limit of the process's group and all groups above it, as
        far as they can be seen from here. None where there is no limit or no control group.

    References
    ----------
    Linux ``Documentation/admin-guide/cgroup-v2.rst`` (``cpu.max``: "$MAX $PERIOD"), ``scheduler/sched-bwc.rst``
    (version 1: ``cpu.cfs_quota_us``, -1 for none), and ``cgroups(7)`` for the lines of ``/proc/self/cgroup``.
    """
    quotas = [_directory_quota(directory) for directory in _cgroup_directories(root, membership, "cpu")]
    return min((quota for quota in quotas if quota is not None), default=None)


def _directory_quota(directory: Path) -> float | None:
    """Return the limit that one control group sets, of either version."""
    for limit_name, period_name in (("cpu.max", None), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            fields = (directory / limit_name).read_text().split()
            period = fields[1] if period_name is None else (directory / period_name).read_text()
            quota = float(fields[0]) / float(period)
        except (OSError, ValueError, IndexError, ZeroDivisionError):
            continue  # absent, or "max": no limit
        if quota > 0:
            return quota
    return None


def _cgroup_directories(root: Path, membership: Path, controller: str) -> Iterator[Path]:
    """Give every directory that may limit this process: mount points, its own groups, and those above them."""
    mounts = [root, root / controller]
    yield from mounts
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return  # not Linux, or no /proc
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        mount = mounts[1] if controllers else mounts[0]  # no controllers named: the one hierarchy of version 2
        own = PurePosixPath(group.lstrip("/"))
        if ".." not in own.parts:  # a group outside of this container's view
            yield from (mount / above for above in (own, *own.parents) if above.parts)


def available_memory_bytes(root: Path = _CGROUP_ROOT, *, membership: Path = _CGROUP_MEMBERSHIP) -> int:
    """Return how much memory this process could still take before something is killed.

    Parameters
    ----------
    root, membership : Path
        As for :func:`cgroup_cpu_quota`.

    Returns
    -------
    int
        The smallest of what the machine has available and of the room under the limit of the process's control group
        and of each above it. File pages count as room, mapped weights too: the kernel drops them before it kills.

    References
    ----------
    Linux ``Documentation/admin-guide/cgroup-v2.rst`` (``memory.max``, ``memory.current``, ``memory.stat``) and
    ``cgroup-v1/memory.rst`` (``memory.limit_in_bytes``, ``memory.usage_in_bytes``, ``total_`` lines of the statistics).
    """
    rooms = [_directory_room(directory) for directory in _cgroup_directories(root, membership, "memory")]
    return min([int(psutil.virtual_memory().available), *(room for room in rooms if room is not None)])


def _directory_room(directory: Path) -> int | None:
    """Return the bytes left under the limit that one control group sets, of either version."""
    for limit_name, usage_name, prefix in (
        ("memory.max", "memory.current", ""),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    ):
        try:
            limit = int((directory / limit_name).read_text())
            used = int((directory / usage_name).read_text())
            pages = dict(map(str.split, (directory / "memory.stat").read_text().splitlines()))
            dropped_first = [
                pages.get(prefix + name, 0) for name in ("inactive_file", "active_file", "slab_reclaimable")
            ]
            return max(0, limit - used + sum(map(int, dropped_first)))
        except (OSError, ValueError):
            continue  # absent, or "max": no limit
    return None


def process_memory_bytes(status: Path = Path("/proc/self/status")) -> tuple[int, int]:
    """Return the memory of this process.

    Parameters
    ----------
    status : Path
        The kernel's account of it.

    Returns
    -------
    private_bytes : int
        Anonymous pages: what is given back only when the process ends or frees it. Where the kernel does not tell, the
        pages that no other process has.
    resident_bytes : int
        Those, and pages of files that are mapped here.

    References
    ----------
    Linux ``Documentation/filesystems/proc.rst``: ``RssAnon`` and ``VmRSS``, in kB.
    """
    try:
        fields = dict(line.partition(":")[::2] for line in status.read_text().splitlines())
        return int(fields["RssAnon"].split()[0]) * 1024, int(fields["VmRSS"].split()[0]) * 1024
    except (OSError, KeyError, ValueError, IndexError):
        memory = psutil.Process().memory_full_info()
        return int(memory.uss), int(memory.rss)


def give_back_memory() -> bool:
    """Return to the system what was freed and kept by the C library for later.

    Returns
    -------
    bool
        False where the C library has no such call: it is glibc's.

    Notes
    -----
    Each thread that computes frees its buffers into a heap of its own, and glibc keeps up to 64 MB of each: some 200 MB
    after a load of the toy pair. Takes milliseconds, without the interpreter's lock.

    References
    ----------
    malloc_trim(3), mallopt(3) on ``M_TRIM_THRESHOLD`` and ``M_ARENA_MAX``.
    """
    trim = _c_function("malloc_trim")
    if trim is None:
        return False
    trim(0)
    return True


def return_freed_memory() -> bool:
    """Have the C library of this process return freed blocks of 1 MiB and more to the system at once, from any thread.

    Returns
    -------
    bool
        False where the C library has no such setting: it is glibc's.

    Notes
    -----
    glibc raises its thresholds to twice the largest block that was ever freed, at most 64 MB, and trims the end of a
    thread's heap only when that thread frees something: up to 18 MB each stayed with idle threads of a server, whatever
    :func:`give_back_memory` did. Fixed thresholds end that. Full-shape models on 2 cores: no time is lost with them
    (64 mixed texts 8.8 and 8.3 s against 9.0 and 8.2, 2,000 texts tokenised in 114 and 110 ms against 114 and 115);
    a single heap for all threads would keep as little, and tokenise at a third of the speed.

    References
    ----------
    mallopt(3) on ``M_MMAP_THRESHOLD`` and ``M_TRIM_THRESHOLD``; their numbers are in glibc's ``malloc.h``.
    """
    mallopt = _c_function("mallopt")
    if mallopt is None:
        return False
    m_trim_threshold, m_mmap_threshold = -1, -3
    return bool(mallopt(m_mmap_threshold, 1 << 20) and mallopt(m_trim_threshold, 1 << 20))


def _c_function(name: str) -> Callable[..., int] | None:
    """Return a function of this process's C library by a name that only glibc has; None anywhere but on Linux."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


def allow_open_files(wanted: int = 65_536) -> int:
    """Raise this process's limit of open files, which bounds its connections, as far as it may itself.

    Parameters
    ----------
    wanted : int
        Enough; the hard limit may be less.

    Returns
    -------
    int
        The limit now.

    References
    ----------
    getrlimit(2). Shells start processes with 1,024, on macOS with 256, for the sake of select(2), which is not used
    here; macOS refuses more than ``OPEN_MAX`` (10,240) even below an unlimited hard limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in (wanted, 10_240):
        allowed = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        if soft == resource.RLIM_INFINITY or soft >= allowed:
            break
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
            return allowed
    return soft


def allowed_cpus(quota: float | None = None) -> int:
    """Return how many threads may compute at once here.

    Parameters
    ----------
    quota : float, optional
        CPU quota in cores; read from the control group when not given.

    Returns
    -------
    int
        At least 1: the smaller of the processor affinity and the quota rounded up. Sizing a pool to the host's cores
        under a container's quota is what makes latency collapse.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_cpu_quota() if quota is None else quota
    return max(1, affinity if quota is None else min(affinity, math.ceil(quota)))


@functools.cache
def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's own name, as receipts state it.

    Parameters
    ----------
    cpuinfo : Path
        Where Linux describes its processors.

    Returns
    -------
    str
        Name and architecture; on Linux also a digest of the instruction sets, since virtual machines call processors
        with different ones by the same name, and ONNX Runtime picks its kernels by them.
    """
    facts: dict[str, str] = {}
    try:
        for line in cpuinfo.read_text().splitlines():
            key, _, value = line.partition(":")
            facts.setdefault(key.strip(), value.strip())
    except OSError:
        pass  # not Linux: the platform module knows the name there
    name = facts.get("model name") or platform.processor() or "unknown processor"
    sets = facts.get("flags") or facts.get("Features")
    if sets is None:
        return f"{name} ({platform.machine()})"
    digest = hashlib.sha256(" ".join(sorted(sets.split())).encode()).hexdigest()
    return f"{name} ({platform.machine()}, instruction sets {digest[:8]})"
