"""Facts of the machine: the compute allowance a container really has, and the processor's name."""

from __future__ import annotations

import functools
import math
import os
import platform
from pathlib import Path

__all__ = ["allowed_cpus", "cgroup_cpu_quota", "cpu_name"]


def cgroup_cpu_quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Return the CPU quota of this process's control group.

    Parameters
    ----------
    root : Path
        Where the cgroup file system is mounted.

    Returns
    -------
    float or None
        Cores' worth of time, such as 0.5 or 2.0; None where there is no limit or no control group.

    References
    ----------
    Linux ``Documentation/admin-guide/cgroup-v2.rst`` (``cpu.max``: "$MAX $PERIOD") and ``cgroup-v1/cpusets.rst``.
    """
    for limit_path, period_path in (
        (root / "cpu.max", None),
        (root / "cpu" / "cpu.cfs_quota_us", root / "cpu" / "cpu.cfs_period_us"),
    ):
        try:
            fields = limit_path.read_text().split()
            period = fields[1] if period_path is None else period_path.read_text().strip()
            quota = float(fields[0]) / float(period)
        except (OSError, ValueError, IndexError, ZeroDivisionError):
            continue  # absent, or "max": no limit from this version of cgroups
        if quota > 0:
            return quota
    return None


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
def cpu_name() -> str:
    """Return the processor's own name, as receipts state it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return f"{line.partition(':')[2].strip()} ({platform.machine()})"
    except OSError:
        pass  # not Linux: the platform module knows the name there
    return f"{platform.processor() or 'unknown processor'} ({platform.machine()})"
