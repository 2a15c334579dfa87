"""Backward in Triton: weights and their gradients of a band, then sums over them.

    P = exp((S − m) − l)  dP = dO Vᵀ  dS = P ∘ (dP − D) + dscores,  D_i = dO_i · O_i − dl_i

m and l are the statistics of each query. If P is a sigmoid, dS = P ∘ (1 − P) ∘ dP + dscores. An
outer function multiplies dS by its slope. dS and P of a `Band` are stored, so scores are computed
only once. Each sum then has one program, so there are no atomics, and results are the same bits
each time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from anyscore.kernels.triton.forward import shift_of, sigmoid
from anyscore.kernels.triton.scores import tile_scores
from anyscore.kernels.triton.slopes import COUNT, Sums, Two, part_of, strip_of
from anyscore.kernels.triton.tiles import (
    INTERPRETED,
    TILE,
    Biases,
    Mask,
    add_nonfinite,
    add_product,
    attended,
    bounds_of,
    dropout_mask,
    entry,
    problem_of,
    some_nonfinite,
)


class Band(NamedTuple):
    """Weights and gradients of some problems and of some of their keys.

    p, ds: (problems of the band, T_q, keys), weights after dropout, and dS, 0 where masked.
    outside: dS before the slope of an outer function, for a bias after it, of the same shape, or
    None. some: (problems of the band, query tiles, tiles of keys), whether any entry is attended.
    problem, first: the first problem, and the first key. keys: the number of keys.
    """

    p: Any
    ds: Any
    outside: Any
    some: Any
    problem: Any
    first: Any
    keys: Any


@triton.jit
def _store(stored, b_x, i_local, i_q, i_k, band, sizes):
    """Write b_x (Q, 64) to queries from i_q on, and keys from i_k on, of an array of the band."""
    o_q, o_k = tl.arange(0, b_x.shape[0]), tl.arange(0, TILE)
    m_x = (o_q < sizes.queries - i_q)[:, None] & (o_k < band.keys - i_k)[None, :]
    p_x = stored + ((i_local * sizes.queries + i_q) * band.keys + i_k)
    p_x += o_q[:, None] * band.keys + o_k[None, :]  # 32 bits are enough for BAND_BYTES
    tl.store(p_x, b_x.to(stored.dtype.element_ty), mask=m_x)


@triton.jit
def weights_and_gradients(
    a, b, weights, biases, mask, dropout, stats, value, d_output, delta, d_scores, band, sizes,
    scale, seed, chunks, SCORER: tl.constexpr, DEPTH: tl.constexpr, SIGMOID: tl.constexpr,
):  # fmt: skip
    """Write a `Band`, one tile per program.

    value, d_output: `Rows`, multiplied in steps of DEPTH columns. d_scores: (problems, T_q, T_k),
    or None. chunks: as in `forward`.
    """
    ACC: tl.constexpr = stats.dtype.element_ty
    PRECISION: tl.constexpr = SCORER.precision
    QUERIES: tl.constexpr = SCORER.queries
    mask = Mask(mask.start, mask.stop, mask.mask)  # see `Biases`
    biases = Biases(biases.keys, biases.pairs)
    n_tiles, n_queries = tl.cdiv(band.keys, TILE), tl.cdiv(sizes.queries, QUERIES)
    i_t, rest = tl.program_id(0) % n_tiles, tl.program_id(0) // n_tiles
    i_tile, i_local = rest % n_queries, (rest // n_queries).to(tl.int64)
    i_p = i_local + band.problem
    if chunks is not None:  # noqa: SIM102 (`and` would load from None)
        if tl.load(chunks + i_p) != 0:
            tl.store(band.some + (i_local * n_queries + i_tile) * n_tiles + i_t, 0)
            return
    o_t, o_r = tl.arange(0, TILE), tl.arange(0, QUERIES)
    o_q, o_k = i_tile * QUERIES + o_r, band.first + i_t * TILE + o_t
    b_start, b_stop = bounds_of(mask, i_p, o_q, sizes)
    m_s = attended(mask, i_p, o_q, o_k, b_start, b_stop, sizes)
    anything = tl.max(tl.max(m_s.to(tl.int32), 1), 0)
    tl.store(band.some + (i_local * n_queries + i_tile) * n_tiles + i_t, anything)
    if anything != 0:
        b_state = SCORER.read_queries(a, i_p, i_tile, sizes, SCORER)
        b_s, b_slope = tile_scores(
            a, b, weights, biases, b_state, i_p, i_tile, band.first // TILE + i_t, o_q, o_k,
            sizes, scale, seed, ACC, SCORER,
        )  # fmt: skip
        m_q, o_stats = o_q < sizes.queries, i_p * 2 * sizes.queries + o_q
        b_p = b_s - shift_of(stats, o_stats, m_q)[:, None]  # (Q, 64)
        if SIGMOID:
            b_p = sigmoid(b_p)
        else:
            b_log_sum = tl.load(stats + o_stats + sizes.queries, mask=m_q, other=0.0)
            b_p = tl.exp(b_p - b_log_sum[:, None])
        b_p = tl.where(m_s, b_p, 0.0)
        b_dp = tl.zeros((QUERIES, TILE), ACC)
        o_c = tl.arange(0, DEPTH)
        i_v = problem_of(value, i_p, sizes.heads) * value.tiles + band.first // TILE + i_t
        p_v = value.data + i_v * TILE * value.padded
        p_do = d_output.data + (i_p * d_output.tiles * TILE + i_tile * QUERIES) * d_output.padded
        for i_c in range(0, value.padded, DEPTH):
            b_v = tl.load(p_v + o_t[None, :] * value.padded + (i_c + o_c)[:, None])
            b_do = tl.load(p_do + o_r[:, None] * d_output.padded + (i_c + o_c)[None, :])
            if INTERPRETED:  # the interpreter's bfloat16 is wrong
                b_v = b_v.to(ACC)
                b_do = b_do.to(ACC)
            b_dp = tl.dot(b_do, b_v, b_dp, input_precision=PRECISION, out_dtype=ACC)
        b_delta = tl.load(delta + i_p * sizes.queries + o_q, mask=m_q, other=0.0)
        b_dropped = b_p
        if dropout.seed is not None:
            m_dropout = dropout_mask(dropout, i_p, o_q, o_k)
            b_dp = tl.where(m_dropout, b_dp, 0.0)
            b_dropped = tl.where(m_dropout, b_p, 0.0)
        b_ds = b_p * (b_dp - b_delta[:, None])
        if SIGMOID:
            b_ds *= 1 - b_p
        if d_scores is not None:
            p_ds = d_scores + (i_p * sizes.queries + o_q)[:, None] * sizes.keys + o_k[None, :]
            b_ds += tl.load(p_ds, mask=m_s, other=0.0)
        if band.outside is not None:
            _store(
                band.outside,
                tl.where(m_s, b_ds, 0.0),
                i_local,
                i_tile * QUERIES,
                i_t * TILE,
                band,
                sizes,
            )
        b_ds = tl.where(m_s, b_ds * b_slope, 0.0)
        _store(band.ds, b_ds, i_local, i_tile * QUERIES, i_t * TILE, band, sizes)
        _store(band.p, b_dropped, i_local, i_tile * QUERIES, i_t * TILE, band, sizes)
    else:
        b_zero = tl.zeros((QUERIES, TILE), ACC)
        _store(band.p, b_zero, i_local, i_tile * QUERIES, i_t * TILE, band, sizes)
        _store(band.ds, b_zero, i_local, i_tile * QUERIES, i_t * TILE, band, sizes)
        if band.outside is not None:
            _store(band.outside, b_zero, i_local, i_tile * QUERIES, i_t * TILE, band, sizes)


@triton.jit
def _add_to(p_target, b_x, m_x):
    """Add b_x to the numbers at p_target."""
    tl.store(p_target, tl.load(p_target, mask=m_x, other=0.0) + b_x, mask=m_x)


@triton.jit
def feature_sums(
    own, other, weights, band, d_own, d_weight, sizes, scale, SCORER: tl.constexpr,
    FEATURES: tl.constexpr, OF_QUERY: tl.constexpr, WITH_WEIGHT: tl.constexpr,
):  # fmt: skip
    """Add to d_own (problems, rows, WIDTH) the sums of dS ∂s/∂own over the other axis.

    A program has FEATURES of 64 queries (OF_QUERY), or of 64 keys of the band. WITH_WEIGHT: add the
    sums of dS · pair to d_weight (problems, query tiles, WIDTH).
    """
    ACC: tl.constexpr = d_own.dtype.element_ty
    WIDTH: tl.constexpr = SCORER.width
    n_chunks: tl.constexpr = tl.cdiv(WIDTH, FEATURES)
    n_band, n_queries = tl.cdiv(band.keys, TILE), tl.cdiv(sizes.queries, TILE)
    n_tiles = n_queries if OF_QUERY else n_band
    i_chunk, rest = tl.program_id(0) % n_chunks, tl.program_id(0) // n_chunks
    i_tile, i_local = rest % n_tiles, (rest // n_tiles).to(tl.int64)
    i_p = i_local + band.problem
    i_own = problem_of(own, i_p, sizes.heads) * own.tiles + i_tile
    i_other = problem_of(other, i_p, sizes.heads) * other.tiles
    if OF_QUERY:
        i_other += band.first // TILE
        o_r, n_rows = i_tile * TILE + tl.arange(0, TILE), sizes.queries
        n_others, step = n_band, 1
        p_some = band.some + (i_local * n_queries + i_tile) * n_band
    else:
        i_own += band.first // TILE
        o_r, n_rows = band.first + i_tile * TILE + tl.arange(0, TILE), sizes.keys
        n_others, step = n_queries, n_band
        p_some = band.some + i_local * n_queries * n_band + i_tile
    i_w = problem_of(weights, i_p, sizes.heads)
    ds = strip_of(band.ds, i_local, i_tile * TILE, band.keys, sizes, TILE, COUNT, OF_QUERY)
    for i_f in range(i_chunk * FEATURES, tl.minimum(i_chunk * FEATURES + FEATURES, WIDTH), 4):
        states = Two(
            SCORER.start(own, other, weights, i_own, i_other, i_w, i_f, scale, SCORER),
            SCORER.start(own, other, weights, i_own, i_other, i_w, i_f + 2, scale, SCORER),
        )
        b_zero = tl.zeros((TILE, COUNT), ACC)
        b_sums = Sums(b_zero, b_zero, b_zero, b_zero)
        sums = Two(b_sums, b_sums)
        for i in range(n_others):
            if tl.load(p_some + i * step) != 0:
                sums = SCORER.slopes(
                    states, sums, other, i_other, i, ds, SCORER, OF_QUERY, WITH_WEIGHT
                )
        # Pointers that lived through the loop would exceed the registers.
        p_own = d_own + (i_p * n_rows + o_r) * WIDTH
        p_weight = d_weight + (i_p * n_tiles + i_tile) * WIDTH
        m_own = o_r < n_rows
        _add_sums(p_own, m_own, p_weight, i_f, states.one, sums.one, WIDTH, WITH_WEIGHT)
        _add_sums(p_own, m_own, p_weight, i_f + 2, states.other, sums.other, WIDTH, WITH_WEIGHT)


@triton.jit
def _add_sums(
    p_own, m_own, p_weight, i_f, state, b_sums, WIDTH: tl.constexpr, WITH_WEIGHT: tl.constexpr
):
    """Add sums of features i_f and i_f + 1 to rows p_own (64,), and WITH_WEIGHT to p_weight."""
    p_own += i_f
    b_slopes_0, b_slopes_1 = b_sums.slopes_0, b_sums.slopes_1
    if WITH_WEIGHT:
        p_weight += i_f
        total_0 = tl.sum(tl.sum(b_sums.values_0, 1), 0) * state.value_0
        total_1 = tl.sum(tl.sum(b_sums.values_1, 1), 0) * state.value_1
        _add_to(p_weight, total_0, i_f < WIDTH)
        _add_to(p_weight + 1, total_1, i_f + 1 < WIDTH)
    else:
        b_slopes_0 += b_sums.values_0
        b_slopes_1 += b_sums.values_1
    _add_to(p_own, tl.sum(b_slopes_0, 1) * state.slope_0, m_own & (i_f < WIDTH))
    _add_to(p_own + 1, tl.sum(b_slopes_1, 1) * state.slope_1, m_own & (i_f + 1 < WIDTH))


@triton.jit
def range_read(p_some, n_tiles, step, o_f):
    """Return the first of n_tiles flags that is not 0, and one more than the last.

    o_f: offsets 0, 1, … of the 64 flags that are read at a time.
    """
    b_first, b_stop = o_f * 0 + n_tiles, o_f * 0
    for i in range(0, n_tiles, TILE):
        o_t = i + o_f
        m_some = tl.load(p_some + o_t * step, mask=o_t < n_tiles, other=0) != 0
        b_first = tl.minimum(b_first, tl.where(m_some, o_t, n_tiles))
        b_stop = tl.maximum(b_stop, tl.where(m_some, o_t + 1, 0))
    return tl.min(b_first, 0), tl.max(b_stop, 0)


@triton.jit
def matrix_sums(
    stored, finite, raw, band, target, sizes, scale, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr, QUERIES: tl.constexpr, OF_QUERY: tl.constexpr,
):  # fmt: skip
    """Add to target (problems, rows, WIDTH) the product of a band with the rows of the other axis.

    stored: p or ds of the band, transposed unless OF_QUERY. finite: `Rows` without the NaN and ±∞
    of the operand raw, which are added separately to rows that read them. A program has QUERIES
    rows, as many as a tile of queries, and COLUMNS columns.
    """
    ACC: tl.constexpr = target.dtype.element_ty
    ROWS: tl.constexpr = QUERIES
    n_blocks: tl.constexpr = tl.cdiv(WIDTH, COLUMNS)
    n_band, n_queries = tl.cdiv(band.keys, TILE), tl.cdiv(sizes.queries, QUERIES)
    n_tiles = n_queries if OF_QUERY else tl.cdiv(band.keys, ROWS)
    i_block, rest = tl.program_id(0) % n_blocks, tl.program_id(0) // n_blocks
    i_tile, i_local = rest % n_tiles, (rest // n_tiles).to(tl.int64)
    i_p = i_local + band.problem
    o_c = i_block * COLUMNS + tl.arange(0, COLUMNS)
    i_others = problem_of(finite, i_p, sizes.heads) * finite.tiles
    p_raw = entry(raw, i_p, sizes.heads)
    n_rows, n_others = sizes.queries, tl.cdiv(sizes.queries, TILE)
    p_some = band.some + i_local * n_queries * n_band
    if OF_QUERY:
        i_others += band.first // TILE
        p_raw += (i_p * 0 + band.first) * raw.row
        n_rows, n_others = sizes.keys - band.first, n_band
        i_low, i_high = range_read(p_some + i_tile * n_band, n_band, 1, tl.arange(0, TILE))
    else:
        i_low, i_high = n_queries, 0
        for part in tl.static_range(ROWS // TILE):  # tiles of keys
            i_k = i_tile * (ROWS // TILE) + part
            n_there = tl.where(i_k < n_band, n_queries, 0)
            i_first, i_stop = range_read(p_some + i_k, n_there, n_band, tl.arange(0, TILE))
            i_low, i_high = tl.minimum(i_low, i_first), tl.maximum(i_high, i_stop)
        i_low *= QUERIES // TILE
        i_high = tl.minimum(i_high * (QUERIES // TILE), n_others)
    p_others = finite.data + i_others * TILE * finite.padded
    strip = strip_of(stored, i_local, i_tile * ROWS, band.keys, sizes, ROWS, TILE, OF_QUERY)
    b_total = tl.zeros((ROWS, COLUMNS), ACC)
    # A band is 0 where nobody reads. Loads run ahead in a loop without branches, from 0 on.
    for n in range(i_high - i_low):
        i = i_low + n
        b_x = part_of(strip, i * TILE, TILE)
        p_y = p_others + (i_p * 0 + i) * TILE * finite.padded
        b_total = add_product(b_total, b_x, p_y, finite.padded, o_c, PRECISION)
    if some_nonfinite(finite.nonfinite + i_others, 0, n_others):
        for i in range(i_low, i_high):
            if tl.load(finite.nonfinite + i_others + i) != 0:
                b_x = part_of(strip, i * TILE, TILE)
                b_total = add_nonfinite(
                    b_total, b_x != 0, p_raw + (i_p * 0 + i) * TILE * raw.row, raw.row, raw.column,
                    n_rows - i * TILE, o_c, WIDTH,
                )  # fmt: skip
    o_r = i_tile * ROWS + tl.arange(0, ROWS)
    i_first, n_own, n_rows = 0, sizes.queries, sizes.queries
    if not OF_QUERY:
        i_first, n_own, n_rows = band.first, band.keys, sizes.keys
    p_target = target + (i_p * n_rows + i_first + o_r)[:, None] * WIDTH + o_c[None, :]
    _add_to(p_target, b_total * scale, (o_r < n_own)[:, None] & (o_c < WIDTH)[None, :])
