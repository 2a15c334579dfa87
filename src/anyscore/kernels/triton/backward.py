"""Backward in Triton: weights and their gradients for a band of keys, then sums over them.

    P = exp(S − lse)    dP = dO Vᵀ    dS = P ∘ (dP − D),  D_i = dO_i · O_i − dlse_i

dS and P of a band of keys are stored, so that scores are computed but once; then every program sums
what it owns: no atomics, and the same bits each time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from anyscore.kernels.triton.forward import LN_2, add_bias
from anyscore.kernels.triton.panels import WIDE
from anyscore.kernels.triton.scores import reciprocal, tile_scores
from anyscore.kernels.triton.tiles import (
    INTERPRETED,
    LOG2_E,
    TILE,
    add_odd,
    add_product,
    attended,
    entry,
    kept,
    problem_of,
    some_odd,
    span,
)

PAIRED = tl.constexpr(42.0)
"""ln x up to which two denominators can be multiplied."""
COUNT = tl.constexpr(32)
"""Columns of a tile that are taken at a time: more would not fit registers."""
SMALL = tl.constexpr(0.5)
"""|a| + |b| up to which tanh is taken by its series, lest its gradient for w lose digits."""


@triton.jit
def weights_and_gradients(
    a, b, weights, bias, mask, dropout, lse, value, d_output, delta, p_band, ds_band, some,
    first, band, sizes, scale, seed,
    PAIR: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, DEPTH: tl.constexpr,
    PRECISION: tl.constexpr, GRADIENTS: tl.constexpr,
):  # fmt: skip
    """One tile a program, of the keys from `first` on.

    p_band, ds_band (problems, T_q, band): weights after dropout, and dS, 0 where not attended; some
    (problems, query tiles, band tiles): whether anyone attends anything. Without GRADIENTS the
    weights alone, before dropout, are stored. value and d_output: `Rows`; DEPTH of their columns
    are multiplied at a time.
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
            c = tl.arange(0, DEPTH)
            of_value = problem_of(value, p, sizes.heads) * value.tiles + first // TILE + at
            v = value.data + of_value * TILE * value.padded
            d = d_output.data + (p * d_output.tiles + tile) * TILE * d_output.padded
            for column in range(0, value.padded, DEPTH):
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
                gradient = tl.where(keep, gradient, 0.0)
                dropped = tl.where(keep, x, 0.0)
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
def part_of(data, p, own, other, band, sizes, COUNT: tl.constexpr, OF_QUERY: tl.constexpr):
    """64 rows from `own` and COUNT columns from `other` on of a band (problems, T_q, band).

    Rows are queries and columns keys, counted from the first of the band; or else the reverse.
    """
    o, c = tl.arange(0, TILE) + own, tl.arange(0, COUNT) + other
    start = data + p * sizes.queries * band
    if OF_QUERY:
        at = o.to(tl.int64)[:, None] * band + c[None, :]
        there = (o < sizes.queries)[:, None] & (c < band)[None, :]
    else:
        at = c.to(tl.int64)[None, :] * band + o[:, None]
        there = (c < sizes.queries)[None, :] & (o < band)[:, None]
    return tl.load(start + at, mask=there, other=0.0)


@triton.jit
def _by_pair(
    own, other, f: tl.constexpr, ds, sums, values, slope_unit, value_unit, PAIR: tl.constexpr,
    OF_QUERY: tl.constexpr, WITH_WEIGHT: tl.constexpr,
):  # fmt: skip
    """Feature f, of pointers own (64, 1) and other (1, 64), in the units given."""
    x, y = tl.load(own + f * TILE), tl.load(other + f * TILE)
    # Where ds is 0 nobody reads the other, which may be NaN.
    if OF_QUERY:
        sums += ds * tl.where(ds != 0, PAIR.d_a(x, y) * slope_unit, 0.0)
        if WITH_WEIGHT:
            values += ds * tl.where(ds != 0, PAIR.value(x, y) * value_unit, 0.0)
    else:
        sums += ds * tl.where(ds != 0, PAIR.d_b(y, x) * slope_unit, 0.0)
    return sums, values


@triton.jit
def _by_reciprocal(r, ds, sums, values, WITH_WEIGHT: tl.constexpr):
    """A feature of tanh, of r = 1/(1 + e^{2σ(a + b)}): its slope over 4, its value over 2σ."""
    sums = tl.fma(ds, tl.fma(-r, r, r), sums)
    if WITH_WEIGHT:
        values = tl.fma(ds, 0.5 - r, values)
    return sums, values


@triton.jit
def feature_sums(
    own, other, weights, ds_band, some, d_own, d_weight, first, band, sizes, scale,
    PAIR: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, OF_QUERY: tl.constexpr,
    WITH_WEIGHT: tl.constexpr,
):  # fmt: skip
    """Adds to d_own (problems, rows, WIDTH) the sums over the others of dS ∂s/∂own.

    Two features of 64 queries (OF_QUERY) or of 64 keys of the band a program. To d_weight
    (problems, query tiles, WIDTH) the sums of dS · pair are added, if wanted.
    """
    ACC: tl.constexpr = ds_band.dtype.element_ty
    pairs: tl.constexpr = tl.cdiv(WIDTH, 2)
    band_tiles, query_tiles = tl.cdiv(band, TILE), tl.cdiv(sizes.queries, TILE)
    tiles = query_tiles if OF_QUERY else band_tiles
    feature, rest = tl.program_id(0) % pairs * 2, tl.program_id(0) // pairs
    tile, p = rest % tiles, (rest // tiles).to(tl.int64)
    o, c = tl.arange(0, TILE), tl.arange(0, COUNT)
    of_own = problem_of(own, p, sizes.heads) * own.tiles + tile
    of_other = problem_of(other, p, sizes.heads) * other.tiles
    if OF_QUERY:
        of_other += first // TILE
    else:
        of_own += first // TILE
    column = own.features + (of_own * PADDED + feature) * TILE + o[:, None]
    row = other.features + (of_other * PADDED + feature) * TILE + c[None, :]
    unit_0, unit_1, sign_0, sign_1, slope = scale, scale, 1.0, 1.0, 1.0
    if weights.table is not None:
        table = weights.table + problem_of(weights, p, sizes.heads) * (4 * PADDED) + feature
        unit_0, unit_1 = tl.load(table) * LN_2, tl.load(table + 1) * LN_2
    if own.exponentials is not None:
        unit_0, unit_1, slope = unit_0 * 4, unit_1 * 4, 0.25
        sign_0, sign_1 = tl.load(table + 3 * PADDED) * 0.5, tl.load(table + 3 * PADDED + 1) * 0.5
        e_column = own.exponentials + (of_own * PADDED + feature) * TILE + o[:, None]
        own_0 = tl.load(e_column) * tl.load(table + 2 * PADDED)  # 1/C undoes the C of A
        own_1 = tl.load(e_column + TILE) * tl.load(table + 2 * PADDED + 1)
        e_row = other.exponentials + (of_other * PADDED + feature) * TILE + c[None, :]
        bounds = tl.load(own.bounds + of_own * 2)
        size = tl.load(own.bounds + of_own * 2 + 1)
    sums_0 = tl.zeros((TILE, COUNT), ACC)
    sums_1 = tl.zeros((TILE, COUNT), ACC)
    values_0 = tl.zeros((TILE, COUNT), ACC)
    values_1 = tl.zeros((TILE, COUNT), ACC)
    for i in range(band_tiles if OF_QUERY else query_tiles):
        if OF_QUERY:
            of_some = (p * query_tiles + tile) * band_tiles + i
        else:
            of_some = (p * query_tiles + i) * band_tiles + tile
        if tl.load(some + of_some) != 0:
            careful, paired = True, False
            if own.exponentials is not None:
                highest = tl.load(other.bounds + (of_other + i) * 2)
                other_size = tl.load(other.bounds + (of_other + i) * 2 + 1)
                widest = other_size if OF_QUERY else size
                careful = (widest > WIDE) | (bounds + highest == float("inf"))
                if WITH_WEIGHT:
                    careful = careful | (size + other_size < SMALL)
                # With values of the pair as well, instructions are the limit, not reciprocals.
                paired = bounds + highest <= PAIRED
            for part in tl.static_range(TILE // COUNT):
                start = i * TILE + part * COUNT
                ds = part_of(ds_band, p, tile * TILE, start, band, sizes, COUNT, OF_QUERY)
                step = i * (PADDED * TILE) + part * COUNT
                if own.exponentials is not None and careful == 0:
                    x = tl.fma(own_0, tl.load(e_row + step), 1.0)
                    y = tl.fma(own_1, tl.load(e_row + step + TILE), 1.0)
                    if paired and not WITH_WEIGHT:  # one reciprocal for both
                        r = reciprocal(x * y)
                        r_x, r_y = y * r, x * r
                    else:
                        r_x, r_y = reciprocal(x), reciprocal(y)
                    sums_0, values_0 = _by_reciprocal(r_x, ds, sums_0, values_0, WITH_WEIGHT)
                    sums_1, values_1 = _by_reciprocal(r_y, ds, sums_1, values_1, WITH_WEIGHT)
                if careful:
                    sums_0, values_0 = _by_pair(
                        column, row + step, 0, ds, sums_0, values_0, slope, sign_0,
                        PAIR, OF_QUERY, WITH_WEIGHT,
                    )  # fmt: skip
                    sums_1, values_1 = _by_pair(
                        column, row + step, 1, ds, sums_1, values_1, slope, sign_1,
                        PAIR, OF_QUERY, WITH_WEIGHT,
                    )  # fmt: skip
    if OF_QUERY:
        rows, count = tile * TILE + o, sizes.queries
    else:
        rows, count = first + tile * TILE + o, sizes.keys
    target = d_own + (p * count + rows) * WIDTH + feature
    _add_to(target, tl.sum(sums_0, 1) * unit_0, rows < count)
    if feature + 1 < WIDTH:
        _add_to(target + 1, tl.sum(sums_1, 1) * unit_1, rows < count)
    if WITH_WEIGHT:
        target = d_weight + (p * tiles + tile) * WIDTH + feature
        total = tl.sum(tl.sum(values_0, 1), 0) * scale
        tl.store(
            target, tl.load(target) + (total if own.exponentials is None else total * 4 * sign_0)
        )
        if feature + 1 < WIDTH:
            total = tl.sum(tl.sum(values_1, 1), 0) * scale
            if own.exponentials is not None:
                total *= 4 * sign_1
            tl.store(target + 1, tl.load(target + 1) + total)


@triton.jit
def _add_to(target, x, there):
    tl.store(target, tl.load(target, mask=there, other=0.0) + x, mask=there)


@triton.jit
def matrix_sums(
    band_of, finite, odd_rows, some, target, first, band, sizes, scale, WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr, PRECISION: tl.constexpr, OF_QUERY: tl.constexpr,
):  # fmt: skip
    """Adds to target (problems, rows, WIDTH) the product of the band with the rows of the others.

    band_of (problems, T_q, band), transposed unless OF_QUERY; finite: `Rows`, which lack what is
    not finite in the operand odd_rows: that is added apart, for those who read it. 64 rows and
    COLUMNS columns a program.
    """
    ACC: tl.constexpr = target.dtype.element_ty
    blocks: tl.constexpr = tl.cdiv(WIDTH, COLUMNS)
    band_tiles, query_tiles = tl.cdiv(band, TILE), tl.cdiv(sizes.queries, TILE)
    tiles = query_tiles if OF_QUERY else band_tiles
    block, rest = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    tile, p = rest % tiles, (rest // tiles).to(tl.int64)
    o, columns = tl.arange(0, TILE), block * COLUMNS + tl.arange(0, COLUMNS)
    of_others = problem_of(finite, p, sizes.heads) * finite.tiles
    source = entry(odd_rows, p, sizes.heads)
    count = sizes.queries
    if OF_QUERY:
        of_others += first // TILE
        source += (p * 0 + first) * odd_rows.row
        count = sizes.keys - first
    others = finite.data + of_others * TILE * finite.padded
    total = tl.zeros((TILE, COLUMNS), ACC)
    of_some, step = some + (p * query_tiles + tile) * band_tiles, 1
    if not OF_QUERY:
        of_some, step = some + p * query_tiles * band_tiles + tile, band_tiles
    others_tiles = band_tiles if OF_QUERY else query_tiles
    for i in range(others_tiles):
        if tl.load(of_some + i * step) != 0:
            x = part_of(band_of, p, tile * TILE, i * TILE, band, sizes, TILE, OF_QUERY)
            y = others + (p * 0 + i) * TILE * finite.padded
            total = add_product(total, x, y, finite.padded, columns, PRECISION)
    if some_odd(finite.odd + of_others, 0, others_tiles):
        for i in range(others_tiles):
            if (tl.load(of_some + i * step) != 0) & (tl.load(finite.odd + of_others + i) != 0):
                x = part_of(band_of, p, tile * TILE, i * TILE, band, sizes, TILE, OF_QUERY)
                total = add_odd(
                    total, x != 0, source + (p * 0 + i) * TILE * odd_rows.row, odd_rows.row,
                    odd_rows.column, count - i * TILE, columns, WIDTH,
                )  # fmt: skip
    if OF_QUERY:
        rows, count = tile * TILE + o, sizes.queries
    else:
        rows, count = first + tile * TILE + o, sizes.keys
    at = target + (p * count + rows)[:, None] * WIDTH + columns[None, :]
    _add_to(at, total * scale, (rows < count)[:, None] & (columns < WIDTH)[None, :])
