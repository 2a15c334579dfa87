"""Panels of a call: features of rows and maps of them, written once.

A panel (H, 64) holds 64 rows, feature by feature, so that one feature of a tile is one load. For
tanh, panels hold exponentials too; a score then needs only reciprocals. With σ = sgn w and C =
max|w| / |w| for one feature f,

    w tanh(a + b) = |w| − 2 max|w| / x,    x = C + A B,    A = C e^{2σ(a + c)}, B = e^{2σ(b − c)}

c, the shift, is the middle of the keys' b, so exponents stay small even if a and b are large.

For leaky_relu, panels hold A = 0.4 |w| a and B = 0.4 |w| b too, of positive weights first. With the
slope 0.2 of negative numbers,

    w leaky_relu(a + b) = σ |A + B| + 1.5 σ (A + B)

and the second term is a sum over rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from anyscore.kernels.triton.tiles import TILE, entry

BLOCK = tl.constexpr(16)
"""Features copied at a time; panels are padded to a multiple of this number."""
C_MAX = tl.constexpr(2.0**28)
"""The largest C: a smaller |w| than max|w| / C_MAX counts as max|w| / C_MAX."""
FAR = tl.constexpr(34.0)
"""For |a + c| from this number on, tanh is ±1 for every |b − c| ≤ WIDE."""
WIDE = tl.constexpr(24.0)
SLOPE = tl.constexpr(0.4)
"""Half of the difference of the two slopes of leaky_relu; their mean is 1.5 SLOPE."""
TOGETHER = tl.constexpr(8)
"""Folded features of one sign are padded to a multiple of this number."""
ORDINARY = tl.constexpr(2.0**20)
"""A key with larger |b| does not move the shift."""


class Slots(NamedTuple):
    """The order of features by the sign of their weights; see `order_by_sign`.

    n, h, group: as in `Operand`, in problems.
    """

    order: Any
    factors: Any
    counts: Any
    n: Any
    h: Any
    group: Any


@triton.jit
def fill(x, panels, heads, n_rows, width, n_tiles, padded):
    """Write panels (problems, tiles, padded, 64) of x (rows, width), one tile per program."""
    i_tile, i_p = tl.program_id(0) % n_tiles, (tl.program_id(0) // n_tiles).to(tl.int64)
    o_t, o_f = tl.arange(0, TILE), tl.arange(0, BLOCK)
    o_r = i_tile * TILE + o_t
    p_x = entry(x, i_p, heads) + o_r[:, None].to(tl.int64) * x.row
    p_panel = panels + (i_p * n_tiles + i_tile) * padded * TILE + o_t[:, None]
    for i_f in range(0, padded, BLOCK):
        m_x = (o_r < n_rows)[:, None] & (i_f + o_f < width)[None, :]
        b_x = tl.load(p_x + (i_f + o_f)[None, :] * x.column, mask=m_x, other=0.0)  # (64, F)
        tl.store(p_panel + (i_f + o_f)[None, :] * TILE, b_x.to(panels.dtype.element_ty))


@triton.jit
def norms(x, squares, heads, n_rows, width):
    """Write squares (problems, rows): Σ_f x_f² of x (rows, width); a program has one tile."""
    n_tiles = tl.cdiv(n_rows, TILE)
    i_tile, i_p = tl.program_id(0) % n_tiles, (tl.program_id(0) // n_tiles).to(tl.int64)
    o_r, o_f = i_tile * TILE + tl.arange(0, TILE), tl.arange(0, BLOCK)
    p_x = entry(x, i_p, heads) + o_r[:, None].to(tl.int64) * x.row
    b_sum = tl.zeros((TILE, BLOCK), tl.float32)
    for i_f in range(0, width, BLOCK):
        m_x = (o_r < n_rows)[:, None] & (i_f + o_f < width)[None, :]
        b_x = tl.load(p_x + (i_f + o_f)[None, :] * x.column, mask=m_x, other=0.0)  # (64, F)
        b_x = b_x.to(tl.float32)
        b_sum += b_x * b_x
    tl.store(squares + i_p * n_rows + o_r, tl.sum(b_sum, 1), mask=o_r < n_rows)


@triton.jit
def shifts(b, shift, heads, n_rows, width, padded):
    """Write shift (problems, padded): the middle of each feature of b (rows, width)."""
    i_f = tl.program_id(0) % (padded // BLOCK) * BLOCK
    i_p = (tl.program_id(0) // (padded // BLOCK)).to(tl.int64)
    o_r, o_f = tl.arange(0, TILE), i_f + tl.arange(0, BLOCK)
    b_low = tl.full((TILE, BLOCK), float("inf"), tl.float32)
    b_high = tl.full((TILE, BLOCK), float("-inf"), tl.float32)
    p_b = entry(b, i_p, heads) + o_f[None, :] * b.column
    for i_r in range(0, n_rows, TILE):
        m_b = (i_r + o_r < n_rows)[:, None] & (o_f < width)[None, :]
        b_b = tl.load(p_b + (i_r + o_r)[:, None].to(tl.int64) * b.row, mask=m_b, other=0.0)
        b_b = b_b.to(tl.float32)
        m_b = m_b & (tl.abs(b_b) < ORDINARY)  # not NaN
        b_low = tl.minimum(b_low, tl.where(m_b, b_b, float("inf")))
        b_high = tl.maximum(b_high, tl.where(m_b, b_b, float("-inf")))
    b_least, b_most = tl.min(b_low, 0), tl.max(b_high, 0)  # (F,)
    b_middle = tl.where(b_least <= b_most, 0.5 * (b_least + b_most), 0.0)
    tl.store(shift + i_p * padded + o_f, b_middle)


@triton.jit
def _weights_of(weight, p_w, o_f, width, dtype: tl.constexpr):
    """Return the weights of features o_f (F,): 1 without weight, 0 beyond the last feature."""
    if weight.data is None:
        b_w = (o_f < width).to(dtype)
    else:
        b_w = tl.load(p_w + o_f * weight.column, mask=o_f < width, other=0.0).to(dtype)
    return b_w


@triton.jit
def coefficients(weight, table, constants, heads, width, padded, scale):
    """Write table (problems, 4, padded): scale w, C, 1/C, σ; and constants (problems, 2).

    The constants are 2 scale max|w| and scale Σ|w|. A weight of None is 1. A program has one
    problem.
    """
    i_p = tl.program_id(0).to(tl.int64)
    o_f = tl.arange(0, BLOCK)
    dtype: tl.constexpr = table.dtype.element_ty
    p_w = 0 if weight.data is None else entry(weight, i_p, heads)
    b_most = tl.zeros((BLOCK,), dtype)
    b_total = tl.zeros((BLOCK,), dtype)
    for i_f in range(0, padded, BLOCK):
        b_size = tl.abs(_weights_of(weight, p_w, i_f + o_f, width, dtype))
        b_most = tl.maximum(b_most, b_size)
        b_total += b_size
    top, total = tl.max(b_most, 0), tl.sum(b_total, 0) * scale
    p_constant = constants + i_p * 2
    nothing = total - total  # NaN if a weight is not finite
    tl.store(p_constant, 2 * top * scale + nothing)
    tl.store(p_constant + 1, total)
    for i_f in range(0, padded, BLOCK):
        p_table = table + i_p * 4 * padded + i_f + o_f
        b_w = _weights_of(weight, p_w, i_f + o_f, width, dtype)
        b_c = tl.where(tl.abs(b_w) * C_MAX > top, top / tl.abs(b_w), C_MAX)
        tl.store(p_table, b_w * scale)
        tl.store(p_table + padded, b_c)
        tl.store(p_table + 2 * padded, 1 / b_c)
        tl.store(p_table + 3 * padded, tl.where(b_w < 0, -1.0, 1.0))


@triton.jit
def _exponential(x):
    """Return e^{2x}, |x| ≤ FAR, with the exponent in two parts for accuracy at large x."""
    whole = tl.floor(x * 2.8853900817779268 + 0.5)
    rest = tl.fma(x, 2.88539008, -whole) + x * 3.851926066e-8
    return tl.exp2(whole) * tl.exp2(rest)


@triton.jit
def exponentials(
    x, panels, bounds, table, shift, heads, n_rows, width, n_tiles, padded, OF_QUERY: tl.constexpr
):
    """Write panels (problems, tiles, padded, 64): A of queries, B of keys; one tile per program.

    bounds (problems, tiles, 2): the largest exponent, 2σ(a + c) + ln C or 2σ(b − c), and the
    largest |a + c| or |b − c|; ∞ if any is not finite. Features beyond the last add 1/C.
    """
    i_tile, i_p = tl.program_id(0) % n_tiles, (tl.program_id(0) // n_tiles).to(tl.int64)
    o_t, o_f = tl.arange(0, TILE), tl.arange(0, BLOCK)
    o_r = i_tile * TILE + o_t
    p_x = entry(x, i_p, heads) + o_r[:, None].to(tl.int64) * x.row
    p_panel = panels + (i_p * n_tiles + i_tile) * padded * TILE + o_t[:, None]
    p_table = table.data + (i_p // heads * table.n + i_p % heads // table.group * table.h)
    p_shift = shift.data + (i_p // heads * shift.n + i_p % heads // shift.group * shift.h)
    b_exponent = tl.full((TILE, BLOCK), float("-inf"), tl.float32)
    b_size = tl.zeros((TILE, BLOCK), tl.float32)
    for i_f in range(0, padded, BLOCK):
        m_f = i_f + o_f < width
        m_x = (o_r < n_rows)[:, None] & m_f[None, :]
        b_x = tl.load(p_x + (i_f + o_f)[None, :] * x.column, mask=m_x, other=0.0)  # (64, F)
        b_x = b_x.to(tl.float32)
        b_c = tl.load(p_table + padded + i_f + o_f)[None, :]
        b_shift = tl.load(p_shift + i_f + o_f)[None, :]
        b_sign = tl.load(p_table + 3 * padded + i_f + o_f)[None, :]
        b_x = b_x + b_shift if OF_QUERY else b_x - b_shift
        b_distance = tl.where(b_x - b_x == 0, tl.abs(b_x), float("inf"))
        b_size = tl.maximum(b_size, tl.where(m_x, b_distance, 0.0))
        b_near = tl.minimum(tl.maximum(b_x, -FAR), FAR) * b_sign
        b_e = _exponential(b_near)
        if OF_QUERY:
            b_e = tl.where(m_f[None, :], b_e * b_c, 0.0)
            b_near += 0.5 * tl.log(b_c)
        b_exponent = tl.maximum(b_exponent, tl.where(m_x, 2 * b_near, float("-inf")))
        tl.store(p_panel + (i_f + o_f)[None, :] * TILE, b_e)
    largest = tl.max(tl.max(b_size, 1), 0)
    highest = tl.max(tl.max(b_exponent, 1), 0)
    p_bound = bounds + (i_p * n_tiles + i_tile) * 2
    tl.store(p_bound, tl.where(largest == float("inf"), largest, highest))
    tl.store(p_bound + 1, largest)


@triton.jit
def order_by_sign(weight, order, factors, counts, heads, width, slots, scale):
    """Write the slots of features: positive weights first, each sign padded by empty slots.

    order, factors: (problems, slots), the feature of each slot, and SLOPE |scale w|; filled with −1
    and 0 before. counts: (problems, 2), slots of each sign. A program has one problem.
    """
    i_p = tl.program_id(0).to(tl.int64)
    o_f = tl.arange(0, BLOCK)
    p_w = 0 if weight.data is None else entry(weight, i_p, heads)
    n_above = i_p * 0
    for i_f in range(0, width, BLOCK):
        b_w = _weights_of(weight, p_w, i_f + o_f, width, tl.float32) * scale
        n_above += tl.sum(((b_w >= 0) & (i_f + o_f < width)).to(tl.int32), 0)
    n_above_slots = (n_above + TOGETHER - 1) // TOGETHER * TOGETHER
    n_below_slots = (width - n_above + TOGETHER - 1) // TOGETHER * TOGETHER
    tl.store(counts + i_p * 2, n_above_slots.to(tl.int32))
    tl.store(counts + i_p * 2 + 1, n_below_slots.to(tl.int32))
    i_above, i_below = i_p * 0, n_above_slots
    for i_f in range(0, width, BLOCK):
        m_f = i_f + o_f < width
        b_w = _weights_of(weight, p_w, i_f + o_f, width, tl.float32) * scale
        m_above, m_below = m_f & (b_w >= 0), m_f & ((b_w >= 0) == 0)  # the second has NaN
        o_above, o_below = tl.cumsum(m_above.to(tl.int32), 0), tl.cumsum(m_below.to(tl.int32), 0)
        o_slot = i_p * slots + tl.where(m_above, i_above + o_above, i_below + o_below) - 1
        tl.store(order + o_slot, i_f + o_f, mask=m_f)
        tl.store(factors + o_slot, tl.abs(b_w) * SLOPE, mask=m_f)
        i_above += tl.sum(m_above.to(tl.int32), 0)
        i_below += tl.sum(m_below.to(tl.int32), 0)


@triton.jit
def fold(x, panels, sums, slots_of, heads, n_rows, n_tiles, n_slots):
    """Write panels (problems, tiles, slots, 64) of factor · x, and sums (problems, tiles, 64).

    sums: 1.5 times the sum of a row, minus slots of negative weights. slots_of: the `Slots`. A
    program has one tile.
    """
    i_tile, i_p = tl.program_id(0) % n_tiles, (tl.program_id(0) // n_tiles).to(tl.int64)
    o_t, o_f = tl.arange(0, TILE), tl.arange(0, BLOCK)
    o_r = i_tile * TILE + o_t
    p_x = entry(x, i_p, heads) + o_r[:, None].to(tl.int64) * x.row
    p_panel = panels + (i_p * n_tiles + i_tile) * n_slots * TILE + o_t[:, None]
    i_s = i_p // heads * slots_of.n + i_p % heads // slots_of.group * slots_of.h
    n_above = tl.load(slots_of.counts + i_s * 2)
    b_sum = tl.zeros((TILE, BLOCK), tl.float32)
    for i_f in range(0, n_slots, BLOCK):
        o_s = i_s * n_slots + i_f + o_f
        o_x, b_factor = tl.load(slots_of.order + o_s), tl.load(slots_of.factors + o_s)  # (F,)
        m_x = (o_r < n_rows)[:, None] & (o_x >= 0)[None, :]
        b_x = tl.load(p_x + o_x[None, :] * x.column, mask=m_x, other=0.0)  # (64, F)
        b_x = b_x.to(tl.float32) * b_factor[None, :]
        tl.store(p_panel + (i_f + o_f)[None, :] * TILE, b_x)
        b_sum += tl.where((i_f + o_f < n_above)[None, :], b_x, -b_x)
    tl.store(sums + (i_p * n_tiles + i_tile) * TILE + o_t, 1.5 * tl.sum(b_sum, 1))


@triton.jit
def finite(x, copy, nonfinite, heads, n_rows, width, n_tiles, padded):
    """Write copy (problems, tiles · 64, padded) of x (rows, width), 0 for NaN, ±∞ and beyond.

    nonfinite: (problems, tiles), 1 if any entry is NaN or ±∞. A program has one tile.
    """
    i_tile, i_p = tl.program_id(0) % n_tiles, (tl.program_id(0) // n_tiles).to(tl.int64)
    o_r, o_f = i_tile * TILE + tl.arange(0, TILE), tl.arange(0, BLOCK)
    p_x = entry(x, i_p, heads) + o_r[:, None].to(tl.int64) * x.row
    p_copy = copy + (i_p * n_tiles * TILE + o_r[:, None].to(tl.int64)) * padded
    b_found = tl.zeros((TILE, BLOCK), tl.int32)
    for i_f in range(0, padded, BLOCK):
        m_x = (o_r < n_rows)[:, None] & (i_f + o_f < width)[None, :]
        b_x = tl.load(p_x + (i_f + o_f)[None, :] * x.column, mask=m_x, other=0.0)  # (64, F)
        m_good = tl.abs(b_x) < float("inf")
        b_found = tl.maximum(b_found, tl.where(m_good, 0, 1))
        b_x = tl.where(m_good, b_x, 0.0).to(copy.dtype.element_ty)
        tl.store(p_copy + (i_f + o_f)[None, :], b_x)
    tl.store(nonfinite + i_p * n_tiles + i_tile, tl.max(tl.max(b_found, 1), 0))
