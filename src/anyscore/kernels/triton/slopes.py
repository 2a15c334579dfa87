"""Sums of dS ∂s/∂own over other rows, for a few features of 64 own rows.

With OF_QUERY the own rows are queries and the other rows are keys, else the reverse. Each scorer of
`scorers` that is no product has two functions here with one prefix. `…_start` reads the own tile,
`…_slopes` adds a tile of other rows.

Features are processed in pairs, which may share one reciprocal, and two pairs at a time, which
share one read of dS. COUNT other rows have separate sums, so that a term is one multiply-add.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from anyscore.kernels.triton.panels import WIDE
from anyscore.kernels.triton.tiles import TILE

PAIRED = tl.constexpr(42.0)
"""The largest ln x at which two denominators can be multiplied."""
COUNT = tl.constexpr(16)
"""The number of other rows per step; more would exceed the registers."""
SMALL = tl.constexpr(0.5)
"""Up to this |a| + |b| tanh is computed by its series, so that the gradient of w is accurate."""


class Two(NamedTuple):
    """A state, or sums, for each of two pairs of features."""

    one: Any
    other: Any


class State(NamedTuple):
    """Two features of the own tile, read once, and pointers to the other rows' features.

    p_x (64, 1), p_y (1, COUNT): pointers to the first feature of the own tile, and of the first
    other tile. slope_0, slope_1, value_0, value_1: factors of the sums of slopes and of values.
    """

    p_x: Any
    p_y: Any
    slope_0: Any
    slope_1: Any
    value_0: Any
    value_1: Any


class SteppedState(NamedTuple):
    """Two features of the own tile, (64, 1), and the other fields of a `State`."""

    b_x0: Any
    b_x1: Any
    p_y: Any
    slope_0: Any
    slope_1: Any
    value_0: Any
    value_1: Any


class ExponentialState(NamedTuple):
    """A `State`, and a state of exponentials.

    b_e0, b_e1 (64, 1): exponentials of the own rows without C. p_e (1, COUNT): pointers to the
    other rows' exponentials. bound, size: of the own tile. sign_0, sign_1: σ/2.
    """

    p_x: Any
    p_y: Any
    slope_0: Any
    slope_1: Any
    value_0: Any
    value_1: Any
    b_e0: Any
    b_e1: Any
    p_e: Any
    bound: Any
    size: Any
    sign_0: Any
    sign_1: Any


class Sums(NamedTuple):
    """Sums of slopes and of values of two features, (64, COUNT) each.

    Without a weight, values are a second part of the slopes.
    """

    slopes_0: Any
    slopes_1: Any
    values_0: Any
    values_1: Any


class Strip(NamedTuple):
    """A band's stored dS or weights of the own tile.

    p: a pointer to the first own row and the first other row. offsets (R, N): of the first N other
    rows, in 32 bits, which `BAND_BYTES` allows; the next row is `step` numbers further. m_own (R,
    1): whether each own row exists. n_others: the number of other rows.
    """

    p: Any
    offsets: Any
    step: Any
    m_own: Any
    n_others: Any


class Others(NamedTuple):
    """dS (64, COUNT) of COUNT other rows, and both features of each pair (1, COUNT)."""

    ds: Any
    one_0: Any
    one_1: Any
    other_0: Any
    other_1: Any


@triton.jit
def strip_of(
    stored, i_p, i_own, band, sizes, ROWS: tl.constexpr, N: tl.constexpr, OF_QUERY: tl.constexpr
):
    """Return the `Strip` of ROWS own rows from i_own on in `stored` (problems, T_q, band).

    With OF_QUERY own rows are queries and other rows are keys, counted from the band's first; else
    the reverse.
    """
    o_r, o_c = tl.arange(0, ROWS), tl.arange(0, N)
    p_band = stored + i_p * sizes.queries * band
    if OF_QUERY:
        p_band += (i_p * 0 + i_own) * band  # 64 bits
        offsets, step = o_r[:, None] * band + o_c[None, :], i_p * 0 + 1
        n_own, n_others = sizes.queries, band
    else:
        p_band += i_own
        offsets, step = o_r[:, None] + o_c[None, :] * band, i_p * 0 + band
        n_own, n_others = band, sizes.queries
    return Strip(p_band, offsets, step, (o_r < n_own - i_own)[:, None], n_others)


@triton.jit
def part_of(strip, i_first, N: tl.constexpr):
    """Return the stored numbers (R, N) of N other rows from i_first on, 0 beyond the last."""
    m_others = (tl.arange(0, N) + i_first < strip.n_others)[None, :]
    p = strip.p + i_first * strip.step + strip.offsets
    return tl.load(p, mask=strip.m_own & m_others, other=0.0)


@triton.jit
def _features(p_y, i, part, PADDED: tl.constexpr):
    """Return both features (1, COUNT) of a part of the other tile i."""
    p_y += i * (PADDED * TILE) + part * COUNT
    return tl.load(p_y), tl.load(p_y + TILE)


@triton.jit
def _others(p, ds, i, part, PADDED: tl.constexpr):
    """Return the `Others` of a part of the other tile i, for two pairs of features."""
    b_ds = part_of(ds, i * TILE + part * COUNT, COUNT)
    one_0, one_1 = _features(p.one, i, part, PADDED)
    other_0, other_1 = _features(p.other, i, part, PADDED)
    return Others(b_ds, one_0, one_1, other_0, other_1)


@triton.jit
def _add_tile(
    p, states, sums, i, ds, ADD: tl.constexpr, SCORER: tl.constexpr, IN_PAIRS: tl.constexpr,
    WITH_WEIGHT: tl.constexpr,
):  # fmt: skip
    """Return the sums (`Two`) with the other tile i added by ADD; p: pointers to its features.

    One part is read while another is added.
    """
    one, other = states.one, states.other
    then = _others(p, ds, i, 0, SCORER.padded)
    for part in tl.static_range(TILE // COUNT):
        y = then
        if part + 1 < TILE // COUNT:
            then = _others(p, ds, i, part + 1, SCORER.padded)
        sums = Two(
            ADD(one, y.one_0, y.one_1, y.ds, sums.one, SCORER, IN_PAIRS, WITH_WEIGHT),
            ADD(other, y.other_0, y.other_1, y.ds, sums.other, SCORER, IN_PAIRS, WITH_WEIGHT),
        )
    return sums


@triton.jit
def _add_one(
    p_x, b_y, b_ds, b_slopes, b_values, slope, value, SCORER: tl.constexpr, OF_QUERY: tl.constexpr,
    WITH_WEIGHT: tl.constexpr,
):  # fmt: skip
    """Return b_slopes and b_values (64, COUNT) plus a feature's terms times slope and value."""
    b_x = tl.load(p_x)  # (64, 1)
    # Where dS is 0, the other row may be NaN and is not read.
    if OF_QUERY:
        b_slopes += b_ds * tl.where(b_ds != 0, SCORER.pair.d_a(b_x, b_y) * slope, 0.0)
        if WITH_WEIGHT:
            b_values += b_ds * tl.where(b_ds != 0, SCORER.pair.value(b_x, b_y) * value, 0.0)
    else:
        b_slopes += b_ds * tl.where(b_ds != 0, SCORER.pair.d_b(b_y, b_x) * slope, 0.0)
    return b_slopes, b_values


@triton.jit
def _add_by_pair(
    state, b_y0, b_y1, b_ds, b_sums, slope, value_0, value_1, SCORER: tl.constexpr,
    OF_QUERY: tl.constexpr, WITH_WEIGHT: tl.constexpr,
):  # fmt: skip
    """Return b_sums with both features added; b_y0, b_y1: (1, COUNT) of other rows."""
    b_slopes_0, b_values_0 = _add_one(
        state.p_x, b_y0, b_ds, b_sums.slopes_0, b_sums.values_0, slope, value_0,
        SCORER, OF_QUERY, WITH_WEIGHT,
    )  # fmt: skip
    b_slopes_1, b_values_1 = _add_one(
        state.p_x + TILE, b_y1, b_ds, b_sums.slopes_1, b_sums.values_1, slope, value_1,
        SCORER, OF_QUERY, WITH_WEIGHT,
    )  # fmt: skip
    return Sums(b_slopes_0, b_slopes_1, b_values_0, b_values_1)


@triton.jit
def _add_by_reciprocals(
    state, b_y0, b_y1, b_ds, b_sums, SCORER: tl.constexpr, IN_PAIRS: tl.constexpr,
    WITH_WEIGHT: tl.constexpr,
):  # fmt: skip
    """Return b_sums with both features added: slopes divided by 4, values by 2σ.

    b_y0, b_y1 (1, COUNT): exponentials of other rows. IN_PAIRS: whether both share one reciprocal.
    """
    RECIPROCAL: tl.constexpr = SCORER.reciprocal
    b_x0, b_x1 = tl.fma(state.b_e0, b_y0, 1.0), tl.fma(state.b_e1, b_y1, 1.0)  # (64, COUNT)
    if IN_PAIRS:
        b_r = RECIPROCAL(b_x0 * b_x1)
        b_h0, b_h1 = 0.5 - b_x1 * b_r, 0.5 - b_x0 * b_r
    else:
        b_h0, b_h1 = 0.5 - RECIPROCAL(b_x0), 0.5 - RECIPROCAL(b_x1)
    b_values_0, b_values_1 = b_sums.values_0, b_sums.values_1
    b_slopes_0 = tl.fma(b_ds, 0.25 - b_h0 * b_h0, b_sums.slopes_0)
    b_slopes_1 = tl.fma(b_ds, 0.25 - b_h1 * b_h1, b_sums.slopes_1)
    if WITH_WEIGHT:
        b_values_0 = tl.fma(b_ds, b_h0, b_values_0)
        b_values_1 = tl.fma(b_ds, b_h1, b_values_1)
    return Sums(b_slopes_0, b_slopes_1, b_values_0, b_values_1)


@triton.jit
def elementwise_start(own, other, weights, i_own, i_other, i_w, i_f, scale, SCORER: tl.constexpr):
    """Return the `State` of features i_f and i_f + 1; i_other: the first other tile."""
    o_t, o_c = tl.arange(0, TILE), tl.arange(0, COUNT)
    unit_0, unit_1 = scale, scale
    if weights.table is not None:
        p_table = weights.table + i_w * (4 * SCORER.padded) + i_f
        unit_0, unit_1 = tl.load(p_table), tl.load(p_table + 1)
    p_x = own.features + (i_own * SCORER.padded + i_f) * TILE + o_t[:, None]
    p_y = other.features + (i_other * SCORER.padded + i_f) * TILE + o_c[None, :]
    return State(p_x, p_y, unit_0, unit_1, scale, scale)


@triton.jit
def elementwise_slopes(
    states, sums, other, i_other, i, ds, SCORER: tl.constexpr, OF_QUERY: tl.constexpr,
    WITH_WEIGHT: tl.constexpr,
):  # fmt: skip
    """Return the sums (`Two`) with the other tile i added, by the functions of the pair."""
    p = Two(states.one.p_y, states.other.p_y)
    for part in tl.static_range(TILE // COUNT):
        y = _others(p, ds, i, part, SCORER.padded)
        sums = Two(
            _add_by_pair(
                states.one, y.one_0, y.one_1, y.ds, sums.one, 1.0, 1.0, 1.0,
                SCORER, OF_QUERY, WITH_WEIGHT,
            ),
            _add_by_pair(
                states.other, y.other_0, y.other_1, y.ds, sums.other, 1.0, 1.0, 1.0,
                SCORER, OF_QUERY, WITH_WEIGHT,
            ),
        )  # fmt: skip
    return sums


@triton.jit
def stepped_start(own, other, weights, i_own, i_other, i_w, i_f, scale, SCORER: tl.constexpr):
    """Return the `SteppedState` of features i_f and i_f + 1; i_other: the first other tile."""
    o_t, o_c = tl.arange(0, TILE), tl.arange(0, COUNT)
    p_x = own.features + (i_own * SCORER.padded + i_f) * TILE + o_t[:, None]
    p_y = other.features + (i_other * SCORER.padded + i_f) * TILE + o_c[None, :]
    return SteppedState(tl.load(p_x), tl.load(p_x + TILE), p_y, scale, scale, scale, scale)


@triton.jit
def _add_steps(
    state, b_y0, b_y1, b_ds, b_sums, SCORER: tl.constexpr, IN_PAIRS: tl.constexpr,
    WITH_WEIGHT: tl.constexpr,
):  # fmt: skip
    """Return b_sums plus dS where x > 0 for own features of the state, others b_y (1, COUNT).

    If the slope at 0 is the mean of both, `values` have dS where x ≥ 0. One comparison for a sum
    makes an addition conditional; of two it would make a selection each.
    """
    DIFFERENCE: tl.constexpr = SCORER.pair.steps.difference
    AT_HALF: tl.constexpr = SCORER.pair.steps.at_half
    b_k0, b_k1 = (b_y0, b_y1) if DIFFERENCE else (-b_y0, -b_y1)
    b_slopes_0 = tl.where(state.b_x0 > b_k0, b_sums.slopes_0 + b_ds, b_sums.slopes_0)
    b_slopes_1 = tl.where(state.b_x1 > b_k1, b_sums.slopes_1 + b_ds, b_sums.slopes_1)
    b_values_0, b_values_1 = b_sums.values_0, b_sums.values_1
    if AT_HALF:
        b_values_0 = tl.where(state.b_x0 >= b_k0, b_values_0 + b_ds, b_values_0)
        b_values_1 = tl.where(state.b_x1 >= b_k1, b_values_1 + b_ds, b_values_1)
    return Sums(b_slopes_0, b_slopes_1, b_values_0, b_values_1)


@triton.jit
def stepped_slopes(
    states, sums, other, i_other, i, ds, SCORER: tl.constexpr, OF_QUERY: tl.constexpr,
    WITH_WEIGHT: tl.constexpr,
):  # fmt: skip
    """Return the sums (`Two`) with the other tile i added: dS above the kink, times no weight."""
    p = Two(states.one.p_y, states.other.p_y)
    return _add_tile(p, states, sums, i, ds, _add_steps, SCORER, False, WITH_WEIGHT)


@triton.jit
def exponential_start(own, other, weights, i_own, i_other, i_w, i_f, scale, SCORER: tl.constexpr):
    """Return the `ExponentialState` of features i_f, i_f + 1; i_other: the first other tile."""
    PADDED: tl.constexpr = SCORER.padded
    o_t, o_c = tl.arange(0, TILE), tl.arange(0, COUNT)
    p_table = weights.table + i_w * (4 * PADDED) + i_f
    unit_0, unit_1 = tl.load(p_table), tl.load(p_table + 1)
    sign_0, sign_1 = tl.load(p_table + 3 * PADDED) * 0.5, tl.load(p_table + 3 * PADDED + 1) * 0.5
    at_x, at_y = (i_own * PADDED + i_f) * TILE, (i_other * PADDED + i_f) * TILE
    p_x, p_y = own.features + at_x + o_t[:, None], other.features + at_y + o_c[None, :]
    p_own = own.mapped + at_x + o_t[:, None]
    b_e0 = tl.load(p_own) * tl.load(p_table + 2 * PADDED)  # 1/C undoes the C of A
    b_e1 = tl.load(p_own + TILE) * tl.load(p_table + 2 * PADDED + 1)
    p_e = other.mapped + at_y + o_c[None, :]
    bound, size = tl.load(own.bounds + i_own * 2), tl.load(own.bounds + i_own * 2 + 1)
    slope_0, slope_1 = unit_0 * 4, unit_1 * 4
    value_0, value_1 = scale * 4 * sign_0, scale * 4 * sign_1
    return ExponentialState(
        p_x, p_y, slope_0, slope_1, value_0, value_1, b_e0, b_e1, p_e, bound, size, sign_0, sign_1
    )


@triton.jit
def exponential_slopes(
    states, sums, other, i_other, i, ds, SCORER: tl.constexpr, OF_QUERY: tl.constexpr,
    WITH_WEIGHT: tl.constexpr,
):  # fmt: skip
    """Return the sums (`Two`) with the other tile i added: slopes divided by 4, values by 2σ.

    With h = 1/2 − 1/(1 + e^{2σ(a + b)}) the two are 1/4 − h² and h.
    """
    highest = tl.load(other.bounds + (i_other + i) * 2)
    size = tl.load(other.bounds + (i_other + i) * 2 + 1)
    widest = size if OF_QUERY else states.one.size
    bound = states.one.bound + highest
    careful = (widest > WIDE) | (bound == float("inf"))
    if WITH_WEIGHT:
        careful = careful | (states.one.size + size < SMALL)
    if careful:
        sums = Two(
            _slopes_carefully(states.one, sums.one, i, ds, SCORER, OF_QUERY, WITH_WEIGHT),
            _slopes_carefully(states.other, sums.other, i, ds, SCORER, OF_QUERY, WITH_WEIGHT),
        )
    elif bound <= PAIRED:
        p = Two(states.one.p_e, states.other.p_e)
        sums = _add_tile(p, states, sums, i, ds, _add_by_reciprocals, SCORER, True, WITH_WEIGHT)
    else:
        p = Two(states.one.p_e, states.other.p_e)
        sums = _add_tile(p, states, sums, i, ds, _add_by_reciprocals, SCORER, False, WITH_WEIGHT)
    return sums


@triton.jit
def _slopes_carefully(
    state, b_sums, i, ds, SCORER: tl.constexpr, OF_QUERY: tl.constexpr, WITH_WEIGHT: tl.constexpr
):
    """Return b_sums of a pair of features with the other tile i added, by tanh directly."""
    for part in range(TILE // COUNT):
        b_ds = part_of(ds, i * TILE + part * COUNT, COUNT)
        b_y0, b_y1 = _features(state.p_y, i, part, SCORER.padded)
        b_sums = _add_by_pair(
            state, b_y0, b_y1, b_ds, b_sums, 0.25, state.sign_0, state.sign_1,
            SCORER, OF_QUERY, WITH_WEIGHT,
        )  # fmt: skip
    return b_sums
