"""Formulas of the operators' costs for `torch.utils.flop_counter.FlopCounterMode`.

By its rules a multiplication and an addition are two operations, elementwise functions none, and
masked entries count too. Each pair of a query and a key costs

    a score                  2 · h        the sum over the width h of weight · pair(a, b)
    its share of the output  2 · d_v

The backward costs 6 · h + 4 · d_v: the score again and two gradients, and the gradients of weights
and values. The two gradients are those of both factors, or for elementwise pairs of the argument
and the weight.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

from torch.utils.flop_counter import register_flop_formula

from anyscore.backends.torch import operators
from anyscore.call.operands import Operands

Shape: TypeAlias = tuple[int, ...]


@register_flop_formula(operators.forward.operator.overloadpacket)
def _forward(*args: Any, **_: Any) -> int:
    x, s = operators.forward.record(*args)
    return _pairs(x, s.lead) * int(2 * x.a[-1] + 2 * _value_width(x))


@register_flop_formula(operators.backward.operator.overloadpacket)
def _backward(*args: Any, **_: Any) -> int:
    x, s, results, _ = operators.backward.record(*args)
    again = 2 if results.scores is None else 0  # scores are computed again
    return _pairs(x, s.lead) * int((4 + again) * x.a[-1] + 4 * _value_width(x))


def _value_width(x: Operands) -> int:
    return 0 if x.value is None else x.value[-1]


def _pairs(x: Operands, lead: Shape) -> int:
    """Return the number of pairs of a query and a key, from the shapes of operands."""
    return math.prod(lead) * int(x.a[-2] * x.b[-2])
