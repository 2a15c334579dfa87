"""One tile of the Pallas kernels: its scores, its mask, and sums without masked entries.

A tile has queries i … i + rows − 1 and keys j … j + columns − 1 of group g. Its values are a
matrix, one number per query and key. Features are read one at a time, a row of b and a column of a.
If the pair is a product, several are read at a time. For tanh the features are exponentials.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from anyscore.kernels.pallas.exponentials import AT_ONCE, CLAMP, FREE, WIDE
from anyscore.kernels.pallas.launch import reciprocal
from anyscore.kernels.pallas.panels import Layout
from anyscore.modifiers.dropout import last_dropped, philox
from anyscore.ops import Array, load
from anyscore.score.outer import FORMULAS
from anyscore.score.pairs import PRODUCT

_xp = load("jax")

EXPONENTIALS = "exp_a", "exp_b"
"""The names of A and B of `exponentials`."""
PIECE = 64
"""Features that are summed separately before they are added to the total, for accuracy."""


class Bounds(NamedTuple):
    """Bounds of a tile of queries and a tile of keys, of their `Exponentials`.

    near: whether the exponentials may be used. exponent: the largest ln|A B|. size: the largest
    |a + c| plus the largest |b − c|.
    """

    near: Array
    exponent: Array
    size: Array


class Tiles:
    """The tiles of a problem.

    refs: references to its operands and results by name, (G or 1, own dimensions).
    """

    def __init__(self, s: Layout, refs: dict[str, Any]) -> None:
        self.s, self.refs = s, refs

    def take(self, name: str, g: Any, *index: Any) -> Array:
        """Return part of an operand in group g, numbers in the dtype of sums."""
        ref = self.refs[name]
        at = g if ref.shape[0] > 1 else 0, *index
        x = ref[at]
        return x.astype(self.s.acc_dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x

    def has(self, name: str) -> bool:
        """Return whether there is an operand of that name."""
        return name in self.refs

    def pair(
        self, g: Any, d: Any, i: Any, j: Any, names: tuple[str, str] = ("a", "b")
    ) -> tuple[Array, Array]:
        """Return feature d of the queries (rows, 1) and of the keys (1, columns)."""
        a = self.take(names[0], g, d, 0, self.queries(i))
        b = self.take(names[1], g, d, 0, self.keys(j))
        return a[:, None], b[None, :]

    def weight(self, g: Any, d: Any) -> Any:
        """Return the weight of feature d; 1 without weights."""
        return self.take("weight", g, 0, d) if self.has("weight") else 1

    def queries(self, i: Any) -> Any:
        """Return the slice of a tile's queries."""
        return pl.ds(i, self.s.rows)

    def keys(self, j: Any) -> Any:
        """Return the slice of a tile's keys."""
        return pl.ds(j, self.s.columns)

    def scores(self, g: Any, i: Any, j: Any) -> tuple[Array, Array | None]:
        """Return the scores (rows, columns), arbitrary where masked, and the slope of φ.

        s = φ(x),   x = scale · Σ_d … + key_bias + bias,   or φ(x) + bias

        The slope (rows, columns) is None where there is no outer function.
        """
        s = self.s
        if s.pair == PRODUCT:
            total = self._product(g, i, j)
        elif s.by_exponentials:
            total = self._by_exponentials(g, i, j)
        else:
            total = self._by_pair(g, i, j)
        total = total * s.settings.scale
        if self.has("key_bias"):
            total = total + self.take("key_bias", g, 0, self.keys(j))[None, :]
        bias: Any = 0
        if self.has("bias"):
            bias = self.take("bias", g, self.queries(i), self.keys(j))
        before, behind = (0, bias) if s.settings.bias_after_outer else (bias, 0)
        total, slope = outer(s.settings.outer, s.settings.outer_scale, total + before)
        return total + behind, slope

    def _product(self, g: Any, i: Any, j: Any) -> Array:
        """Return Σ_d a_d b_d (rows, columns)."""
        s = self.s

        def chunk(c: Any, total: Array) -> Array:
            features = pl.ds(c * s.features, s.features)
            a = self.take("a", g, features, 0, self.queries(i))
            return total + dot(s, a, self.take("b", g, features, 0, self.keys(j)), 0, 0)

        return loop(s.feature_chunks, chunk, jnp.zeros((s.rows, s.columns), s.acc_dtype))

    def _sum(self, n: int, at_once: int, step: Callable[[Any, Array], Array]) -> Array:
        """Return the sum (rows, columns) over n features; step(d, x) adds `at_once` of them."""
        zero = self._zeros()
        count, in_piece = n // at_once, PIECE // at_once

        def piece(p: Any, total: Array) -> Array:
            first = p * in_piece
            stop = lax.min(first + in_piece, np.int32(count))
            return total + loop(stop, lambda c, x: step(c * at_once, x), zero, first)

        return loop(-(-count // in_piece), piece, zero)

    def _zeros(self) -> Array:
        """Return zeros (rows, columns), on NVIDIA GPUs with squares of 4 × 4 for a thread.

        A product has this layout, and Triton gives it to all terms added to the zeros. A thread
        then reads fewer numbers for each feature. Triton finds that the product is 0 after it has
        chosen layouts, and removes it.
        """
        s = self.s
        if s.target != "cuda" or s.acc_dtype != "float32":
            return jnp.zeros((s.rows, s.columns), s.acc_dtype)
        unknown = jnp.full((16, s.rows), self.take("low", 0, 0, 0), np.float32)
        x = lax.dot_general(
            unknown, jnp.zeros((16, s.columns), np.float32), (((0,), (0,)), ((), ())),
            lax.Precision.HIGHEST,
        )  # fmt: skip
        sign = lax.bitcast_convert_type(x, np.uint32) >> np.uint32(31)
        return lax.bitcast_convert_type(sign & np.uint32(2), np.float32)

    def _by_pair(self, g: Any, i: Any, j: Any) -> Array:
        """Return Σ_d w_d pair(a_d, b_d) (rows, columns)."""

        def add(d: Any, total: Array) -> Array:
            return total + self.weight(g, d) * self.s.pair.value(_xp, *self.pair(g, d, i, j))

        return self._sum(self.s.h, 1, add)

    def _by_exponentials(self, g: Any, i: Any, j: Any) -> Array:
        """Return Σ_d w_d tanh(a_d + b_d) (rows, columns): see `exponentials`.

        Four features share a reciprocal. In tiles with large exponents two features share it, and
        in tiles beyond the exponentials tanh is computed by itself.
        """

        def reciprocals(at_once: int) -> Array:
            n, step = self.refs["exp_a"].shape[1], partial(self._add_reciprocals, g, i, j, at_once)
            factor, total = (self.take("constants", g, 0, k) for k in range(2))
            return total - factor * self._sum(n, AT_ONCE, step)

        bounds = self.bounds(g, i, j)
        free = jnp.logical_and(bounds.near, bounds.exponent <= FREE)
        careful = partial(
            lax.cond, bounds.near, partial(reciprocals, 2), partial(self._by_pair, g, i, j)
        )
        return lax.cond(free, partial(reciprocals, AT_ONCE), careful)

    def bounds(self, g: Any, i: Any, j: Any) -> Bounds:
        """Return the bounds of a tile."""
        tiles = lax.div(i, np.int32(self.s.rows)), lax.div(j, np.int32(self.s.columns))
        (a, a_size), (b, b_size) = (
            [self.take(name, g, k, tile) for k in range(2)]
            for name, tile in zip(("a_bounds", "b_bounds"), tiles, strict=True)
        )
        near = jnp.logical_and(b_size <= WIDE, a_size < jnp.inf)
        return Bounds(near, a + b, a_size + b_size)

    def _add_reciprocals(self, g: Any, i: Any, j: Any, at_once: int, d: Any, total: Array) -> Array:
        """Return total + Σ 1/x of AT_ONCE features from d on, with one reciprocal for `at_once`.

        A sum N/D plus one more 1/x is (N x + D) / (D x). Two at once are clamped.
        """

        def denominator(d: Any) -> Array:
            a, b = self.pair(g, d, i, j, EXPONENTIALS)
            x = self.take("coefficients", g, 0, d) + a * b
            return x if at_once == AT_ONCE else lax.clamp(-CLAMP, x, CLAMP)

        for first in range(0, AT_ONCE, at_once):
            x, y = (denominator(d + first + k) for k in range(2))
            numerator, product = x + y, x * y
            for k in range(2, at_once):
                x = denominator(d + first + k)
                numerator, product = numerator * x + product, product * x
            total = total + numerator * reciprocal(self.s, product)
        return total

    def mask(self, g: Any, i: Any, j: Any) -> Array:
        """Return the boolean mask (rows, columns), True = may attend."""
        s = self.s
        key = j + lax.broadcasted_iota(np.int32, (1, s.columns), 1)
        start, stop = (self.take(x, g, 0, self.queries(i))[:, None] for x in ("start", "stop"))
        mask = jnp.logical_and(key >= start, key < stop)
        if self.has("mask"):
            rows, columns = self.refs["mask"].shape[1:]
            at_i = pl.ds(0, 1) if rows == 1 else self.queries(i)
            at_j = pl.ds(0, 1) if columns == 1 else self.keys(j)
            mask = jnp.logical_and(mask, self.take("mask", g, at_i, at_j) != 0)
        return mask

    def shift(self, i: Any, low: Any, high: Any) -> Array:
        """Return the sigmoid's shift (rows,), subtracted from scores; −∞ for a query without keys.

        low, high: the range of tiles that contains all attended keys.
        """
        s = self.s

        def count(k: Any, n: Array) -> Array:
            return n + self.mask(0, i, pl.multiple_of(k * s.columns, s.columns)).sum(1, np.int32)

        n = loop(high, count, jnp.zeros((s.rows,), np.int32), low)
        log_n: Any = 0
        if s.settings.normalizer == 2:
            log_n = jnp.log(jnp.maximum(n, 1).astype(s.acc_dtype))
        return jnp.where(n > 0, log_n - s.settings.sigmoid_bias, -jnp.inf).astype(s.acc_dtype)

    def dropout_mask(self, g: Any, i: Any, j: Any) -> Array:
        """Return the dropout factors (rows, columns) of weights, 0 or 1 / (1 − rate).

        `anyscore.modifiers.dropout` defines the dropped entries.
        """
        s = self.s
        size = s.rows, s.columns // 4
        row = (i + lax.broadcasted_iota(np.int32, size, 0)).astype(np.uint32)
        quad = (lax.div(j, np.int32(4)) + lax.broadcasted_iota(np.int32, size, 1)).astype(np.uint32)
        if self.has("origin"):
            row = row + self.take("origin", g, 0, 0)
            quad = quad + lax.div(self.take("origin", g, 0, 1), np.uint32(4))
        zero = jnp.zeros(size, np.uint32)
        seed = self.take("seed", g, 0, 0), self.take("seed", g, 0, 1)
        words = philox(_xp, [quad, row, zero + self.take("counter", g, 0, 0), zero], seed)
        even, odd = (jnp.stack(words[k::2], axis=-1) for k in (0, 1))
        drawn = jnp.stack([even, odd], axis=-1).reshape(s.rows, s.columns)
        last = np.uint32(last_dropped(s.settings.dropout))
        return jnp.where(drawn > last, 1 / (1 - s.settings.dropout), 0).astype(s.acc_dtype)

    def sum_of_rows(
        self, x: Array, mask: Array, axis: int, name: str, g: Any, at: Any, c: Any
    ) -> Array:
        """Return the sum over an axis of x (rows, columns) times rows of an operand.

        The result is (the other axis of x, columns of the chunk). name, at, c: the operand, its
        first row, and the chunk of its columns. As 0 · NaN is NaN, masked rows of tiles that are
        not finite are skipped one by one.
        """
        n, columns = x.shape[axis], self.s.chunk(c)

        def product() -> Array:
            return dot(self.s, x, self.take(name, g, pl.ds(at, n), columns), axis, 0)

        def one_by_one() -> Array:
            place = lax.broadcasted_iota(np.int32, x.shape, axis)

            def add(k: Any, total: Array) -> Array:
                own = jnp.where(place == k, x, 0).sum(axis)
                has = jnp.where(jnp.logical_and(place == k, mask), 1, 0).max(axis)
                row = self.take(name, g, at + k, columns)
                return total + jnp.where(has[:, None] != 0, own[:, None] * row[None, :], 0)

            return loop(n, add, jnp.zeros((x.shape[1 - axis], self.s.values), self.s.acc_dtype))

        tile = lax.div(at, np.int32(n))
        return self.if_finite(name, g, tile, product, one_by_one)

    def if_finite(
        self, name: str, g: Any, tile: Any, usual: Callable[[], Any], otherwise: Callable[[], Any]
    ) -> Any:
        """Call `usual` if all entries of a tile of the operand are finite, else `otherwise`."""
        if not self.has(f"nonfinite_{name}"):
            return usual()
        return lax.cond(self.take(f"nonfinite_{name}", g, 0, tile) != 0, otherwise, usual)


def outer(name: str, c: float, x: Array) -> tuple[Array, Array | None]:
    """Return φ(x) of `anyscore.score.outer` and its slope; x and None without an outer function."""
    if not name:
        return x, None
    if name in FORMULAS:
        return jax.jvp(partial(FORMULAS[name], _xp), (x,), (jnp.ones_like(x),))
    if name == "tanh":
        t = jnp.tanh(x / c)
        return c * t, (1 - t) * (1 + t)
    x = jnp.where(x <= 0, 0, x)
    if name == "log1p":
        return -c * jnp.log1p(x), -c / (1 + x)
    safe = jnp.where(x == 0, 1, x)
    if name == "sqrt":
        value, slope = jnp.sqrt(x), 0.5 / jnp.sqrt(safe)
    else:
        half = x / 2
        value = 2 * jnp.log1p(jnp.sqrt(half) + half / (1 + jnp.sqrt(1 + half)))
        slope = 1 / (jnp.sqrt(safe) * jnp.sqrt(safe + 2))
    return -c * value, jnp.where(x == 0, 0, -c * slope)


def sigmoid(scores: Array, shift: Array) -> Array:
    """Return 1 / (1 + e^(shift − scores)) of scores (rows, columns), shift (rows,)."""
    shift = jnp.where(shift == -jnp.inf, 0, shift)[:, None]
    return 1 / (1 + jnp.exp(shift - scores))


def dot(s: Layout, x: Array, y: Array, of_x: int, of_y: int) -> Array:
    """Return the matrix product over an axis of each, of factors in the dtype of sums.

    NVIDIA's matrix units take float32 in three products of TF32, other targets as it is.
    """
    axes = ((of_x,), (of_y,)), ((), ())
    in_parts = s.target == "cuda" and s.acc_dtype == "float32"
    precision = lax.DotAlgorithmPreset.TF32_TF32_F32_X3 if in_parts else lax.Precision.HIGHEST
    return lax.dot_general(x, y, axes, precision, preferred_element_type=x.dtype)


def loop(n: Any, body: Callable[[Any, Any], Any], start: Any, first: Any = 0) -> Any:
    """Run `body` for first … n − 1 as 32-bit integers."""
    first, n = (np.int32(x) if isinstance(x, int) else x for x in (first, n))
    return lax.fori_loop(first, n, lambda k, x: body(k.astype(np.int32), x), start)
