"""Sums over features of single tokens for `minima`, and whether its scores are exact enough."""

from __future__ import annotations

import triton
import triton.language as tl

from anyscore.kernels.triton.tiles import TILE, entry
from anyscore.kernels.triton.untried.rows import is_read, weights_of

ERROR = tl.constexpr(2.0**-12)
"""The largest error in a score that the features of a query may make, or those of a key."""
ROUNDING = tl.constexpr(2.0**-21)
"""The largest error of a sum of float32, relative to the sum of absolute values."""


@triton.jit
def parts(b_w, HALF: tl.constexpr):
    """Return two parts of weights b_w (F,) in a half dtype, and their unit, a power of 2."""
    top = tl.max(tl.abs(b_w), 0)
    unit = (top.to(tl.uint32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
    unit = tl.where(unit == 0, 1.0, unit)
    b_w = b_w / unit
    b_high = b_w.to(HALF)
    return b_high, (b_w - b_high.to(tl.float32)).to(HALF), unit


@triton.jit
def token_sums(
    x, used, weight, key_bias, sums, chunks, heads, n_rows, scale, slope, rise,
    WIDTH: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """Write sums (problems, rows): slope · scale Σ_f w_f x_f, plus the bias of keys.

    A program has 64 rows. It sets chunks (problems,) to 0 if a row that is read may make a larger
    error than ERROR, or is not finite.
    """
    n_tiles = tl.cdiv(n_rows, TILE)
    i_tile, i_p = tl.program_id(0) % n_tiles, (tl.program_id(0) // n_tiles).to(tl.int64)
    o_r, o_f = i_tile * TILE + tl.arange(0, TILE), tl.arange(0, F)
    m_r = o_r < n_rows
    p_x = entry(x, i_p, heads) + o_r[:, None].to(tl.int64) * x.row + o_f[None, :] * x.column
    b_x = tl.load(p_x, mask=m_r[:, None] & (o_f < WIDTH)[None, :], other=0.0)
    b_w = weights_of(weight, i_p, o_f, WIDTH, heads)
    b_high, b_low, unit = parts(b_w, b_x.dtype)
    b_left = b_w - (b_high.to(tl.float32) + b_low.to(tl.float32)) * unit
    b_error = (tl.abs(b_left) + tl.abs(b_w) * ROUNDING) * tl.abs(scale * rise)
    b_x = b_x.to(tl.float32)
    b_sum = tl.sum(b_x * b_w[None, :], 1) * (scale * slope)
    if key_bias is not None:
        p_bias = entry(key_bias, i_p, heads) + o_r.to(tl.int64) * key_bias.column
        b_sum += tl.load(p_bias, mask=m_r, other=0.0).to(tl.float32)
    tl.store(sums + i_p * n_rows + o_r, b_sum, mask=m_r)
    m_exact = tl.sum(tl.abs(b_x) * b_error[None, :], 1) <= ERROR  # not NaN
    m_far = is_read(used, i_p, o_r, n_rows, heads) & (m_exact == 0)
    if tl.max(m_far.to(tl.int32), 0) != 0:
        tl.store(chunks + i_p, 0)
