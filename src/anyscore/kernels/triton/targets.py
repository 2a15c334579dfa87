"""Facts in which GPUs differ; kernels for several GPUs can be compiled in one process."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from anyscore.kernels.triton.tiles import INTERPRETED


class Target(NamedTuple):
    """reciprocal: x → 1/x of float32, a `@triton.jit` function. precision: of products of float32,
    an `input_precision` of `tl.dot`. takes_registers: whether launches take `maxnreg`.
    """

    reciprocal: Any
    precision: str
    takes_registers: bool


@triton.jit
def _by_instruction(x):
    """Return 1/x within one unit in the last place, by an instruction of NVIDIA's GPUs."""
    return tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def _by_division(x):
    """Return 1/x."""
    return 1.0 / x


NVIDIA = Target(_by_instruction, "tf32x3", takes_registers=True)
PORTABLE = Target(_by_division, "ieee", takes_registers=False)
"""Other GPUs, and Triton's interpreter: no assembly, products in float32."""


def target_of(x: Tensor) -> Target:
    """Return the target of kernels that read x."""
    return NVIDIA if x.is_cuda and not (torch.version.hip or INTERPRETED.value) else PORTABLE


def capability_of(device: torch.device) -> tuple[int, int]:
    """Return the compute capability of a device."""
    return torch.cuda.get_device_capability(device)
