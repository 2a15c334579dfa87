"""Scores of a tile of queries and 64 keys, without biases.

Each scorer of `scorers` has two functions here with one prefix. `…_queries` is called once for a
tile of queries and returns its state. `…_scores` returns the scores of a tile. Arguments are

    a, b: queries and keys, `Panels`, or `Features` of products. weights: `Weights`. b_state: of
    the queries. i_p: the problem. i_q, i_k: tiles of queries and keys. seed: 0.0, see below.

One feature of a panel is a load of 64 numbers for 128 threads. Triton repeats the load in the
layout of the tile instead of converting it. A thread has squares of 4 × 4 of the tile, so it needs
four loads per feature. The layout of tensor cores' sums would need eleven.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from anyscore.kernels.triton.outer import outer
from anyscore.kernels.triton.panels import BLOCK, TOGETHER, WIDE
from anyscore.kernels.triton.tiles import INTERPRETED, TILE, entry, problem_of

FREE = tl.constexpr(20.0)
"""The largest ln x at which four denominators can be multiplied."""
CLAMP = tl.constexpr(2.0**62)
"""The largest denominator at which two can be multiplied; the term of a larger one is 0."""


NEAR = tl.constexpr(2.0**8)
"""Up to this c (|a|² + |b|²), squared distances by norms are off by at most 2^−13 in the score."""
STEEP = tl.constexpr(2.0**-18)
"""A root of a squared distance x is off by at most 2^−13 from STEEP (c |a|² + c |b|²)² on."""


class Panels(NamedTuple):
    """Panels of queries or of keys: (problems, tiles, padded, 64), and the strides of problems.

    mapped: exponentials of tanh, or folded features of leaky_relu; else None. bounds (problems,
    tiles, 2): of the exponentials. sums (problems, tiles, 64): of the folded features. n, h, group:
    as in `Operand`, counted in problems.
    """

    features: Any
    mapped: Any
    bounds: Any
    sums: Any
    n: Any
    h: Any
    group: Any
    tiles: Any


class Weights(NamedTuple):
    """table (problems, 4, padded) and constants (problems, 2) of `coefficients`.

    Both are None without weight and exponentials. With folded features, constants are the counts of
    `order_by_sign`. With norms, table is one weight for each problem. n, h, group: as in `Operand`,
    in problems.
    """

    table: Any
    constants: Any
    n: Any
    h: Any
    group: Any


@triton.jit
def no_queries(a, i_p, i_q, sizes, SCORER: tl.constexpr):
    """Return 0: these scores need no state of a tile of queries."""
    return 0.0


@triton.jit
def _offset(x, i_p, i_tile, sizes, PADDED: tl.constexpr):
    """Return the offset of a tile of problem i_p in the panels x."""
    return (problem_of(x, i_p, sizes.heads) * x.tiles + i_tile) * (PADDED * TILE)


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
def _rows(x, i_p, o_r, n_rows, o_f, sizes, SCORER: tl.constexpr, ACC: tl.constexpr):
    """Return rows o_r (R,) and columns o_f (F,) of `Features`, (R, F), 0 beyond the last."""
    WIDTH: tl.constexpr = SCORER.width
    p_x = entry(x, i_p, sizes.heads) + o_r[:, None].to(tl.int64) * x.row + o_f[None, :] * x.column
    b_x = tl.load(p_x, mask=(o_r < n_rows)[:, None] & (o_f < WIDTH)[None, :], other=0.0)
    if INTERPRETED or not SCORER.narrow:  # the interpreter's bfloat16 is wrong
        b_x = b_x.to(ACC)
    return b_x


@triton.jit
def product_queries(a, i_p, i_q, sizes, SCORER: tl.constexpr):
    """Return the features (Q, F) of a tile of queries if a step has them all, else 0."""
    if SCORER.narrow and SCORER.depth >= SCORER.width:
        o_q = i_q * SCORER.queries + tl.arange(0, SCORER.queries)
        o_f = tl.arange(0, SCORER.depth)
        b_a = _rows(a, i_p, o_q, sizes.queries, o_f, sizes, SCORER, tl.float32)
    else:
        b_a = 0.0
    return b_a


@triton.jit
def _product(a, b, b_a, i_p, i_q, i_k, sizes, ACC: tl.constexpr, SCORER: tl.constexpr):
    """Return Σ_f a_f b_f (Q, 64) by tensor cores; b_a: of `product_queries`."""
    PRECISION: tl.constexpr = SCORER.precision
    DEPTH: tl.constexpr = SCORER.depth
    WIDTH: tl.constexpr = SCORER.width
    QUERIES: tl.constexpr = SCORER.queries
    WHOLE: tl.constexpr = SCORER.narrow and DEPTH >= WIDTH
    o_q, o_k = i_q * QUERIES + tl.arange(0, QUERIES), i_k * TILE + tl.arange(0, TILE)
    o_f = tl.arange(0, DEPTH)
    b_s = tl.zeros((QUERIES, TILE), ACC)
    if WHOLE:
        b_b = _rows(b, i_p, o_k, sizes.keys, o_f, sizes, SCORER, ACC)
        b_s = tl.dot(b_a, tl.trans(b_b), b_s, input_precision=PRECISION, out_dtype=ACC)
    else:
        for i_f in range(0, WIDTH, DEPTH):
            b_x = _rows(a, i_p, o_q, sizes.queries, i_f + o_f, sizes, SCORER, ACC)
            b_b = _rows(b, i_p, o_k, sizes.keys, i_f + o_f, sizes, SCORER, ACC)
            b_s = tl.dot(b_x, tl.trans(b_b), b_s, input_precision=PRECISION, out_dtype=ACC)
    return b_s


@triton.jit
def product_scores(
    a, b, weights, b_state, i_p, i_q, i_k, sizes, scale, seed, ACC: tl.constexpr,
    SCORER: tl.constexpr,
):  # fmt: skip
    """Return scale Σ_f a_f b_f by tensor cores."""
    return _product(a, b, b_state, i_p, i_q, i_k, sizes, ACC, SCORER) * scale


@triton.jit
def _norms_of(x, i_p, o_r, n_rows, sizes):
    """Return the squared norms (R,) of rows o_r (R,) of `Features`, 0 beyond the last."""
    i_x = (i_p // sizes.heads) * x.norm_n + (i_p % sizes.heads) // x.group * x.norm_h
    return tl.load(x.norms + i_x * n_rows + o_r, mask=o_r < n_rows, other=0.0)


@triton.jit
def squared_queries(a, i_p, i_q, sizes, SCORER: tl.constexpr):
    """Return the features of `product_queries`, their squared norms (Q,), and the largest."""
    o_q = i_q * SCORER.queries + tl.arange(0, SCORER.queries)
    b_norms = _norms_of(a, i_p, o_q, sizes.queries, sizes)
    return product_queries(a, i_p, i_q, sizes, SCORER), b_norms, tl.max(b_norms, 0)


@triton.jit
def squared_scores(
    a, b, weights, b_state, i_p, i_q, i_k, sizes, scale, seed, ACC: tl.constexpr,
    SCORER: tl.constexpr,
):  # fmt: skip
    """Return c Σ_f (a_f − b_f)² as c (|a|² + |b|² − 2 a·b), c = scale times the one weight.

    Products of 16-bit features are exact, and their sum is off by at most 2^−21 (|a|² + |b|²).
    Where that is too much, the sum over differences is taken instead.
    """
    OUTER: tl.constexpr = SCORER.outer
    VALUE: tl.constexpr = SCORER.pair.value
    WIDTH: tl.constexpr = SCORER.width
    o_q, o_k = i_q * SCORER.queries + tl.arange(0, SCORER.queries), i_k * TILE + tl.arange(0, TILE)
    c = scale
    if weights.table is not None:
        c = scale * tl.load(weights.table + problem_of(weights, i_p, sizes.heads))
    b_a, b_norms, most = b_state
    b_others = _norms_of(b, i_p, o_k, sizes.keys, sizes)
    b_s = _product(a, b, b_a, i_p, i_q, i_k, sizes, ACC, SCORER)
    b_s = b_norms[:, None] + b_others[None, :] - 2 * b_s
    b_s = tl.where(b_s < 0, 0.0, b_s) * c  # NaN stays
    far = (most + tl.max(b_others, 0)) * tl.abs(c) > NEAR
    if (OUTER == "sqrt") | (OUTER == "arcosh"):  # steep at 0
        b_size = (b_norms[:, None] + b_others[None, :]) * tl.abs(c)
        m_far = b_s < b_size * b_size * STEEP
        far = far | (tl.max(tl.max(m_far.to(tl.int32), 1), 0) != 0)
    if far:
        p_a = entry(a, i_p, sizes.heads) + o_q.to(tl.int64) * a.row
        p_b = entry(b, i_p, sizes.heads) + o_k.to(tl.int64) * b.row
        b_exact = tl.zeros(b_s.shape, ACC)
        for i_f in range(WIDTH):
            b_x = tl.load(p_a + i_f * a.column, mask=o_q < sizes.queries, other=0.0).to(ACC)
            b_y = tl.load(p_b + i_f * b.column, mask=o_k < sizes.keys, other=0.0).to(ACC)
            b_exact += VALUE(b_x[:, None], b_y[None, :])
        b_size = (b_norms[:, None] + b_others[None, :]) * tl.abs(c)
        m_near = b_size <= NEAR  # an entry's way depends on no other entry
        if (OUTER == "sqrt") | (OUTER == "arcosh"):
            m_near = m_near & (b_s >= b_size * b_size * STEEP)
        b_s = tl.where(m_near, b_s, b_exact * c)
    return b_s


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
    a, b, weights, b_state, i_p, i_q, i_k, sizes, scale, seed, ACC: tl.constexpr,
    SCORER: tl.constexpr,
):  # fmt: skip
    """Return scale Σ_f w_f pair(a_f, b_f), feature by feature."""
    PADDED: tl.constexpr = SCORER.padded
    VALUE: tl.constexpr = SCORER.pair.value
    WIDTH: tl.constexpr = SCORER.width
    MOST: tl.constexpr = SCORER.at_once
    UNROLL: tl.constexpr = MOST if WIDTH % MOST == 0 else 4 if WIDTH % 4 == 0 else 1
    o_t = tl.arange(0, TILE)
    p_a = a.features + _offset(a, i_p, i_q, sizes, PADDED) + o_t
    p_b = b.features + _offset(b, i_p, i_k, sizes, PADDED) + o_t
    p_w = None
    if weights.table is not None:
        p_w = weights.table + problem_of(weights, i_p, sizes.heads) * (4 * PADDED)
    b_s = _zeros(seed, ACC)
    b_s = _add_features(p_a, p_b, p_w, b_s, VALUE, WIDTH, UNROLL)
    if p_w is None:
        b_s = b_s * scale
    return b_s


@triton.jit
def _add_absolutes(p_a, p_b, b_s, n_features, SIGN: tl.constexpr):
    """Return b_s ± Σ_f |a_f + b_f|, of pointers p_a, p_b (64,)."""
    for _ in range(0, n_features, TOGETHER):
        for u in tl.static_range(TOGETHER):
            b_a, b_b = tl.load(p_a + u * TILE), tl.load(p_b + u * TILE)  # (64,)
            b_x = tl.abs(b_a[:, None] + b_b[None, :])
            b_s = b_s + b_x if SIGN == 1 else b_s - b_x
        p_a += TOGETHER * TILE
        p_b += TOGETHER * TILE
    return b_s


@triton.jit
def folded_queries(a, i_p, i_q, sizes, SCORER: tl.constexpr):
    """Return the sums of folded features of a tile of queries (64,)."""
    i_a = problem_of(a, i_p, sizes.heads) * a.tiles + i_q
    return tl.load(a.sums + i_a * TILE + tl.arange(0, TILE))


@triton.jit
def folded_scores(
    a, b, weights, b_state, i_p, i_q, i_k, sizes, scale, seed, ACC: tl.constexpr,
    SCORER: tl.constexpr,
):  # fmt: skip
    """Return scale Σ_f w_f leaky_relu(a_f + b_f) by absolute values; see `panels`."""
    PADDED: tl.constexpr = SCORER.padded
    SLOTS: tl.constexpr = SCORER.slots
    VALUE: tl.constexpr = SCORER.pair.value
    o_t = tl.arange(0, TILE)
    i_w = problem_of(weights, i_p, sizes.heads)
    n_above, n_below = (
        tl.load(weights.constants + i_w * 2),
        tl.load(weights.constants + i_w * 2 + 1),
    )
    p_a = a.mapped + _offset(a, i_p, i_q, sizes, SLOTS) + o_t
    p_b = b.mapped + _offset(b, i_p, i_k, sizes, SLOTS) + o_t
    b_s = _zeros(seed, ACC)
    b_s = _add_absolutes(p_a, p_b, b_s, n_above, 1)
    b_s = _add_absolutes(p_a + n_above * TILE, p_b + n_above * TILE, b_s, n_below, -1)
    i_b = problem_of(b, i_p, sizes.heads) * b.tiles + i_k
    b_sums = tl.load(b.sums + i_b * TILE + o_t)
    b_s += b_state[:, None] + b_sums[None, :]
    # A sum of ∞ may have become NaN. No branches: see `exponential_scores`.
    largest = tl.max(tl.abs(b_state), 0) + tl.max(tl.abs(b_sums), 0)
    n_exact = tl.where(largest == float("inf"), SCORER.width, 0)
    p_a = a.features + _offset(a, i_p, i_q, sizes, PADDED) + o_t
    p_b = b.features + _offset(b, i_p, i_k, sizes, PADDED) + o_t
    p_w = weights.table + i_w * (4 * PADDED)
    b_exact = _add_features(p_a, p_b, p_w, _zeros(seed, ACC), VALUE, n_exact, 1)
    return tl.where((n_exact == 0) | (tl.abs(b_s) < float("inf")), b_s, b_exact)


@triton.jit
def exponential_queries(a, i_p, i_q, sizes, SCORER: tl.constexpr):
    """Return the largest exponent of a tile of queries."""
    return tl.load(a.bounds + (problem_of(a, i_p, sizes.heads) * a.tiles + i_q) * 2)


@triton.jit
def _denominator(p_a, p_b, p_c, f: tl.constexpr, CLAMPED: tl.constexpr):
    """Return C + A B of feature f, (64, 64)."""
    b_a, b_b = tl.load(p_a + f * TILE), tl.load(p_b + f * TILE)  # (64,)
    b_x = tl.fma(b_a[:, None], b_b[None, :], tl.load(p_c + f))
    return tl.minimum(b_x, CLAMP) if CLAMPED else b_x


@triton.jit
def _add_reciprocals(
    p_a, p_b, p_c, b_s, n_features, RECIPROCAL: tl.constexpr, AT_ONCE: tl.constexpr,
    CLAMPED: tl.constexpr,
):  # fmt: skip
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
            b_s = tl.fma(b_numerator, RECIPROCAL(b_product), b_s)
        p_a += BLOCK * TILE
        p_b += BLOCK * TILE
        p_c += BLOCK
    return b_s


@triton.jit
def exponential_scores(
    a, b, weights, b_state, i_p, i_q, i_k, sizes, scale, seed, ACC: tl.constexpr,
    SCORER: tl.constexpr,
):  # fmt: skip
    """Return scale Σ_f w_f tanh(a_f + b_f), by reciprocals; see `panels`."""
    PADDED: tl.constexpr = SCORER.padded
    VALUE: tl.constexpr = SCORER.pair.value
    WIDTH: tl.constexpr = SCORER.width
    RECIPROCAL: tl.constexpr = SCORER.reciprocal
    o_t = tl.arange(0, TILE)
    at_a, at_b = _offset(a, i_p, i_q, sizes, PADDED), _offset(b, i_p, i_k, sizes, PADDED)
    i_w = problem_of(weights, i_p, sizes.heads)
    p_a, p_b = a.features + at_a + o_t, b.features + at_b + o_t
    p_w = weights.table + i_w * (4 * PADDED)
    b_s = _zeros(seed, ACC)
    p_bound = b.bounds + (problem_of(b, i_p, sizes.heads) * b.tiles + i_k) * 2
    highest, widest = tl.load(p_bound), tl.load(p_bound + 1)
    p_ea, p_eb = a.mapped + at_a + o_t, b.mapped + at_b + o_t
    m_near = (widest <= WIDE) & (b_state < float("inf"))
    m_free = m_near & (b_state + highest <= FREE)
    p_c = p_w + PADDED
    # No branches: after a branch the tile would lose the layout of tensor cores.
    n_fours, n_twos = tl.where(m_free, PADDED, 0), tl.where(m_near & (m_free == 0), PADDED, 0)
    b_s = _add_reciprocals(p_ea, p_eb, p_c, b_s, n_fours, RECIPROCAL, 4, False)
    b_s = _add_reciprocals(p_ea, p_eb, p_c, b_s, n_twos, RECIPROCAL, 2, True)
    n_ones = tl.where(m_near, 0, WIDTH)
    b_s = _add_features(p_a, p_b, p_w, b_s, VALUE, n_ones, 1)
    factor, total = tl.load(weights.constants + i_w * 2), tl.load(weights.constants + i_w * 2 + 1)
    factor = tl.where(m_near, -factor, 1.0)
    return tl.fma(b_s, factor, tl.where(m_near, total, 0.0))


@triton.jit
def with_biases(b_s, biases, i_p, o_q, o_k, sizes, SCORER: tl.constexpr):
    """Return scores of sums b_s (Q, K) of queries o_q (Q,) and keys o_k (K,), and the slope of φ.

    Biases, if any, are added before or after an outer function.
    """
    AFTER: tl.constexpr = SCORER.after
    b_s = _add_key_bias(b_s, biases, i_p, o_k, sizes)
    if not AFTER:
        b_s = _add_bias(b_s, biases, i_p, o_q, o_k, sizes)
    b_s, b_slope = outer(b_s, SCORER)
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
    a, b, weights, biases, b_state, i_p, i_q, i_k, o_q, o_k, sizes, scale, seed,
    ACC: tl.constexpr, SCORER: tl.constexpr,
):  # fmt: skip
    """Return the scores (Q, 64) of a tile, and the slope of φ."""
    b_s = SCORER.scores(a, b, weights, b_state, i_p, i_q, i_k, sizes, scale, seed, ACC, SCORER)
    return with_biases(b_s, biases, i_p, o_q, o_k, sizes, SCORER)
