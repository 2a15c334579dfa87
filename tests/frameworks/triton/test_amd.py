"""Kernels compile ahead of time for AMD's GPUs, without one, within their resources.

Nobody ran them there. Launches are recorded from the host code, as in `test_compiled`. The
interpreter skips these tests.
"""

from __future__ import annotations

import os
import re
from typing import Any

import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from anyscore.kernels.triton import pairs
from anyscore.kernels.triton.formula import of_formula
from anyscore.score.formula import formula_of
from frameworks.triton.sass import compile_for
from frameworks.triton.test_compiled import WARPS, Launch, call, name_of
from helpers.own_scores import SOFTPLUS

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="compiled kernels, not interpreted ones"
)

CHIPS = {"gfx942": 64, "gfx1100": 32}
"""A chip of accelerators and one of graphics cards, with the threads of a warp."""
SHARED = 64 * 1024
"""Bytes of shared memory that a program may have."""
SPILLED = 4
"""The most registers that a thread spills on gfx942, but for float64.

On gfx1100, which has no matrix instruction of float32, it spills up to 893.
"""
EVERYTHING = {"mask": True, "bias": True, "of_pairs": True, "dropout": 0.1, "origin": True}


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """Record launches for GPUs other than NVIDIA's instead of running kernels."""
    found: list[Launch] = []

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        assert options.pop("enable_fp_fusion")
        found.append((self, args, options))

    monkeypatch.setattr(JITFunction, "run", run)
    return found


def check(launch: Launch, chip: str) -> None:
    """Compile a launch to machine code; check its resources, and its products of float32."""
    kernel, args, options = launch
    made = compile_for(GPUTarget("hip", chip, CHIPS[chip]), kernel, args, WARPS, **options)
    assert made.asm["hsaco"].startswith(b"\x7fELF")
    assert made.metadata.shared <= SHARED, name_of(launch)
    ir, code = made.asm["ttir"], made.asm["amdgcn"]
    assert "inline_asm" not in ir, "the assembly is that of another maker"
    products = re.findall(r"tt\.dot .*", ir)
    lossy = [x for x in products if re.search(r"inputPrecision = .*: tensor<\d+x\d+xf32>", x)]
    assert not lossy, "float32 is cut to fewer bits"
    assert "xf32" not in code
    (spilled,) = re.findall(r"\.vgpr_spill_count:\s+(\d+)", code)
    print(f"{chip}, {name_of(launch)}: {spilled} registers spilled, {made.metadata.shared} bytes")
    if chip == "gfx942" and "xf64" not in ir:
        assert int(spilled) <= SPILLED, name_of(launch)


def row(pair: str, *marks: Any, **options: Any) -> Any:
    """Return a row of the table: options of `call` for a pair."""
    words = (k if x is True else f"{k}={str(x).removeprefix('torch.')}" for k, x in options.items())
    name = "everything" if options.keys() >= EVERYTHING.keys() else ", ".join(words)
    return pytest.param(pair, options, marks=marks, id=f"{pair}: {name}")


WEEKLY = pytest.mark.weekly


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize(
    ("pair", "options"),
    [
        row("tanh", WEEKLY),
        row("tanh", WEEKLY, backward=True),
        row("tanh", WEEKLY, dtype=torch.float32),
        row("tanh", WEEKLY, dtype=torch.float32, backward=True),
        row("tanh", WEEKLY, dtype=torch.float64, d_v=80, dropout=0.1, bias=True, mask=True),
        row("tanh", WEEKLY, backward=True, **EVERYTHING),
        row("tanh", WEEKLY, backward=True, outer="tanh", outer_scale=30.0),
        row("tanh", WEEKLY, normalizer=2, mask=True),
        row("tanh", queries=1),
        row("leaky_relu", WEEKLY, **EVERYTHING),
        row("leaky_relu", WEEKLY, backward=True),
        row("absolute", WEEKLY, weight=False),
        row("absolute", WEEKLY, weight=False, backward=True),
        row("squared", WEEKLY, dropout=0.1),
        row("squared", WEEKLY, outer="sqrt", outer_scale=1.5, backward=True),
        row("squared", WEEKLY, outer="arcosh", outer_scale=1.5, backward=True),
        row("squared", WEEKLY, outer="log1p", outer_scale=1.5, queries=1),
        row("product", WEEKLY, weight=False, bias=True),
        row("product", WEEKLY, weight=False, features=torch.bfloat16, backward=True),
        row("squared", WEEKLY, weight=False, features=torch.float16, dtype=torch.float16),
        row("product", WEEKLY, weight=False, dtype=torch.float32, width=128, backward=True),
        row("product", WEEKLY, weight=False, dtype=torch.float32),
        row("product", WEEKLY, weight=False, dtype=torch.float64, backward=True),
        row("product", WEEKLY, weight=False, normalizer=2, backward=True),
        row("product", weight=False, queries=1, **EVERYTHING),
        row("squared", edges=True, bias=True),
        row("tanh", WEEKLY, edges=True, dropout=0.1, backward=True),
        row("tanh", WEEKLY, edges=True, dtype=torch.float64, normalizer=2, backward=True),
    ],
)  # fmt: skip
def test_calls_compile(
    launches: list[Launch], pair: str, options: dict[str, Any], chip: str
) -> None:
    call(pairs.UNTRIED[pair], **options)
    assert launches
    for launch in launches:
        check(launch, chip)


@pytest.mark.weekly
@pytest.mark.parametrize("chip", CHIPS)
def test_formulas_compile(launches: list[Launch], chip: str) -> None:
    call(of_formula(formula_of(SOFTPLUS)), backward=True)
    for launch in launches:
        check(launch, chip)
