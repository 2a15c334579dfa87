"""Outer functions of a score's sum, and their slopes, with errors along the curve.

    tanh     c · tanh(x / c)          sqrt     −c · √x
    log1p    −c · log(1 + x)          arcosh   −c · arcosh(1 + x)

An error of x may be larger than x, so function and slope are computed at x − e and x + e. The last
three have the slope 0 at x ≤ 0; log1p may have the slope 1 below 0. `FORMULAS` are functions that
users may write, for any score.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fuzz.rounding import Number


def slope_of_tanh(x: np.ndarray) -> np.ndarray:
    """Return 1 − tanh²(x), exact where tanh is almost ±1."""
    return np.square(1 / np.cosh(np.minimum(np.abs(x), 300)))


def cap(s: Number, c: float, tanh: float) -> tuple[Number, Number]:
    """Return c · tanh(s / c) and its slope 1 − tanh²(s / c).

    An error may be larger than c, so it is followed along the curve, to the steeper side. The
    argument tanh is that of `Form`, but at least 2, the error of a tanh from exponentials. The
    slope may be computed from the capped score as (1 − s / c)(1 + s / c), with two more roundings.
    """
    x, m = s.rounded(s.x / c, s.e / c), max(tanh, 2.0)
    size = np.abs(x.x)
    t, one = np.tanh(x.x), slope_of_tanh(x.x)
    off = np.tanh(size) - np.tanh(size - x.e)
    steepest = slope_of_tanh(np.maximum(size - x.e, 0))
    turned = np.maximum(steepest - one, one - slope_of_tanh(size + x.e))
    slope = x.like(one, turned + x.eps * ((2 * m + 3) * np.square(t) + 3 * one))
    return c * x.like(t, off + x.eps * m * np.abs(t)), slope


OWN = {"sqrt": 1, "log1p": 3, "arcosh": 5}
"""Errors of each function in ε, times c. √ is off by ½. log1p is off by 2, as exponentials are.
arcosh(1 + x) = 2 log1p(√(x/2) + …) is off by two more, from its argument of positive terms.
"""


def of_distance(name: str, c: float, x: Number) -> tuple[Number, Number]:
    """Return the function of x, and its slope.

    The slope may be computed from the value s, with the roundings of s. −c/(2√x) = c²/(2s). −c/(1 +
    x) = −c e^(s/c) has the error of s/c. −c/√(x (x + 2)) = −c/sinh(−s/c) has the relative error of
    y = −s/c times y coth y < 1 + y. The exponential adds 4, other operations add 2. Where x ± e
    includes 0, the slope may be 0, or the slope at the smallest number.
    """
    at, low, high = (np.maximum(z, 0.0) for z in (x.x, x.x - x.e, x.x + x.e))
    y = _value(name, at)
    off = np.maximum(_value(name, high) - y, y - _value(name, low))
    value = x.like(-c * y, c * (off + OWN[name] * x.eps * y) + x.least)
    brought = {"sqrt": 1.0, "log1p": y, "arcosh": 1 + y}[name]
    positive, least = x.x > 0, x.least if name != "log1p" else 0.0
    own = x.eps * (6 + OWN[name] * brought)
    slope, steep, flat = (slope_of_distance(name, np.maximum(z, least)) for z in (at, low, high))
    error = np.maximum(steep - slope, slope - flat) + own * slope
    if name != "log1p":
        error = np.where(low > 0, error, steep)  # a slope of 0 is possible too
    slope, error = (np.where(positive, z, 0.0) for z in (slope, error))
    doubtful = ~positive & (x.x < 0) & ((high > 0) | (name == "log1p"))
    error = np.where(doubtful, steep, error)
    return value, x.like(-c * slope, c * error + x.least)


def _value(name: str, x: np.ndarray) -> np.ndarray:
    if name == "arcosh":
        return np.asarray(2 * np.arcsinh(np.sqrt(x / 2)))
    return np.sqrt(x) if name == "sqrt" else np.log1p(x)


def slope_of_distance(name: str, x: np.ndarray) -> np.ndarray:
    """Return the slope of an outer function of a distance, without its number c and its sign."""
    if name == "arcosh":
        return np.asarray(1 / (np.sqrt(x) * np.sqrt(x + 2)))
    return np.asarray(0.5 / np.sqrt(x) if name == "sqrt" else 1 / (1 + x))


FORMULAS = {
    "square": "x**2 / 8",
    "softsign": "4 * x / (1 + abs(x))",
    "sigmoid": "6 * sigmoid(x)",
    "bent": "where(x > 0, x, x / 4)",
}
"""Functions of a score by name, as texts for `Outer.from_formula`."""


def of_formula(name: str, x: Number) -> tuple[Number, Number]:
    """Return the function of this name of x, and its slope, both as far off as x − e and x + e go.

    Each operation rounds by less than ε; the slope of softsign is a difference of two terms.
    """
    value, slope, terms = _OF_FORMULA[name]
    at, ends = x.x, (x.x - x.e, x.x + x.e)
    between = np.where((ends[0] < 0) & (ends[1] > 0), 0.0, at)  # where a slope may turn
    points = (*ends, between)
    off = np.max([np.abs(value(z) - value(at)) for z in points], axis=0)
    turned = np.max([np.abs(slope(z) - slope(at)) for z in points], axis=0)
    own = 8 * x.eps
    found = x.like(value(at), off + own * np.abs(value(at)) + x.least)
    return found, x.like(slope(at), turned + own * terms(at) + x.least)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x > 0, 1.0, small) / (1 + small))


Function = Callable[[np.ndarray], np.ndarray]
_OF_FORMULA: dict[str, tuple[Function, Function, Function]] = {
    "square": (lambda x: x * x / 8, lambda x: x / 4, lambda x: np.abs(x) / 4),
    "softsign": (
        lambda x: 4 * x / (1 + np.abs(x)),
        lambda x: 4 / np.square(1 + np.abs(x)),
        lambda x: 4 / (1 + np.abs(x)),
    ),
    "sigmoid": (
        lambda x: 6 * _sigmoid(x),
        lambda x: 6 * _sigmoid(x) * _sigmoid(-x),
        lambda x: 6 * _sigmoid(x),
    ),
    "bent": (
        lambda x: np.where(x > 0, x, x / 4),
        lambda x: np.where(x > 0, 1.0, 0.25),
        np.ones_like,
    ),
}
"""The function, its slope, and the size of the slope's terms, by name."""
