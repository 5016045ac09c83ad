"""Facts of the machine: a container's real compute and memory, and the processor's name."""

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
    """Return the CPU quota of this process's control group in cores, such as 0.5; None if unlimited.

    It is the smallest limit of the group and the visible groups above it. `root` is the mount point of the cgroup file
    system, `membership` the kernel's list of this process's groups.

    References
    ----------
    Linux ``admin-guide/cgroup-v2.rst`` (``cpu.max``: "$MAX $PERIOD"), ``scheduler/sched-bwc.rst`` (version 1:
    ``cpu.cfs_quota_us``, -1 for none), ``cgroups(7)`` (``/proc/self/cgroup``).
    """
    quotas = [_directory_quota(directory) for directory in _cgroup_directories(root, membership, "cpu")]
    return min((quota for quota in quotas if quota is not None), default=None)


def _directory_quota(directory: Path) -> float | None:
    """Return the CPU limit of one control group, of either version."""
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
    """Yield every directory that may limit this process: mount points, its own groups, and those above them."""
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

    The smallest of the machine's available memory and the room under each limit of the process's control groups. File
    pages, mapped weights among them, count as room: the kernel drops them first. Parameters as in
    :func:`cgroup_cpu_quota`.

    References
    ----------
    Linux ``admin-guide/cgroup-v2.rst`` (``memory.max``, ``memory.current``, ``memory.stat``) and
    ``cgroup-v1/memory.rst`` (``memory.limit_in_bytes``, ``memory.usage_in_bytes``, ``total_`` lines of the statistics).
    """
    rooms = [_directory_room(directory) for directory in _cgroup_directories(root, membership, "memory")]
    return min([int(psutil.virtual_memory().available), *(room for room in rooms if room is not None)])


def _directory_room(directory: Path) -> int | None:
    """Return the bytes left under the limit of one control group, of either version."""
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
    """Return the private and the resident memory of this process.

    Returns
    -------
    private_bytes : int
        Anonymous pages (``RssAnon``); where the kernel does not state them, pages that no other process has.
    resident_bytes : int
        Those, and mapped pages of files (``VmRSS``).
    """
    try:
        fields = dict(line.partition(":")[::2] for line in status.read_text().splitlines())
        return int(fields["RssAnon"].split()[0]) * 1024, int(fields["VmRSS"].split()[0]) * 1024
    except (OSError, KeyError, ValueError, IndexError):
        memory = psutil.Process().memory_full_info()
        return int(memory.uss), int(memory.rss)


def give_back_memory() -> bool:
    """Return freed memory that glibc keeps to the system; False under another C library.

    Notes
    -----
    glibc keeps up to 64 MB of freed buffers for each computing thread, about 200 MB after loading the toy pair. Takes
    milliseconds and releases the interpreter lock. See malloc_trim(3).
    """
    trim = _c_function("malloc_trim")
    if trim is None:
        return False
    trim(0)
    return True


def return_freed_memory() -> bool:
    """Make glibc return freed blocks of 1 MiB and more at once, from any thread; False under another C library.

    Notes
    -----
    glibc otherwise raises its thresholds to twice the largest block freed (at most 64 MB) and trims a thread's heap
    only when that thread frees: idle server threads keep up to 18 MB each, whatever :func:`give_back_memory` does.
    Fixed thresholds cost no measurable time. See mallopt(3), ``M_MMAP_THRESHOLD`` and ``M_TRIM_THRESHOLD``; their
    numbers are in glibc's ``malloc.h``.
    """
    mallopt = _c_function("mallopt")
    if mallopt is None:
        return False
    m_trim_threshold, m_mmap_threshold = -1, -3
    return bool(mallopt(m_mmap_threshold, 1 << 20) and mallopt(m_trim_threshold, 1 << 20))


def _c_function(name: str) -> Callable[..., int] | None:
    """Return a function of this process's C library by a name that only glibc has; None except on Linux."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


def allow_open_files(wanted: int = 65_536) -> int:
    """Raise the soft limit of open files, which bounds connections, towards `wanted`; return the limit now.

    Shells start processes with 1,024 (macOS: 256) for select(2), which is not used here; macOS refuses more than
    ``OPEN_MAX`` (10,240) even below an unlimited hard limit. See getrlimit(2).
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
    """Return how many threads may compute at once: the smaller of CPU affinity and the quota rounded up, at least 1.

    The quota, in cores, is the control group's when not given.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_cpu_quota() if quota is None else quota
    return max(1, affinity if quota is None else min(affinity, math.ceil(quota)))


@functools.cache
def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's name and architecture, as receipts state it.

    On Linux a digest of the instruction sets follows: virtual machines name different processors alike, and ONNX
    Runtime picks its kernels by instruction set.
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
