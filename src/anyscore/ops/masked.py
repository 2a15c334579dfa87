"""Matrix products that do not read masked entries.

`where(mask, …)` after an ordinary product is not enough. 0 · NaN is NaN, so one NaN in a masked row
of `v` reaches every row of `p @ v`. The backward of `a @ bᵀ` is such a product too. The derivatives
of `scores` and `sum` are again `scores` and `sum`, so derivatives of any order read no masked
entry:

    scores: s = mask ∘ (a bᵀ)              da = sum(ds, b, mask)       db = sum(dsᵀ, a, maskᵀ)
    sum:    o_i = Σ_{j attended} p_ij v_j  dp = scores(do, v, mask)    dv = sum(pᵀ, do, maskᵀ)
"""

from __future__ import annotations

import math

from anyscore.ops import Array, Ops


def scores(xp: Ops, a: Array, b: Array, mask: Array) -> Array:
    """Return a bᵀ, 0 where masked: a (..., T_q, n), b (..., T_k, n), mask (..., T_q, T_k)."""
    return xp.where(mask, xp.matmul(a, xp.transpose(b)), 0.0)


def scores_slopes(xp: Ops, a: Array, b: Array, mask: Array, ds: Array) -> tuple[Array, Array]:
    """Return da and db of `scores`, before sums over broadcast dimensions."""
    return xp.masked_sum(ds, b, mask), xp.masked_sum(xp.transpose(ds), a, xp.transpose(mask))


def sum_slopes(xp: Ops, p: Array, v: Array, mask: Array, do: Array) -> tuple[Array, Array]:
    """Return dp and dv of `sum`, before sums over broadcast dimensions."""
    return xp.masked_scores(do, v, mask), xp.masked_sum(xp.transpose(p), do, xp.transpose(mask))


def sum_to(xp: Ops, x: Array, shape: tuple[int, ...]) -> Array:
    """Return x summed over the dimensions that were broadcast from `shape`."""
    while len(xp.shape(x)) > len(shape):
        x = xp.sum(x, 0)
    for i, n in enumerate(shape):
        if n == 1 != xp.shape(x)[i]:
            x = xp.sum(x, i, keepdims=True)
    return x


def sum(xp: Ops, p: Array, v: Array, mask: Array) -> Array:
    """Return Σ_j p_ij · v_j over attended j, (..., T_q, n): p (..., T_q, T_k), v (..., T_k, n).

    Finite entries are summed as usual; NaN and ±∞ are counted beside them. An attended infinity of
    weight 0, or infinities of both signs, result in NaN as in the plain sum; other infinities in
    ±∞.
    """
    dtype = xp.dtype(p)

    def number(x: Array) -> Array:
        return xp.astype(x, dtype)

    mask = xp.broadcast_to(mask, (*xp.shape(mask)[:-2], *xp.shape(p)[-2:]))
    p = xp.where(mask, p, 0.0)
    finite = xp.isfinite(v)
    plus, minus = v == math.inf, v == -math.inf
    sign = number(p > 0) - number(p < 0)
    signed = xp.matmul(sign, number(plus) - number(minus))
    weighted = xp.matmul(sign * sign, number(plus) + number(minus))
    attended = xp.matmul(number(mask), number(xp.logical_not(finite)))
    infinite = number(xp.where(signed > 0, math.inf, -math.inf))
    infinite = xp.where(xp.abs(signed) < weighted, math.nan, infinite)
    infinite = xp.where(attended > weighted, math.nan, infinite)
    total = xp.matmul(p, xp.where(finite, v, 0.0))
    return xp.where(attended > 0, total + infinite, total)
