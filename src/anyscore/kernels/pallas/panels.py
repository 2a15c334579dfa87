"""Operands in the layout of the Pallas kernels: whole tiles, two leading dimensions.

A leading index of the output is (problem m, group g). Problems are the leading indices of keys, and
the groups of a problem share its keys. An operand x (..., own dimensions) becomes (M or fewer, G or
1, own dimensions). Broadcast dimensions stay 1, and `place` finds the index of a problem.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from anyscore.call.operands import WITH_KEY_HEADS, Settings
from anyscore.kernels.pallas.exponentials import exponentials
from anyscore.kernels.xla.call import Shape
from anyscore.ops import Array
from anyscore.score.pairs import PRODUCT, Pair

_OWN = {
    "a": 3,
    "b": 3,
    "weight": 1,
    "key_bias": 1,
    "value": 2,
    "bias": 2,
    "start": 1,
    "stop": 1,
    "mask": 2,
    "stats": 2,
    "delta": 1,
    "d_output": 2,
    "d_scores": 2,
    "seed": 1,
    "counter": 1,
    "origin": 1,
    "exp_a": 3,
    "exp_b": 3,
    "coefficients": 2,
    "constants": 1,
    "a_bounds": 2,
    "b_bounds": 2,
}
"""The number of an operand's own dimensions in a panel; one dimension becomes two: (1, n)."""
_BY_FEATURE = "a", "b", "exp_a", "exp_b"
"""The operands with one row of tokens for each feature."""
_OF_KEYS = WITH_KEY_HEADS | {"exp_b", "b_bounds"}
"""The operands with key heads."""
NONFINITE = "nonfinite_value", "nonfinite_d_output", "nonfinite_a", "nonfinite_b"
"""For each tile of that operand, whether some of its entries are not finite."""


@dataclass(frozen=True)
class Layout:
    """The sizes of a call, and how kernels divide it into tiles.

    target: "cuda", "tpu", or "interpret". queries, keys: T_q and T_k. h, d_v: widths. masked:
    whether any key is masked for any query. acc_dtype: the dtype to compute in. by_exponentials:
    whether operands include exponentials of tokens, which no GPU has run.
    """

    settings: Settings
    pair: Pair
    target: str
    queries: int
    keys: int
    h: int
    d_v: int
    masked: bool
    acc_dtype: str
    by_exponentials: bool

    @property
    def problems(self) -> Shape:
        """The leading dimensions of keys."""
        lead, groups = self.settings.lead, self.settings.groups
        return (*lead[:-1], lead[-1] // groups) if groups > 1 else lead

    @property
    def rows(self) -> int:
        """Queries in a tile; NVIDIA's matrix units take 64 at once."""
        return self._tokens(self.queries, 64)

    @property
    def columns(self) -> int:
        """Keys in a tile; a larger one spills registers."""
        return self._tokens(self.keys, 32)

    @property
    def row_tiles(self) -> int:
        return -(-self.queries // self.rows)

    @property
    def column_tiles(self) -> int:
        return -(-self.keys // self.columns)

    @property
    def features(self) -> int:
        """Features of a product per step; other pairs take one."""
        return _tile(self.h, 32, 16) if self.pair == PRODUCT else 1

    @property
    def values(self) -> int:
        """Columns of the value in a chunk."""
        return 128 if self.target == "tpu" else _tile(self.d_v, 64, 16)

    @property
    def feature_chunks(self) -> int:
        return -(-self.h // self.features)

    @property
    def value_parts(self) -> int:
        """Parts of the value, of up to four chunks; the forward computes scores for each part."""
        return -(-self.d_v // (4 * self.values))

    @property
    def chunks_of_part(self) -> int:
        return -(-self.d_v // (self.value_parts * self.values))

    @property
    def value_chunks(self) -> int:
        return self.value_parts * self.chunks_of_part

    def chunk(self, c: Any) -> Any:
        """Chunk c of the columns of the value."""
        return pl.ds(pl.multiple_of(c * self.values, self.values), self.values)

    def _tokens(self, n: int, most: int) -> int:
        """Return the tokens in a tile, of n; with sums of float64 at most 32."""
        if self.target == "tpu":
            return 128
        return _tile(n, most if self.acc_dtype == "float32" else 32, 16)


@dataclass(frozen=True, eq=False)
class Panel:
    """An operand x (prod(outer), G or 1, own dimensions); outer: each of `problems`, or 1."""

    x: Array
    outer: Shape


def place(outer: Shape, problems: Shape, m: Any) -> Any:
    """Return the index of the part of problem m in a panel's first dimension, which is `outer`."""
    if outer == problems:
        return m
    index, stride, size = np.int32(0), 1, 1
    for own, full in zip(reversed(outer), reversed(problems), strict=True):
        if own != 1:
            i = lax.rem(lax.div(m, np.int32(size)), np.int32(full))
            index, stride = index + i * np.int32(stride), stride * own
        size *= full
    return index


def panel(s: Layout, x: Array, own: int, of_keys: bool = False) -> Panel:
    """Return x (..., own dimensions) as a panel. of_keys: whether x has key heads."""
    lead, rest = x.shape[: x.ndim - own], x.shape[x.ndim - own :]
    rest = (1, *rest) if own == 1 else rest
    groups = s.settings.groups
    if groups > 1 and not of_keys and lead[-1] > 1:
        lead = (*lead[:-1], lead[-1] // groups, groups)
    else:
        lead = (*lead, 1)
    return Panel(x.reshape(math.prod(lead[:-1]), lead[-1], *rest), lead[:-1])


def panels(s: Layout, operands: Mapping[str, Array]) -> dict[str, Panel]:
    """Return panels of all operands by name, and of the bounds and flags of tiles.

    a and b are (..., h, 1, T). low, high: the range of tiles of keys that any query of a tile may
    attend. The flags of `NONFINITE` are included if there is a mask, and `Exponentials` if the
    kernels take them: exp_a and exp_b are as a and b, and bounds are (..., 2, tiles).
    """
    given = dict(operands)
    rows, columns = s.row_tiles * s.rows, s.column_tiles * s.columns
    h, d_v = s.feature_chunks * s.features, s.value_chunks * s.values
    sizes: dict[str, Shape] = {
        "a": (h, rows),
        "b": (h, columns),
        "value": (columns, d_v),
        "d_output": (rows, d_v),
        "stats": (2, rows),
        "delta": (rows,),
        "key_bias": (columns,),
        "d_scores": (rows, columns),
        "bias": (rows, columns),
    }
    bounds = {name: given.pop(name, None) for name in ("start", "stop")}
    if s.pair == PRODUCT:
        given["a"] = _weighted(s, given["a"], given.pop("weight", None))
    if "mask" in given:
        given["mask"] = given["mask"].astype(np.int8)
        own = zip(given["mask"].shape[-2:], (rows, columns), strict=True)
        sizes["mask"] = tuple(1 if n == 1 else whole for n, whole in own)
    if s.by_exponentials:
        given |= exponentials(given, s.settings.groups)._asdict()
        given["a_bounds"] = _of_tiles(given["a_bounds"], s.row_tiles, s.rows)
        given["b_bounds"] = _of_tiles(given["b_bounds"], s.column_tiles, s.columns)
        whole = given["exp_a"].shape[-1]
        sizes |= {"exp_a": (whole, rows), "exp_b": (whole, columns), "weight": (whole,)}
    laid_out = {}
    for name, x in given.items():
        x = jnp.swapaxes(x, -1, -2) if name in _BY_FEATURE else x
        x = _padded(x, *sizes[name]) if name in sizes else x
        x = x[..., None, :] if name in _BY_FEATURE else x[..., None] if name == "counter" else x
        laid_out[name] = panel(s, x, _OWN[name], name in _OF_KEYS)
    return laid_out | _bounds(s, bounds) | (_nonfinite(s, laid_out) if s.masked else {})


def _weighted(s: Layout, a: Array, weight: Array | None) -> Array:
    """Return a (..., T_q, h) times weight (..., h), in the dtype of sums."""
    if weight is None:
        return a
    return a.astype(s.acc_dtype) * weight.astype(s.acc_dtype)[..., None, :]


def _bounds(s: Layout, bounds: Mapping[str, Array | None]) -> dict[str, Panel]:
    """Return panels of start and stop in [0, T_k] per query, and of low and high per tile.

    A query past T_q attends no key.
    """
    one = jnp.zeros((1,) * (len(s.settings.lead) + 1), np.int32)
    start, stop = bounds["start"], bounds["stop"]
    start = one if start is None else jnp.clip(start, 0, s.keys).astype(np.int32)
    stop = one + s.keys if stop is None else jnp.clip(stop, 0, s.keys).astype(np.int32)
    lead = jnp.broadcast_shapes(start.shape[:-1], stop.shape[:-1])
    start, stop = (
        _padded(jnp.broadcast_to(x, (*lead, s.queries)), s.row_tiles * s.rows)
        for x in (start, stop)
    )
    tiles, some = (*lead, s.row_tiles, s.rows), start < stop
    low = jnp.where(some, start, s.keys).reshape(tiles).min(-1) // s.columns
    high = -(-jnp.where(some, stop, 0).reshape(tiles).max(-1) // s.columns)
    named = {"start": start, "stop": stop, "low": low, "high": high}
    return {name: panel(s, x.astype(np.int32), 1) for name, x in named.items()}


def _of_tiles(x: Array, tiles: int, n: int) -> Array:
    """Return the largest of each tile of n tokens (..., tiles), of x (..., T)."""
    extra = [(0, 0)] * (x.ndim - 1) + [(0, tiles * n - x.shape[-1])]
    x = jnp.pad(x, extra, constant_values=-np.inf)
    return x.reshape(*x.shape[:-1], tiles, n).max(-1)


def _nonfinite(s: Layout, laid_out: Mapping[str, Panel]) -> dict[str, Panel]:
    """Return panels that flag tiles with entries that are not finite, of factors of products."""
    axes = {"value": -1, "d_output": -1}
    if s.pair == PRODUCT:
        axes |= {"a": -3, "b": -3}
    tiles = {}
    for name, axis in axes.items():
        if name in laid_out:
            x = jnp.logical_not(jnp.isfinite(laid_out[name].x)).any(axis)
            n = s.columns if name in WITH_KEY_HEADS else s.rows
            x = x.reshape(*x.shape[:2], 1, -1, n).any(-1)
            tiles[f"nonfinite_{name}"] = Panel(x.astype(np.int32), laid_out[name].outer)
    return tiles


def _padded(x: Array, *sizes: int) -> Array:
    """Return x padded with zeros, so that its last dimensions are `sizes`."""
    outer = x.ndim - len(sizes)
    extra = [(0, n - own) for n, own in zip(sizes, x.shape[outer:], strict=True)]
    return jnp.pad(x, [(0, 0)] * outer + extra)


def _tile(n: int, most: int, least: int) -> int:
    """Return the tile size for n tokens, a power of two from `least` to `most`."""
    return min(max(1 << (n - 1).bit_length(), least), most)
