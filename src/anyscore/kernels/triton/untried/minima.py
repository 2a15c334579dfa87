"""Scores of leaky_relu and |a − b| by packed minima and tensor cores, on NVIDIA's GPUs.

A pair of `Steps` is low x + rise max(x, 0). Of one feature,

    max(a + b, 0) = b − min(−a, b),    max(a − b, 0) = a − min(a, b)

so that a score is a sum of minima, and one sum over each token. The minimum of two numbers of 16
bits is such a number. Tensor cores multiply it by a weight exactly, and sum in float32. Weights
have two parts of 16 bits. The device leaves problems with far or infinite numbers to `forward`.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from anyscore.call.operands import Results
from anyscore.kernels.triton import scorers
from anyscore.kernels.triton.call import (
    HALF,
    TILE,
    Columns,
    Inputs,
    PackedCall,
    launch,
    operand,
    tiles_of,
)
from anyscore.kernels.triton.pairs import PRODUCT, Functions
from anyscore.kernels.triton.targets import NVIDIA
from anyscore.kernels.triton.tiles import Biases, Rows
from anyscore.kernels.triton.untried import minima_rows

LEAST_PAIRS = 2**22
"""Fewer queries × keys take less time than the launches."""
MOST_FEATURES = 128
"""A tile of more features exceeds the registers."""
HAS_GLUON = (3, 6) <= tuple(map(int, triton.__version__.split(".")[:2])) <= (3, 9)
"""Gluon is experimental: other versions may not compile the kernel."""


def fits(pair: Functions, call: PackedCall) -> bool:
    """Return whether minima compute the forward of a call.

    The features and the value have 16 bits, and Gluon compiles for the GPU.
    """
    a, b, value, sizes = call.a, call.b, call.inputs.x.value, call.inputs.sizes
    return (
        pair.steps is not None
        and a.dtype == b.dtype
        and {a.dtype, value.dtype} <= set(HALF)
        and call.acc_dtype == torch.float32
        and 0 < call.width <= MOST_FEATURES
        and call.inputs.problems * sizes.queries * sizes.keys >= LEAST_PAIRS
        and call.target is NVIDIA
        and HAS_GLUON
    )


def forward(pair: Functions, inputs: Inputs, value: Rows, results: Results) -> Tensor:
    """Write the results of problems whose sums are exact enough. Return chunks (problems,)."""
    from anyscore.kernels.triton.untried import minima_forward  # older Triton has no Gluon

    assert pair.steps is not None
    x, s, sizes, steps = inputs.x, inputs.s, inputs.sizes, pair.steps
    width, d_v = x.a.shape[-1], results.output.shape[-1]
    columns = Columns(d_v, value.data.dtype)
    a, b = inputs.operand(x.a, 2), inputs.operand(x.b, 2)
    weight = None if x.weight is None else inputs.operand(x.weight, 1)
    keys = inputs.rows(inputs.two(x.b, 2), x.b.dtype)
    chunks: Tensor = x.a.new_ones(inputs.problems, dtype=torch.int32)
    attending, attended = inputs.read
    slopes = (steps.low, steps.low + steps.rise)  # of a and of b
    if steps.difference:
        slopes = (steps.low + steps.rise, -steps.low)
    sums = []
    for of, used, bias, rows, slope in (
        (a, attending, None, sizes.queries, slopes[0]),
        (b, attended, inputs.biases.keys, sizes.keys, slopes[1]),
    ):
        sums.append(x.a.new_empty((inputs.problems, rows), dtype=torch.float32))
        launch(
            minima_rows.token_sums, inputs.problems * tiles_of(rows), of, used, weight, bias,
            sums[-1], chunks, sizes.heads, rows, s.scale, slope, steps.rise, WIDTH=width,
            F=keys.padded,
        )  # fmt: skip
    u, v = sums
    of_keys = operand(v.view(-1, sizes.heads, sizes.keys), sizes.heads)
    scorer = scorers.product(PRODUCT).of_settings(s, width=width, padded=keys.padded, queries=TILE)
    launch(
        minima_forward.minima_forward, inputs.problems * tiles_of(sizes.queries) * columns.blocks,
        a, keys, weight, u, Biases(of_keys, inputs.biases.pairs), value, inputs.mask,
        inputs.dropout, results.output, results.stats, results.scores, sizes, chunks,
        -s.scale * steps.rise, columns.blocks, SCORER=scorer, NEGATED=not steps.difference,
        D_V=d_v, COLUMNS=columns.count, SIGMOID=bool(s.normalizer),
    )  # fmt: skip
    return chunks
