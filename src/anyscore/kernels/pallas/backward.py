"""The backward by Pallas: two kernels; each sum has one program, so there are no atomics.

    P = exp((S − m) − l)   dP = dO Vᵀ   dS = P ∘ (dP − D),  D_i = dO_i · O_i − dl_i
    S = φ(X) with an outer function: dS is multiplied by φ′(X)
    P = sigmoid(S − m)                dS = P ∘ (1 − P) ∘ dP, for the sigmoid

m and l are the statistics of each query. One kernel has a program per tile of queries, for Σ_j
dS_ij w ∂₁pair and Σ_j dS_ij pair. The other has a program per tile of keys, with all groups that
share them. It makes Σ_i dS_ij w ∂₂pair, Σ_i dS_ij and Σ_i P_ij dO_i. JAX derives the slopes of
a pair from its value. Sums accumulate in the results' memory; only one program reads and writes
each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from anyscore.kernels.pallas.launch import barrier, run_kernel
from anyscore.kernels.pallas.panels import Layout, panels
from anyscore.kernels.pallas.tiles import Tiles, dot, loop, sigmoid
from anyscore.kernels.xla.call import Shape
from anyscore.ops import Array, load
from anyscore.score.pairs import PRODUCT

_xp = load("jax")
Step: TypeAlias = Callable[[Any, None], None]


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
    (h, _, rows), (_, _, columns) = (laid_out[x].x.shape[2:] for x in ("a", "b"))
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
    """Return gradients (*lead, ...) from sums of the kernels; 0 · NaN and 0 · ∞ are 0."""

    def part(name: str, lead: Shape, *sizes: int) -> Array:
        x = sums[name] if name == "d_value" else jnp.swapaxes(sums[name][..., 0, :], -1, -2)
        return x[..., : sizes[0], : sizes[1]].reshape(*lead, *sizes)

    def times(x: Array, y: Array) -> Array:
        return jnp.where(x == 0, 0, x * y.astype(s.acc_dtype))

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
        gradients["weight"] = times(d_a, given["a"]).sum(-2)
        gradients["a"] = times(d_a, weight[..., None, :])
    if "key_bias" in given:
        gradients["key_bias"] = sums["d_key_bias"][..., 0, : s.keys].reshape(*s.problems, s.keys)
    if "bias" in given:
        d_bias = sums["d_bias"][..., : s.queries, : s.keys]
        gradients["bias"] = d_bias.reshape(*lead, s.queries, s.keys)
    return gradients


def probabilities(tiles: Tiles, g: Any, i: Any, j: Any) -> tuple[Array, Array, Array | None]:
    """Return P (rows, columns), 0 where masked, the mask, and the slope of φ."""
    most, log_sum = (tiles.take("stats", g, n, tiles.queries(i)) for n in range(2))
    mask, (scores, slope) = tiles.mask(g, i, j), tiles.scores(g, i, j)
    if tiles.s.settings.normalizer:
        return jnp.where(mask, sigmoid(scores, most), 0), mask, slope
    most = jnp.where(most == -math.inf, math.inf, most)
    p = jnp.exp((scores - most[:, None]) - log_sum[:, None])
    return jnp.where(mask, p, 0), mask, slope


def _slopes(tiles: Tiles, g: Any, i: Any, j: Any) -> tuple[Array, Array, Array, Array]:
    """Return dS, P after dropout, the mask, and the gradient of a bias, each (rows, columns).

    dS is 0 where masked.
    """
    s = tiles.s
    p, mask, slope = probabilities(tiles, g, i, j)

    def chunk(c: Any, total: Array) -> Array:
        d_output = tiles.take("d_output", g, tiles.queries(i), s.chunk(c))
        return total + dot(d_output, tiles.take("value", g, tiles.keys(j), s.chunk(c)), 1, 1)

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
    return ds, z, mask, outside if s.settings.bias_after_outer else ds


def _terms(
    tiles: Tiles, ds: Array, mask: Array, d: Any, g: Any, i: Any, j: Any
) -> tuple[Array, Array, Array]:
    """Return dS pair, dS w ∂₁pair and dS w ∂₂pair of feature d, each (rows, columns)."""
    features = (jnp.broadcast_to(x, ds.shape) for x in tiles.pair(g, d, i, j))
    value, derivatives = jax.vjp(partial(tiles.s.pair.value, _xp), *features)
    by_a, by_b = derivatives(ds * tiles.take("weight", g, 0, d) if tiles.has("weight") else ds)
    return jnp.where(mask, ds * value, 0), jnp.where(mask, by_a, 0), jnp.where(mask, by_b, 0)


def _each_feature(
    tiles: Tiles, by_feature: Step, by_chunk: Step, operand: str, g: Any, tile: Any
) -> None:
    """Loop over features.

    For products, `by_chunk` (matrix units) if the tile of `operand` is finite; otherwise
    `by_feature`.
    """
    s = tiles.s

    def features() -> None:
        loop(s.h, by_feature, None)

    def chunks() -> None:
        loop(s.feature_chunks, by_chunk, None)

    if s.pair == PRODUCT:
        tiles.if_finite(operand, g, tile, chunks, features)
    else:
        features()


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
        ds, _, mask, of_bias = _slopes(tiles, 0, i, j)
        if "d_bias" in refs:
            refs["d_bias"][0, own, tiles.keys(j)] = of_bias

        def feature(d: Any, _: None) -> None:
            value, by_a, _ = _terms(tiles, ds, mask, d, 0, i, j)
            refs["d_a"][0, d, 0, own] += by_a.sum(1)
            if "d_weight" in refs:
                refs["d_weight"][0, d, 0, own] += value.sum(1)

        def chunk(c: Any, _: None) -> None:
            features = pl.ds(c * s.features, s.features)
            b = tiles.take("b", 0, features, 0, tiles.keys(j))
            refs["d_a"][0, features, 0, own] += dot(b, ds, 1, 1)

        _each_feature(tiles, feature, chunk, "b", 0, k)

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
        ds, z, mask, _ = _slopes(tiles, g, i, j)
        if "d_key_bias" in refs:
            refs["d_key_bias"][0, 0, own] += ds.sum(0)

        def values(c: Any, _: None) -> None:
            refs["d_value"][0, own, s.chunk(c)] += tiles.sum_of_rows(
                z, mask, 0, "d_output", g, i, c
            )

        def feature(d: Any, _: None) -> None:
            refs["d_b"][0, d, 0, own] += _terms(tiles, ds, mask, d, g, i, j)[2].sum(0)

        def chunk(c: Any, _: None) -> None:
            features = pl.ds(c * s.features, s.features)
            a = tiles.take("a", g, features, 0, tiles.queries(i))
            refs["d_b"][0, features, 0, own] += dot(a, ds, 1, 0)

        loop(s.value_chunks, values, None)
        _each_feature(tiles, feature, chunk, "a", g, t)

    def visit(n: Any, _: None) -> None:
        g, t = lax.div(n, np.int32(s.row_tiles)), lax.rem(n, np.int32(s.row_tiles))
        low, high = tiles.take("low", g, 0, t), tiles.take("high", g, 0, t)
        pl.when(jnp.logical_and(low <= k, k < high))(partial(step, g, t))

    loop(refs["d_b"].shape[1], clear_feature, None)
    loop(s.value_chunks, clear_values, None)
    if "d_key_bias" in refs:
        refs["d_key_bias"][0, 0, own] = jnp.zeros(s.columns, s.acc_dtype)
    loop(s.settings.groups * s.row_tiles, visit, None)
