"""The kernels for Arm with NEON run under QEMU. The same program runs on this machine, to tell
errors of the kernels from errors of the program. Both emulate products of bfloat16 numbers. A third
program has the instructions for them: some processors run instructions that they do not list.

Debian: apt-get install g++-aarch64-linux-gnu qemu-user
"""

from __future__ import annotations

import math
import platform
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

from core.call import PAIRS, Call, name_of, numbers, stored
from core.cpp import CSRC
from core.literal import Results
from core.raw import compare
from helpers import machine
from helpers.hang import HANG

pytestmark = pytest.mark.weekly  # three builds of the core

TYPES = "float32", "float64", "float16", "bfloat16"  # in the order of call.h
HERE = Path(__file__).parent
HEADS, KEYS, HIDDEN, WIDTH = 2, 70, 21, 18
EMULATED = "-DANYSCORE_ISA=baseline", "-DANYSCORE_EMULATE_DOTS"
DOTS = "-DANYSCORE_ISA=avx512", "-DANYSCORE_DOTS", "-march=x86-64-v4"
MACHINES = {
    "here": (("g++", *EMULATED), ()),
    "arm": (("aarch64-linux-gnu-g++", *EMULATED), ("qemu-aarch64",)),
    "dots": (("g++", *DOTS), ()),
}
FLAGS = [
    "-std=c++17",
    "-O1",
    "-pthread",
    "-static",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-signed-zeros",
    "-ffinite-math-only",
    "-ffp-contract=fast",
]


@pytest.fixture(scope="module", params=MACHINES)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    (compiler, *flags), runner = MACHINES[request.param]
    if request.param == "dots" and platform.machine() != "x86_64":
        pytest.skip("no x86 here")
    for part in (compiler, *runner):
        machine.program(part)
    target = tmp_path_factory.mktemp("emulated") / "program"
    kernels = {f"kernel_{sums}.o": f"-DANYSCORE_SUMS={sums}" for sums in ("float", "double")}
    command = [compiler, *FLAGS, *flags, f"-I{CSRC}"]
    for name, sums in kernels.items():
        part = target.with_name(name)
        compiled([*command, sums, "-c", CSRC / "attention/kernel.cpp", "-o", part])
    sources = HERE / "elsewhere.cpp", CSRC / "runtime/memory.cpp", CSRC / "runtime/parallel.cpp"
    compiled([*command, *sources, *map(target.with_name, kernels), "-o", target])
    made = [*runner, str(target)]
    if _start(made, drawn("product", 67, "bfloat16")).returncode == -signal.SIGILL:
        pytest.skip("the processor has no such instructions")
    return made


def compiled(command: list[str | Path]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def drawn(pair: str, queries: int, dtype: str, width: int = WIDTH) -> Call:
    rng = np.random.default_rng([PAIRS.index(pair), queries])
    sizes = (queries, HIDDEN), (KEYS, HIDDEN), (KEYS, width), (queries, width)
    arrays = (stored(rng.standard_normal((HEADS, *size)), dtype) for size in sizes)
    a, b, value, d_output = arrays
    weight = rng.standard_normal((1, HIDDEN))
    if pair in ("absolute", "squared"):
        weight = np.abs(weight)
    scale = (1 if pair in ("product", "tanh", "leaky_relu") else -1) / math.sqrt(HIDDEN)
    unweighted = pair == "product" and dtype == "bfloat16"  # scores of products have no weight
    return Call(
        pair, (HEADS,), a, b, value, d_output, None if unweighted else stored(weight, dtype),
        scale=scale, compute="float64" if dtype == "float64" else "float32",
    )  # fmt: skip


def run(program: list[str], call: Call) -> Results:
    done = _start(program, call)
    assert done.returncode == 0, done.stderr
    shapes = {
        "output": call.d_output.shape,
        "stats": (HEADS, 2, call.queries),
        "scores": (HEADS, call.queries, KEYS),
        "d_a": call.a.shape,
        "d_b": call.b.shape,
        "d_weight": (1, HIDDEN),
        "d_value": call.value.shape,
    }
    found, at = {}, np.frombuffer(done.stdout, call.compute)
    for name, shape in shapes.items():
        found[name], at = at[: math.prod(shape)].reshape(shape), at[math.prod(shape) :]
    assert not at.size
    if call.weight is None:
        found.pop("d_weight")
    return found


def _start(program: list[str], call: Call) -> subprocess.CompletedProcess[bytes]:
    of = TYPES.index(name_of(call.value))
    width, unweighted = call.value.shape[-1], call.weight is None
    sizes = PAIRS.index(call.pair), of, HEADS, call.queries, KEYS, HIDDEN, width, unweighted
    weight = np.zeros(HIDDEN, call.a.dtype) if call.weight is None else call.weight
    head = np.array(sizes, np.int64), np.array(call.scale), call.a, call.b, weight
    told = b"".join(np.ascontiguousarray(x).tobytes() for x in (*head, call.value, call.d_output))
    return subprocess.run(program, input=told, capture_output=True, timeout=HANG)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("queries", [1, 67])
@pytest.mark.parametrize("pair", PAIRS)
def test_within_the_budget(program: list[str], pair: str, queries: int, dtype: str) -> None:
    call = drawn(pair, queries, dtype)
    compare(call, run(program, call))


def test_a_key_with_all_the_weight_has_no_gradient(program: list[str]) -> None:
    """A key with all the weight has no gradient: dP and D are the same sum in the same order."""
    call = drawn("product", 67, "bfloat16", width=90)
    call.b[:, 3] = stored(numbers(call.b[:, 3]) * 1000, "bfloat16")
    call.a[:] = stored(np.abs(numbers(call.a)) * np.sign(numbers(call.b[:, 3:4])), "bfloat16")
    found = run(program, call)
    assert (found["output"] == numbers(call.value[:, 3:4])).all()
    assert not any(found[name].any() for name in ("d_a", "d_b"))
