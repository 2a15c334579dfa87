"""Kernels compile ahead of time for Ampere and Hopper, without a GPU, within their resources.

The launches are recorded from the host code. The interpreter skips these tests.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from triton.runtime.jit import JITFunction

from anyscore.call.operands import Operands, Results, Settings
from anyscore.kernels.triton import attention as triton
from anyscore.kernels.triton import call as calls
from anyscore.kernels.triton import graphs, pairs, scorers, targets
from anyscore.kernels.triton.formula import of_formula
from anyscore.score import Outer
from anyscore.score.formula import formula_of
from frameworks.triton.sass import Compiled, compile
from helpers.own_scores import EVERY, LEAKY, SOFTPLUS, WAVE

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="compiled kernels, not interpreted ones"
)

CHIPS = pytest.mark.parametrize("chip", [pytest.param(80, marks=pytest.mark.weekly), 90])
"""Kernels near their bounds compile for both chips, others for the chip where they need more."""
WARPS = 4
SHARED = {80: 99 * 1024, 90: 227 * 1024}
"""Bytes of shared memory that a program may have on any chip from Ampere on, and on Hopper."""
PER_THREAD = 64 * 64 // (32 * WARPS)
"""Pairs of a query and a key in a tile for each thread."""

Launch = tuple[Any, tuple[Any, ...], dict[str, Any]]


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """Record launches for NVIDIA GPUs instead of running kernels."""
    found: list[Launch] = []

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        assert all(isinstance(n, int) and n > 0 for n in grid)
        assert options.pop("enable_fp_fusion")
        found.append((self, args, options))

    monkeypatch.setattr(JITFunction, "run", run)
    monkeypatch.setattr(calls, "target_of", lambda x: targets.NVIDIA)
    return found


def name_of(launch: Launch) -> str:
    return str(launch[0].fn.__name__)


def call(
    pair: Any, dtype: torch.dtype = torch.bfloat16, *, queries: int = 256, width: int = 64,
    d_v: int = 64, weight: bool = True, features: torch.dtype = torch.float32,
    backward: bool = False, **options: Any,
) -> None:  # fmt: skip
    """Call forward or backward for (2, 4) problems of 256 keys.

    options: bias, of_pairs (True for a bias of pairs), mask, edges (512, with terms), origin,
    settings.
    """
    lead, keys, wide = (2, 4), 256, dtype == torch.float64
    features = dtype if wide else features
    acc_dtype = torch.float64 if wide else torch.float32
    bias, mask = options.pop("bias", False), options.pop("mask", False)
    of_pairs, origin = options.pop("of_pairs", False), options.pop("origin", False)
    x = Operands(
        torch.zeros(*lead, queries, width, dtype=features),
        torch.zeros(*lead, keys, width, dtype=features),
        torch.zeros(width, dtype=acc_dtype) if weight else None,
        torch.zeros(*lead, keys) if bias else None,
        torch.zeros(*lead, keys, d_v, dtype=dtype),
        torch.zeros(lead[1], queries, keys, dtype=dtype) if of_pairs else None,
        stop=torch.zeros(2, 1, 1, dtype=torch.int64),
        mask=torch.zeros(*lead, queries, keys, dtype=torch.bool) if mask else None,
        seed=torch.zeros((), dtype=torch.int64) if "dropout" in options else None,
        origin=torch.zeros(2, dtype=torch.int64) if origin else None,
    )
    kernels = triton
    if options.pop("edges", False):
        kernels = graphs
        counts = {"rowptr": queries + 1, "col": 512, "colptr": keys + 1, "order": 512, "row": 512}
        edges = {name: torch.zeros(n, dtype=torch.int64) for name, n in counts.items()}
        c = torch.zeros(*lead, 512, width, dtype=features)
        x = x._replace(c=c, start=None, stop=None, mask=None, **edges)
    s = Settings("", 0.5, 1, 0.0, 8, lead)._replace(**options)
    if backward:
        output = torch.zeros(*lead, queries, d_v, dtype=acc_dtype)
        results = Results(output, torch.zeros(*lead, 2, queries, dtype=acc_dtype))
        kernels.backward(pair, x, s, results, results)
    else:
        kernels.forward(pair, x, s, acc_dtype)


def compiled(launch: Launch, chip: int) -> Compiled:
    kernel, args, options = launch
    found = compile(kernel, chip, args, WARPS, **options)
    assert found.shared <= SHARED[chip], (
        f"{name_of(launch)} needs {found.shared} bytes of shared memory"
    )
    return found


def slots(kernel: Compiled, loop: str, width: int) -> float:
    """Return issued instructions for each query, key and feature, by tiles of a loop."""
    inner = kernel.count([loop])
    around = sum(kernel.count(kernel.around(loop)).values())
    return sum(inner.values()) / (16 * PER_THREAD) + around / (width * PER_THREAD)


@CHIPS
def test_forward_of_tanh(launches: list[Launch], chip: int) -> None:
    """An element takes at most 4.7 or 3.7 instructions and half a reciprocal, without spills."""
    call(pairs.TANH)
    (launch,) = (x for x in launches if name_of(x) == "forward")
    kernel = compiled(launch, chip)
    assert kernel.stack == 0
    ways: dict[str, list[tuple[float, float]]] = {"clamped": [], "unclamped": []}
    for loop in kernel.innermost:
        inner = kernel.count([loop])
        elements = 16 * PER_THREAD
        if inner["MUFU"] in (elements // 2, elements // 4):  # leaves the careful way out
            way = "clamped" if inner["FMNMX"] else "unclamped"
            ways[way].append((slots(kernel, loop, 64), inner["MUFU"] / elements))
    assert all(len(found) == 2 for found in ways.values()), "tiles with a mask, and without"
    for way, most in (("clamped", 4.7), ("unclamped", 3.7)):
        issued, reciprocals = min(ways[way])
        print(f"sm_{chip}, {way}: {issued:.2f} slots, {reciprocals} reciprocals an element")
        assert issued <= most
        assert reciprocals <= 0.5


NARROW = {"weight": False, "features": torch.bfloat16}
"""Features of 16 bits, which tensor cores multiply."""


@pytest.mark.parametrize(
    ("name", "options", "chip"),
    [
        ("leaky_relu", {"mask": True}, 80),
        ("absolute", {"weight": False}, 80),
        ("squared", {"dropout": 0.1}, 80),
        ("product", {"weight": False, "bias": True}, 80),
        ("product", {"weight": False, "features": torch.bfloat16, "dtype": torch.float16}, 90),
        ("tanh", {"queries": 1}, 90),
    ],
)
def test_forward_never_spills(
    launches: list[Launch], name: str, options: dict[str, Any], chip: int
) -> None:
    call(pairs.BY_NAME[name], **options)
    for launch in launches:
        assert compiled(launch, chip).stack == 0, name_of(launch)


@pytest.mark.parametrize(
    ("dtype", "chip"),
    [(torch.float32, 80), pytest.param(torch.float64, 90, marks=pytest.mark.weekly)],
)
def test_wide_dtypes_compile(launches: list[Launch], dtype: torch.dtype, chip: int) -> None:
    call(pairs.TANH, dtype, d_v=80, dropout=0.1, bias=True, mask=True)
    call(pairs.PRODUCT, dtype, width=128, d_v=128, weight=False, backward=True)
    for launch in launches:
        assert compiled(launch, chip).registers > 0


@pytest.mark.oldest
def test_whatever_may_be_there_compiles(launches: list[Launch]) -> None:
    """Masks, biases, dropout and edges compile, also by the oldest Triton: `make triton-oldest`."""
    everything = {"mask": True, "bias": True, "of_pairs": True, "dropout": 0.1, "origin": True}
    call(pairs.LEAKY_RELU, **everything)
    call(pairs.TANH, **everything, backward=True)
    call(pairs.PRODUCT, **everything, weight=False, queries=1)
    call(pairs.PRODUCT, weight=False, normalizer=2, backward=True)
    call(pairs.SQUARED, **NARROW, outer="sqrt", outer_scale=1.0, backward=True)
    for backward in (False, True):
        call(pairs.SQUARED, edges=True, bias=True, backward=backward)
    for launch in launches:
        assert compiled(launch, 90).registers > 0


def test_formulas_compile(launches: list[Launch]) -> None:
    leaky, softplus, every = (of_formula(formula_of(x)) for x in (LEAKY, SOFTPLUS, EVERY))
    call(leaky)
    call(softplus, backward=True)
    for dtype in (torch.float32, torch.float64):
        call(every, dtype, queries=1)
    wave = Outer.from_formula("wave", WAVE)
    call(pairs.PRODUCT, outer=wave.name, outer_scale=1.0, backward=True)
    call(pairs.SQUARED, outer=wave.name, outer_scale=1.0, edges=True)
    assert {"forward", "decode_queries"} < {name_of(x) for x in launches}
    for launch in launches:
        assert compiled(launch, 90).registers > 0


@pytest.mark.parametrize(("name", "chip"), [("tanh", 80), ("tanh", 90), ("product", 80)])
def test_backward_never_spills(launches: list[Launch], name: str, chip: int) -> None:
    call(pairs.BY_NAME[name], weight=name == "tanh", backward=True)
    for launch in launches:
        if name_of(launch) != "matrix_sums" or name == "tanh":  # float32 takes three TF32 parts
            assert compiled(launch, chip).stack == 0, name_of(launch)


@pytest.mark.parametrize(
    ("name", "options", "chip"),
    [
        ("tanh", {"backward": True}, 80),
        ("leaky_relu", {"mask": True}, 90),
        ("tanh", {"queries": 1}, 90),
    ],
)
def test_a_cap_of_scores_never_spills(
    launches: list[Launch], name: str, options: dict[str, Any], chip: int
) -> None:
    """A cap is one tanh for each pair of a loop over tiles: at most 32 instructions."""
    kernels = []
    for outer in ("", "tanh"):
        launches.clear()
        call(pairs.BY_NAME[name], outer=outer, outer_scale=30.0, **options)
        names = "forward", "weights_and_gradients", "decode_queries"
        (launch,) = (x for x in launches if name_of(x) in names)
        kernels.append(compiled(launch, chip))
    assert kernels[1].stack == 0
    plain, capped = (sum(map(len, x.blocks.values())) for x in kernels)
    print(f"sm_{chip}: {plain} instructions, {capped} with a cap")
    loops = 2 if "mask" in options else 1  # tiles with a mask, and without
    assert 0 < capped - plain <= 32 * loops * PER_THREAD


@pytest.mark.parametrize(
    ("name", "options", "chip"),
    [
        ("tanh", {}, 80),
        ("tanh", {"backward": True}, 90),
        ("tanh", {"queries": 1}, 90),
        ("product", {}, 90),
        ("product", {"backward": True}, 80),
        ("product", {"queries": 1}, 80),
    ],
    ids=str,
)
def test_a_bias_spills_next_to_nothing(
    launches: list[Launch], name: str, options: dict[str, Any], chip: int
) -> None:
    """Tanh by exponentials has all registers, and a bias spills four: at most 16 bytes a thread."""
    call(pairs.BY_NAME[name], weight=name == "tanh", of_pairs=True, **options)
    names = "forward", "weights_and_gradients", "decode_queries"
    (launch,) = (x for x in launches if name_of(x) in names)
    assert compiled(launch, chip).stack <= 16


SPILLED = {"sqrt": 8, "log1p": 16, "arcosh": 176}
"""Spilled bytes of a thread in the backward: a tile's slopes live while its weights are made.

Weights take two numbers a query. The log-sum-exp alone, which is inexact, spilled eight fewer.
"""


@pytest.mark.parametrize("outer", SPILLED)
@pytest.mark.parametrize(
    ("options", "chip"), [({"backward": True}, 80), ({"queries": 1}, 90)], ids=str
)
def test_what_other_outer_functions_spill(
    launches: list[Launch], outer: str, options: dict[str, Any], chip: int
) -> None:
    call(pairs.SQUARED, outer=outer, outer_scale=1.5, **options)
    names = "forward", "weights_and_gradients", "decode_queries"
    (launch,) = (x for x in launches if name_of(x) in names)
    assert compiled(launch, chip).stack <= SPILLED[outer]


@pytest.mark.parametrize(
    ("options", "chip"),
    [({"backward": True}, 90), ({"queries": 1}, 80), ({"mask": True}, 80)],
    ids=str,
)
def test_the_sigmoid_never_spills(
    launches: list[Launch], options: dict[str, Any], chip: int
) -> None:
    call(pairs.TANH, normalizer=2, **options)
    names = "forward", "weights_and_gradients", "decode_queries"
    (launch,) = (x for x in launches if name_of(x) in names)
    assert compiled(launch, chip).stack == 0


@pytest.mark.parametrize(
    ("name", "backward", "chip"),
    [
        ("leaky_relu", False, 80),
        ("leaky_relu", True, 90),
        ("tanh", False, 80),
        ("tanh", True, 90),
        ("product", False, 90),
        ("product", True, 80),
    ],
)
def test_edges_never_spill(launches: list[Launch], name: str, backward: bool, chip: int) -> None:
    """Memory bounds the gathering of rows, and half the registers hide the latency of memory."""
    call(pairs.BY_NAME[name], edges=True, bias=True, backward=backward)
    forward, back = {"forward"}, {"slopes_of_edges", "feature_sums", "value_sums"}
    assert {name_of(x) for x in launches} == (back if backward else forward)
    for launch in launches:
        kernel = compiled(launch, chip)
        print(f"sm_{chip}, {name_of(launch)}: {kernel.registers} registers")
        assert kernel.stack == 0
        assert kernel.registers <= 128


def test_edges_compile_in_every_dtype(launches: list[Launch]) -> None:
    for dtype in (torch.float32, torch.float64):
        for option in ({"dropout": 0.1}, {"normalizer": 2}, {"outer": "tanh", "outer_scale": 2.0}):
            call(pairs.TANH, dtype, edges=True, backward=True, **option)
            call(pairs.TANH, dtype, edges=True, **option)
    for launch in launches:
        assert compiled(launch, 90).registers > 0


def test_the_cache_on_disk_knows_the_source_of_a_pair(tmp_path: Path) -> None:
    """An edited pair keeps its name, and Triton alone would tell pairs apart by name."""
    made = []
    for i, code in enumerate(("a + b", "a - b")):
        path = tmp_path / f"{i}.py"
        path.write_text(f"import triton\n\n@triton.jit\ndef value(a, b):\n    return {code}\n")
        spec = importlib.util.spec_from_file_location("edited", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        functions = pairs.Functions(module.value, module.value, module.value)
        made.append(scorers.elementwise(functions))
    assert str(made[0]) == str(made[1])
    assert made[0].cache_key != made[1].cache_key
