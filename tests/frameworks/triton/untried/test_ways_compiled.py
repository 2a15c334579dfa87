"""Ways that no GPU has run compile within their resources, and take the counted instructions."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest
import torch

from anyscore.kernels.triton import pairs
from anyscore.kernels.triton.call import TOGETHER, WIDE_TILE
from anyscore.kernels.triton.untried import comparisons, minima
from frameworks.triton.sass import compile
from frameworks.triton.test_compiled import (
    CHIPS,
    NARROW,
    PER_THREAD,
    WARPS,
    Launch,
    call,
    compiled,
    launches,
    name_of,
)

__all__ = ["launches"]  # a fixture

pytestmark = [
    pytest.mark.weekly,
    pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") == "1", reason="compiled kernels, not interpreted ones"
    ),
]


@CHIPS
def test_forward_of_leaky_relu(launches: list[Launch], chip: int) -> None:
    """An element takes two additions, with loads 2.2 instructions."""
    call(pairs.UNTRIED["leaky_relu"])
    (launch,) = (x for x in launches if name_of(x) == "forward")
    kernel = compiled(launch, chip)
    counts = [kernel.count([loop]) for loop in kernel.innermost]
    elements = TOGETHER * PER_THREAD
    folded = [x for x in counts if x["FADD"] == 2 * elements and not x["FMNMX"]]
    assert len(folded) == 4, "tiles with a mask, and without; weights of either sign"
    for found in folded:
        issued = sum(found.values()) / elements
        print(f"sm_{chip}: {issued:.2f} slots an element")
        assert issued <= 2.2


MINIMA: dict[str, dict[str, Any]] = {
    "plain": {},
    "wide": {"width": 128, "d_v": 128},
    "everything": {"mask": True, "dropout": 0.1, "of_pairs": True, "bias": True, "origin": True},
    "cap": {"outer": "tanh", "outer_scale": 2.0, "width": 128, "d_v": 128, "scores": True},
    "sigmoid": {"normalizer": 2, "mask": True},
}


@CHIPS
@pytest.mark.parametrize("options", MINIMA)
@pytest.mark.parametrize("name", ["leaky_relu", "absolute"])
def test_forward_by_minima(
    launches: list[Launch], name: str, options: str, chip: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An element takes half a packed minimum, an eighth of a product, and 1.2 instructions in all.

    Minima go from registers to tensor cores. All options at once spill two registers, others none.
    """
    monkeypatch.setattr(minima, "LEAST_PAIRS", 0)
    kind = torch.bfloat16 if name == "leaky_relu" else torch.float16
    call(pairs.UNTRIED[name], kind, features=kind, weight=name == "leaky_relu", **MINIMA[options])
    (launch,) = (x for x in launches if name_of(x) == "minima_forward")
    kernel = compiled(launch, chip)
    assert kernel.stack <= (8 if options == "everything" else 0)
    loop = max(kernel.blocks, key=lambda x: kernel.count([x])["HMNMX2"])
    round_ = kernel.path(loop, loop)
    assert round_ is not None
    found, elements = kernel.count(round_[1:]), 2 * kernel.count([loop])["HMNMX2"]
    assert elements == MINIMA[options].get("width", 64) * 64 * 16 // (32 * WARPS)
    assert found["STS"] == 0
    issued = sum(found.values()) / elements
    print(f"sm_{chip}, {options}: {issued:.2f} slots an element, {kernel.registers} registers")
    assert issued <= {"plain": 1.2, "everything": 2.6}.get(options, 1.5)


@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize(("name", "most"), [("leaky_relu", 1.2), ("absolute", 1.8)])
def test_gradients_by_comparisons(
    launches: list[Launch], name: str, most: float, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An element takes half a packed comparison, or a whole one with the slope 0 at a tie."""
    monkeypatch.setattr(minima, "LEAST_PAIRS", 0)
    monkeypatch.setattr(comparisons, "capability_of", lambda device: (9, 0))
    kind = torch.bfloat16 if name == "leaky_relu" else torch.float16
    call(pairs.UNTRIED[name], kind, features=kind, width=width, backward=True)
    assert "feature_sums" not in map(name_of, launches)
    found = [x for x in launches if name_of(x) == "step_sums"]
    assert len(found) == 2
    for launch in found:
        kernel, args, options = launch
        made = compile(kernel, 90, args, options.pop("num_warps"), **options)
        assert made.stack == 0
        loop = max(made.blocks, key=lambda x: made.count([x])["HSET2"])
        round_ = made.path(loop, loop)
        assert round_ is not None
        compared = made.count([loop])["HSET2"]
        elements = 16 * 64 * comparisons.WARP_FEATURES // 32
        assert compared == (elements if name == "absolute" else elements // 2)
        issued = sum(made.count(round_[1:]).values()) / elements
        print(f"{name}, {width}: {issued:.2f} slots an element, {made.registers} registers")
        assert issued <= most


@CHIPS
@pytest.mark.parametrize("name", ["product", "squared"])
def test_features_of_16_bits(launches: list[Launch], name: str, chip: int) -> None:
    """Tiles run ahead of the tensor cores in every loop, and next to nothing spills."""
    call(pairs.UNTRIED[name], **NARROW)
    call(pairs.UNTRIED[name], **NARROW, backward=True)
    hot = "forward", "weights_and_gradients", "matrix_sums"
    assert {name_of(x) for x in launches} >= set(hot)
    product = "HGMMA" if chip == 90 else "HMMA"
    for launch in launches:
        if name_of(launch) not in hot:
            continue
        kernel = compiled(launch, chip)
        counts = [Counter(x.opcode for x in block) for block in kernel.blocks.values()]
        print(f"sm_{chip}, {name_of(launch)}: {kernel.registers} registers, {kernel.stack} spilled")
        assert kernel.stack <= (48 if name == "squared" else 0)
        assert sum(x[product] for x in counts) > 0
        if name_of(launch) != "weights_and_gradients":  # one tile per program
            assert sum(x["LDGSTS"] for x in counts) > 0


@CHIPS
def test_a_product_takes_17_instructions(launches: list[Launch], chip: int) -> None:
    """A pair of a query and a key takes at most 17, softmax and values included, for width 64."""
    call(pairs.UNTRIED["product"], **NARROW)
    (launch,) = (x for x in launches if name_of(x) == "forward")
    kernel = compiled(launch, chip)
    per_thread = WIDE_TILE * 64 // (32 * launch[2]["num_warps"])
    loops = [kernel.count([loop]) for loop in kernel.innermost]
    issued = min(sum(x.values()) for x in loops if x["MUFU"] >= per_thread) / per_thread
    print(f"sm_{chip}: {issued:.1f} instructions a pair")
    assert issued <= (17 if chip == 90 else 20)
