"""Operands laid out for the Pallas kernels: tokens in whole tiles, leading dimensions in two.

A leading index of the output is (problem m, group g): problems are those of keys, and the groups of
a problem share its keys. An operand x (..., own dimensions) becomes (M or fewer, G or 1, own
dimensions): where it is broadcast it stays one, and `place` finds it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from anyscore.factors import PRODUCT, Pair
from anyscore.ops import Array

Shape: TypeAlias = tuple[int, ...]

OF_KEYS = "b", "key_bias", "value"
"""The operands that have the heads of keys."""
_OWN = {
    "a": 3, "b": 3, "weight": 1, "key_bias": 1, "value": 2, "start": 1, "stop": 1, "keep": 2,
    "lse": 1, "delta": 1, "d_output": 2, "seed": 1, "counter": 1,
}  # fmt: skip
"""How many of an operand's dimensions are its own, as it is laid out; one becomes two: (1, n)."""


@dataclass(frozen=True)
class Layout:
    """What a kernel knows of a call beside its operands.

    lead: the leading dimensions of the output. h, d_v: widths. names: the operands that are given.
    sums: the dtype to compute in. target: "cuda", "tpu", or "interpret".
    """

    pair: Pair
    scale: float
    groups: int
    dropout: float
    lead: Shape
    queries: int
    keys: int
    h: int
    d_v: int
    names: frozenset[str]
    sums: str
    target: str

    @property
    def problems(self) -> Shape:
        """The leading dimensions of keys."""
        return (*self.lead[:-1], self.lead[-1] // self.groups) if self.groups > 1 else self.lead

    @property
    def rows(self) -> int:
        """Queries in a tile."""
        return _tile(self.queries, *self._tokens)

    @property
    def columns(self) -> int:
        """Keys in a tile."""
        return _tile(self.keys, *self._tokens)

    @property
    def row_tiles(self) -> int:
        return -(-self.queries // self.rows)

    @property
    def column_tiles(self) -> int:
        return -(-self.keys // self.columns)

    @property
    def features(self) -> int:
        """Features that a product takes at once; other pairs take one."""
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
        """Parts of the value, of up to four chunks: the forward computes its scores for each."""
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

    @property
    def masked(self) -> bool:
        """Whether some query may not attend to some key."""
        return not self.names.isdisjoint(("start", "stop", "keep"))

    @property
    def _tokens(self) -> tuple[int, int]:
        """The most and the least tokens in a tile: a product of larger ones spills registers."""
        return (128, 128) if self.target == "tpu" else (32, 16)


@dataclass(frozen=True, eq=False)
class Panel:
    """An operand x (of `outer` in one, G or 1, own dimensions); outer: as `problems`, or 1."""

    x: Array
    outer: Shape


def place(outer: Shape, problems: Shape, m: Any) -> Any:
    """Where problem m has its part of what is `outer` in one."""
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
    """x (..., own dimensions) as a panel."""
    lead, rest = x.shape[: x.ndim - own], x.shape[x.ndim - own :]
    rest = (1, *rest) if own == 1 else rest
    if s.groups > 1 and not of_keys and lead[-1] > 1:
        lead = (*lead[:-1], lead[-1] // s.groups, s.groups)
    else:
        lead = (*lead, 1)
    return Panel(x.reshape(math.prod(lead[:-1]), lead[-1], *rest), lead[:-1])


def panels(s: Layout, operands: Mapping[str, Array]) -> dict[str, Panel]:
    """All operands, by name; with what kernels want to know of tiles before they read them.

    a and b are (…, h, 1, T). low and high: the tiles of keys that some query of a tile may attend.
    odd_…: whether a tile of that operand has entries that are not finite, if there is a mask.
    """
    given = dict(operands)
    rows, columns = s.row_tiles * s.rows, s.column_tiles * s.columns
    h, d_v = s.feature_chunks * s.features, s.value_chunks * s.values
    sizes: dict[str, Shape] = {
        "a": (h, rows), "b": (h, columns), "value": (columns, d_v), "d_output": (rows, d_v),
        "lse": (rows,), "delta": (rows,), "key_bias": (columns,),
    }  # fmt: skip
    bounds = {name: given.pop(name, None) for name in ("start", "stop")}
    if s.pair == PRODUCT:
        given["a"] = weighted(given["a"], given.pop("weight", None))
    if "keep" in given:
        given["keep"] = given["keep"].astype(np.int8)
        own = zip(given["keep"].shape[-2:], (rows, columns), strict=True)
        sizes["keep"] = tuple(1 if n == 1 else whole for n, whole in own)
    found = {}
    for name, x in given.items():
        x = jnp.swapaxes(x, -1, -2) if name in ("a", "b") else x
        x = _padded(x, *sizes[name]) if name in sizes else x
        x = x[..., None, :] if name in ("a", "b") else x[..., None] if name == "counter" else x
        found[name] = panel(s, x, _OWN[name], name in OF_KEYS)
    return found | _spans(s, bounds) | (_odd(s, found) if s.masked else {})


def weighted(a: Array, weight: Array | None) -> Array:
    """a (..., T_q, h) with its features weighted, by weight (..., h)."""
    if weight is None:
        return a
    sums = np.result_type(np.float32, a.dtype, weight.dtype)
    return a.astype(sums) * weight.astype(sums)[..., None, :]


def _spans(s: Layout, bounds: Mapping[str, Array | None]) -> dict[str, Panel]:
    """start and stop of each query in [0, T_k], none attended past T_q; and of tiles of queries."""
    one = jnp.zeros((1,) * (len(s.lead) + 1), np.int32)
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
    found = {"start": start, "stop": stop, "low": low, "high": high}
    return {name: panel(s, x.astype(np.int32), 1) for name, x in found.items()}


def _odd(s: Layout, found: Mapping[str, Panel]) -> dict[str, Panel]:
    """For each tile of what a product of tiles reads: whether some of it is not finite."""
    axes = {"value": -1, "d_output": -1}
    if s.pair == PRODUCT:
        axes |= {"a": -3, "b": -3}
    odd = {}
    for name, axis in axes.items():
        if name in found:
            x = jnp.logical_not(jnp.isfinite(found[name].x)).any(axis)
            n = s.columns if name in OF_KEYS else s.rows
            x = x.reshape(*x.shape[:2], 1, -1, n).any(-1)
            odd[f"odd_{name}"] = Panel(x.astype(np.int32), found[name].outer)
    return odd


def _padded(x: Array, *sizes: int) -> Array:
    """x with zeros behind it to these last dimensions."""
    outer = x.ndim - len(sizes)
    extra = [(0, n - own) for n, own in zip(sizes, x.shape[outer:], strict=True)]
    return jnp.pad(x, [(0, 0)] * outer + extra)


def _tile(n: int, most: int, least: int) -> int:
    """The power of two that n things are taken in."""
    return min(max(1 << (n - 1).bit_length(), least), most)
