"""Forward in Triton: output and statistics, tile by tile with a running maximum."""

from __future__ import annotations

import triton
import triton.language as tl

from anyscore.kernels.triton.scores import tile_scores
from anyscore.kernels.triton.tiles import (
    TILE,
    Biases,
    Mask,
    add_nonfinite,
    add_product,
    attended,
    bounds_of,
    dropout_mask,
    entry,
    index_of,
    problem_of,
    range_of,
    some_nonfinite,
    tiles_of,
)


@triton.jit
def take(b_s, b_top, b_total):
    """Update a running softmax with scores b_s (Q, K).

    Return their exponentials relative to the new maximum (Q, K), the factor of earlier sums, the
    new maximum and the new sum, each (Q,).
    """
    b_new = tl.maximum(b_top, tl.max(b_s, 1))
    b_shift = tl.where(b_new == float("-inf"), 0.0, b_new)
    b_x = tl.exp(b_s - b_shift[:, None])
    b_fade = tl.exp(b_top - b_shift)
    return b_x, b_fade, b_new, b_total * b_fade + tl.sum(b_x, 1)


@triton.jit
def sigmoid(b_x):
    """Return 1 / (1 + e^−x)."""
    return 1 / (1 + tl.exp(-b_x))


@triton.jit
def shift_of(stats, o_row, m_q):
    """Return the shift (Q,) subtracted from scores: the first statistic, 0 in place of −∞."""
    b_shift = tl.load(stats + o_row, mask=m_q, other=0.0)
    return tl.where(b_shift == float("-inf"), 0.0, b_shift)


@triton.jit
def store_stats(stats, o_row, b_top, b_total, m_q, n_queries):
    """Write the statistics of a softmax: the largest score (Q,), the logarithm of the sum (Q,)."""
    tl.store(stats + o_row, b_top, mask=m_q)
    tl.store(stats + o_row + n_queries, tl.log(tl.where(b_total == 0, 1.0, b_total)), mask=m_q)


@triton.jit
def store_scores(scores, b_s, i_p, o_q, o_k, sizes, i_block):
    """Write scores b_s (Q, K) to scores (problems, T_q, T_k), in the first block only."""
    n_queries = tl.where(i_block == 0, sizes.queries, 0)
    m_s = (o_q < n_queries)[:, None] & (o_k < sizes.keys)[None, :]
    p_s = scores + (i_p * sizes.queries + o_q)[:, None] * sizes.keys + o_k[None, :]
    tl.store(p_s, b_s, mask=m_s)


@triton.jit
def forward(
    a, b, weights, biases, value, mask, dropout, output, stats, scores, sizes, scale, seed,
    n_blocks, chunks, SCORER: tl.constexpr, D_V: tl.constexpr, COLUMNS: tl.constexpr,
    SIGMOID: tl.constexpr,
):  # fmt: skip
    """Write output (problems, T_q, D_V) and stats (problems, 2, T_q), in the accumulation dtype.

    SIGMOID: whether a sigmoid is the normalizer; stats then hold its shift and are not written.
    scores: (problems, T_q, T_k), filled with −∞ before; attended entries are written; or None.
    value: `Rows`. A program has a tile of queries of one problem and COLUMNS of the value. chunks:
    None, or (problems,); the kernel leaves problems with chunks to `nested`.
    """
    ACC: tl.constexpr = stats.dtype.element_ty
    PRECISION: tl.constexpr = SCORER.precision
    QUERIES: tl.constexpr = SCORER.queries
    mask = Mask(mask.start, mask.stop, mask.mask)  # see `Biases`
    biases = Biases(biases.keys, biases.pairs)
    i_block, rest = tl.program_id(0) % n_blocks, tl.program_id(0) // n_blocks
    n_tiles = tl.cdiv(sizes.queries, QUERIES)
    i_tile, i_p = rest % n_tiles, (rest // n_tiles).to(tl.int64)
    if chunks is not None:  # noqa: SIM102 (`and` would load from None)
        if tl.load(chunks + i_p) != 0:
            return
    o_t = tl.arange(0, TILE)
    o_q = i_tile * QUERIES + tl.arange(0, QUERIES)
    o_c = i_block * COLUMNS + tl.arange(0, COLUMNS)
    i_v = problem_of(value, i_p, sizes.heads) * value.tiles
    b_state = SCORER.read_queries(a, i_p, i_tile, sizes, SCORER)

    b_start, b_stop = bounds_of(mask, i_p, o_q, sizes)  # (Q,)
    i_low, n_before, n_whole, n_masked = tiles_of(mask, b_start, b_stop, sizes.keys)
    p_v = value.data + i_v * TILE * value.padded
    b_top = tl.full((QUERIES,), float("-inf"), ACC)
    b_total = tl.zeros((QUERIES,), ACC)
    b_o = tl.zeros((QUERIES, COLUMNS), ACC)
    m_q = o_q < sizes.queries
    o_row, o_stats = i_p * sizes.queries + o_q, i_p * 2 * sizes.queries + o_q
    if SIGMOID:
        b_shift = shift_of(stats, o_stats, m_q)
    for MASKED in tl.static_range(2):
        for i in range(n_masked if MASKED else n_whole):
            i_k = i_low + TILE * index_of(i, n_before, n_whole, MASKED)
            o_k = i_k + o_t
            b_s, _ = tile_scores(
                a, b, weights, biases, b_state, i_p, i_tile, i_k // TILE, o_q, o_k, sizes, scale,
                seed, ACC, SCORER,
            )  # fmt: skip
            if MASKED:
                m_s = attended(mask, i_p, o_q, o_k, b_start, b_stop, sizes)
                b_s = tl.where(m_s, b_s, float("-inf"))
            if scores is not None:
                store_scores(scores, b_s, i_p, o_q, o_k, sizes, i_block)
            if SIGMOID:
                b_x = sigmoid(b_s - b_shift[:, None])
            else:
                b_x, b_fade, b_top, b_total = take(b_s, b_top, b_total)
                b_o = b_o * b_fade[:, None]
            if dropout.seed is not None:
                b_x = tl.where(dropout_mask(dropout, i_p, o_q, o_k), b_x, 0.0)
            b_o = add_product(
                b_o, b_x.to(value.data.dtype.element_ty),
                p_v + (i_p * 0 + i_k) * value.padded, value.padded, o_c, PRECISION,
            )  # fmt: skip
    if i_block == 0 and not SIGMOID:
        store_stats(stats, o_stats, b_top, b_total, m_q, sizes.queries)
    b_safe = tl.where(b_total == 0, 1.0, b_total)
    tl.store(
        output + o_row[:, None] * D_V + o_c[None, :],
        b_o / b_safe[:, None],
        mask=m_q[:, None] & (o_c < D_V)[None, :],
    )


@triton.jit
def forward_nonfinite(value, finite, mask, output, sizes, D_V: tl.constexpr, COLUMNS: tl.constexpr):
    """Add to output (problems, T_q, D_V) the NaN and ±∞ of value, for queries that attend them.

    The product leaves them out, because 0 · NaN would reach other queries. value: an operand.
    finite: its `Rows`. Programs are as in `forward`.
    """
    n_blocks: tl.constexpr = tl.cdiv(D_V, COLUMNS)
    n_tiles = tl.cdiv(sizes.queries, TILE)
    mask = Mask(mask.start, mask.stop, mask.mask)  # see `Biases`
    i_block, rest = tl.program_id(0) % n_blocks, tl.program_id(0) // n_blocks
    i_tile, i_p = rest % n_tiles, (rest // n_tiles).to(tl.int64)
    o_t = tl.arange(0, TILE)
    o_q, o_c = i_tile * TILE + o_t, i_block * COLUMNS + tl.arange(0, COLUMNS)
    b_start, b_stop = bounds_of(mask, i_p, o_q, sizes)
    i_low, i_high = range_of(b_start, b_stop, sizes.keys)
    p_nonfinite = finite.nonfinite + problem_of(finite, i_p, sizes.heads) * finite.tiles
    if some_nonfinite(p_nonfinite, i_low // TILE, tl.cdiv(i_high, TILE)):
        b_o = tl.zeros((TILE, COLUMNS), tl.float32)
        p_v = entry(value, i_p, sizes.heads)
        for i_k in range(i_low, i_high, TILE):
            if tl.load(p_nonfinite + i_k // TILE) != 0:
                m_s = attended(mask, i_p, o_q, i_k + o_t, b_start, b_stop, sizes)
                b_o = add_nonfinite(
                    b_o, m_s, p_v + (i_p * 0 + i_k) * value.row, value.row, value.column,
                    sizes.keys - i_k, o_c, D_V,
                )  # fmt: skip
        m_o = (o_q < sizes.queries)[:, None] & (o_c < D_V)[None, :]
        p_o = output + (i_p * sizes.queries + o_q)[:, None] * D_V + o_c[None, :]
        tl.store(p_o, tl.load(p_o, mask=m_o) + b_o, mask=m_o)
