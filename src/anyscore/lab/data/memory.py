"""The memory of texts is counted while they are read, and compared with the free memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from anyscore.lab.errors import InputError

# Measured while reading and encoding 150,000 pairs, Latin and Chinese. Characters as tokens took
# 297 MB, which this gives as 312; words as tokens took half of it.
_PER_TEXT = 300
_PER_CHARACTER = 14
_SHARE = 0.7  # of the memory that is free; the rest is for training
_BETWEEN = 2**25  # bytes between two checks
_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


class Memory:
    """Counts kept texts; refuses a table as soon as its rows so far show that it will not fit.

    Args:
        name: of the table, for the message.
        share: returns the share of the table that was read, of which the kept texts come.
        limited: whether --limit can make the table fit.

    Attributes:
        bytes: that the kept texts will take at the most, once they are tokens.
    """

    def __init__(
        self,
        name: str = "the pairs",
        share: Callable[[], float] = lambda: 1.0,
        *,
        limited: bool = True,
    ) -> None:
        self._name, self._share, self._limited = name, share, limited
        self._free = free_memory()
        self.bytes = 0
        self._checked = self._texts = 0

    def keep(self, text: str) -> None:
        """Count a text that is kept.

        Raises:
            InputError: memory will not hold the table.
        """
        self._texts += 1
        self.bytes += _PER_TEXT + _PER_CHARACTER * len(text)
        if self.bytes > self._checked + _BETWEEN:
            self._checked = self.bytes
            self._check()

    def forget(self, text: str) -> None:
        """Count a text that is kept no longer."""
        self._texts -= 1
        self.bytes -= _PER_TEXT + _PER_CHARACTER * len(text)

    def _check(self) -> None:
        needed = self.bytes / self._share()
        if needed <= _SHARE * self._free:
            return
        way_out = "give a smaller file"
        if self._limited:
            # A pair is two texts. One significant digit is enough for a number to type.
            fitting = int(_SHARE * self._free / self.bytes * self._texts / 2)
            fitting -= fitting % 10 ** (len(str(fitting)) - 1)
            way_out = f"give --limit N to use a fair sample, as in --limit {max(fitting, 10)}"
        raise InputError(
            f"{self._name}: expected pairs that memory holds, found more: they would take about "
            f"{needed / 1e9:.1f} GB, {self._free / 1e9:.1f} GB are free; {way_out}"
        )


def free_memory() -> int:
    """Return the bytes that this process can still get from its machine and its container."""
    bounds = [_available()]
    for limit_file, used_file in _CGROUPS:
        try:
            limit = int(Path(limit_file).read_text("ascii"))
            used = int(Path(used_file).read_text("ascii"))
        except (OSError, ValueError):
            continue
        # The used memory holds cached files too, which are given back.
        bounds.append(max(limit - used, limit // 4))
    return min(bounds)


def _available() -> int:
    """Return the bytes of memory that the machine has free."""
    try:
        for line in Path("/proc/meminfo").read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE") // 2
    except (OSError, ValueError, AttributeError):
        return 2**62  # unknown: the system's own MemoryError is the bound
