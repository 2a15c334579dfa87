"""The loops of kernels of `benchmarks.gpu_rates` have the instructions that they measure."""

from __future__ import annotations

import os

import pytest
import torch

from benchmarks import rate_kernels as kernels
from frameworks.triton.sass import Compiled, compile

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="compiled kernels, not interpreted ones"
)

OUT = torch.zeros(512, dtype=torch.int32)


def of_loop(made: Compiled) -> dict[str, int]:
    """Return the instructions of the longest loop; none of its registers spill."""
    assert made.stack == 0
    return made.count([max(made.innermost, key=lambda name: len(made.blocks[name]))])


@pytest.mark.parametrize("name", kernels.INSTRUCTIONS)
def test_a_loop_has_its_instruction(name: str) -> None:
    x = kernels.INSTRUCTIONS[name]
    found = of_loop(compile(kernels.repeat, 90, (OUT, 7, 1000), ASM=x.asm))
    each = 2 if name == "tanh x, two bfloat16" else 1  # a unit for single numbers
    assert found[x.opcode] == kernels.IN_A_ROW * kernels.CHAINS * each
    beside = 2 * kernels.IN_A_ROW * kernels.CHAINS + 8
    assert sum(found.values()) <= beside


@pytest.mark.parametrize("maxima", [False, True])
def test_a_product_has_its_maxima(maxima: bool) -> None:
    found = of_loop(compile(kernels.mix, 90, (OUT, 7, 1000), ASM=kernels.mix_asm(maxima)))
    assert found["HMMA"] % (kernels.MMA_IN_A_ROW * kernels.CHAINS) == 0
    assert found["HMNMX2"] == 4 * found["HMMA"] * maxima


def test_products_cache_and_launches_compile() -> None:
    half, x = torch.zeros(64, dtype=torch.bfloat16), torch.zeros(64)
    found = of_loop(compile(kernels.multiply, 90, (half, half, x, 1000), 8, M=128, N=256, K=64))
    assert found["HGMMA"] == 4
    assert found["LDG"] == 0
    assert of_loop(compile(kernels.read, 90, (x, x, 1024, 512), SIZE=4096))["LDG"] > 0
    assert compile(kernels.leave, 90, (OUT, OUT)).stack == 0
