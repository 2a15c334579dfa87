"""Matrix products that do not read what is masked.

`where(keep, …)` after an ordinary product is not enough: 0 · NaN is NaN, so one NaN in a masked row
of `v` reaches every row of `p @ v`, and the backward of `a @ bᵀ` is such a product too. The
derivatives of these two are the two themselves, so an automatic derivative of any order is as clean
as the value:

    scores: s = keep ∘ (a bᵀ)          da = sum(ds, b, keep)       db = sum(dsᵀ, a, keepᵀ)
    sum:    o_i = Σ_{j kept} p_ij v_j  dp = scores(do, v, keep)    dv = sum(pᵀ, do, keepᵀ)
"""

from __future__ import annotations

import math

from anyscore.ops import Array, Ops


def scores(xp: Ops, a: Array, b: Array, keep: Array) -> Array:
    """a (..., T_q, n), b (..., T_k, n), keep (..., T_q, T_k) → a bᵀ where kept, else 0."""
    return xp.where(keep, xp.matmul(a, xp.transpose(b)), 0.0)


def scores_slopes(xp: Ops, a: Array, b: Array, keep: Array, ds: Array) -> tuple[Array, Array]:
    """da and db of `scores`, not yet summed over what was broadcast."""
    return xp.masked_sum(ds, b, keep), xp.masked_sum(xp.transpose(ds), a, xp.transpose(keep))


def sum_slopes(xp: Ops, p: Array, v: Array, keep: Array, do: Array) -> tuple[Array, Array]:
    """dp and dv of `sum`, not yet summed over what was broadcast."""
    return xp.masked_scores(do, v, keep), xp.masked_sum(xp.transpose(p), do, xp.transpose(keep))


def sum_to(xp: Ops, x: Array, shape: tuple[int, ...]) -> Array:
    """x summed over the dimensions that were broadcast from this shape."""
    while len(xp.shape(x)) > len(shape):
        x = xp.sum(x, 0)
    for i, n in enumerate(shape):
        if n == 1 != xp.shape(x)[i]:
            x = xp.sum(x, i, keepdims=True)
    return x


def sum(xp: Ops, p: Array, v: Array, keep: Array) -> Array:
    """p (..., T_q, T_k), v (..., T_k, n) → Σ over the kept j of p_ij · v_j, (..., T_q, n).

    What is finite is summed as it is. What is not is counted beside it: kept infinities of weight 0
    and infinities of both signs make NaN, as they would in the sum, others ±∞.
    """
    dtype = xp.dtype(p)

    def number(x: Array) -> Array:
        return xp.astype(x, dtype)

    keep = xp.broadcast_to(keep, (*xp.shape(keep)[:-2], *xp.shape(p)[-2:]))
    p = xp.where(keep, p, 0.0)
    finite = xp.isfinite(v)
    plus, minus = v == math.inf, v == -math.inf
    sign = number(p > 0) - number(p < 0)
    signed = xp.matmul(sign, number(plus) - number(minus))
    weighted = xp.matmul(sign * sign, number(plus) + number(minus))
    kept = xp.matmul(number(keep), number(xp.logical_not(finite)))
    infinite = number(xp.where(signed > 0, math.inf, -math.inf))
    infinite = xp.where(xp.abs(signed) < weighted, math.nan, infinite)
    infinite = xp.where(kept > weighted, math.nan, infinite)
    total = xp.matmul(p, xp.where(finite, v, 0.0))
    return xp.where(kept > 0, total + infinite, total)
