"""The memory of the machine and of this process is read from the system."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from contextlib import suppress
from pathlib import Path

_PROCESS = Path("/proc/self")


def available_bytes() -> int:
    """Return the bytes that a process may still take: of the system, or less of its container."""
    free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        free = next(int(x.split()[1]) * 1024 for x in lines if x.startswith("MemAvailable"))
    with suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        free = min(free, limit - int((group / "memory.current").read_text()))
    return free


def give_back() -> None:
    """Give free memory back to the system."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def now_and_peak() -> tuple[int, int]:
    """Return the resident bytes now and at their peak; the peak twice outside Linux."""
    try:
        lines = (_PROCESS / "status").read_text(encoding="utf-8").splitlines()
        sizes = {x.partition(":")[0]: x.split()[1] for x in lines if x.startswith("Vm")}
        return int(sizes["VmRSS"]) * 1024, int(sizes["VmHWM"]) * 1024
    except (OSError, KeyError):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        peak *= 1 if sys.platform == "darwin" else 1024
        return peak, peak


def restart_peak() -> None:
    """Reset the peak of resident memory of this process, on Linux."""
    with suppress(OSError):
        (_PROCESS / "clear_refs").write_text("5")
