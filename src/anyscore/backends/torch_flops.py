"""What `torch.utils.flop_counter.FlopCounterMode` counts for our operators.

As everywhere there, a multiplication and an addition are two operations, elementwise functions
none, and what a mask leaves out is counted too. Each pair of a query and a key costs

    a score                  2 · h        the sum over the width h of weight · pair(a, b)
    its share of the output  2 · d_v

and the backward 6 · h + 4 · d_v: the score again and the gradients of both factors (for elementwise
pairs that of their argument and that of the weight), the gradients of weights and of values.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import torch
from torch.utils.flop_counter import register_flop_formula

from anyscore.backends import torch_operators  # noqa: F401 (defines the operators)

Shape: TypeAlias = tuple[int, ...]


@register_flop_formula(torch.ops.anyscore.forward)
def _forward(pair: str, a: Shape, b: Shape, *rest: Any, **_: Any) -> int:
    value: Shape = rest[2]
    return _pairs(a, b, rest[-1]) * (2 * a[-1] + 2 * value[-1])


@register_flop_formula(torch.ops.anyscore.backward)
def _backward(pair: str, a: Shape, b: Shape, *rest: Any, **_: Any) -> int:
    value: Shape = rest[2]
    return _pairs(a, b, rest[-1]) * (6 * a[-1] + 4 * value[-1])


@register_flop_formula(torch.ops.anyscore.weights)
def _weights(pair: str, a: Shape, b: Shape, *rest: Any, **_: Any) -> int:
    lse: Shape = rest[5]
    return _pairs(a, b, lse[:-1]) * 2 * a[-1]


def _pairs(a: Shape, b: Shape, lead: Shape) -> int:
    """How many pairs of a query and a key there are."""
    return math.prod(lead) * a[-2] * b[-2]
