"""Peak memory: what a process grows by while it does the work once, each in its own process.

Run as a module it is that process: it takes one line of JSON and answers with one.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from anyscore.lab.bench.work import Shape, Work

_PROCESS = Path("/proc/self")
_SMALL = 16  # queries and keys of the call that loads what is loaded once


def peak_growth(name: str, how: str, work: Work, threads: int) -> dict[str, Any]:
    """{"mib": growth, "problem": None} of the rival `name`, set up in the way called `how`.

    Counted is what the process holds at most beyond what it held before: results, saved tensors,
    buffers inside operations. What is loaded once is not: a call with few queries and keys comes
    first, or, where the size is compiled for, a call of the same size, whose memory is given back.
    """
    asked = {"name": name, "how": how, "work": asdict(work), "threads": threads}
    environment = os.environ | {
        "OMP_NUM_THREADS": str(threads),
        "MALLOC_MMAP_THRESHOLD_": "65536",  # freed buffers go back to the system, and count again
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", __name__, json.dumps(asked)],
        capture_output=True,
        text=True,
        env=environment,
    )
    with suppress(IndexError, ValueError):
        found = json.loads(done.stdout.splitlines()[-1])
        if isinstance(found, dict):
            return found
    return {"mib": None, "problem": f"failed: the process ended with status {done.returncode}"}


def available_bytes() -> int:
    """Memory that a process may still take: of the system, or of its container if that is less."""
    free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        free = next(int(x.split()[1]) * 1024 for x in lines if x.startswith("MemAvailable"))
    with suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        free = min(free, limit - int((group / "memory.current").read_text()))
    return free


def _measure(asked: dict[str, Any]) -> dict[str, Any]:
    import torch

    from anyscore.lab.bench.rival import Unavailable
    from anyscore.lab.bench.rivals import OURS, RIVALS

    torch.set_num_threads(asked["threads"])
    rival = (RIVALS | {OURS.name: OURS})[asked["name"]]
    work = Work(**asked["work"] | {"shape": Shape(*asked["work"]["shape"])})
    try:
        ways = {way.how: way for way in rival.ways(work)}
    except Unavailable as reason:
        return {"mib": None, "problem": str(reason)}
    way = ways.get(asked["how"]) or next(iter(ways.values()))
    shape = work.shape
    small = shape._replace(queries=min(shape.queries, _SMALL), keys=min(shape.keys, _SMALL))
    call = way.build()
    try:
        (call if way.compiles else rival.ways(replace(work, shape=small))[0].build())()
    except Unavailable:
        call()
    _give_back()
    _restart_peak()
    before = _now_and_peak()[0]
    results = call()
    growth = _now_and_peak()[1] - before
    del results
    return {"mib": growth / 2**20, "problem": None}


def _give_back() -> None:
    """What is free goes back to the system."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _restart_peak() -> None:
    """Linux forgets the highest memory the process ever held."""
    with suppress(OSError):
        (_PROCESS / "clear_refs").write_text("5")


def _now_and_peak() -> tuple[int, int]:
    """Resident bytes now, and the most there were; the latter for both where the system says no
    more."""
    try:
        lines = (_PROCESS / "status").read_text(encoding="utf-8").splitlines()
        sizes = {x.partition(":")[0]: x.split()[1] for x in lines if x.startswith("Vm")}
        return int(sizes["VmRSS"]) * 1024, int(sizes["VmHWM"]) * 1024
    except (OSError, KeyError):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        peak *= 1 if sys.platform == "darwin" else 1024
        return peak, peak


if __name__ == "__main__":
    print(json.dumps(_measure(json.loads(sys.argv[1]))))
