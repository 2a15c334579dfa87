"""Backward in Triton: weights and their gradients for a band of keys, then sums over them.

    P = exp(S − lse)    dP = dO Vᵀ    dS = P ∘ (dP − D),  D_i = dO_i · O_i − dlse_i

dS and P of a band of keys are stored, so that scores are computed but once; then every program sums
what it owns: no atomics, and the same bits each time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from anyscore.kernels.triton_forward import add_bias
from anyscore.kernels.triton_scores import FREE, reciprocal, tile_scores
from anyscore.kernels.triton_tiles import (
    INTERPRETED,
    LOG2_E,
    TILE,
    add_product,
    attended,
    kept,
    problem_of,
    span,
)

SMALL = tl.constexpr(0.5)
"""|a + b| up to which tanh is taken by its series, lest its gradient for w lose digits."""


@triton.jit
def weights_and_gradients(
    a, b, weights, bias, mask, dropout, lse, value, d_output, delta, p_band, ds_band, some,
    first, band, sizes, scale, seed,
    PAIR: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr, GRADIENTS: tl.constexpr,
):  # fmt: skip
    """One tile a program, of the keys from `first` on.

    p_band, ds_band (problems, T_q, band): weights after dropout, and dS, 0 where not attended; some
    (problems, query tiles, band tiles): whether anyone attends anything. Without GRADIENTS the
    weights alone, before dropout, are stored. value and d_output: `Rows`.
    """
    ACC: tl.constexpr = lse.dtype.element_ty
    tiles = tl.cdiv(band, TILE)
    at, rest = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    tile, p = rest % a.tiles, (rest // a.tiles).to(tl.int64)
    o = tl.arange(0, TILE)
    rows, keys = tile * TILE + o, first + at * TILE + o
    within = (rows < sizes.queries)[:, None] & (at * TILE + o < band)[None, :]
    target = (p * sizes.queries + rows)[:, None] * band + (at * TILE + o)[None, :]

    start, stop = span(mask, p, rows, sizes)
    reads = attended(mask, p, rows, keys, start, stop, sizes)
    anything = tl.max(tl.max(reads.to(tl.int32), 1), 0)
    if GRADIENTS:
        tl.store(some + (p * a.tiles + tile) * tiles + at, anything)
    if anything != 0:
        of_a = problem_of(a, p, sizes.heads) * a.tiles + tile
        of_b = problem_of(b, p, sizes.heads) * b.tiles + first // TILE + at
        of_w = problem_of(weights, p, sizes.heads)
        bounds = 0.0 if a.bounds is None else tl.load(a.bounds + of_a * 2)
        s = tile_scores(
            a, b, of_a, of_b, weights, of_w, scale, seed, bounds, PAIR, WIDTH, PADDED, ACC,
            PRECISION,
        )  # fmt: skip
        s = add_bias(s, bias, p, keys, sizes)
        constant = 0.0
        if a.exponentials is not None:
            constant = tl.load(weights.constants + of_w * 2 + 1)
        there = rows < sizes.queries
        total = tl.load(lse + p * sizes.queries + rows, mask=there, other=0.0)
        x = tl.exp2(s - (total * LOG2_E - constant)[:, None])
        x = tl.where(reads, x, 0.0)
        if GRADIENTS:
            gradient = tl.zeros((TILE, TILE), ACC)
            c = tl.arange(0, COLUMNS)
            of_value = problem_of(value, p, sizes.heads) * value.tiles + first // TILE + at
            v = value.data + of_value * TILE * value.padded
            d = d_output.data + (p * d_output.tiles + tile) * TILE * d_output.padded
            for column in range(0, value.padded, COLUMNS):
                y = tl.load(v + o[None, :] * value.padded + (column + c)[:, None])
                z = tl.load(d + o[:, None] * d_output.padded + (column + c)[None, :])
                if INTERPRETED:  # whose bfloat16 is wrong
                    y = y.to(ACC)
                    z = z.to(ACC)
                gradient = tl.dot(z, y, gradient, input_precision=PRECISION, out_dtype=ACC)
            shift = tl.load(delta + p * sizes.queries + rows, mask=there, other=0.0)
            dropped = x
            if dropout.seed is not None:
                keep = kept(dropout, p, rows, keys)
                gradient = tl.where(keep, gradient * dropout.scale, 0.0)
                dropped = tl.where(keep, x * dropout.scale, 0.0)
            ds = tl.where(reads, x * (gradient - shift[:, None]), 0.0)
            tl.store(ds_band + target, ds, mask=within)
            x = dropped
        tl.store(p_band + target, x.to(p_band.dtype.element_ty), mask=within)
    else:
        zero = tl.zeros((TILE, TILE), ACC)
        tl.store(p_band + target, zero.to(p_band.dtype.element_ty), mask=within)
        if GRADIENTS:
            tl.store(ds_band + target, zero, mask=within)


@triton.jit
def _add(sums, values, ds, slope, value, WITH_WEIGHT: tl.constexpr):
    sums += ds * slope
    if WITH_WEIGHT:
        values += ds * value
    return sums, values


@triton.jit
def _by_pair(
    own, other, ds, sums, values, PAIR: tl.constexpr, OF_QUERY: tl.constexpr,
    WITH_WEIGHT: tl.constexpr,
):  # fmt: skip
    """One feature, of pointers own (64, 1) and other (1, 64)."""
    x, y = tl.load(own), tl.load(other)
    if OF_QUERY:
        # Where ds is 0 nobody reads the other, which may be NaN.
        slope = tl.where(ds != 0, PAIR.d_a(x, y), 0.0)
        value = tl.where(ds != 0, PAIR.value(x, y), 0.0) if WITH_WEIGHT else slope
    else:
        slope = tl.where(ds != 0, PAIR.d_b(y, x), 0.0)
        value = slope
    return _add(sums, values, ds, slope, value, WITH_WEIGHT)


@triton.jit
def _by_reciprocal(r, ds, sums, values, WITH_WEIGHT: tl.constexpr):
    """One feature of tanh, of r = 1/(1 + e^{2σ(a + b)}): its slope over 4, its value over 2σ."""
    return _add(sums, values, ds, tl.fma(-r, r, r), 0.5 - r, WITH_WEIGHT)


@triton.jit
def feature_sums(
    own, other, weights, ds_band, some, d_own, d_weight, first, band, sizes, scale,
    PAIR: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, OF_QUERY: tl.constexpr,
    WITH_WEIGHT: tl.constexpr,
):  # fmt: skip
    """Adds to d_own (problems, rows, WIDTH) the sums over the others of dS ∂s/∂own.

    Two features of 64 queries (OF_QUERY) or of 64 keys of the band a program. d_weight (problems,
    query tiles, WIDTH): the sums of dS · pair are added to it, if wanted.
    """
    ACC: tl.constexpr = ds_band.dtype.element_ty
    pairs: tl.constexpr = tl.cdiv(WIDTH, 2)
    band_tiles = tl.cdiv(band, TILE)
    query_tiles = tl.cdiv(sizes.queries, TILE)
    tiles = query_tiles if OF_QUERY else band_tiles
    feature, rest = tl.program_id(0) % pairs * 2, tl.program_id(0) // pairs
    tile, p = rest % tiles, (rest // tiles).to(tl.int64)
    o = tl.arange(0, TILE)
    of_own = problem_of(own, p, sizes.heads) * own.tiles + tile
    of_other = problem_of(other, p, sizes.heads) * other.tiles
    if OF_QUERY:
        of_other += first // TILE
    else:
        of_own += first // TILE
    of_w = problem_of(weights, p, sizes.heads)
    table = None if weights.table is None else weights.table + of_w * (4 * PADDED) + feature
    column = own.features + of_own * (PADDED * TILE) + feature * TILE + o[:, None]
    sums_0 = tl.zeros((TILE, TILE), ACC)
    sums_1 = tl.zeros((TILE, TILE), ACC)
    values_0 = tl.zeros((TILE, TILE), ACC)
    values_1 = tl.zeros((TILE, TILE), ACC)
    sums_4 = tl.zeros((TILE, TILE), ACC)
    for i in range(band_tiles if OF_QUERY else query_tiles):
        t = tile if OF_QUERY else i
        j = i if OF_QUERY else tile
        if tl.load(some + (p * query_tiles + t) * band_tiles + j) != 0:
            rows, keys = t * TILE + o, j * TILE + o
            if OF_QUERY:
                at = (p * sizes.queries + rows)[:, None] * band + keys[None, :]
                there = (rows < sizes.queries)[:, None] & (keys < band)[None, :]
            else:
                at = (p * sizes.queries + rows)[None, :] * band + keys[:, None]
                there = (rows < sizes.queries)[None, :] & (keys < band)[:, None]
            ds = tl.load(ds_band + at, mask=there, other=0.0)
            row = other.features + (of_other + i) * (PADDED * TILE) + feature * TILE + o[None, :]
