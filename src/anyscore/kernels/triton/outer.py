"""Outer functions of scores in Triton, as `anyscore.score.outer` defines them."""

from __future__ import annotations

import triton
import triton.language as tl

from anyscore.kernels.triton.pairs import tanh


@triton.jit
def _log_of_one_and(x):
    """Return log(1 + x) for x ≥ 0, from y = 1 + x and the rounding error of y."""
    y = 1 + x
    lost = tl.where(x < 1, x - (y - 1), 1 - (y - x))
    return tl.log(y) + lost / y


@triton.jit
def outer(b_s, SCORER: tl.constexpr):
    """Return φ(b_s) and its slope; b_s and 1 without an outer function."""
    OUTER: tl.constexpr = SCORER.outer
    C: tl.constexpr = SCORER.outer_scale
    OWN: tl.constexpr = SCORER.own_outer
    b_slope = 1.0
    if OWN is not None:
        b_slope = OWN.d_a(b_s, b_s)
        b_s = OWN.value(b_s, b_s)
    elif OUTER == "tanh":
        b_t = tanh(b_s * (1 / C))
        b_s, b_slope = b_t * C, 1 - b_t * b_t
    elif OUTER != "":
        b_x = tl.where(b_s <= 0, 0.0, b_s)  # tl.maximum would make NaN 0
        m_x = b_x == 0
        if OUTER == "sqrt":
            b_root = tl.sqrt(b_x)
            b_value, b_slope = b_root, 0.5 / tl.where(m_x, 1.0, b_root)
        elif OUTER == "log1p":
            b_value, b_slope = _log_of_one_and(b_x), 1 / (1 + b_x)
        else:
            b_half = b_x * 0.5
            b_sum = tl.sqrt(b_half) + b_half / (1 + tl.sqrt(1 + b_half))
            b_value = 2 * _log_of_one_and(b_sum)
            b_slope = 1 / tl.where(m_x, 1.0, tl.sqrt(b_x) * tl.sqrt(b_x + 2))
        if OUTER != "log1p":
            b_slope = tl.where(m_x, 0.0, b_slope)
        b_s, b_slope = b_value * -C, b_slope * -C
    return b_s, b_slope
