"""Functions of whole sums of a score, and their slopes, followed along the curve.

    tanh     c · tanh(x / c)          sqrt     −c · √x
    log1p    −c · log(1 + x)          arcosh   −c · arcosh(1 + x)

An error of x may be larger than x, so both are taken at the ends of what x may be, x ± e. Where x
counts as 0, below 0 too, the slope of the last three is 0; that of log1p may be 1 below 0.
"""

from __future__ import annotations

import numpy as np

from fuzz.rounding import Number


def slope_of_tanh(x: np.ndarray) -> np.ndarray:
    """1 − tanh²(x), exact where tanh is all but ±1."""
    return np.square(1 / np.cosh(np.minimum(np.abs(x), 300)))


def cap(s: Number, c: float, tanh: float) -> tuple[Number, Number]:
    """c · tanh(s / c), and its slope 1 − tanh²(s / c).

    An error may be larger than c, so that it is followed along the curve, to the side where the
    curve is steeper. tanh: as in `Form`, but 2 at least: a tanh made of exponentials is off by
    that. The slope may be made of the capped score, (1 − s / c)(1 + s / c), two roundings further.
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
"""Roundings ε of a function itself, times c: √ is off by ½; log1p by 2, as exponentials are; and
arcosh(1 + x) = 2 log1p(√(x/2) + …) by two more, of its argument, whose terms are positive.
"""


def of_distance(name: str, c: float, x: Number) -> tuple[Number, Number]:
    """The function of x, and its slope.

    The slope may be made of the value s, whose roundings it then brings along: −c/(2√x) = c²/(2s);
    −c/(1 + x) = −c e^(s/c), off by as much as s/c is; −c/√(x (x + 2)) = −c/sinh(−s/c), off by
    y coth y < 1 + y times what y = −s/c is, relatively; 4 more for the exponential, 2 for the rest.
    Where x ± e has 0 in it the slope may be 0, or as steep as it is at the smallest number.
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
        error = np.where(low > 0, error, steep)  # 0 is possible too
    slope, error = (np.where(positive, z, 0.0) for z in (slope, error))
    doubtful = ~positive & (x.x < 0) & ((high > 0) | (name == "log1p"))
    error = np.where(doubtful, steep, error)
    return value, x.like(-c * slope, c * error + x.least)


def _value(name: str, x: np.ndarray) -> np.ndarray:
    if name == "arcosh":
        return np.asarray(2 * np.arcsinh(np.sqrt(x / 2)))
    return np.sqrt(x) if name == "sqrt" else np.log1p(x)


def slope_of_distance(name: str, x: np.ndarray) -> np.ndarray:
    """The slope of a function of a distance, without its number c and its sign."""
    if name == "arcosh":
        return np.asarray(1 / (np.sqrt(x) * np.sqrt(x + 2)))
    return np.asarray(0.5 / np.sqrt(x) if name == "sqrt" else 1 / (1 + x))
