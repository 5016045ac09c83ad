"""Facts of the machine: the compute allowance a container really has, and the processor's name."""

from __future__ import annotations

import functools
import hashlib
import math
import os
import platform
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["allowed_cpus", "cgroup_cpu_quota", "cpu_name"]


def cgroup_cpu_quota(
    root: Path = Path("/sys/fs/cgroup"), *, membership: Path = Path("/proc/self/cgroup")
) -> float | None:
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
    quotas = [_directory_quota(directory) for directory in _cgroup_directories(root, membership)]
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


def _cgroup_directories(root: Path, membership: Path) -> Iterator[Path]:
    """Give every directory that may limit this process: mount points, its own groups, and those above them."""
    mounts = [root, root / "cpu"]
    yield from mounts
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return  # not Linux, or no /proc
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = mounts[1] if controllers else mounts[0]  # no controllers named: the one hierarchy of version 2
        own = PurePosixPath(group.lstrip("/"))
        if ".." not in own.parts:  # a group outside of this container's view
            yield from (mount / above for above in (own, *own.parents) if above.parts)


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
        under a container's quota is what makes latency collapse (CASES O20).
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
