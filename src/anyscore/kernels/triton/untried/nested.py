"""Forward of scores that are products of rows: a loop over keys, and one over chunks of columns."""

from __future__ import annotations

import triton
import triton.language as tl

from anyscore.kernels.triton.forward import store_stats, take
from anyscore.kernels.triton.scores import with_biases
from anyscore.kernels.triton.tiles import (
    INTERPRETED,
    Biases,
    Mask,
    attended,
    bounds_of,
    dropout_mask,
    index_of,
    problem_of,
    tiles_of,
)
from anyscore.kernels.triton.untried.rows import CHUNK


@triton.jit
def row_products(p_f, p_g, n_chunks, QUERIES: tl.constexpr, KEYS: tl.constexpr):
    """Return the products (Q, K) of n_chunks of columns: p_f (Q, 64), p_g (64, K), pointers."""
    b_s = tl.zeros((QUERIES, KEYS), tl.float32)
    for i in range(n_chunks):
        b_f, b_g = tl.load(p_f + i * CHUNK), tl.load(p_g + i * CHUNK)
        if INTERPRETED:
            b_f = b_f.to(tl.float32)
            b_g = b_g.to(tl.float32)
        b_s = tl.dot(b_f, b_g, b_s)
    return b_s


@triton.jit
def nested(
    of_queries, of_keys, choice, biases, value, mask, dropout, output, stats, sizes, first, most,
    scale, n_blocks, SCORER: tl.constexpr, D_V: tl.constexpr, COLUMNS: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Write output (problems, T_q, D_V) and stats (problems, 2, T_q) of problems with chunks.

    of_queries, of_keys: `Factors`; biases.keys is the bias of keys. value: `Rows`. A program has
    QUERIES queries of a problem, counted from `first` on, and COLUMNS of the value.
    """
    mask = Mask(mask.start, mask.stop, mask.mask)  # see `Biases`
    biases = Biases(biases.keys, biases.pairs)
    n_tiles = of_queries.padded // QUERIES
    i_block, rest = tl.program_id(0) % n_blocks, tl.program_id(0) // n_blocks
    i_tile, i_band = rest % n_tiles, (rest // n_tiles).to(tl.int64)
    i_p = i_band + first
    n_chunks = tl.load(choice.chunks + i_p)
    if n_chunks == 0:
        return
    o_t = tl.arange(0, KEYS)
    o_q = i_tile * QUERIES + tl.arange(0, QUERIES)
    o_c, o_f = i_block * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, CHUNK)
    b_start, b_stop = bounds_of(mask, i_p, o_q, sizes)  # (Q,)
    i_low, n_before, n_whole, n_masked = tiles_of(mask, b_start, b_stop, sizes.keys, KEYS)
    p_f = of_queries.data + (i_band * of_queries.padded + o_q[:, None]) * most + o_f[None, :]
    p_g = of_keys.data + (i_band * of_keys.padded + o_t[None, :]) * most + o_f[:, None]
    i_v = problem_of(value, i_p, sizes.heads) * value.tiles * 64
    p_v = value.data + (i_v + o_t[:, None]) * value.padded + o_c[None, :]
    factor = tl.load(choice.top + i_p) * scale
    b_top = tl.full((QUERIES,), float("-inf"), tl.float32)
    b_total = tl.zeros((QUERIES,), tl.float32)
    b_o = tl.zeros((QUERIES, COLUMNS), tl.float32)
    for MASKED in tl.static_range(2):
        for i in range(n_masked if MASKED else n_whole):
            i_k = i_low + KEYS * index_of(i, n_before, n_whole, MASKED)
            o_k = i_k + o_t
            b_s = row_products(p_f, p_g + (i_band * 0 + i_k) * most, n_chunks, QUERIES, KEYS)
            b_s, _ = with_biases(b_s * factor, biases, i_p, o_q, o_k, sizes, SCORER)
            if MASKED:
                m_s = attended(mask, i_p, o_q, o_k, b_start, b_stop, sizes)
                b_s = tl.where(m_s, b_s, float("-inf"))
            b_x, b_fade, b_top, b_total = take(b_s, b_top, b_total)
            if dropout.seed is not None:
                b_x = tl.where(dropout_mask(dropout, i_p, o_q, o_k), b_x, 0.0)
            p_y = p_v + (i_band * 0 + i_k) * value.padded
            if MASKED:
                b_v = tl.load(p_y, mask=(o_k < sizes.keys)[:, None], other=0.0)
            else:
                b_v = tl.load(p_y)
            b_x = b_x.to(b_v.dtype)
            if INTERPRETED:  # whose bfloat16 is wrong
                b_x = b_x.to(tl.float32)
                b_v = b_v.to(tl.float32)
            b_o = tl.dot(b_x, b_v, b_o * b_fade[:, None])
    m_q, o_row = o_q < sizes.queries, i_p * sizes.queries + o_q
    if i_block == 0:
        b_u = tl.load(of_queries.bias + i_p * of_queries.padded + o_q)
        o_stats = i_p * 2 * sizes.queries + o_q
        store_stats(stats, o_stats, b_top + b_u, b_total, m_q, sizes.queries)
    b_safe = tl.where(b_total == 0, 1.0, b_total)
    tl.store(
        output + o_row[:, None] * D_V + o_c[None, :],
        b_o / b_safe[:, None],
        mask=m_q[:, None] & (o_c < D_V)[None, :],
    )
