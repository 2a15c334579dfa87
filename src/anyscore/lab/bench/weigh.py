"""The memory of a call is measured in a process of its own."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from anyscore.lab.bench.rivals import Rival, Unavailable
from anyscore.lab.bench.runner import said
from anyscore.lab.bench.work import Work
from anyscore.lab.own_process import command

_PROCESS = Path("/proc/self")
_SMALL = 16  # queries and keys of the first call, which loads libraries


def weigh(rival: Rival, how: str, work: Work, threads: int) -> tuple[float | None, str | None]:
    """Measure by how many MiB a process grows while it does the work once.

    how: the name of the variant; the first variant is taken if no other has the name.

    Returns:
        MiB, or None and why there are none.
    """
    reason = rival.why_not(work)
    if reason is not None:
        return None, reason
    settings = {
        "OMP_NUM_THREADS": str(threads),
        "MALLOC_MMAP_THRESHOLD_": "65536",  # freed buffers go back, and count again
    }
    done = subprocess.run(
        command(__name__),
        input=pickle.dumps((rival, how, work.to(), threads)),
        capture_output=True,
        start_new_session=True,  # Ctrl-C reaches this process only, which ends the child
        env=os.environ | settings,
    )
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2].strip()
        problem = f"failed: the process ended with status {done.returncode}"
        return None, f"{problem}: {last}"[:300] if last else problem
    mib, problem = json.loads(done.stdout)
    return mib, problem


def main() -> None:
    """Answer one request of `weigh` on standard input."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # standard output is for the answer alone
    rival, how, work, threads = pickle.load(sys.stdin.buffer)
    torch.set_num_threads(threads)
    mib, problem = None, None
    try:
        mib = peak(rival, how, work)
    except Unavailable as reason:
        problem = str(reason)
    except Exception as failure:
        problem = said(failure)
    json.dump((mib, problem), answers)
    answers.flush()


def peak(rival: Rival, how: str, work: Work) -> float:
    """Return by how many MiB this process grows while it does the work once.

    Results, saved tensors and buffers inside operations count. Libraries do not: a call with few
    queries and keys loads them first. A variant that compiles for a size is first called at that
    size, and its memory is released.
    """
    variants = {variant.how: variant for variant in rival.variants(work)}
    variant, shape = variants.get(how) or next(iter(variants.values())), work.shape
    few = shape._replace(queries=min(shape.queries, _SMALL), keys=min(shape.keys, _SMALL))
    call = variant.build()
    try:
        (call if variant.compiles else rival.variants(work.to(shape=few))[0].build())()
    except Unavailable:
        call()
    return growth(call)


def growth(call: Callable[[], object]) -> float:
    """Return by how many MiB this process grows at most while a call runs."""
    _give_back()
    _restart_peak()
    before = _now_and_peak()[0]
    results = call()
    most = _now_and_peak()[1] - before
    del results
    return most / 2**20


def _give_back() -> None:
    """Give free memory back to the system."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _now_and_peak() -> tuple[int, int]:
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


def _restart_peak() -> None:
    """Reset the peak of resident memory of this process, on Linux."""
    with suppress(OSError):
        (_PROCESS / "clear_refs").write_text("5")
