"""The kernels of impl="separable" compile for Ampere and Hopper, without a GPU."""

from __future__ import annotations

import os
from collections import Counter

import pytest
import torch

from anyscore.call.operands import Operands, Results, Settings
from anyscore.kernels.triton import pairs
from anyscore.kernels.triton.untried import separable
from frameworks.triton.sass import Compiled, compile
from frameworks.triton.test_compiled import CHIPS, Launch, launches, name_of

__all__ = ["launches"]  # a fixture

pytestmark = [
    pytest.mark.weekly,
    pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") == "1", reason="compiled kernels, not interpreted ones"
    ),
]

SHARED = {80: 163 * 1024, 90: 227 * 1024}
"""Bytes of shared memory that a program may have."""
PRODUCTS = {80: "HMMA", 90: "HGMMA"}


def call(chip: int, backward: bool, monkeypatch: pytest.MonkeyPatch, **operands: bool) -> None:
    """Call forward or backward of a chip for (2, 4) problems of 256 queries and keys."""
    monkeypatch.setattr(separable, "capability_of", lambda device: divmod(chip, 10))
    lead, kind = (2, 4), torch.bfloat16
    x = Operands(
        *(torch.zeros(*lead, 256, 64, dtype=kind) for _ in range(2)),
        torch.zeros(64, dtype=kind),
        torch.zeros(*lead, 256, dtype=kind) if operands.get("key_bias") else None,
        torch.zeros(*lead, 256, 64, dtype=kind),
        stop=torch.zeros(2, 1, 1, dtype=torch.int64),
        mask=torch.zeros(*lead, 256, 256, dtype=torch.bool) if operands.get("mask") else None,
        seed=torch.zeros((), dtype=torch.int64) if operands.get("dropout") else None,
    )
    s = Settings("separable_tanh", 0.5, 1, 0.1 if operands.get("dropout") else 0.0, 8, lead)
    if backward:
        results = Results(torch.zeros(*lead, 256, 64), torch.zeros(*lead, 2, 256))
        separable.backward(pairs.TANH, x, s, results, results)
    else:
        separable.forward(pairs.TANH, x, s, torch.float32)


def compiled(launch: Launch, chip: int) -> Compiled:
    kernel, args, options = launch
    found = compile(kernel, chip, args, **options)
    assert found.shared <= SHARED[chip], name_of(launch)
    return found


@CHIPS
@pytest.mark.parametrize("backward", [False, True])
def test_products(
    launches: list[Launch], chip: int, backward: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loops over columns have tensor cores and asynchronous copies, and nothing is spilled."""
    call(chip, backward, monkeypatch)
    names = {"row_gradients", "band_products"} if backward else {"nested"}
    chosen = [x for x in launches if name_of(x) in names]
    assert {name_of(x) for x in chosen} == names
    for launch in chosen:
        kernel = compiled(launch, chip)
        print(f"sm_{chip}, {name_of(launch)}: {kernel.registers} registers, {kernel.shared} bytes")
        assert kernel.stack == 0, name_of(launch)
        loops = [kernel.count([loop]) for loop in kernel.innermost]
        loops = [loop for loop in loops if loop[PRODUCTS[chip]]]
        assert loops
        assert all(loop["LDGSTS"] for loop in loops), name_of(launch)


@CHIPS
def test_rows(launches: list[Launch], chip: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of the choice and of rows spill next to nothing."""
    call(chip, True, monkeypatch)
    names = {"stats": 0, "choose": 8, "factors": 16, "slopes": 0, "measure": 0}
    found: Counter[str] = Counter()
    for launch in launches:
        name = name_of(launch)
        found[name] += 1
        if name in names:
            assert compiled(launch, chip).stack <= names[name], name
    assert found["slopes"] == found["factors"] == 2  # of queries and of keys


def test_exact_kernels_leave_problems(
    launches: list[Launch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exact kernels read whether rows have computed their problem."""
    call(90, False, monkeypatch)
    call(90, True, monkeypatch)
    spilled = {"forward": 0, "weights_and_gradients": 32}
    chosen = [x for x in launches if name_of(x) in spilled]
    assert {name_of(x) for x in chosen} == set(spilled)
    for launch in chosen:
        assert compiled(launch, 90).stack <= spilled[name_of(launch)]


@pytest.mark.oldest
def test_whatever_may_be_there_compiles(
    launches: list[Launch], monkeypatch: pytest.MonkeyPatch
) -> None:
    for backward in (False, True):
        call(90, backward, monkeypatch, key_bias=True, mask=True, dropout=True)
    for launch in launches:
        assert compiled(launch, 90).registers > 0
