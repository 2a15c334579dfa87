"""Forward in Triton for one or two queries, a decoding step, at the memory's speed.

Kernels read rows directly, without panels. Programs split the keys, and a second kernel combines
their sums.
"""

from __future__ import annotations

import triton
import triton.language as tl

from anyscore.kernels.triton.forward import shift_of, sigmoid, store_scores, store_stats, take
from anyscore.kernels.triton.scores import with_biases
from anyscore.kernels.triton.tiles import (
    TILE,
    Biases,
    Mask,
    attended,
    bounds_of,
    dropout_mask,
    entry,
)

FEATURES = tl.constexpr(32)
"""The number of features per load."""


@triton.jit
def _scores(p_a, p_b, p_w, a, b, weight, o_k, sizes, scale, ACC, SCORER: tl.constexpr):
    """Return scores (1, 64) of one query and keys o_k (64,), without bias.

    p_a, p_b, p_w: pointers to the query, and to the entries of the operands b and weight.
    """
    WIDTH: tl.constexpr = SCORER.width
    o_f = tl.arange(0, FEATURES)
    m_k = o_k < sizes.keys
    b_s = tl.zeros((TILE,), ACC)
    for _ in range(0, WIDTH, FEATURES):
        m_f = o_f < WIDTH
        b_a = tl.load(p_a + o_f * a.column, mask=m_f, other=0.0).to(ACC)  # (F,)
        p_x = p_b + o_k.to(tl.int64)[:, None] * b.row + o_f[None, :] * b.column
        b_b = tl.load(p_x, mask=m_k[:, None] & m_f[None, :], other=0.0).to(ACC)  # (64, F)
        b_x = SCORER.pair.value(b_a[None, :], b_b)
        if weight is not None:
            b_w = tl.load(p_w + o_f * weight.column, mask=m_f, other=0.0).to(ACC)
            b_x = b_x * b_w[None, :]
        b_s += tl.sum(tl.where(m_f[None, :], b_x, 0.0), 1)
        o_f += FEATURES
    return b_s[None, :] * (scale + 0.0)  # keeps scale in a register: else eight bytes spill


@triton.jit
def decode_queries(
    a, b, weight, biases, value, mask, dropout, stats, tops, totals, summed, scores, sizes, scale,
    chunk, n_splits, SCORER: tl.constexpr, D_V: tl.constexpr, COLUMNS: tl.constexpr,
    SIGMOID: tl.constexpr,
):  # fmt: skip
    """Attend `chunk` keys; a program has one query, one chunk and COLUMNS of the value.

    a, b, weight, value: operands. tops, totals: (problems, T_q, splits), the largest score, and the
    sum of exponentials relative to it. summed: (problems, T_q, splits, D_V), the weighted sums of
    values. stats, scores, SIGMOID: as in `forward`; with a sigmoid, tops and totals are 0.
    """
    ACC: tl.constexpr = tops.dtype.element_ty
    mask = Mask(mask.start, mask.stop, mask.mask)  # see `Biases`
    biases = Biases(biases.keys, biases.pairs)
    n_blocks: tl.constexpr = tl.cdiv(D_V, COLUMNS) if D_V else 1
    i_block, rest = tl.program_id(0) % n_blocks, tl.program_id(0) // n_blocks
    i_split, rest = rest % n_splits, rest // n_splits
    i_q, i_p = rest % sizes.queries, (rest // sizes.queries).to(tl.int64)
    o_q = i_q + tl.arange(0, 1)
    o_c = i_block * COLUMNS + tl.arange(0, COLUMNS)
    p_a = entry(a, i_p, sizes.heads) + i_q * a.row
    p_b = entry(b, i_p, sizes.heads)
    p_w = None if weight is None else entry(weight, i_p, sizes.heads)
    p_v = entry(value, i_p, sizes.heads)

    b_start, b_stop = bounds_of(mask, i_p, o_q, sizes)  # (1,)
    i_low = tl.maximum(tl.max(b_start, 0), i_split * chunk)
    i_high = tl.minimum(tl.max(b_stop, 0), i_split * chunk + chunk)
    b_top = tl.full((1,), 0.0 if SIGMOID else float("-inf"), ACC)
    b_total = tl.zeros((1,), ACC)
    if SIGMOID:
        b_shift = shift_of(stats, i_p * 2 * sizes.queries + o_q, o_q < sizes.queries)
    b_o = tl.zeros((COLUMNS,), ACC)
    for i_k in range(i_low // TILE * TILE, i_high, TILE):
        o_k = tl.arange(0, TILE) + i_k
        m_s = attended(mask, i_p, o_q, o_k, b_start, b_stop, sizes)
        m_s = m_s & ((o_k >= i_low) & (o_k < i_high))[None, :]  # (1, 64)
        b_s = _scores(p_a, p_b, p_w, a, b, weight, o_k, sizes, scale, ACC, SCORER)
        b_s, _ = with_biases(b_s, biases, i_p, o_q, o_k, sizes, SCORER)
        b_s = tl.where(m_s, b_s, float("-inf"))
        if scores is not None:
            store_scores(scores, b_s, i_p, o_q, o_k, sizes, i_block)
        if SIGMOID:
            b_x = sigmoid(b_s - b_shift[:, None])
        else:
            b_x, b_fade, b_top, b_total = take(b_s, b_top, b_total)
            b_o = b_o * b_fade
        if dropout.seed is not None:
            b_x = tl.where(dropout_mask(dropout, i_p, o_q, o_k), b_x, 0.0)
        b_weight, m_k = tl.sum(b_x, 0), tl.max(m_s.to(tl.int32), 0) != 0  # (64,)
        p_x = p_v + o_k.to(tl.int64)[:, None] * value.row + o_c[None, :] * value.column
        m_v = m_k[:, None] & (o_c < D_V)[None, :]
        b_v = tl.load(p_x, mask=m_v, other=0.0).to(ACC)  # (64, C)
        b_o += tl.sum(tl.where(m_v, b_weight[:, None] * b_v, 0.0), 0)
    i_row = (i_p * sizes.queries + i_q) * n_splits + i_split
    if i_block == 0:
        tl.store(tops + i_row + tl.arange(0, 1), b_top)
        tl.store(totals + i_row + tl.arange(0, 1), b_total)
    tl.store(summed + i_row * D_V + o_c, b_o, mask=o_c < D_V)


@triton.jit
def combine(
    tops, totals, summed, output, stats, n_splits, n_queries, D_V: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write output (rows, D_V) and stats from the splits; a program has COLUMNS of one row.

    stats: (problems, 2, T_q), or None.
    """
    n_blocks: tl.constexpr = tl.cdiv(D_V, COLUMNS) if D_V else 1
    i_block, i_row = tl.program_id(0) % n_blocks, (tl.program_id(0) // n_blocks).to(tl.int64)
    o_c = i_block * COLUMNS + tl.arange(0, COLUMNS)
    top = tl.load(tops + i_row * n_splits)
    for i in range(1, n_splits):
        top = tl.maximum(top, tl.load(tops + i_row * n_splits + i))
    shift = tl.where(top == float("-inf"), 0.0, top)
    total = shift * 0
    b_o = tl.zeros((COLUMNS,), summed.dtype.element_ty)
    for i in range(n_splits):
        i_part = i_row * n_splits + i
        weight = tl.exp(tl.load(tops + i_part) - shift)
        total += tl.load(totals + i_part) * weight
        b_o += tl.load(summed + i_part * D_V + o_c, mask=o_c < D_V, other=0.0) * weight
    if stats is not None and i_block == 0:
        i_stats = i_row // n_queries * 2 * n_queries + i_row % n_queries
        store_stats(stats, i_stats, top, total, True, n_queries)
    safe = tl.where(total == 0, 1.0, total)
    tl.store(output + i_row * D_V + o_c, b_o / safe, mask=o_c < D_V)
