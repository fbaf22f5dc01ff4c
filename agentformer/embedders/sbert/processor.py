"""What this process may use of the processor."""

from __future__ import annotations

import functools
import math
import os
import platform
import sys
from pathlib import Path

_FLAGS = Path("/proc/cpuinfo")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # version 2: "200000 100000", or "max 100000"
_OLD_QUOTA = Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
_OLD_PERIOD = Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us")


def usable_cpus() -> int:
    """Threads that the model may use: the processors of this process, within a container's quota and
    `OMP_NUM_THREADS`. At least 1."""
    count = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    limits = [count, math.ceil(_quota())] if _quota() else [count]
    told = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if told.isdecimal() and int(told):
        limits.append(int(told))
    return max(1, min(limits))


def _quota() -> float:
    """Processors' worth of time that the container gets; 0.0: no limit is told."""
    try:
        if _QUOTA.exists():
            quota, period = _QUOTA.read_text().split()
        else:
            quota, period = _OLD_QUOTA.read_text().strip(), _OLD_PERIOD.read_text().strip()
        return max(0.0, int(quota) / int(period)) if quota != "max" else 0.0
    except (OSError, ValueError, ZeroDivisionError):
        return 0.0


@functools.cache
def has_bf16() -> bool:
    """Whether the processor multiplies bf16 itself; where it does not, bf16 is slower than fp32."""
    try:
        text = _FLAGS.read_text()
    except OSError:
        return False
    flags = next((line for line in text.splitlines() if line.startswith("flags")), "").split()
    return "avx512_bf16" in flags or "amx_bf16" in flags


def may_have_accelerator() -> bool:
    """Whether torch is likely to find a faster device than the processor, told without loading torch."""
    apple = sys.platform == "darwin" and platform.machine() == "arm64"
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1")
    cards = (Path("/dev/nvidiactl"), Path("/dev/kfd"))
    return apple or (not hidden and any(card.exists() for card in cards))
