"""Impossible sizes and exhausted memory raise errors, without a crash or a leak."""

from __future__ import annotations

import sys

import pytest

from core.raw import core
from core.scripts import run_script

assert core, "these tests are skipped with all others where the core is not built"

HOSTILE = {
    "keys": "b = wide(2**40, 4), value = wide(2**40, 3)",
    "keys of no width": "b = wide(2**40, 0), a = wide(1, 0), value = wide(2**40, 0)",
    "hidden": "a = wide(1, 2**58), b = wide(7, 2**58)",
    "values": "value = wide(7, 2**58), output = empty(1, 0)",
    "queries": "a = wide(2**58, 4), output = empty(2**58, 0), stats = empty(2, 0)",
    "problems": "a = wide(2**28, 2**28, 0, 4), b = wide(1, 1, 7, 4), value = wide(1, 1, 7, 3), "
    "output = empty(2**28, 2**28, 0, 3), stats = empty(2**28, 2**28, 2, 0)",
    "problems of nothing": "a = wide(2**28, 2**28, 0, 4), b = wide(2**28, 2**28, 0, 4), "
    "value = wide(2**28, 2**28, 0, 3), output = empty(2**28, 2**28, 0, 3), "
    "stats = empty(2**28, 2**28, 2, 0)",
}

HOSTILE_CALL = """
import numpy as np
from anyscore import _core
from anyscore.call.operands import Operands, Settings

def wide(*shape):
    row = np.zeros(64, np.float32)
    return np.lib.stride_tricks.as_strided(row, shape, (0,) * (len(shape) - 1) + (4,))

def empty(*shape):
    return np.zeros(shape, np.float32)

x = dict(a=wide(1, 4), b=wide(7, 4), value=wide(7, 3), output=empty(1, 3), stats=empty(2, 1))
x |= dict({changes})
try:
    operands = Operands(x["a"], x["b"], value=x["value"])
    numbers = Settings("{pair}", 1.0, 1, 0.0, 1, ()).numbers
    _core.forward(operands, "{pair}", numbers, (x["output"], x["stats"], None), 2)
except (ValueError, MemoryError) as refusal:
    print(type(refusal).__name__, len(str(refusal)) > 10)
else:
    print("done")
"""


@pytest.mark.parametrize("pair", ["tanh", "absolute"])
@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_sizes(what: str, pair: str) -> None:
    """Sizes with overflowing products, or beyond any memory, raise at once."""
    found = run_script(HOSTILE_CALL.format(changes=HOSTILE[what], pair=pair))
    assert found in ("ValueError True\n", "MemoryError True\n", "MemoryError False\n")


STARVED = """
import resource
import numpy as np
from anyscore import _core
from anyscore.call.operands import Operands, Settings
from core.raw import run, same
from core.test_threads import large

def used(what):
    line = next(x for x in open("/proc/self/status") if x.startswith(what))
    return int(line.split()[1]) * 1024

call = large("tanh", "problems")
expected = run(call, threads=2)
n = 4_000_000  # problems: each takes a few words of bookkeeping, whatever is in it
x = np.broadcast_to(np.zeros((1, 1, 1), np.float32), (n, 1, 1))
output, stats = np.zeros((n, 1, 1), np.float32), np.zeros((n, 2, 1), np.float32)
slopes = [np.zeros((n, 1, 1), np.float32) for _ in range(3)]

operands, numbers = Operands(x, x, value=x), Settings("tanh", 1.0, 1, 0.0, n, ()).numbers

def forward():
    _core.forward(operands, "tanh", numbers, (output, stats, None), 2)

def backward():
    to = (slopes[0], slopes[1], None, None, slopes[2], None, None)
    _core.backward(operands, "tanh", numbers, (output, stats, None), (output, None, None), to, 2)

def fails(work):
    try:
        work()
    except MemoryError:
        return True
    return False

limits = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (used("VmSize") + (48 << 20), limits[1]))
failed = [fails(forward), fails(backward)]
held = used("VmRSS")
failed += [fails(work) for _ in range(20) for work in (forward, backward)]
assert used("VmRSS") - held < 8 << 20, used("VmRSS") - held
resource.setrlimit(resource.RLIMIT_AS, limits)
assert same(expected, run(call, threads=2))
forward()
assert not stats.any()
print(sum(failed), "of", len(failed))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited in Linux's way")
def test_failed_allocations() -> None:
    """A failed allocation raises MemoryError and leaks nothing, and the next call works."""
    assert run_script(STARVED) == "42 of 42\n"
