"""The backward by Pallas: two kernels; each sum has one program, so there are no atomics.

    P = exp((S − m) − l)   dP = dO Vᵀ   dS = P ∘ (dP − D),  D_i = dO_i · O_i − dl_i
    S = φ(X) with an outer function: dS is multiplied by φ′(X)
    P = sigmoid(S − m)                dS = P ∘ (1 − P) ∘ dP, for the sigmoid

m and l are the statistics of each query. One kernel has a program per tile of queries, for Σ_j
dS_ij w ∂₁pair and Σ_j dS_ij pair. The other has a program per tile of keys, with all groups that
share them. It makes Σ_i dS_ij w ∂₂pair, Σ_i dS_ij and Σ_i P_ij dO_i. JAX derives the slopes of
a pair from its value, and exponentials give the slope of tanh. Sums accumulate in the results'
memory; only one program reads and writes each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from anyscore.kernels.pallas.exponentials import CLAMP, SMALL
from anyscore.kernels.pallas.launch import barrier, reciprocal, run_kernel
from anyscore.kernels.pallas.panels import Layout, panels
from anyscore.kernels.pallas.tiles import EXPONENTIALS, Tiles, dot, loop, sigmoid
from anyscore.kernels.xla.call import Shape
from anyscore.ops import Array, load
from anyscore.score.pairs import PRODUCT

_xp = load("jax")


def backward(s: Layout, operands: Mapping[str, Array]) -> dict[str, Array]:
    """Return the gradients of a, b, weight, key_bias, value and bias, of the given ones.

    Gradients have all leading dimensions, also those along which the operand was broadcast.
    """
    given = dict(operands)
    output, d_stats = given.pop("output"), given.pop("d_stats", None)
    given["delta"] = (given["d_output"] * output).sum(-1)
    if d_stats is not None:
        given["delta"] -= d_stats[..., 1, :]
    laid_out = panels(s, given)
    names = EXPONENTIALS if s.by_exponentials else ("a", "b")  # features are in whole steps
    (h, _, rows), (_, _, columns) = (laid_out[x].x.shape[2:] for x in names)
    d_v = laid_out["value"].x.shape[-1]
    of_queries: dict[str, Shape] = {"d_a": (h, 1, rows)}
    of_keys: dict[str, Shape] = {"d_b": (h, 1, columns), "d_value": (columns, d_v)}
    if "weight" in laid_out:
        of_queries["d_weight"] = (h, 1, rows)
    if "bias" in laid_out:
        of_queries["d_bias"] = rows, columns
    if "key_bias" in laid_out:
        of_keys["d_key_bias"] = (1, columns)
    by_query = run_kernel(s, _queries, (s.row_tiles,), laid_out, of_queries)
    by_key = run_kernel(s, _keys, (s.column_tiles,), laid_out, of_keys, shared=True)
    sums = dict(zip((*of_queries, *of_keys), (*by_query, *by_key), strict=True))
    return _finished(s, given, sums)


def _finished(s: Layout, given: dict[str, Array], sums: dict[str, Array]) -> dict[str, Array]:
    """Return gradients (*lead, ...) from sums of the kernels."""

    def part(name: str, lead: Shape, *sizes: int) -> Array:
        x = sums[name] if name == "d_value" else jnp.swapaxes(sums[name][..., 0, :], -1, -2)
        return x[..., : sizes[0], : sizes[1]].reshape(*lead, *sizes)

    lead, scale, weight = s.settings.lead, s.settings.scale, given.get("weight")
    d_a = part("d_a", lead, s.queries, s.h) * scale
    gradients = {
        "a": d_a,
        "b": part("d_b", s.problems, s.keys, s.h) * scale,
        "value": part("d_value", s.problems, s.keys, s.d_v),
    }
    if "d_weight" in sums:
        gradients["weight"] = part("d_weight", lead, s.queries, s.h).sum(-2) * scale
    elif weight is not None:  # the kernels read a times the weight
        gradients["weight"] = times(d_a, given["a"].astype(s.acc_dtype)).sum(-2)
        gradients["a"] = times(d_a, weight.astype(s.acc_dtype)[..., None, :])
    if "key_bias" in given:
        gradients["key_bias"] = sums["d_key_bias"][..., 0, : s.keys].reshape(*s.problems, s.keys)
    if "bias" in given:
        d_bias = sums["d_bias"][..., : s.queries, : s.keys]
        gradients["bias"] = d_bias.reshape(*lead, s.queries, s.keys)
    return gradients


def times(x: Array, y: Any) -> Array:
    """Return x y; 0 where x is 0, as the gradient of an entry without queries or keys."""
    return jnp.where(x == 0, 0, x * y)


def probabilities(tiles: Tiles, g: Any, i: Any, j: Any) -> tuple[Array, Array, Array | None]:
    """Return P (rows, columns), 0 where masked, the mask, and the slope of φ."""
    most, log_sum = (tiles.take("stats", g, n, tiles.queries(i)) for n in range(2))
    mask, (scores, slope) = tiles.mask(g, i, j), tiles.scores(g, i, j)
    if tiles.s.settings.normalizer:
        return jnp.where(mask, sigmoid(scores, most), 0), mask, slope
    most = jnp.where(most == -math.inf, math.inf, most)
    p = jnp.exp((scores - most[:, None]) - log_sum[:, None])
    return jnp.where(mask, p, 0), mask, slope


class _Slopes(NamedTuple):
    """dS, 0 where masked, and the mask, each (rows, columns), of queries i … and keys j … ."""

    ds: Array
    mask: Array
    g: Any
    i: Any
    j: Any


class _Terms(NamedTuple):
    """dS pair, dS ∂₁pair and dS ∂₂pair of one feature, each (rows, columns)."""

    value: Array
    by_a: Array
    by_b: Array


def _slopes(tiles: Tiles, g: Any, i: Any, j: Any) -> tuple[_Slopes, Array, Array]:
    """Return dS, P after dropout (rows, columns), and the gradient of a bias (rows, columns)."""
    s = tiles.s
    p, mask, slope = probabilities(tiles, g, i, j)

    def chunk(c: Any, total: Array) -> Array:
        d_output = tiles.take("d_output", g, tiles.queries(i), s.chunk(c))
        return total + dot(s, d_output, tiles.take("value", g, tiles.keys(j), s.chunk(c)), 1, 1)

    dp, z = loop(s.value_chunks, chunk, jnp.zeros_like(p)), p
    if s.settings.dropout:
        dropout_mask = tiles.dropout_mask(g, i, j)
        dp, z = dp * dropout_mask, p * dropout_mask
    if s.settings.normalizer:
        ds = p * (1 - p) * dp
    else:
        ds = p * (dp - tiles.take("delta", g, 0, tiles.queries(i))[:, None])
    if tiles.has("d_scores"):
        ds = ds + tiles.take("d_scores", g, tiles.queries(i), tiles.keys(j))
    outside = ds = jnp.where(mask, ds, 0)
    if slope is not None:
        ds = jnp.where(mask, ds * slope, 0)
    return _Slopes(ds, mask, g, i, j), z, outside if s.settings.bias_after_outer else ds


def _terms(tiles: Tiles, x: _Slopes, d: Any) -> _Terms:
    """Return the terms of feature d; JAX derives the slopes of the pair."""
    features = (jnp.broadcast_to(y, x.ds.shape) for y in tiles.pair(x.g, d, x.i, x.j))
    value, derivatives = jax.vjp(partial(tiles.s.pair.value, _xp), *features)
    return _Terms(*(jnp.where(x.mask, y, 0) for y in (x.ds * value, *derivatives(x.ds))))


def _terms_of_two(tiles: Tiles, x: _Slopes, d: Any) -> list[_Terms]:
    """Return the terms of features d and d + 1 by exponentials, with one reciprocal for both.

    tanh(a + b) = 1 − 1/y,   y = 1/2 + A B / 2C
    """
    y = []
    for n in (d, d + 1):
        a, b = tiles.pair(x.g, n, x.i, x.j, EXPONENTIALS)
        half = tiles.take("coefficients", x.g, 1, n) * a
        y.append(jnp.minimum(0.5 + half * b, CLAMP))
    r, terms = reciprocal(tiles.s, y[0] * y[1]), []
    for other in reversed(y):
        tanh = 1 - other * r
        slope = x.ds * (1 - tanh * tanh)
        terms.append(_Terms(x.ds * tanh, slope, slope))
    return terms


def _each_feature(
    tiles: Tiles, x: _Slopes, add: Callable[[Any, _Terms], None], least: float
) -> None:
    """Call add(d, terms) for each feature d.

    least: where `Bounds.size` is smaller, tanh is computed by itself.
    """
    s = tiles.s

    def one(d: Any, _: None) -> None:
        add(d, _terms(tiles, x, d))

    def two(c: Any, _: None) -> None:
        for k, terms in enumerate(_terms_of_two(tiles, x, 2 * c)):
            add(2 * c + k, terms)

    def by_pair() -> None:
        loop(s.h, one, None)

    if s.by_exponentials:
        bounds = tiles.bounds(x.g, x.i, x.j)
        usual = jnp.logical_and(bounds.near, bounds.size >= least)
        lax.cond(usual, lambda: loop(-(-s.h // 2), two, None), by_pair)
    else:
        by_pair()


def _queries(s: Layout, refs: dict[str, Any]) -> None:
    """Sum Σ_j dS_ij w ∂₁pair and Σ_j dS_ij pair of a tile of queries, for each feature."""
    tiles, t = Tiles(s, refs), pl.program_id(1)
    i = pl.multiple_of(t * s.rows, s.rows)
    own = tiles.queries(i)

    def clear(d: Any, _: None) -> None:
        for name in ("d_a", "d_weight"):
            if name in refs:
                refs[name][0, d, 0, own] = jnp.zeros(s.rows, s.acc_dtype)

    def step(k: Any, _: None) -> None:
        barrier(s)
        j = pl.multiple_of(k * s.columns, s.columns)
        slopes, _, of_bias = _slopes(tiles, 0, i, j)
        if "d_bias" in refs:
            refs["d_bias"][0, own, tiles.keys(j)] = of_bias

        def add(d: Any, terms: _Terms) -> None:
            refs["d_a"][0, d, 0, own] += times(terms.by_a.sum(1), tiles.weight(0, d))
            if "d_weight" in refs:
                refs["d_weight"][0, d, 0, own] += terms.value.sum(1)

        def chunk(c: Any, _: None) -> None:
            features = pl.ds(c * s.features, s.features)
            b = tiles.take("b", 0, features, 0, tiles.keys(j))
            refs["d_a"][0, features, 0, own] += dot(s, b, slopes.ds, 1, 1)

        def by_feature() -> None:
            _each_feature(tiles, slopes, add, SMALL if "d_weight" in refs else 0.0)

        if s.pair == PRODUCT:
            tiles.if_finite("b", 0, k, lambda: loop(s.feature_chunks, chunk, None), by_feature)
        else:
            by_feature()

    def unattended(k: Any, _: None) -> None:
        j = pl.multiple_of(k * s.columns, s.columns)
        refs["d_bias"][0, own, tiles.keys(j)] = jnp.zeros((s.rows, s.columns), s.acc_dtype)

    loop(refs["d_a"].shape[1], clear, None)
    low, high = tiles.take("low", 0, 0, t), tiles.take("high", 0, 0, t)
    if "d_bias" in refs:
        loop(jnp.minimum(low, s.column_tiles), unattended, None)
        loop(s.column_tiles, unattended, None, jnp.maximum(low, high))
    loop(high, step, None, low)


def _keys(s: Layout, refs: dict[str, Any]) -> None:
    """Sum Σ_i dS_ij w ∂₂pair of a tile of keys, for each feature; Σ_i dS_ij; Σ_i P_ij dO_i."""
    tiles, k = Tiles(s, refs), pl.program_id(1)
    j = pl.multiple_of(k * s.columns, s.columns)
    own = tiles.keys(j)

    def clear_feature(d: Any, _: None) -> None:
        refs["d_b"][0, d, 0, own] = jnp.zeros(s.columns, s.acc_dtype)

    def clear_values(c: Any, _: None) -> None:
        refs["d_value"][0, own, s.chunk(c)] = jnp.zeros((s.columns, s.values), s.acc_dtype)

    def step(g: Any, t: Any) -> None:
        barrier(s)
        i = pl.multiple_of(t * s.rows, s.rows)
        slopes, z, _ = _slopes(tiles, g, i, j)
        if "d_key_bias" in refs:
            refs["d_key_bias"][0, 0, own] += slopes.ds.sum(0)

        def values(c: Any, _: None) -> None:
            refs["d_value"][0, own, s.chunk(c)] += tiles.sum_of_rows(
                z, slopes.mask, 0, "d_output", g, i, c
            )

        def add(d: Any, terms: _Terms) -> None:
            refs["d_b"][0, d, 0, own] += times(terms.by_b.sum(0), tiles.weight(g, d))

        def chunk(c: Any, _: None) -> None:
            features = pl.ds(c * s.features, s.features)
            a = tiles.take("a", g, features, 0, tiles.queries(i))
            refs["d_b"][0, features, 0, own] += dot(s, a, slopes.ds, 1, 0)

        def by_feature() -> None:
            _each_feature(tiles, slopes, add, 0.0)

        loop(s.value_chunks, values, None)
        if s.pair == PRODUCT:
            tiles.if_finite("a", g, t, lambda: loop(s.feature_chunks, chunk, None), by_feature)
        else:
            by_feature()

    def visit(n: Any, _: None) -> None:
        g, t = lax.div(n, np.int32(s.row_tiles)), lax.rem(n, np.int32(s.row_tiles))
        low, high = tiles.take("low", g, 0, t), tiles.take("high", g, 0, t)
        pl.when(jnp.logical_and(low <= k, k < high))(partial(step, g, t))

    loop(refs["d_b"].shape[1], clear_feature, None)
    loop(s.value_chunks, clear_values, None)
    if "d_key_bias" in refs:
        refs["d_key_bias"][0, 0, own] = jnp.zeros(s.columns, s.acc_dtype)
    loop(s.settings.groups * s.row_tiles, visit, None)
