"""Scores of a tile of 64 queries and 64 keys, without biases.

Each scorer of `scorers` has two functions here with one prefix. `…_bound` is called once for a tile
of queries, `…_scores` returns the scores of a tile. Arguments are

    a, b: `Panels` of queries and keys. weights: `Weights`. i_a, i_b: tiles of the panels. i_w: the
    problem of the weights. b_bound: the bound of the queries. seed: 0.0, see below.

One feature is a load of 64 numbers for 128 threads, and Triton repeats the load in the layout of
the tile instead of converting it. A thread has squares of 4 × 4 of the tile, so it needs four loads
per feature. The layout of tensor cores' sums would need eleven.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from anyscore.kernels.triton.outer import outer
from anyscore.kernels.triton.panels import BLOCK, WIDE
from anyscore.kernels.triton.tiles import INTERPRETED, TILE, entry

FREE = tl.constexpr(20.0)
"""The largest ln x at which four denominators can be multiplied."""
CLAMP = tl.constexpr(2.0**62)
"""The largest denominator at which two can be multiplied; the term of a larger one is 0."""


class Panels(NamedTuple):
    """Panels of queries or of keys: (problems, tiles, padded, 64), and the strides of problems.

    exponentials, bounds: None unless tanh is computed by exponentials. n, h, group: as in
    `Operand`, counted in problems.
    """

    features: Any
    exponentials: Any
    bounds: Any
    n: Any
    h: Any
    group: Any
    tiles: Any


class Weights(NamedTuple):
    """table (problems, 4, padded) and constants (problems, 2) of `coefficients`.

    Both are None without weight and exponentials. n, h, group: as in `Operand`, in problems.
    """

    table: Any
    constants: Any
    n: Any
    h: Any
    group: Any


if INTERPRETED.value:

    @triton.jit
    def reciprocal(x):
        """Return 1/x."""
        return 1.0 / x
else:

    @triton.jit
    def reciprocal(x):
        """Return 1/x within one unit in the last place."""
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def no_bound(a, i_a):
    """Return 0: these scores need no bound of a tile of queries."""
    return 0.0


@triton.jit
def _zeros(seed, ACC: tl.constexpr):
    """Return zeros (64, 64), with squares of 4 × 4 per thread. seed: 0.0, unknown to the compiler.

    Triton uses this layout for sums of products in float32, and for all terms added to them. Only
    the layout of the product remains: Triton finds that it is 0 after it has chosen layouts.
    """
    if INTERPRETED or tl.float32 != ACC:
        b_s = tl.zeros((TILE, TILE), ACC)
    else:
        b_x = tl.zeros((TILE, 16), tl.float32) + seed
        b_s = tl.dot(b_x, tl.zeros((16, TILE), tl.float32), input_precision="ieee")
        b_s = ((b_s.to(tl.uint32, bitcast=True) >> 31) & 2).to(tl.float32, bitcast=True)
    return b_s


@triton.jit
def product_scores(
    a, b, weights, i_a, i_b, i_w, b_bound, scale, seed, ACC: tl.constexpr, SCORER: tl.constexpr
):
    """Return scale Σ_f a_f b_f by tensor cores."""
    PADDED: tl.constexpr = SCORER.padded
    PRECISION: tl.constexpr = SCORER.precision
    NARROW: tl.constexpr = a.features.dtype.element_ty != ACC
    STEP: tl.constexpr = 64 if NARROW and PADDED % 64 == 0 else BLOCK
    o_f, o_t = tl.arange(0, STEP), tl.arange(0, TILE)
    p_a, p_b = a.features + i_a * (PADDED * TILE), b.features + i_b * (PADDED * TILE)
    b_s = tl.zeros((TILE, TILE), ACC)
    for _ in range(0, PADDED, STEP):
        b_a = tl.load(p_a + o_f[None, :] * TILE + o_t[:, None])  # (64, STEP)
        b_b = tl.load(p_b + o_f[:, None] * TILE + o_t[None, :])  # (STEP, 64)
        if INTERPRETED:
            b_a = b_a.to(ACC)
            b_b = b_b.to(ACC)
        b_s = tl.dot(b_a, b_b, b_s, input_precision=PRECISION, out_dtype=ACC)
        p_a += STEP * TILE
        p_b += STEP * TILE
    return b_s * scale


@triton.jit
def _add_features(p_a, p_b, p_w, b_s, VALUE: tl.constexpr, n_features, UNROLL: tl.constexpr):
    """Return b_s + Σ_f w_f pair(a_f, b_f), of pointers p_a, p_b (64,), p_w; p_w None is 1."""
    for _ in range(0, n_features, UNROLL):
        for u in tl.static_range(UNROLL):
            b_a, b_b = tl.load(p_a + u * TILE), tl.load(p_b + u * TILE)  # (64,)
            b_value = VALUE(b_a[:, None], b_b[None, :])  # (64, 64)
            if p_w is None:
                b_s += b_value
            else:
                b_s += tl.load(p_w + u).to(b_s.dtype) * b_value
        p_a += UNROLL * TILE
        p_b += UNROLL * TILE
        if p_w is not None:
            p_w += UNROLL
    return b_s


@triton.jit
def elementwise_scores(
    a, b, weights, i_a, i_b, i_w, b_bound, scale, seed, ACC: tl.constexpr, SCORER: tl.constexpr
):
    """Return scale Σ_f w_f pair(a_f, b_f), feature by feature."""
    PADDED: tl.constexpr = SCORER.padded
    VALUE: tl.constexpr = SCORER.pair.value
    WIDTH: tl.constexpr = SCORER.width
    MOST: tl.constexpr = SCORER.at_once
    UNROLL: tl.constexpr = MOST if WIDTH % MOST == 0 else 4 if WIDTH % 4 == 0 else 1
    o_t = tl.arange(0, TILE)
    p_a = a.features + i_a * (PADDED * TILE) + o_t
    p_b = b.features + i_b * (PADDED * TILE) + o_t
    p_w = None if weights.table is None else weights.table + i_w * (4 * PADDED)
    b_s = _zeros(seed, ACC)
    b_s = _add_features(p_a, p_b, p_w, b_s, VALUE, WIDTH, UNROLL)
    if p_w is None:
        b_s = b_s * scale
    return b_s


@triton.jit
def exponential_bound(a, i_a):
    """Return the largest exponent of a tile of queries."""
    return tl.load(a.bounds + i_a * 2)


@triton.jit
def _denominator(p_a, p_b, p_c, f: tl.constexpr, CLAMPED: tl.constexpr):
    """Return C + A B of feature f, (64, 64)."""
    b_a, b_b = tl.load(p_a + f * TILE), tl.load(p_b + f * TILE)  # (64,)
    b_x = tl.fma(b_a[:, None], b_b[None, :], tl.load(p_c + f))
    return tl.minimum(b_x, CLAMP) if CLAMPED else b_x


@triton.jit
def _add_reciprocals(p_a, p_b, p_c, b_s, n_features, AT_ONCE: tl.constexpr, CLAMPED: tl.constexpr):
    """Return b_s + Σ_f 1/(C_f + A_f B_f), with one reciprocal for AT_ONCE features.

    p_a, p_b (64,), p_c: pointers. A sum N/D plus one more 1/x is (N x + D) / (D x).
    """
    for _ in range(0, n_features, BLOCK):
        for u in tl.static_range(0, BLOCK, AT_ONCE):
            b_first = _denominator(p_a, p_b, p_c, u, CLAMPED)
            b_x = _denominator(p_a, p_b, p_c, u + 1, CLAMPED)
            b_numerator = b_first + b_x
            b_product = b_first * b_x
            for v in tl.static_range(2, AT_ONCE):
                b_x = _denominator(p_a, p_b, p_c, u + v, CLAMPED)
                b_numerator = tl.fma(b_numerator, b_x, b_product)
                b_product = b_product * b_x
            b_s = tl.fma(b_numerator, reciprocal(b_product), b_s)
        p_a += BLOCK * TILE
        p_b += BLOCK * TILE
        p_c += BLOCK
    return b_s


@triton.jit
def exponential_scores(
    a, b, weights, i_a, i_b, i_w, b_bound, scale, seed, ACC: tl.constexpr, SCORER: tl.constexpr
):
    """Return scale Σ_f w_f tanh(a_f + b_f), by reciprocals; see `panels`."""
    PADDED: tl.constexpr = SCORER.padded
    VALUE: tl.constexpr = SCORER.pair.value
    WIDTH: tl.constexpr = SCORER.width
    o_t = tl.arange(0, TILE)
    at_a, at_b = i_a * (PADDED * TILE), i_b * (PADDED * TILE)
    p_a, p_b = a.features + at_a + o_t, b.features + at_b + o_t
    p_w = weights.table + i_w * (4 * PADDED)
    b_s = _zeros(seed, ACC)
    highest = tl.load(b.bounds + i_b * 2)
    widest = tl.load(b.bounds + i_b * 2 + 1)
    p_ea, p_eb = a.exponentials + at_a + o_t, b.exponentials + at_b + o_t
    m_free = b_bound + highest <= FREE
    m_near = (widest <= WIDE) & (b_bound < float("inf"))
    p_c = p_w + PADDED
    # No branches: after a branch the tile would lose the layout of tensor cores.
    n_fours, n_twos = tl.where(m_free, PADDED, 0), tl.where(m_near & (m_free == 0), PADDED, 0)
    b_s = _add_reciprocals(p_ea, p_eb, p_c, b_s, n_fours, 4, False)
    b_s = _add_reciprocals(p_ea, p_eb, p_c, b_s, n_twos, 2, True)
    n_ones = tl.where(m_free | m_near, 0, WIDTH)
    b_s = _add_features(p_a, p_b, p_w, b_s, VALUE, n_ones, 1)
    factor, total = tl.load(weights.constants + i_w * 2), tl.load(weights.constants + i_w * 2 + 1)
    factor = tl.where(m_free | m_near, -factor, 1.0)
    return tl.fma(b_s, factor, tl.where(m_free | m_near, total, 0.0))


@triton.jit
def with_biases(b_s, biases, i_p, o_q, o_k, sizes, SCORER: tl.constexpr):
    """Return scores of sums b_s (Q, K) of queries o_q (Q,) and keys o_k (K,), and the slope of φ.

    Biases, if any, are added before or after an outer function.
    """
    OUTER: tl.constexpr = SCORER.outer
    C: tl.constexpr = SCORER.outer_scale
    AFTER: tl.constexpr = SCORER.after
    b_s = _add_key_bias(b_s, biases, i_p, o_k, sizes)
    if not AFTER:
        b_s = _add_bias(b_s, biases, i_p, o_q, o_k, sizes)
    b_s, b_slope = outer(b_s, OUTER, C)
    if AFTER:
        b_s = _add_bias(b_s, biases, i_p, o_q, o_k, sizes)
    return b_s, b_slope


@triton.jit
def _add_key_bias(b_s, biases, i_p, o_k, sizes):
    """Return b_s (Q, K) plus the bias of keys o_k (K,), if there is one."""
    if biases.keys is not None:
        p_bias = entry(biases.keys, i_p, sizes.heads) + o_k.to(tl.int64) * biases.keys.column
        b_bias = tl.load(p_bias, mask=o_k < sizes.keys, other=0.0).to(b_s.dtype)
        b_s += b_bias[None, :]
    return b_s


@triton.jit
def _add_bias(b_s, biases, i_p, o_q, o_k, sizes):
    """Return b_s (Q, K) plus the bias of queries o_q (Q,) and keys o_k (K,), if there is one."""
    if biases.pairs is not None:
        p_bias = entry(biases.pairs, i_p, sizes.heads)
        p_bias += o_q.to(tl.int64)[:, None] * biases.pairs.row
        p_bias += o_k.to(tl.int64)[None, :] * biases.pairs.column
        m_bias = (o_q < sizes.queries)[:, None] & (o_k < sizes.keys)[None, :]
        b_s += tl.load(p_bias, mask=m_bias, other=0.0).to(b_s.dtype)
    return b_s


@triton.jit
def tile_scores(
    a, b, weights, biases, i_a, i_b, i_w, b_bound, i_p, o_q, o_k, sizes, scale, seed,
    ACC: tl.constexpr, SCORER: tl.constexpr,
):  # fmt: skip
    """Return the scores (64, 64) of a tile, and the slope of φ."""
    b_s = SCORER.scores(a, b, weights, i_a, i_b, i_w, b_bound, scale, seed, ACC, SCORER)
    return with_biases(b_s, biases, i_p, o_q, o_k, sizes, SCORER)
