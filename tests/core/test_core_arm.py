"""The kernels for Arm, whose vectors are NEON's, under QEMU; and the same program for this machine,
which says that it is not the program that is wrong.

Debian: apt-get install g++-aarch64-linux-gnu qemu-user
"""

from __future__ import annotations

import math
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from call import PAIRS, Call
from cpp import CSRC
from literal import Results
from raw import compare

HERE = Path(__file__).parent
HEADS, KEYS, HIDDEN, WIDTH = 2, 70, 21, 18
MACHINES = {"here": ("g++", ()), "arm": ("aarch64-linux-gnu-g++", ("qemu-aarch64",))}
FLAGS = [
    "-std=c++17",
    "-O2",
    "-pthread",
    "-static",
    "-DANYSCORE_ISA=baseline",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-signed-zeros",
    "-ffinite-math-only",
    "-ffp-contract=fast",
]


@pytest.fixture(scope="module", params=MACHINES)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    compiler, runner = MACHINES[request.param]
    for tool in (compiler, *runner):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool} here")
    target = tmp_path_factory.mktemp("emulated") / "program"
    sources = HERE / "emulated.cpp", *(CSRC / f"{x}.cpp" for x in ("kernel", "memory", "parallel"))
    command = [compiler, *FLAGS, f"-I{CSRC}", *map(str, sources), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [*runner, str(target)]


def drawn(pair: str, queries: int, dtype: str) -> Call:
    rng = np.random.default_rng([PAIRS.index(pair), queries])
    sizes = (queries, HIDDEN), (KEYS, HIDDEN), (KEYS, WIDTH), (queries, WIDTH)
    a, b, value, d_output = (rng.standard_normal((HEADS, *size)).astype(dtype) for size in sizes)
    weight = rng.standard_normal((1, HIDDEN)).astype(dtype)
    if pair in ("absolute", "squared"):
        weight = np.abs(weight)
    scale = (1 if pair in ("product", "tanh", "leaky_relu") else -1) / math.sqrt(HIDDEN)
    return Call(pair, (HEADS,), a, b, value, d_output, weight, scale=scale, compute=dtype)


def run(program: list[str], call: Call) -> Results:
    sizes = (
        PAIRS.index(call.pair),
        call.compute == "float64",
        HEADS,
        call.queries,
        KEYS,
        HIDDEN,
        WIDTH,
    )
    numbers = np.array(sizes, np.int64), np.array(call.scale), call.a, call.b, call.weight
    told = b"".join(
        np.ascontiguousarray(x).tobytes() for x in (*numbers, call.value, call.d_output)
    )
    done = subprocess.run(program, input=told, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    shapes = {
        "output": call.d_output.shape,
        "lse": (HEADS, call.queries),
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
    return found


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("queries", [1, 67])
@pytest.mark.parametrize("pair", PAIRS)
def test_within_the_budget(program: list[str], pair: str, queries: int, dtype: str) -> None:
    call = drawn(pair, queries, dtype)
    compare(call, run(program, call))
