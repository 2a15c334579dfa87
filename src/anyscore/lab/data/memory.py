"""A budget of memory for texts; what goes beyond it is kept on disk."""

from __future__ import annotations

import os
from pathlib import Path

# Measured while reading and encoding 150,000 pairs by characters, which takes most: about 300 bytes
# a text and, at the peak, 14 a character of Latin and 16 of other scripts.
_PER_TEXT = 400
_PER_CHARACTER = 16
_SHARE = 0.7  # of the memory that is free; the rest is for training


class Budget:
    """Counts the texts that are kept against the memory that was free at the beginning.

    Args:
        free: bytes; None asks the machine.
    """

    def __init__(self, free: int | None = None) -> None:
        self._left = _SHARE * (free_memory() if free is None else free)

    def keep(self, text: str) -> None:
        """Count a text that is kept."""
        self._left -= _PER_TEXT + _PER_CHARACTER * len(text)

    def forget(self, text: str) -> None:
        """Count a text that is kept no longer."""
        self._left += _PER_TEXT + _PER_CHARACTER * len(text)

    @property
    def spent(self) -> bool:
        """More was kept than the budget allows."""
        return self._left < 0


def free_memory() -> int:
    """Return the bytes that this process can still get from its machine, container and limit."""
    bounds = [_pages()]
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            bounds.append(
                limit - int(_read("/proc/self/statm").split()[0]) * os.sysconf("SC_PAGESIZE")
            )
    except (ImportError, OSError, ValueError, IndexError):
        pass
    for most, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        ),
    ):
        try:
            # What a container has used holds cached files too, which it gives back: at least a
            # quarter of its limit is taken as free.
            bounds.append(max(int(_read(most)) - int(_read(used)), int(_read(most)) // 4))
        except (OSError, ValueError):
            continue
    return max(0, min(bounds))


def _pages() -> int:
    """Return the bytes of memory that the machine has free."""
    try:
        for line in _read("/proc/meminfo").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE") // 2
    except (OSError, ValueError, AttributeError):
        return 2**62  # unknown: the system's own MemoryError is the bound


def _read(path: str) -> str:
    return Path(path).read_text(encoding="ascii")
