"""Scores of a tile of 64 queries and 64 keys, in base 2 and without biases.

Three ways: products by the tensor core; any pair feature by feature; and tanh by exponentials.
Feature by feature a load is 64 numbers for 128 threads: Triton then repeats it in the layout of the
tile instead of converting it, and the tile is in the layout of the tensor core's sums, so that
weights go from registers into the product with the values.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from anyscore.kernels.triton.panels import BLOCK, WIDE
from anyscore.kernels.triton.tiles import INTERPRETED, LOG2_E, TILE

FREE = tl.constexpr(20.0)
"""ln x up to which four denominators can be multiplied."""
CLAMP = tl.constexpr(2.0**62)
"""A denominator up to which two can be multiplied; beyond, its term is 0 anyway."""


class Panels(NamedTuple):
    """Panels of queries or of keys: (problems, tiles, padded, 64), and how problems find theirs.

    features, and of tanh exponentials and their bounds (else None). n, h, group: as of `Operand`,
    counted in problems.
    """

    features: Any
    exponentials: Any
    bounds: Any
    n: Any
    h: Any
    group: Any
    tiles: Any


class Weights(NamedTuple):
    """table (problems, 4, padded) and constants (problems, 2), of `coefficients`; None if neither
    weight nor exponentials are there, and how problems find theirs.
    """

    table: Any
    constants: Any
    n: Any
    h: Any
    group: Any


if INTERPRETED.value:

    @triton.jit
    def reciprocal(x):
        return 1.0 / x
else:

    @triton.jit
    def reciprocal(x):
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def no_scores(seed, ACC: tl.constexpr):
    """Zeros (64, 64) in the layout of the tensor core's sums. seed: 0.0, unknown when compiled."""
    if INTERPRETED or tl.float32 != ACC:
        s = tl.zeros((TILE, TILE), ACC)
    else:
        x = tl.zeros((TILE, 16), tl.bfloat16)
        s = tl.dot(x + seed.to(tl.bfloat16), tl.zeros((16, TILE), tl.bfloat16))
    return s


@triton.jit
def by_product(a, b, total, PADDED: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr):
    """total + Σ_f a_f b_f, of panels."""
    f, o = tl.arange(0, STEP), tl.arange(0, TILE)
    for _ in range(0, PADDED, STEP):
        x = tl.load(a + f[None, :] * TILE + o[:, None])
        y = tl.load(b + f[:, None] * TILE + o[None, :])
        if INTERPRETED:
            x = x.to(total.dtype)
            y = y.to(total.dtype)
        total = tl.dot(x, y, total, input_precision=PRECISION, out_dtype=total.dtype)
        a += STEP * TILE
        b += STEP * TILE
    return total


@triton.jit
def by_feature(a, b, w, total, VALUE: tl.constexpr, width, UNROLL: tl.constexpr):
    """total + Σ_f w_f pair(a_f, b_f), of pointers a (64, 1) and b (1, 64); w None is 1."""
    for _ in range(0, width, UNROLL):
        for u in tl.static_range(UNROLL):
            value = VALUE(tl.load(a + u * TILE), tl.load(b + u * TILE))
            if w is None:
                total += value
            else:
                total += tl.load(w + u).to(total.dtype) * value
        a += UNROLL * TILE
        b += UNROLL * TILE
        if w is not None:
            w += UNROLL
    return total


@triton.jit
def _denominator(a, b, c, f: tl.constexpr, CLAMPED: tl.constexpr):
    x = tl.fma(tl.load(a + f * TILE), tl.load(b + f * TILE), tl.load(c + f))
    return tl.minimum(x, CLAMP) if CLAMPED else x


@triton.jit
def by_exponentials(a, b, c, total, width, AT_ONCE: tl.constexpr, CLAMPED: tl.constexpr):
    """total + Σ_f 1/(c_f + a_f b_f), one reciprocal for AT_ONCE features; pointers as above.

    N/D of n terms takes another: (N x + D) / (D x).
    """
    for _ in range(0, width, BLOCK):
        for u in tl.static_range(0, BLOCK, AT_ONCE):
            first = _denominator(a, b, c, u, CLAMPED)
            x = _denominator(a, b, c, u + 1, CLAMPED)
            numerator = first + x
            product = first * x
            for v in tl.static_range(2, AT_ONCE):
                x = _denominator(a, b, c, u + v, CLAMPED)
                numerator = tl.fma(numerator, x, product)
                product = product * x
            total = tl.fma(numerator, reciprocal(product), total)
        a += BLOCK * TILE
        b += BLOCK * TILE
        c += BLOCK
    return total


@triton.jit
def tile_scores(
    a, b, of_a, of_b, weights, of_w, scale, seed, bounds,
    PAIR: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, ACC: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Scores (64, 64) of one tile; those of tanh by exponentials lack their constant, scale Σ|w|.

    of_a, of_b: which tile of the panels a and b. weights: with of_w, which problem's. bounds: the
    largest exponent of the queries, if there are exponentials.
    """
    o = tl.arange(0, TILE)
    at_a, at_b = of_a * (PADDED * TILE), of_b * (PADDED * TILE)
    w = None if weights.table is None else weights.table + of_w * (4 * PADDED)
    UNROLL: tl.constexpr = 4 if WIDTH % 4 == 0 else 1
    if PAIR.is_product:
        total = tl.zeros((TILE, TILE), ACC)
        NARROW: tl.constexpr = a.features.dtype.element_ty != ACC
        STEP: tl.constexpr = 64 if NARROW and PADDED % 64 == 0 else BLOCK
        total = by_product(a.features + at_a, b.features + at_b, total, PADDED, STEP, PRECISION)
        total *= scale * LOG2_E
    else:
        total = no_scores(seed, ACC)
        column, row = a.features + at_a + o[:, None], b.features + at_b + o[None, :]
        if a.exponentials is None:
            total = by_feature(column, row, w, total, PAIR.value, WIDTH, UNROLL)
            if w is None:
                total *= scale * LOG2_E
        else:
            highest = tl.load(b.bounds + of_b * 2)
            widest = tl.load(b.bounds + of_b * 2 + 1)
            e_a, e_b = a.exponentials + at_a + o[:, None], b.exponentials + at_b + o[None, :]
            free = bounds + highest <= FREE
            near = (widest <= WIDE) & (bounds < float("inf"))
            c = w + PADDED
            # No branches: the tile would not be in the layout of the tensor core behind them.
            fours, twos = tl.where(free, PADDED, 0), tl.where(near & (free == 0), PADDED, 0)
            total = by_exponentials(e_a, e_b, c, total, fours, 4, False)
            total = by_exponentials(e_a, e_b, c, total, twos, 2, True)
            ones = tl.where(free | near, 0, WIDTH)
            total = by_feature(column, row, w, total, PAIR.value, ones, 1)
            factor = -tl.load(weights.constants + of_w * 2)
            constant = tl.load(weights.constants + of_w * 2 + 1)
            total = total * tl.where(free | near, factor, 1.0) - tl.where(
                free | near, 0.0, constant
            )
    return total
