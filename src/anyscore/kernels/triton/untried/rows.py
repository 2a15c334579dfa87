"""Rows of factors whose products are tanh scores: how many columns each problem needs, and why.

    Σ_d w_d tanh(a_d + b_d) ≈ u_i + v_j + top Σ_c F_ic G_jc

A column c is a feature d and a function of `tables`: F = w_d / top · f(a_d + shift_d) and G =
g(b_d − shift_d). `stats` measures features, `choose` finds the columns of a problem, and `factors`
writes rows. The device decides for each problem alone, so results do not depend on other problems,
and no number is read back. Where rows would not be exact enough, `chunks` is 0, and the exact
kernels compute the problem.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from anyscore.kernels.triton.panels import BLOCK, ORDINARY
from anyscore.kernels.triton.tiles import entry
from anyscore.kernels.triton.untried import tables

CHUNK = tl.constexpr(64)
"""Columns multiplied at a time."""
ROWS = tl.constexpr(64)
"""Rows that a program of `factors` writes."""
MEASURED = tl.constexpr(256)
"""Rows that `stats` reads at a time."""
_FEATURES = tl.constexpr(64)
_LEVELS = tl.constexpr(tables.LEVELS)
_PAIRS = tl.constexpr(tables.PAIRS)
_MEAN = tl.constexpr(tables.MEAN)
_ONE = tl.constexpr(tables.ONE)
_TERMS = tl.constexpr(tables.TERMS)
_CELLS = tl.constexpr(tables.CELLS)
_FUNCTIONS = tl.constexpr(tables.FUNCTIONS)
_SIZES = tl.constexpr(tables.SIZES)
_STEPS = tl.constexpr(20)
_SHARE = tl.constexpr(0.25)
"""The share of the squared error that rounding of the inputs makes, for all rows of a problem."""
_WORST = tl.constexpr(16.0)
"""The largest share of that squared error for any one row."""
_SLACK = tl.constexpr(0.25)
"""The part of a step between levels by which a deviation may exceed its level."""


class Choice(NamedTuple):
    """The choice of each of P problems, all on the device.

    shift, spread (P, padded), float32: the mean of the attended keys, and the larger mean square of
    a + shift and b − shift. level, pairs (P, padded), int32: the level of a feature, and the
    number of its pairs of functions in a forward. offset (P, padded), int32: its first column;
    its even and odd functions follow. columns (P, most), int32: FUNCTIONS · feature + function, −1
    for none. chunks (P,), int32: the number of chunks of columns, 0 for the exact kernels. last
    (P,), int32: the column of ones in a backward. top, limit (P,), float32: max|w|, and the largest
    squared error of a row.
    """

    shift: Any
    spread: Any
    level: Any
    pairs: Any
    offset: Any
    columns: Any
    chunks: Any
    last: Any
    top: Any
    limit: Any


class Factors(NamedTuple):
    """Rows of queries or of keys: data (band, padded, most), float16; bias (P, padded), float32."""

    data: Any
    bias: Any
    padded: Any


@triton.jit
def is_read(used, i_p, o_r, n_rows, heads):
    """Return the boolean mask (R,) of rows that some query attends, or that attend some key."""
    m_r = o_r < n_rows
    if used is not None:
        m_r = m_r & (tl.load(entry(used, i_p, heads) + o_r * used.row, mask=m_r, other=0) != 0)
    return m_r


@triton.jit
def _mean(x, used, i_p, o_f, b_shift, n_rows, width, heads, SQUARED: tl.constexpr):
    """Return the means (F,) of x + b_shift, or of its squares, over the rows that are read."""
    o_r = tl.arange(0, MEASURED)
    b_total = tl.zeros((MEASURED, BLOCK), tl.float32)
    b_count = tl.zeros((MEASURED, BLOCK), tl.float32)
    p_x = entry(x, i_p, heads) + o_f[None, :] * x.column
    for i_r in range(0, n_rows, MEASURED):
        m_r = is_read(used, i_p, i_r + o_r, n_rows, heads)
        m_x = m_r[:, None] & (o_f < width)[None, :]
        b_x = tl.load(p_x + (i_r + o_r)[:, None].to(tl.int64) * x.row, mask=m_x, other=0.0)
        b_x = b_x.to(tl.float32) + b_shift[None, :]  # (R, F)
        m_x = m_x & (tl.abs(b_x) < ORDINARY)  # not NaN
        b_total += tl.where(m_x, b_x * b_x if SQUARED else b_x, 0.0)
        b_count += m_x.to(tl.float32)
    return tl.sum(b_total, 0) / tl.maximum(tl.sum(b_count, 0), 1.0)


@triton.jit
def stats(a, b, attending, attended, choice, sizes, width, padded):
    """Write `shift` and `spread` of a choice, 16 features of a problem per program."""
    n_blocks = padded // BLOCK
    i_block, i_p = tl.program_id(0) % n_blocks, (tl.program_id(0) // n_blocks).to(tl.int64)
    o_f = i_block * BLOCK + tl.arange(0, BLOCK)
    b_zero = tl.zeros((BLOCK,), tl.float32)
    heads = sizes.heads
    b_shift = _mean(b, attended, i_p, o_f, b_zero, sizes.keys, width, heads, False)
    b_keys = _mean(b, attended, i_p, o_f, -b_shift, sizes.keys, width, heads, True)
    b_queries = _mean(a, attending, i_p, o_f, b_shift, sizes.queries, width, heads, True)
    tl.store(choice.shift + i_p * padded + o_f, b_shift)
    tl.store(choice.spread + i_p * padded + o_f, tl.maximum(b_keys, b_queries))


@triton.jit
def weights_of(weight, i_p, o_f, width, heads):
    """Return the weights of features o_f (F,), 1 without a weight, 0 beyond the last feature."""
    if weight is None:
        b_w = (o_f < width).to(tl.float32)
    else:
        p_w = entry(weight, i_p, heads) + o_f * weight.column
        b_w = tl.load(p_w, mask=o_f < width, other=0.0).to(tl.float32)
    return b_w


@triton.jit
def _levels_of(choice, i_p, o_f, width, padded):
    """Return the levels (F,) of features o_f, and the lowest levels that their spread allows."""
    b_spread = tl.load(choice.spread + i_p * padded + o_f, mask=o_f < width, other=0.0)
    b_least = tl.ceil(tl.log2(tl.maximum(b_spread, 1e-9)) + (4.0 - _SLACK))  # of 4² σ²
    return tl.minimum(tl.maximum(b_least, 0.0), _LEVELS - 1.0).to(tl.int32), b_least


@triton.jit
def _pairs_above(of, b_w, b_level, threshold):
    """Return the numbers of pairs (F,) whose |w| s is above a threshold."""
    b_s = tl.load(of.sizes + b_level[:, None] * _SIZES + tl.arange(0, _SIZES)[None, :])
    return tl.sum((tl.abs(b_w)[:, None] * b_s > threshold).to(tl.int32), 1)


@triton.jit
def _trained(of, b_level, b_pairs):
    """Return the numbers of pairs (F,) in a backward."""
    return tl.maximum(b_pairs, tl.load(of.trained + b_level).to(tl.int32))


@triton.jit
def _error_above(of, weight, choice, i_p, threshold, width, padded, heads):
    """Return Σ w² E² for the pairs above a threshold."""
    b_error = tl.zeros((_FEATURES,), tl.float32)
    for i_f in range(0, width, _FEATURES):
        o_f = i_f + tl.arange(0, _FEATURES)
        b_w = weights_of(weight, i_p, o_f, width, heads)
        b_level, _ = _levels_of(choice, i_p, o_f, width, padded)
        b_pairs = _pairs_above(of, b_w, b_level, threshold)
        b_error += b_w * b_w * tl.load(of.means + b_level * _SIZES + b_pairs)
    return tl.sum(b_error, 0)


@triton.jit
def choose(of, noise, weight, choice, heads, width, padded, allowed, most, TRAINED: tl.constexpr):
    """Write the other fields of a choice, one problem per program.

    of: `Tables`. noise (LEVELS,): of the inputs' dtype. Pairs of functions are taken in the order
    of |w| s, until Σ w² E² is at most a quarter of Σ w² N². Rows have at most `allowed` columns.
    TRAINED: make the same choice, with columns for a backward; the last column is 1.
    """
    i_p = tl.program_id(0).to(tl.int64)
    o = tl.arange(0, _FEATURES)
    b_noise = tl.zeros((_FEATURES,), tl.float32)
    b_top = tl.zeros((_FEATURES,), tl.float32)
    b_high = tl.zeros((_FEATURES,), tl.float32)
    for i_f in range(0, width, _FEATURES):
        o_f = i_f + o
        b_w = weights_of(weight, i_p, o_f, width, heads)
        b_level, b_least = _levels_of(choice, i_p, o_f, width, padded)
        b_high = tl.maximum(b_high, b_least)
        b_noise += b_w * b_w * tl.load(noise + b_level)
        b_top = tl.maximum(b_top, tl.abs(b_w))
    total, top = tl.sum(b_noise, 0), tl.max(b_top, 0)
    low, high = tl.log2(tl.maximum(top, 1e-30)) - 24.0, tl.log2(tl.maximum(top, 1e-30)) + 2.0
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        error = _error_above(of, weight, choice, i_p, tl.exp2(middle), width, padded, heads)
        m_exact = error <= total * _SHARE
        low = tl.where(m_exact, middle, low)
        high = tl.where(m_exact, high, middle)
    threshold = tl.exp2(low)
    error = _error_above(of, weight, choice, i_p, threshold, width, padded, heads)
    o_t = tl.arange(0, _FUNCTIONS)
    p_columns = choice.columns + i_p * most
    n_columns = tl.sum(o * 0, 0)
    n_chosen = n_columns
    for i_f in range(0, width, _FEATURES):
        o_f = i_f + o
        b_w = weights_of(weight, i_p, o_f, width, heads)
        b_level, _b_least = _levels_of(choice, i_p, o_f, width, padded)
        b_pairs = _pairs_above(of, b_w, b_level, threshold)
        tl.store(choice.level + i_p * padded + o_f, b_level, mask=o_f < width)
        tl.store(choice.pairs + i_p * padded + o_f, b_pairs, mask=o_f < width)
        n_chosen += tl.sum(2 * b_pairs, 0)
        if TRAINED:
            b_pairs = tl.where(o_f < width, _trained(of, b_level, b_pairs), 0)
        b_offset = n_columns + tl.cumsum(2 * b_pairs, 0) - 2 * b_pairs
        tl.store(choice.offset + i_p * padded + o_f, b_offset, mask=o_f < width)
        o_c = b_offset[:, None] + o_t[None, :]
        m_c = (o_t[None, :] < 2 * b_pairs[:, None]) & (o_c < most)
        tl.store(p_columns + o_c, o_f[:, None] * _FUNCTIONS + o_t[None, :] + o_c * 0, mask=m_c)
        n_columns += tl.sum(2 * b_pairs, 0)
    if TRAINED:
        tl.store(p_columns + n_columns, n_columns * 0 + _ONE)
        tl.store(choice.last + i_p, n_columns)
        n_columns += 1
    o_c = n_columns + tl.arange(0, CHUNK)
    n_chunks = tl.cdiv(n_columns, CHUNK)
    tl.store(p_columns + o_c, o_c * 0 - 1, mask=o_c < tl.minimum(n_chunks * CHUNK, most))
    # NaN and ±∞ among weights compare as false.
    m_rows = (error <= total * _SHARE) & (tl.max(b_high, 0) < _LEVELS)
    m_rows = m_rows & (n_chosen > 0) & (n_chosen <= allowed)
    tl.store(choice.chunks + i_p, tl.where(m_rows, n_chunks, 0))
    tl.store(choice.top + i_p, top)
    tl.store(choice.limit + i_p, total * _WORST)


@triton.jit
def _steepness(b_level):
    """Return c of y = tanh(c x) of levels."""
    return tl.minimum(2.0 * tl.exp2(-0.5 * b_level.to(tl.float32)), 1.0)


@triton.jit
def _squashed(b_x, b_level):
    """Return y = tanh(c x) of levels that broadcast to x."""
    return 1.0 - 2.0 / (1.0 + tl.exp(2.0 * _steepness(b_level) * b_x))


@triton.jit
def _series(p_series, b_y):
    """Return the Chebyshev series at p_series (C,), in z = 2 y² − 1, of b_y (R, C)."""
    b_z = 2.0 * b_y * b_y - 1.0
    b_one = tl.zeros(b_y.shape, tl.float32)
    b_two = tl.zeros(b_y.shape, tl.float32)
    for i in tl.static_range(_TERMS - 1):
        b_term = tl.load(p_series + (_TERMS - 1 - i) * _FUNCTIONS)
        b_next = tl.fma(2.0 * b_z, b_one, b_term[None, :] - b_two)
        b_two = b_one
        b_one = b_next
    return tl.fma(b_z, b_one, tl.load(p_series)[None, :] - b_two)


@triton.jit
def _shifted(x, p_x, o_f, m_x, b_shift, OF_QUERY: tl.constexpr):
    """Return a + shift or b − shift (R, C) of features o_f (C,), 0 outside m_x."""
    b_x = tl.load(p_x + o_f[None, :] * x.column, mask=m_x, other=0.0).to(tl.float32)
    return b_x + b_shift[None, :] if OF_QUERY else b_x - b_shift[None, :]


@triton.jit
def factors(
    x, used, weight, key_bias, of, choice, made, first, n_rows, width, padded, most, heads, scale,
    OF_QUERY: tl.constexpr,
):  # fmt: skip
    """Write `Factors` of x, 64 rows of a problem per program; problems count from `first` on.

    bias: u of queries; v of keys, with scale and key_bias. Rows that nobody reads are finite, too.
    A row beyond the limit, or with NaN or ±∞, sets `chunks` to 0, if the row is read.
    """
    n_tiles = made.padded // ROWS
    i_tile, i_band = tl.program_id(0) % n_tiles, (tl.program_id(0) // n_tiles).to(tl.int64)
    i_p = i_band + first
    n_chunks = tl.load(choice.chunks + i_p)
    if n_chunks == 0:
        return
    o_r = i_tile * ROWS + tl.arange(0, ROWS)
    m_r = o_r < n_rows
    p_x = entry(x, i_p, heads) + o_r[:, None].to(tl.int64) * x.row
    p_level, p_pairs = choice.level + i_p * padded, choice.pairs + i_p * padded
    p_shift = choice.shift + i_p * padded
    b_bias = tl.zeros((ROWS, BLOCK), tl.float32)
    b_error = tl.zeros((ROWS, BLOCK), tl.float32)
    for i_f in range(0, width, BLOCK):
        o_f = i_f + tl.arange(0, BLOCK)
        m_f = o_f < width
        b_w = weights_of(weight, i_p, o_f, width, heads)
        b_level = tl.load(p_level + o_f, mask=m_f, other=0)
        b_pairs = tl.load(p_pairs + o_f, mask=m_f, other=0)
        b_shift = tl.load(p_shift + o_f, mask=m_f, other=0.0)
        b_x = _shifted(x, p_x, o_f, m_r[:, None] & m_f[None, :], b_shift, OF_QUERY)
        m_good = tl.abs(b_x) < float("inf")
        b_y = _squashed(tl.where(m_good, b_x, 0.0), b_level[None, :])  # (R, F)
        p_u = of.coefficients + b_level * (_TERMS * _FUNCTIONS) + _MEAN
        b_bias += b_w[None, :] * b_y * _series(p_u, b_y)
        b_cell = tl.minimum((tl.abs(b_y) * _CELLS).to(tl.int32), _CELLS - 1)
        b_e = tl.load(of.errors + ((b_level * _SIZES + b_pairs) * _CELLS)[None, :] + b_cell)
        b_error += tl.where(m_good, (b_w * b_w)[None, :] * b_e, float("inf"))
    m_read = is_read(used, i_p, o_r, n_rows, heads)
    m_far = m_read & (tl.sum(b_error, 1) > tl.load(choice.limit + i_p))
    if tl.max(m_far.to(tl.int32), 0) != 0:
        tl.store(choice.chunks + i_p, 0)
        return
    b_bias = tl.sum(b_bias, 1) * scale
    if key_bias is not None:
        p_bias = entry(key_bias, i_p, heads) + o_r.to(tl.int64) * key_bias.column
        b_bias += tl.load(p_bias, mask=m_r, other=0.0).to(tl.float32)
    tl.store(made.bias + i_p * made.padded + o_r, b_bias)
    top = tl.load(choice.top + i_p)
    p_data = made.data + (i_band * made.padded + o_r[:, None]) * most
    for i_c in range(0, n_chunks * CHUNK, CHUNK):
        o_c = i_c + tl.arange(0, CHUNK)
        b_column = tl.load(choice.columns + i_p * most + o_c)
        m_c = b_column >= 0
        b_column = tl.maximum(b_column, 0)
        o_f, b_t = b_column // _FUNCTIONS, b_column % _FUNCTIONS
        b_level, b_shift = tl.load(p_level + o_f), tl.load(p_shift + o_f)
        b_x = _shifted(x, p_x, o_f, m_r[:, None] & m_c[None, :], b_shift, OF_QUERY)
        b_x = tl.where(tl.abs(b_x) < float("inf"), b_x, 0.0)
        b_y = _squashed(b_x, b_level[None, :])  # (R, C)
        m_pair = b_t < 2 * _PAIRS
        if not OF_QUERY:  # e_k meets o_k
            b_t = tl.where(m_pair, b_t ^ 1, b_t)
        p_series = of.coefficients + b_level * (_TERMS * _FUNCTIONS) + b_t
        b_value = tl.where((b_t % 2 == 1)[None, :], b_y, 1.0) * _series(p_series, b_y)
        if OF_QUERY:
            b_w = weights_of(weight, i_p, o_f, width, heads) / top
            b_value *= tl.where(m_pair, b_w, 1.0)[None, :]
        b_value = tl.where(m_c[None, :], b_value, 0.0)
        tl.store(p_data + o_c[None, :], b_value.to(made.data.dtype.element_ty))


@triton.jit
def _series_and_slope(p_series, b_y):
    """Return the series of `_series`, and its derivative by z."""
    b_z = 2.0 * b_y * b_y - 1.0
    b_one = tl.zeros(b_y.shape, tl.float32)
    b_two = tl.zeros(b_y.shape, tl.float32)
    b_slope_one = tl.zeros(b_y.shape, tl.float32)
    b_slope_two = tl.zeros(b_y.shape, tl.float32)
    for i in tl.static_range(_TERMS - 1):
        b_term = tl.load(p_series + (_TERMS - 1 - i) * _FUNCTIONS)
        b_slope = 2.0 * b_one + 2.0 * b_z * b_slope_one - b_slope_two
        b_slope_two = b_slope_one
        b_slope_one = b_slope
        b_next = tl.fma(2.0 * b_z, b_one, b_term[None, :] - b_two)
        b_two = b_one
        b_one = b_next
    b_value = tl.fma(b_z, b_one, tl.load(p_series)[None, :] - b_two)
    return b_value, b_one + b_z * b_slope_one - b_slope_two


@triton.jit
def _value_and_slope(p_series, m_odd, b_y, b_dy):
    """Return f(x) and f'(x) (R, F) of series p_series (F,); b_dy: the slope of y; m_odd (F,)."""
    b_value, b_slope = _series_and_slope(p_series, b_y)
    b_even = 4.0 * b_y * b_dy * b_slope
    b_odd = b_dy * (b_value + 4.0 * b_y * b_y * b_slope)
    m_odd = m_odd[None, :]
    return tl.where(m_odd, b_y * b_value, b_value), tl.where(m_odd, b_odd, b_even)


@triton.jit
def slopes(
    x, weight, of, choice, unit, sums, d_x, d_weight, d_key_bias, first, n_rows, n_padded, width,
    padded, most, heads, scale, OF_QUERY: tl.constexpr,
):  # fmt: skip
    """Write gradients of x from the sums of a band, 64 rows of a problem per program.

    sums (band, n_padded, most): dS G for queries, dSᵀ F for keys, times `unit` (P,). d_x (P, rows,
    width). d_weight (P, tiles, width): the part of these rows. d_key_bias (P, T_k): of keys.
    """
    n_tiles = tl.cdiv(n_rows, ROWS)
    i_tile, i_band = tl.program_id(0) % n_tiles, (tl.program_id(0) // n_tiles).to(tl.int64)
    i_p = i_band + first
    if tl.load(choice.chunks + i_p) == 0:
        return
    o_r = i_tile * ROWS + tl.arange(0, ROWS)
    m_r = o_r < n_rows
    p_x = entry(x, i_p, heads) + o_r[:, None].to(tl.int64) * x.row
    p_sums = sums + (i_band * n_padded + o_r) * most
    factor, top = 1.0 / tl.load(unit + i_p), tl.load(choice.top + i_p)
    b_total = tl.load(p_sums + tl.load(choice.last + i_p), mask=m_r, other=0.0) * factor  # Σ dS
    if not OF_QUERY:
        tl.store(d_key_bias + i_p * n_rows + o_r, b_total, mask=m_r)
    for i_f in range(0, width, BLOCK):
        o_f = i_f + tl.arange(0, BLOCK)
        m_f = o_f < width
        m_x = m_r[:, None] & m_f[None, :]
        b_w = weights_of(weight, i_p, o_f, width, heads)
        b_level = tl.load(choice.level + i_p * padded + o_f, mask=m_f, other=0)
        b_pairs = tl.load(choice.pairs + i_p * padded + o_f, mask=m_f, other=0)
        b_count = tl.where(m_f, 2 * _trained(of, b_level, b_pairs), 0)
        b_offset = tl.load(choice.offset + i_p * padded + o_f, mask=m_f, other=0)
        b_shift = tl.load(choice.shift + i_p * padded + o_f, mask=m_f, other=0.0)
        b_x = _shifted(x, p_x, o_f, m_x, b_shift, OF_QUERY)
        b_x = tl.where(tl.abs(b_x) < float("inf"), b_x, 0.0)
        b_y = _squashed(b_x, b_level[None, :])
        b_dy = _steepness(b_level)[None, :] * (1.0 - b_y * b_y)
        p_level = of.coefficients + b_level * (_TERMS * _FUNCTIONS)
        b_u, b_du = _value_and_slope(p_level + _MEAN, m_f, b_y, b_dy)
        b_d = b_w[None, :] * b_du * b_total[:, None]
        b_dw = b_u * b_total[:, None]
        b_pair_d = tl.zeros((ROWS, BLOCK), tl.float32)
        for i in range(tl.max(b_count, 0)):
            i_t = i if OF_QUERY else i ^ 1
            m_t = m_r[:, None] & (i < b_count)[None, :]
            b_sum = tl.load(p_sums[:, None] + (b_offset + i)[None, :], mask=m_t, other=0.0) * factor
            b_f, b_df = _value_and_slope(p_level + i_t, m_f & (i_t % 2 == 1), b_y, b_dy)
            b_pair_d += b_df * b_sum
            b_dw += b_f * b_sum if OF_QUERY else 0.0
        b_d += b_pair_d * (b_w[None, :] if OF_QUERY else top)
        p_d = d_x + (i_p * n_rows + o_r[:, None]) * width + o_f[None, :]
        tl.store(p_d, b_d * scale, mask=m_x)
        p_dw = d_weight + (i_p * n_tiles + i_tile) * width + o_f
        tl.store(p_dw, tl.sum(tl.where(m_x, b_dw, 0.0), 0) * scale, mask=m_f)
