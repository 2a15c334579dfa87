"""Pairs in Triton: the value of two features, and its partial derivatives."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl


class Steps(NamedTuple):
    """Slopes of a pair that is linear on both sides of its kink at x = 0, and 0 there.

    difference: whether x = a − b, else x = a + b. low: the slope for x < 0. rise: the slope for x >
    0 less low. at_half: whether the slope for x = 0 is the mean, else low.
    """

    difference: bool
    low: float
    rise: float
    at_half: bool


class Functions(NamedTuple):
    """A pair as `@triton.jit` functions of a and b, float32 or float64 tensors that broadcast.

    value: pair(a, b). d_a, d_b: its partial derivatives. is_product: whether pair(a, b) = a b, for
    tensor cores. Ways that no GPU has run, see `UNTRIED`. steps: the `Steps` of derivatives that
    are steps. by_norms: squared distances of 16-bit features by products. wide: products of 16-bit
    features in tiles of 128 queries.
    """

    value: Any
    d_a: Any
    d_b: Any
    is_product: bool = False
    steps: Steps | None = None
    by_norms: bool = False
    wide: bool = False


@triton.jit
def tanh(x):
    """Return tanh x within a few roundings: near 0 by its series, else by an exponential."""
    e = tl.exp(-2 * tl.abs(x))
    t = (1 - e) / (1 + e)
    y = x * x
    series = -1382.0 / 155925 + y * (21844.0 / 6081075)
    series = -17.0 / 315 + y * (62.0 / 2835 + y * series)
    series = x + x * y * (-1.0 / 3 + y * (2.0 / 15 + y * series))
    return tl.where(y < 0.0144, series, tl.where(x < 0, -t, t))


@triton.jit
def _tanh(a, b):
    return tanh(a + b)


@triton.jit
def _d_tanh(a, b):
    t = tanh(a + b)
    return 1 - t * t


@triton.jit
def _leaky_relu(a, b):
    x = a + b
    return tl.maximum(x, 0.2 * x)


@triton.jit
def _d_leaky_relu(a, b):
    x = a + b
    return (x > 0).to(x.dtype) * 0.8 + 0.2


@triton.jit
def _absolute(a, b):
    return tl.abs(a - b)


@triton.jit
def _d_absolute_a(a, b):
    x = a - b
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


@triton.jit
def _d_absolute_b(a, b):
    x = b - a
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


@triton.jit
def _squared(a, b):
    return (a - b) * (a - b)


@triton.jit
def _d_squared_a(a, b):
    return 2 * (a - b)


@triton.jit
def _d_squared_b(a, b):
    return 2 * (b - a)


@triton.jit
def _product(a, b):
    return a * b


@triton.jit
def _first(a, b):
    return a


@triton.jit
def _second(a, b):
    return b


TANH = Functions(_tanh, _d_tanh, _d_tanh)
LEAKY_RELU = Functions(_leaky_relu, _d_leaky_relu, _d_leaky_relu)
ABSOLUTE = Functions(_absolute, _d_absolute_a, _d_absolute_b)
SQUARED = Functions(_squared, _d_squared_a, _d_squared_b)
PRODUCT = Functions(_product, _second, _first, is_product=True)
BY_NAME = {
    "tanh": TANH,
    "leaky_relu": LEAKY_RELU,
    "absolute": ABSOLUTE,
    "squared": SQUARED,
    "product": PRODUCT,
}
"""The pairs of `anyscore.score.pairs`, in the ways that GPUs have run."""
UNTRIED = BY_NAME | {
    "leaky_relu": LEAKY_RELU._replace(steps=Steps(False, 0.2, 0.8, False)),
    "absolute": ABSOLUTE._replace(steps=Steps(True, -1.0, 2.0, True)),
    "squared": SQUARED._replace(by_norms=True, wide=True),
    "product": PRODUCT._replace(wide=True),
}
"""The same pairs, in ways that no GPU has run."""
