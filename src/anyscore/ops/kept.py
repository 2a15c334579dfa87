"""Matrix products that do not read what is masked.

`where(keep, …)` after an ordinary product is not enough: 0 · NaN is NaN, so one NaN in a masked row
of `v` reaches every row of `p @ v`, and the backward of `a @ bᵀ` is such a product too. The
derivatives of these two are the two themselves, so an automatic derivative of any order is as clean
as the value:

    scores: s = keep ∘ (a bᵀ)          da = sum(ds, b, keep)       db = sum(dsᵀ, a, keepᵀ)
    sum:    o_i = Σ_{j kept} p_ij v_j  dp = scores(do, v, keep)    dv = sum(pᵀ, do, keepᵀ)
"""

from __future__ import annotations

from anyscore.ops import Array, Ops


def scores(xp: Ops, a: Array, b: Array, keep: Array) -> Array:
    """a (..., T_q, n), b (..., T_k, n), keep (..., T_q, T_k) → a bᵀ where kept, else 0."""
    return xp.where(keep, xp.matmul(a, xp.transpose(b)), 0.0)


def sum(xp: Ops, p: Array, v: Array, keep: Array) -> Array:
    """p (..., T_q, T_k), v (..., T_k, n) → Σ over the kept j of p_ij · v_j, (..., T_q, n)."""
    keep = xp.broadcast_to(keep, (*xp.shape(keep)[:-2], *xp.shape(p)[-2:]))
    p = xp.where(keep, p, 0.0)
    finite = xp.isfinite(v)
    clean = xp.matmul(p, xp.where(finite, v, 0.0))
    dtype = xp.dtype(p)
    touched = xp.matmul(xp.astype(keep, dtype), xp.astype(xp.logical_not(finite), dtype)) > 0
    return xp.where(touched, xp.matmul(p, v), clean)
