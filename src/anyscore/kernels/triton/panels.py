"""What is made once per call: features and exponentials of rows, as panels.

A panel (H, 64) holds 64 rows, feature by feature, so that one feature of a tile is one load. For
tanh there are exponentials as well, from which a score takes no more than reciprocals: with
σ = sgn w and C = max|w| / |w|, of one feature f each,

    w tanh(a + b) = |w| − 2 max|w| / x,    x = C + A B,    A = C e^{2σ(a + c)}, B = e^{2σ(b − c)}

c, the shift, is the middle of the keys' b: however far a and b are from 0, exponents stay small.
"""

from __future__ import annotations

import triton
import triton.language as tl

from anyscore.kernels.triton.tiles import LOG2_E, TILE, entry

BLOCK = tl.constexpr(16)
"""Features that are moved at a time; panels are filled up to a multiple of it."""
C_MAX = tl.constexpr(2.0**28)
"""What weighs less than this part of max|w| weighs as much."""
FAR = tl.constexpr(34.0)
"""|a + c| from which tanh is ±1 whatever b − c, of at most WIDE, is."""
WIDE = tl.constexpr(24.0)
ORDINARY = tl.constexpr(2.0**20)
"""|b| beyond which a key does not move the shift."""


@triton.jit
def fill(x, panels, heads, rows, width, tiles, padded):
    """panels (problems, tiles, padded, 64) of x (rows, width), 0 beyond; one tile a program."""
    tile, p = tl.program_id(0) % tiles, (tl.program_id(0) // tiles).to(tl.int64)
    r, f = tile * TILE + tl.arange(0, TILE), tl.arange(0, BLOCK)
    source = entry(x, p, heads) + r[:, None].to(tl.int64) * x.row
    target = panels + (p * tiles + tile) * padded * TILE + tl.arange(0, TILE)[:, None]
    for first in range(0, padded, BLOCK):
        there = (r < rows)[:, None] & (first + f < width)[None, :]
        features = tl.load(source + (first + f)[None, :] * x.column, mask=there, other=0.0)
        tl.store(target + (first + f)[None, :] * TILE, features.to(panels.dtype.element_ty))


@triton.jit
def shifts(b, shift, heads, rows, width, padded):
    """shift (problems, padded): the middle of each feature of b (rows, width), of finite ones."""
    first = tl.program_id(0) % (padded // BLOCK) * BLOCK
    p = (tl.program_id(0) // (padded // BLOCK)).to(tl.int64)
    r, f = tl.arange(0, TILE), first + tl.arange(0, BLOCK)
    low = tl.full((TILE, BLOCK), float("inf"), tl.float32)
    high = tl.full((TILE, BLOCK), float("-inf"), tl.float32)
    source = entry(b, p, heads) + f[None, :] * b.column
    for at in range(0, rows, TILE):
        there = (at + r < rows)[:, None] & (f < width)[None, :]
        x = tl.load(source + (at + r)[:, None].to(tl.int64) * b.row, mask=there, other=0.0)
        x = x.to(tl.float32)
        there = there & (tl.abs(x) < ORDINARY)  # not NaN
        low = tl.minimum(low, tl.where(there, x, float("inf")))
        high = tl.maximum(high, tl.where(there, x, float("-inf")))
    least, most = tl.min(low, 0), tl.max(high, 0)
    tl.store(shift + p * padded + f, tl.where(least <= most, 0.5 * (least + most), 0.0))


@triton.jit
def _weights_of(weight, source, f, width, dtype: tl.constexpr):
    if weight.data is None:
        w = (f < width).to(dtype)
    else:
        w = tl.load(source + f * weight.column, mask=f < width, other=0.0).to(dtype)
    return w


@triton.jit
def coefficients(weight, table, constants, heads, width, padded, scale):
    """table (problems, 4, padded): scale w log₂ e, C, 1/C, σ; constants (problems, 2).

    Those are 2 scale max|w| log₂ e and scale Σ|w| log₂ e. No weight is 1. One problem a program.
    """
    p = tl.program_id(0).to(tl.int64)
    f = tl.arange(0, BLOCK)
    dtype: tl.constexpr = table.dtype.element_ty
    source = 0 if weight.data is None else entry(weight, p, heads)
    most = tl.zeros((BLOCK,), dtype)
    total = tl.zeros((BLOCK,), dtype)
    for first in range(0, padded, BLOCK):
        size = tl.abs(_weights_of(weight, source, first + f, width, dtype))
        most = tl.maximum(most, size)
        total += size
    top, factor, total = tl.max(most, 0), scale * LOG2_E, tl.sum(total, 0)
    tl.store(constants + p * 2, 2 * top * factor + (total - total))  # NaN if a weight is not finite
    tl.store(constants + p * 2 + 1, total * factor)
    for first in range(0, padded, BLOCK):
        at = table + p * 4 * padded + first + f
        w = _weights_of(weight, source, first + f, width, dtype)
        c = tl.where(tl.abs(w) * C_MAX > top, top / tl.abs(w), C_MAX)
        tl.store(at, w * factor)
        tl.store(at + padded, c)
        tl.store(at + 2 * padded, 1 / c)
        tl.store(at + 3 * padded, tl.where(w < 0, -1.0, 1.0))


@triton.jit
def _exponential(x):
    """e^{2x}, its exponent in two parts: that of a large x keeps its digits. |x| up to FAR."""
    whole = tl.floor(x * 2.8853900817779268 + 0.5)
    rest = tl.fma(x, 2.88539008, -whole) + x * 3.851926066e-8
    return tl.exp2(whole) * tl.exp2(rest)


@triton.jit
def exponentials(
    x, panels, bounds, table, shift, heads, rows, width, tiles, padded, OF_QUERY: tl.constexpr
):
    """panels (problems, tiles, padded, 64): A of queries, B of keys; one tile a program.

    bounds (problems, tiles, 2): the largest exponent, 2σ(a + c) + ln C or 2σ(b − c), and the
    largest |a + c| or |b − c|; ∞ if something is not finite. Features beyond the last add 1/C.
    """
    tile, p = tl.program_id(0) % tiles, (tl.program_id(0) // tiles).to(tl.int64)
    r, f = tile * TILE + tl.arange(0, TILE), tl.arange(0, BLOCK)
    source = entry(x, p, heads) + r[:, None].to(tl.int64) * x.row
    target = panels + (p * tiles + tile) * padded * TILE + tl.arange(0, TILE)[:, None]
    of_table = table.data + (p // heads * table.n + p % heads // table.group * table.h)
    of_shift = shift.data + (p // heads * shift.n + p % heads // shift.group * shift.h)
    exponent = tl.full((TILE, BLOCK), float("-inf"), tl.float32)
    size = tl.zeros((TILE, BLOCK), tl.float32)
    for first in range(0, padded, BLOCK):
        there = (r < rows)[:, None] & (first + f < width)[None, :]
        value = tl.load(source + (first + f)[None, :] * x.column, mask=there, other=0.0)
        value = value.to(tl.float32)
        c = tl.load(of_table + padded + first + f)[None, :]
        middle = tl.load(of_shift + first + f)[None, :]
        sign = tl.load(of_table + 3 * padded + first + f)[None, :]
        value = value + middle if OF_QUERY else value - middle
        distance = tl.where(value - value == 0, tl.abs(value), float("inf"))
        size = tl.maximum(size, tl.where(there, distance, 0.0))
        near = tl.minimum(tl.maximum(value, -FAR), FAR) * sign
        e = _exponential(near)
        if OF_QUERY:
            e = tl.where((first + f < width)[None, :], e * c, 0.0)
            near += 0.5 * tl.log(c)
        exponent = tl.maximum(exponent, tl.where(there, 2 * near, float("-inf")))
        tl.store(target + (first + f)[None, :] * TILE, e)
    largest = tl.max(tl.max(size, 1), 0)
    highest = tl.max(tl.max(exponent, 1), 0)
    at = bounds + (p * tiles + tile) * 2
    tl.store(at, tl.where(largest == float("inf"), largest, highest))
    tl.store(at + 1, largest)


@triton.jit
def finite(x, copy, odd, heads, rows, width, tiles, padded):
    """copy (problems, tiles · 64, padded) of x (rows, width), 0 for what is not finite or not
    there; odd (problems, tiles): 1 where some entry is not finite. One tile a program.
    """
    tile, p = tl.program_id(0) % tiles, (tl.program_id(0) // tiles).to(tl.int64)
    r, f = tile * TILE + tl.arange(0, TILE), tl.arange(0, BLOCK)
    source = entry(x, p, heads) + r[:, None].to(tl.int64) * x.row
    target = copy + (p * tiles * TILE + r[:, None].to(tl.int64)) * padded
    found = tl.zeros((TILE, BLOCK), tl.int32)
    for first in range(0, padded, BLOCK):
        there = (r < rows)[:, None] & (first + f < width)[None, :]
        value = tl.load(source + (first + f)[None, :] * x.column, mask=there, other=0.0)
        good = tl.abs(value) < float("inf")
        found = tl.maximum(found, tl.where(good, 0, 1))
        value = tl.where(good, value, 0.0).to(copy.dtype.element_ty)
        tl.store(target + (first + f)[None, :], value)
    tl.store(odd + p * tiles + tile, tl.max(tl.max(found, 1), 0))
