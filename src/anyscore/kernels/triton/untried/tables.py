"""Tables for tanh(a + b) ≈ u(a) + u(b) + Σ_r f_r(a) g_r(b), by the size of a and b.

    tanh(a + b) = M(a, b) + M(b, a)        M(a, b) = ½ (tanh(a + b) − tanh(a − b))
    M(a, b) ≈ u(b) + Σ_k e_k(a) o_k(b)     k < PAIRS

M is even in a and odd in b. u is the mean of M over a. The e_k and o_k are singular functions of
the rest, where values and slopes count. A level ℓ has the functions for a standard deviation of
`deviation(ℓ)`; their weight is a Gaussian and a floor. Each
function is a Chebyshev series in z = 2 y² − 1, y = tanh(c x). Functions for fewer pairs are the
first of these functions.

Sources: Eckart and Young 1936, *The approximation of one matrix by another of lower rank*;
Townsend and Trefethen 2013, *An extension of Chebfun to two dimensions*.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]

LEVELS = 10
"""Levels, in steps of √2, from a standard deviation of ¼ up to 5.7."""
PAIRS = 12
"""The most pairs (e_k, o_k); each is two columns."""
TERMS = 16
"""Terms of a Chebyshev series."""
CELLS = 64
"""Cells of |y| in the table of errors."""
FUNCTIONS = 32
"""The length of a table of functions: e_k in entry 2 k, o_k in 2 k + 1, u in `MEAN`."""
MEAN, ONE = 2 * PAIRS, 2 * PAIRS + 2
"""The entries of u and of the function 1."""
SIZES = 16
"""The length of a table of numbers of pairs."""
_POINTS = 200
_FLOOR = 0.02
"""The share of the weight that is spread over 5 standard deviations, for outliers."""
_SLOPE_ERROR = 2.5e-3
"""The error of slopes in a backward, relative to their standard deviation: bfloat16 rounds so."""
_SLOPES = 0.5
"""The weight of slopes beside values, in units of the standard deviation."""


class Tables(NamedTuple):
    """Tables of all levels, arrays of float64; on a device tensors of float32.

    coefficients (LEVELS, TERMS, FUNCTIONS): the series of functions; odd ones are divided by y.
    sizes (LEVELS, SIZES): the singular values, in descending order, 0 after the last. errors
    (LEVELS, SIZES, CELLS): for n pairs, the largest mean of the squared error over a Gaussian b,
    for a in the cell. means (LEVELS, SIZES): the mean of the squared error, for n pairs. noise (2,
    LEVELS): the mean of the squared error that rounding a and b to bfloat16 and float16 makes.
    trained (LEVELS,): the number of pairs for gradients, of any weights.
    """

    coefficients: Any
    sizes: Any
    errors: Any
    means: Any
    noise: Any
    trained: Any


def deviation(level: int) -> float:
    """Return the standard deviation of a level."""
    return float(0.25 * 2 ** (level / 2))


def steepness(level: int) -> float:
    """Return c of y = tanh(c x) for a level."""
    return min(1.0, 0.5 / deviation(level))


@cache
def tables() -> Tables:
    """Return the tables, which take about a second."""
    return Tables(*(np.stack(x, axis) for x, axis in zip(
        zip(*map(_level, range(LEVELS)), strict=True), (0, 0, 0, 0, 1, 0), strict=True
    )))  # fmt: skip


def values(level: int, x: Floats) -> Floats:
    """Return the functions of a level at x (n,), (n, FUNCTIONS), as the kernels compute them."""
    return _values(tables().coefficients[level], steepness(level), x)


def _values(coefficients: Floats, c: float, x: Floats) -> Floats:
    y = np.tanh(c * x)
    found = np.polynomial.chebyshev.chebval(2 * y * y - 1, coefficients).T
    odd = np.arange(FUNCTIONS) % 2 == 1
    odd[MEAN] = True
    values: Floats = np.where(odd, y[:, None] * found, found)
    return values


def _even_odd(a: Floats, b: Floats) -> Floats:
    """Return M(a, b), (len(a), len(b))."""
    found: Floats = (np.tanh(a[:, None] + b) - np.tanh(a[:, None] - b)) / 2
    return found


def _level(level: int) -> tuple[Floats, ...]:
    """Return the tables of a level."""
    sigma, c = deviation(level), steepness(level)
    x = (np.arange(_POINTS) + 0.5) * (5 * sigma / _POINTS)  # functions are even or odd
    gauss = np.exp(-0.5 * (x / sigma) ** 2)
    gauss /= gauss.sum()
    weight = gauss * (1 - _FLOOR) + _FLOOR / _POINTS
    of_even, of_odd = (_inner_product(x, weight, sigma, sign) for sign in (1, -1))
    left, right = np.linalg.cholesky(of_even), np.linalg.cholesky(of_odd)
    m = _even_odd(x, x)
    singular = np.linalg.svd(left.T @ (m - weight @ m) @ right)
    size = singular[1][:PAIRS]
    even = of_even @ np.linalg.solve(left.T, singular[0][:, :PAIRS]) / np.sqrt(size)
    odd = of_odd @ np.linalg.solve(right.T, singular[2][:PAIRS].T) / np.sqrt(size)

    angles = (np.arange(TERMS) + 0.5) * (np.pi / TERMS)
    y = np.cos(angles / 2)
    at = np.arctanh(y) / c
    u = weight @ m
    functions = np.zeros((TERMS, FUNCTIONS))
    functions[:, 0 : 2 * PAIRS : 2] = (_even_odd(at, x) - u) @ odd
    to_at = _even_odd(x, at)
    functions[:, 1 : 2 * PAIRS : 2] = (to_at - weight @ to_at).T @ even / y[:, None]
    functions[:, MEAN] = weight @ to_at / y
    coefficients = np.cos(angles[:, None] * np.arange(TERMS)).T @ functions * (2 / TERMS)
    coefficients[0] /= 2
    coefficients[0, ONE] = 1

    sizes = np.zeros(SIZES)
    sizes[:PAIRS] = size
    edges = np.linspace(0, 1 - 1e-12, 4 * CELLS + 1)
    of_cells = _errors(coefficients, c, np.arctanh(edges) / c, x, gauss)
    cells = [of_cells[:, i : 4 * CELLS + i : 4] for i in range(5)]
    means = _errors(coefficients, c, x, x, gauss) @ gauss
    noise = np.stack([_noise(x, gauss, bits) for bits in (7, 10)])
    trained = np.flatnonzero(_slope_errors(coefficients, c, x, gauss) <= _SLOPE_ERROR)
    least = np.asarray(min([*trained, PAIRS]), np.float64)
    return coefficients, sizes, np.maximum.reduce(cells), means, noise, least


def _inner_product(x: Floats, weight: Floats, sigma: float, sign: int) -> Floats:
    """Return the matrix of ⟨f, g⟩ for even (sign 1) or odd (sign −1) functions on x > 0."""
    n = len(x)
    whole = np.concatenate([-x[::-1], x])
    mirrored = np.concatenate([sign * np.eye(n)[::-1], np.eye(n)])
    slope = np.gradient(mirrored, whole, axis=0)[n:]
    product: Floats = (_SLOPES * sigma) ** 2 * slope.T @ (weight[:, None] * slope)
    return product + np.diag(weight) + 1e-14 * np.eye(n)


def _errors(coefficients: Floats, c: float, a: Floats, b: Floats, gauss: Floats) -> Floats:
    """Return the mean of the squared error over ±b, (SIZES, len(a)), for n pairs."""
    of_a, of_b = (_values(coefficients, c, x) for x in (a, b))
    found = np.zeros((SIZES, len(a)))
    one = _even_odd(a, b) - of_b[:, MEAN]
    other = _even_odd(b, a).T - of_a[:, MEAN, None]
    for n in range(SIZES):
        found[n] = (one**2 + other**2) @ gauss
        if n < PAIRS:
            even, odd = 2 * n, 2 * n + 1
            one = one - of_a[:, even, None] * of_b[:, odd]
            other = other - of_a[:, odd, None] * of_b[:, even]
    return found


def _slope_errors(coefficients: Floats, c: float, x: Floats, gauss: Floats) -> Floats:
    """Return the errors of the slope in a, (PAIRS + 1,), for n pairs, relative to its deviation.

    Means over b are left out: gradients of scores sum to 0.
    """
    both, weight = np.concatenate([-x[::-1], x]), np.concatenate([gauss[::-1], gauss]) / 2
    value, slope = _values(coefficients, c, both), np.gradient(
        _values(coefficients, c, both), both, axis=0
    )  # fmt: skip
    left = 1 - np.tanh(both[:, None] + both) ** 2
    left -= (left @ weight)[:, None]
    deviation, found = np.sqrt(weight @ left**2 @ weight), []
    for n in range(PAIRS + 1):
        found.append(np.sqrt(weight @ left**2 @ weight) / deviation)
        for f, g in ((2 * n, 2 * n + 1), (2 * n + 1, 2 * n)) if n < PAIRS else ():
            left -= slope[:, f, None] * (value[:, g] - value[:, g] @ weight)
    return np.array(found)


def _noise(x: Floats, gauss: Floats, bits: int) -> Floats:
    """Return the mean of the squared error of tanh(a + b) by rounding a and b to `bits` bits."""
    rounding = 2.0 ** (np.floor(np.log2(x)) - bits) / np.sqrt(12)
    slopes = sum((1 - np.tanh(x[:, None] + sign * x) ** 2) ** 2 for sign in (1, -1)) / 2
    both = rounding[:, None] ** 2 + rounding**2
    return np.asarray(gauss @ (slopes * both) @ gauss)
