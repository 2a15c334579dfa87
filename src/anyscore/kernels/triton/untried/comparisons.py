"""Gradients of leaky_relu and |a − b| by packed comparisons and tensor cores, on NVIDIA's GPUs.

A gradient of `Steps` is a sum of dS over the scores above the kink. Comparisons of numbers of 16
bits are exact, for NaN and ±∞ too, so that no problem is left to `feature_sums`. The gradient
dS has two parts of bfloat16, with 16 bits together. An infinite dS is NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

from anyscore.kernels.triton import panels
from anyscore.kernels.triton.backward import Band
from anyscore.kernels.triton.call import BLOCK, TILE, PackedCall, launch, operand, tiles_of
from anyscore.kernels.triton.pairs import Functions, Steps
from anyscore.kernels.triton.scores import Panels
from anyscore.kernels.triton.targets import capability_of
from anyscore.kernels.triton.untried import minima

LEAST_CAPABILITY = {torch.float16: (8, 0), torch.bfloat16: (9, 0)}
"""Compute capabilities from which a packed comparison is one instruction."""
WARP_FEATURES = 32
"""Features of a warp: more share dS, and exceed the registers."""


def fits(pair: Functions, call: PackedCall) -> bool:
    """Return whether comparisons compute the gradients of a call's features."""
    if not minima.fits(pair, call):
        return False
    return capability_of(call.a.device) >= LEAST_CAPABILITY[call.a.dtype]


def panels_of(call: PackedCall) -> tuple[Panels, Panels]:
    """Return the panels of a and of b, in 16 bits."""
    return _panels(call, call.a), _panels(call, call.b)


def _panels(call: PackedCall, x: Tensor) -> Panels:
    """Return panels of x (n, h, rows, width); the number of features is a power of 2."""
    n, h, rows, width = x.shape
    tiles, padded = tiles_of(rows), max(BLOCK, 1 << (width - 1).bit_length())
    features = x.new_empty((n * h, tiles, padded, TILE))
    launch(panels.fill, tiles * n * h, operand(x, h), features, h, rows, width, tiles, padded)
    return Panels(features, None, None, None, *call.inputs.shared(n, h), tiles)


def add_sums(
    steps: Steps, call: PackedCall, both: tuple[Panels, Panels], band: Band, problems: int,
    target: Tensor, of_query: bool,
) -> None:  # fmt: skip
    """Add to the gradients of a (of_query), or of b, the sums over a band.

    both: of `panels_of`.
    """
    from anyscore.kernels.triton.untried import step_sums  # older Triton has no Gluon

    own, other = both if of_query else both[::-1]
    rows = call.inputs.sizes.queries if of_query else band.keys
    padded = own.features.shape[2]
    launch(
        step_sums.step_sums, problems * -(-rows // step_sums.ROWS.value), own, other, band, target,
        call.inputs.sizes, call.scale, WIDTH=call.width, F=padded, DIFFERENCE=steps.difference,
        AT_HALF=steps.at_half, OF_QUERY=of_query, num_warps=max(padded // WARP_FEATURES, 1),
    )  # fmt: skip
