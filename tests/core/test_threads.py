"""Results have the same bits with any number of threads, in any Python thread, and after a fork."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from anyscore.call.operands import Operands, Settings
from core.call import DTYPES, PAIRS, Call
from core.draw import MASKS, draw
from core.raw import check, core, run, same
from core.scripts import run_script
from helpers.hang import HANG

PAIR = pytest.mark.parametrize("pair", PAIRS)

LARGE: dict[str, dict[str, Any]] = {
    "problems": {"lead": (2, 2), "groups": 2, "queries": 90, "keys": 150, "hidden": 33, "width": 9},
    "queries": {"lead": (), "queries": 700, "keys": 130, "hidden": 64, "width": 17},
    "keys": {"lead": (1,), "queries": 70, "keys": 900, "hidden": 40, "width": 64},
    "steps": {"lead": (64,), "queries": 1, "keys": 300, "hidden": 64, "width": 32},
}
"""Calls that are large enough for several threads, along each axis."""


def large(pair: str, axis: str, mask: str = "none", dtype: str = "float32") -> Call:
    rng = np.random.default_rng([PAIRS.index(pair), len(axis), len(mask)])
    return draw(rng, pair, mask, dtype, **LARGE[axis])


@pytest.mark.sanitize
@pytest.mark.parametrize("axis", LARGE)
@PAIR
def test_same_bits(pair: str, axis: str) -> None:
    """Any number of threads gives the same bits, run after run."""
    drawn = ("none", "float32"), ("interval and boolean", "float64"), ("causal", "bfloat16")
    for mask, dtype in drawn:
        call = large(pair, axis, mask, dtype)
        prepared = pair == "tanh" and axis == "steps"
        alone = run(call, threads=1, prepared=prepared)
        for threads in (2, 3, 7, 1, 2):
            assert same(alone, run(call, threads=threads, prepared=prepared)), f"{threads}: {call}"


@pytest.mark.parametrize("axis", LARGE)
@PAIR
def test_large(pair: str, axis: str) -> None:
    """Large calls on two threads are within the budget."""
    check(large(pair, axis, "interval"), threads=2)


@pytest.mark.parametrize("isa", core.isas())
@PAIR
def test_each_isa(pair: str, isa: str) -> None:
    """Each instruction set of this machine is within the budget."""
    core.use(isa)
    rng = np.random.default_rng(PAIRS.index(pair))
    for mask in MASKS:
        for dtype in DTYPES:
            check(draw(rng, pair, mask, dtype), threads=2)
            check(draw(rng, pair, mask, dtype, queries=1), prepared=pair == "tanh")
    call = large(pair, "problems", "window")
    assert same(run(call, threads=1), run(call, threads=3))


def test_isas_are_named() -> None:
    assert core.isas()[-1] == "baseline"
    with pytest.raises(ValueError, match=r"(?s)sse9.*baseline"):
        core.use("sse9")


@contextmanager
def faster_switching() -> Iterator[None]:
    """Let Python switch threads a thousand times as often."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.sanitize
def test_many_calls_at_once() -> None:
    """Calls from eight Python threads at once, each with its own threads, give the same bits."""
    rng = np.random.default_rng(0)
    drawn = [
        draw(rng, pair, mask, str(rng.choice(DTYPES)))
        for pair in PAIRS
        for mask in ("none", "lengths", "boolean")
    ]
    drawn += [large("tanh", "steps"), large("absolute", "problems")]
    alone = [run(call) for call in drawn]

    def work(n: int) -> bool:
        k = n % len(drawn)
        return same(alone[k], run(drawn[k], threads=1 + n % 3))

    with faster_switching(), ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(2000)))


def test_the_gil_is_released() -> None:
    """Python runs on while a long call computes."""
    one = np.ones((1, 512), np.float32)
    tokens = np.broadcast_to(one, (3000, 512))
    value, output = np.ones((3000, 1), np.float32), np.zeros((3000, 1), np.float32)
    stats = np.zeros((2, 3000), np.float32)
    span = [0.0, 0.0]

    def work() -> None:
        span[0] = time.perf_counter()
        operands = Operands(tokens, tokens, value=value)
        numbers = Settings("absolute", 1.0, 1, 0.0, 1, ()).numbers
        core.forward(operands, "absolute", numbers, (output, stats, None), 1)
        span[1] = time.perf_counter()

    thread, ticks = threading.Thread(target=work), []
    thread.start()
    while thread.is_alive():
        ticks.append(time.perf_counter())
        time.sleep(1e-4)
    thread.join()
    inside = [t for t in ticks if span[0] < t < span[1]]
    assert len(inside) >= 5, f"{len(inside)} ticks in {span[1] - span[0]:.3f} s"


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timers here")
def test_signals_are_taken() -> None:
    """A signal each millisecond changes nothing, and its handler runs."""
    call, caught = large("tanh", "problems"), []
    alone = run(call, threads=2)
    before = signal.signal(signal.SIGALRM, lambda *_: caught.append(0))
    signal.setitimer(signal.ITIMER_REAL, 1e-3, 1e-3)
    try:
        assert all(same(alone, run(call, threads=2)) for _ in range(20))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert caught


AFTER_FORK = """
import os, signal, sys, threading, warnings
warnings.simplefilter("ignore")  # newer Pythons warn of any fork of a process with threads
from anyscore.call.operands import Operands, Settings
from core.raw import run, same
from core.test_threads import large

call = large("tanh", "problems")
alone = run(call, threads={before})
stopped = threading.Event()

def keep_calling():
    while not stopped.is_set():
        run(call, threads=2)

busy = [threading.Thread(target=keep_calling) for _ in range({busy})]
for thread in busy:
    thread.start()
for _ in range({forks}):
    child = os.fork()
    if child == 0:
        signal.alarm({hang})  # a child that hangs is killed
        right = all(same(alone, run(call, threads=n)) for n in (2, 1, 3))
        os._exit(0 if right else 1)
    status = os.waitpid(child, 0)[1]
    assert status == 0, f"a forked child ended with status {{status}}"
    assert same(alone, run(call, threads=2))
stopped.set()
for thread in busy:
    thread.join()
print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize(("before", "busy"), [(1, 0), (2, 0), (2, 2)])
def test_after_a_fork(before: int, busy: int) -> None:
    """A forked worker does not wait for its parent's threads, as it has none of them."""
    script = AFTER_FORK.format(before=before, busy=busy, hang=HANG, forks=10 if busy else 3)
    assert run_script(script) == "done\n"


WORKERS = """
import multiprocessing as mp, warnings
warnings.simplefilter("ignore")
from anyscore.call.operands import Operands, Settings
from core.raw import run
from helpers.hang import HANG
from core.test_threads import large

def work(n):
    return run(large("tanh", "problems"), threads=2)["output"].tobytes()

if __name__ == "__main__":
    first = work(0)
    with mp.get_context("fork").Pool(2) as pool:
        assert set(pool.map_async(work, range(8)).get(timeout=HANG)) == {first}
    print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_in_forked_workers() -> None:
    """Calls work in forked workers, as in a DataLoader."""
    assert run_script(WORKERS) == "done\n"


DAEMONS = """
import threading
import numpy as np
from anyscore import Additive, attention, make_cache

x, w = np.ones((2, 300, 16), np.float32), np.ones(16, np.float32)
score = Additive(None, None, w)

def again():
    attention(x, x, x, score=score)

def looked_at():
    attention(x, x, x, score=score, return_lse=True)

def appended():
    make_cache(x, x, score, capacity=300)

for work in (again, looked_at, appended):
    began = threading.Event()

    def keep_working(work=work, began=began):
        while True:
            work()
            began.set()

    threading.Thread(target=keep_working, daemon=True).start()
    began.wait()
print("done")
"""


def test_a_process_ends_beside_threads_that_compute() -> None:
    """A process ends normally: Python ends each daemon thread at its return from the core."""
    assert run_script(DAEMONS) == "done\n"
