"""Backward of scores that are products of rows, by products with the same rows.

    dS_ij = P_ij (dP_ij − D_i)     dF = dS G     dG = dSᵀ F     dV = Pᵀ dO

P and dS of some problems and keys are stored in half precision. A power of two brings dS into the
range of float16. `rows.slopes` turns dF and dG into gradients of a, b and w.
"""

from __future__ import annotations

import triton
import triton.language as tl

from anyscore.kernels.triton.forward import shift_of
from anyscore.kernels.triton.scores import with_biases
from anyscore.kernels.triton.tiles import (
    INTERPRETED,
    TILE,
    Biases,
    Mask,
    attended,
    bounds_of,
    dropout_mask,
    entry,
    problem_of,
)
from anyscore.kernels.triton.untried.nested import row_products
from anyscore.kernels.triton.untried.rows import CHUNK, is_read

_LARGEST = tl.constexpr(14.0)
"""The exponent of the largest dS; float16 ends at 2^16."""


@triton.jit
def _largest(p_x, row, column, used, i_p, n_rows, width, heads, COLUMNS: tl.constexpr):
    """Return the largest Σ_c |x_c| of the rows that are read; ∞ if any is not finite."""
    o_r, o_c = tl.arange(0, TILE), tl.arange(0, COLUMNS)
    b_most = tl.zeros((TILE,), tl.float32)
    for i_r in range(0, n_rows, TILE):
        m_r = is_read(used, i_p, i_r + o_r, n_rows, heads)
        b_total = tl.zeros((TILE,), tl.float32)
        for i_c in range(0, width, COLUMNS):
            m_x = m_r[:, None] & (i_c + o_c < width)[None, :]
            p_tile = p_x + (i_r + o_r)[:, None].to(tl.int64) * row + (i_c + o_c)[None, :] * column
            b_x = tl.abs(tl.load(p_tile, mask=m_x, other=0.0).to(tl.float32))
            b_total += tl.sum(tl.where(b_x < float("inf"), b_x, float("inf")), 1)
        b_most = tl.maximum(b_most, b_total)
    return tl.max(b_most, 0)


@triton.jit
def measure(
    value, d_output, delta, attending, attended_keys, chunks, unit, sizes, d_v,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write unit (problems,), the power of two that dS is multiplied by, a problem per program.

    |dS| ≤ ‖dO‖₁ max|V| + |D|. Values or gradients that are not finite set chunks to 0.
    """
    i_p = tl.program_id(0).to(tl.int64)
    p_v, p_do = entry(value, i_p, sizes.heads), entry(d_output, i_p, sizes.heads)
    most_v = _largest(
        p_v, value.row, value.column, attended_keys, i_p, sizes.keys, d_v, sizes.heads, COLUMNS
    )
    most_do = _largest(
        p_do, d_output.row, d_output.column, attending, i_p, sizes.queries, d_v, sizes.heads,
        COLUMNS,
    )  # fmt: skip
    p_delta = delta + i_p * sizes.queries
    most_delta = _largest(p_delta, 1, 1, attending, i_p, sizes.queries, 1, sizes.heads, COLUMNS)
    bound = most_do * most_v + most_delta
    m_finite = bound < float("inf")
    if m_finite == 0:
        tl.store(chunks + i_p, 0)
    bound = tl.where(m_finite & (bound > 1e-30), bound, 1.0)
    tl.store(unit + i_p, tl.exp2(-tl.ceil(tl.log2(bound)) + _LARGEST))


@triton.jit
def row_gradients(
    of_queries, of_keys, choice, biases, mask, dropout, stats, value, d_output, delta, unit, p_band,
    ds_band, sizes, first, first_key, band, most, scale, SCORER: tl.constexpr, DEPTH: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Write P and dS of `band` keys from `first_key` on, one tile per program, 0 where masked.

    p_band, ds_band: (band of problems, padded queries, band), P after dropout, and dS times unit.
    value, d_output: `Rows`. Problems count from `first` on.
    """
    mask = Mask(mask.start, mask.stop, mask.mask)  # see `Biases`
    biases = Biases(biases.keys, biases.pairs)
    n_queries, n_keys = of_queries.padded // QUERIES, band // KEYS
    i_t, rest = tl.program_id(0) % n_keys, tl.program_id(0) // n_keys
    i_tile, i_band = rest % n_queries, (rest // n_queries).to(tl.int64)
    i_p = i_band + first
    n_chunks = tl.load(choice.chunks + i_p)
    if n_chunks == 0:
        return
    o_q, o_t = i_tile * QUERIES + tl.arange(0, QUERIES), i_t * KEYS + tl.arange(0, KEYS)
    o_k, o_f, o_c = first_key + o_t, tl.arange(0, CHUNK), tl.arange(0, DEPTH)
    m_q = o_q < sizes.queries
    o_band = (i_band * of_queries.padded + o_q)[:, None] * band + o_t[None, :]
    b_start, b_stop = bounds_of(mask, i_p, o_q, sizes)
    m_s = attended(mask, i_p, o_q, o_k, b_start, b_stop, sizes)
    if tl.max(tl.max(m_s.to(tl.int32), 1), 0) == 0:
        b_zero = tl.zeros((QUERIES, KEYS), tl.float32)
        tl.store(p_band + o_band, b_zero.to(p_band.dtype.element_ty))
        tl.store(ds_band + o_band, b_zero.to(ds_band.dtype.element_ty))
        return
    p_f = of_queries.data + (i_band * of_queries.padded + o_q[:, None]) * most + o_f[None, :]
    p_g = of_keys.data + (i_band * of_keys.padded + o_k[None, :]) * most + o_f[:, None]
    b_s = row_products(p_f, p_g, n_chunks, QUERIES, KEYS) - 1.0  # of the columns of ones
    factor = tl.load(choice.top + i_p) * scale
    b_s = with_biases(b_s * factor, biases, i_p, o_q, o_k, sizes, SCORER)[0]
    o_stats = i_p * 2 * sizes.queries + o_q
    b_shift = shift_of(stats, o_stats, m_q)
    b_shift += tl.load(stats + o_stats + sizes.queries, mask=m_q, other=0.0)
    b_shift -= tl.load(of_queries.bias + i_p * of_queries.padded + o_q)  # u is in the statistics
    b_p = tl.where(m_s, tl.exp(b_s - b_shift[:, None]), 0.0)
    i_v = problem_of(value, i_p, sizes.heads) * value.tiles * TILE
    i_do = i_p * d_output.tiles * TILE
    p_v = value.data + (i_v + o_k)[None, :] * value.padded + o_c[:, None]
    p_do = d_output.data + (i_do + o_q)[:, None] * d_output.padded + o_c[None, :]
    b_dp = tl.zeros((QUERIES, KEYS), tl.float32)
    for i_c in range(0, value.padded, DEPTH):
        b_v = tl.load(p_v + i_c, mask=(o_k < sizes.keys)[None, :], other=0.0)
        b_do = tl.load(p_do + i_c, mask=m_q[:, None], other=0.0)
        if INTERPRETED:  # whose bfloat16 is wrong
            b_v = b_v.to(tl.float32)
            b_do = b_do.to(tl.float32)
        b_dp = tl.dot(b_do, b_v, b_dp)
    b_dropped = b_p
    if dropout.seed is not None:
        m_dropout = dropout_mask(dropout, i_p, o_q, o_k)
        b_dp = tl.where(m_dropout, b_dp, 0.0)
        b_dropped = tl.where(m_dropout, b_p, 0.0)
    b_delta = tl.load(delta + i_p * sizes.queries + o_q, mask=m_q, other=0.0)
    b_ds = tl.where(m_s, b_p * (b_dp - b_delta[:, None]) * tl.load(unit + i_p), 0.0)
    tl.store(p_band + o_band, b_dropped.to(p_band.dtype.element_ty))
    tl.store(ds_band + o_band, b_ds.to(ds_band.dtype.element_ty))


@triton.jit
def band_products(
    stored, data, target, chunks, first, n_stored, band, n_data, stride, n_rows, i_first, n_target,
    i_target, width, OF_QUERY: tl.constexpr, IS_ROWS: tl.constexpr, ADD: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write (ADD: add) to target the products of a band, transposed unless OF_QUERY, with data.

    stored: (band of problems, n_stored, band). data: (problems, n_data, stride); its rows from
    i_first on meet the stored axis. target: (problems, n_target, width), from row i_target on.
    IS_ROWS: data and target have the problems of the band, and `chunks` of columns; others are not
    used. Otherwise they have all problems, and data has n_rows. A program has ROWS rows and COLUMNS
    columns.
    """
    n_out = n_stored if OF_QUERY else band
    n_tiles, n_blocks = n_out // ROWS, tl.cdiv(width, COLUMNS)
    i_block, rest = tl.program_id(0) % n_blocks, tl.program_id(0) // n_blocks
    i_tile, i_band = rest % n_tiles, (rest // n_tiles).to(tl.int64)
    i_p = i_band + first
    n_chunks = tl.load(chunks + i_p)
    if n_chunks == 0:
        return
    if IS_ROWS:
        i_p = i_band
        if i_block * COLUMNS >= n_chunks * CHUNK:
            return
    o_r, o_c = i_tile * ROWS + tl.arange(0, ROWS), i_block * COLUMNS + tl.arange(0, COLUMNS)
    o_t = tl.arange(0, CHUNK)
    p_y = data + (i_p * n_data + i_first + o_t[:, None]) * stride + o_c[None, :]
    if OF_QUERY:
        p_x = stored + (i_band * n_stored + o_r[:, None]) * band + o_t[None, :]
        step, n_inner = 1, band
    else:
        p_x = stored + (i_band * n_stored + o_t[None, :]) * band + o_r[:, None]
        step, n_inner = band, n_stored
    b_total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for i in range(0, n_inner, CHUNK):
        b_x = tl.load(p_x + (i_band * 0 + i) * step)
        if IS_ROWS:
            b_y = tl.load(p_y + (i_band * 0 + i) * stride)
        else:
            m_y = (i_first + i + o_t < n_rows)[:, None]
            b_y = tl.load(p_y + (i_band * 0 + i) * stride, mask=m_y, other=0.0)
        if INTERPRETED:
            b_x = b_x.to(tl.float32)
            b_y = b_y.to(tl.float32)
        b_total = tl.dot(b_x, b_y, b_total)
    o_r += i_target
    p_target = target + (i_p * n_target + o_r[:, None]) * width + o_c[None, :]
    m_target = (o_r < n_target)[:, None] & (o_c < width)[None, :]
    if ADD:
        b_total += tl.load(p_target, mask=m_target, other=0.0)
    tl.store(p_target, b_total, mask=m_target)
