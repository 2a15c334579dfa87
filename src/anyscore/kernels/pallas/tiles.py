"""One tile of the Pallas kernels: its scores, its mask, and sums without masked entries.

A tile has queries i … i + rows − 1 and keys j … j + columns − 1 of group g. Its values are a
matrix, one number per query and key. Features are read one at a time, a row of b and a column of a.
If the pair is a product, several are read at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from anyscore.kernels.pallas.panels import Layout
from anyscore.modifiers.dropout import last_dropped, philox
from anyscore.ops import Array, load
from anyscore.score.pairs import PRODUCT

_xp = load("jax")

PIECE = 64
"""Features that are summed separately before they are added to the total, for accuracy."""


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

    def pair(self, g: Any, d: Any, i: Any, j: Any) -> tuple[Array, Array]:
        """Return feature d of the queries (rows, 1) and of the keys (1, columns)."""
        a, b = self.take("a", g, d, 0, self.queries(i)), self.take("b", g, d, 0, self.keys(j))
        return a[:, None], b[None, :]

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

        def chunk(c: Any, total: Array) -> Array:
            features = pl.ds(c * s.features, s.features)
            a = self.take("a", g, features, 0, self.queries(i))
            return total + dot(a, self.take("b", g, features, 0, self.keys(j)), 0, 0)

        def feature(d: Any, total: Array) -> Array:
            terms = s.pair.value(_xp, *self.pair(g, d, i, j))
            return total + (terms * self.take("weight", g, 0, d) if self.has("weight") else terms)

        zero = jnp.zeros((s.rows, s.columns), s.acc_dtype)
        if s.pair == PRODUCT:
            total = loop(s.feature_chunks, chunk, zero)
        else:

            def piece(p: Any, total: Array) -> Array:
                first = p * PIECE
                return total + loop(lax.min(first + PIECE, np.int32(s.h)), feature, zero, first)

            total = loop(-(-s.h // PIECE), piece, zero)
        total = total * s.settings.scale
        if self.has("key_bias"):
            total = total + self.take("key_bias", g, 0, self.keys(j))[None, :]
        bias: Any = 0
        if self.has("bias"):
            bias = self.take("bias", g, self.queries(i), self.keys(j))
        before, behind = (0, bias) if s.settings.bias_after_outer else (bias, 0)
        total, slope = outer(s.settings.outer, s.settings.outer_scale, total + before)
        return total + behind, slope

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
            return dot(x, self.take(name, g, pl.ds(at, n), columns), axis, 0)

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


def dot(x: Array, y: Array, of_x: int, of_y: int) -> Array:
    """Return the matrix product over an axis of each, without rounding of the factors."""
    axes = ((of_x,), (of_y,)), ((), ())
    return lax.dot_general(x, y, axes, lax.Precision.HIGHEST, preferred_element_type=x.dtype)


def loop(n: Any, body: Callable[[Any, Any], Any], start: Any, first: Any = 0) -> Any:
    """Run `body` for first … n − 1 as 32-bit integers."""
    first, n = (np.int32(x) if isinstance(x, int) else x for x in (first, n))
    return lax.fori_loop(first, n, lambda k, x: body(k.astype(np.int32), x), start)
