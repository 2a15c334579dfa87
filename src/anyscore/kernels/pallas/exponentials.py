"""Exponentials of tokens for tanh, made once by XLA; a score then needs only reciprocals.

    w tanh(a + b) = w − 2 max|w| / x,   x = C + A B,   A = C e^(2(a + c)),   B = e^(2(b − c))

C = max|w| / w has the sign of w. The shift c of a feature is the middle of the keys' b, so that
exponents stay small even if a and b are large. Numbers of float64 have no exponentials.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from anyscore.ops import Array

AT_ONCE = 4
"""The most features with one reciprocal; features are padded to a multiple of this number."""
FREE = 20.0
"""The largest ln|x| at which four denominators can be multiplied."""
CLAMP = np.float32(2.0**62)
"""The largest denominator at which two can be multiplied; the term of a larger one is 0."""
WIDE = 24.0
"""The largest |b − c| of which kernels use the exponential."""
SMALL = 0.5
"""Up to this |a + c| + |b − c| the gradient of w needs tanh itself, relative to its size."""
_FAR = 34.0
"""For |a + c| from this number on, tanh is ±1 for every |b − c| ≤ WIDE."""
_C_MAX = 2.0**28
"""The largest |C|: a smaller |w| than max|w| / _C_MAX counts as max|w| / _C_MAX."""
_ORDINARY = 2.0**20
"""A key with larger |b| does not move the shift."""


class Exponentials(NamedTuple):
    """Arrays of a call in float32, with leading dimensions; exp_b and b_bounds have key heads.

    exp_a, exp_b: A and B (..., T, h). coefficients (..., 2, h): C and 1/(2C). constants (..., 2):
    2 max|w| and Σ w. Features beyond the last, up to a multiple of AT_ONCE, have A = B = 0 and C =
    _C_MAX.
    a_bounds, b_bounds (..., 2, T): two numbers of each token. The first is the largest exponent,
    2(a + c) + ln|C| or 2(b − c). The second is the largest |a + c| or |b − c|. Both are ∞ if a
    number of the token is not finite, and for all queries if a weight is not.
    """

    exp_a: Array
    exp_b: Array
    coefficients: Array
    constants: Array
    a_bounds: Array
    b_bounds: Array


def exponentials(operands: Mapping[str, Array], groups: int) -> Exponentials:
    """Return the exponentials of a (..., T_q, h), b (..., T_k, h) and weight (..., h), or 1."""
    a, b = (operands[name].astype(np.float32) for name in ("a", "b"))
    weight = operands.get("weight")
    if weight is None:
        weight = jnp.ones((1,) * (a.ndim - 2) + a.shape[-1:])
    weight = weight.astype(np.float32)
    size = jnp.abs(weight)
    top = size.max(-1, keepdims=True, initial=0)
    c = jnp.where(weight < 0, -1, 1) * jnp.where(size * _C_MAX > top, top / size, _C_MAX)
    shift = _middle(b)
    a, b = a + _of_queries(shift, groups), b - shift
    near_a, near_b = (2 * jnp.clip(x, -_FAR, _FAR) for x in (a, b))
    nothing = (weight - weight).sum(-1)[..., None, None]  # NaN if a weight is not finite
    rows, whole = c[..., None, :], _whole(c, _C_MAX)
    return Exponentials(
        _whole(rows * jnp.exp(near_a)),
        _whole(jnp.exp(near_b)),
        jnp.stack([whole, 0.5 / whole], -2),
        jnp.concatenate([2 * top, weight.sum(-1, keepdims=True)], -1),
        _bounds(a + nothing, near_a + jnp.log(jnp.abs(rows))),
        _bounds(b, near_b),
    )


def _middle(b: Array) -> Array:
    """Return the middle (..., 1, h) of the ordinary numbers of b (..., T_k, h); 0 if none is."""
    usual = jnp.abs(b) < _ORDINARY  # not NaN
    low = b.min(-2, keepdims=True, initial=np.inf, where=usual)
    high = b.max(-2, keepdims=True, initial=-np.inf, where=usual)
    return jnp.where(low <= high, 0.5 * (low + high), 0)


def _of_queries(x: Array, groups: int) -> Array:
    """Return x (..., key heads, 1, h) with the heads of queries."""
    return x if x.ndim < 3 or x.shape[-3] == 1 else jnp.repeat(x, groups, -3)


def _bounds(x: Array, exponent: Array) -> Array:
    """Return the largest exponent and the largest |x| (..., 2, T) of tokens x (..., T, h)."""
    size = jnp.where(jnp.isfinite(x), jnp.abs(x), np.inf).max(-1, initial=0)
    highest = jnp.where(size == np.inf, np.inf, exponent.max(-1, initial=-np.inf))
    return jnp.stack(jnp.broadcast_arrays(highest, size), -2)


def _whole(x: Array, fill: float = 0) -> Array:
    """Return x (..., h) with features of `fill` up to a multiple of AT_ONCE."""
    extra = [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % AT_ONCE)]
    return jnp.pad(x, extra, constant_values=fill)
