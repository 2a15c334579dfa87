"""Outer functions: a score is s = φ(x) of its sum x = scale · Σ_d … + biases.

    tanh      s = c · tanh(x / c)           soft capping
    sqrt      s = −c · √x                   of squared distances: distances
    log1p     s = −c · log(1 + x)           of squared distances: the density of Student's t
    arcosh    s = −c · arcosh(1 + x)        of squared Lorentz distances: hyperbolic ones

In the last three, x < 0 is a rounding error of 0 and counts as 0. √ and arcosh have no derivative
at 0. The slope at 0 is set to 0, the mean slope of a distance over all directions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from anyscore.ops import Array, Ops


class Outer(NamedTuple):
    """Outer function φ of a score, applied to its whole sum.

        name       φ(x)
        tanh       c · tanh(x / c)
        sqrt       −c · √x
        log1p      −c · log(1 + x)
        arcosh     −c · arcosh(1 + x)

    Args:
        name: a name of the table.
        scale: c > 0. By default 1.

    Raises:
        KeyError: No function has that name. The first use raises the error.

    >>> import numpy as np
    >>> from anyscore.ops import load
    >>> from anyscore.score import Outer
    >>> Outer("sqrt", 2.0).value(load("numpy"), np.array([4.0, 9.0]))
    array([-4., -6.])
    """

    name: str
    scale: float = 1.0

    def value(self, xp: Ops, x: Array) -> Array:
        """Return φ(x), in operations that the framework can differentiate."""
        return FUNCTIONS[self.name](xp, x, self.scale)


def _tanh(xp: Ops, x: Array, c: float) -> Array:
    return c * xp.tanh(x / c)


def _sqrt(xp: Ops, x: Array, c: float) -> Array:
    zero, x = _apart(xp, x)
    return -c * xp.where(zero, 0.0, xp.sqrt(x))


def _log1p(xp: Ops, x: Array, c: float) -> Array:
    below = xp.stop_gradient(xp.where(x < 0, -x, 0.0))
    return -c * xp.log1p(x + below)


def _arcosh(xp: Ops, x: Array, c: float) -> Array:
    """Return −c · arcosh(1 + x) by 2 · asinh(√(x / 2)), without cancellation or overflow."""
    zero, x = _apart(xp, x)
    z, half = xp.sqrt(x / 2), x / 2
    return -c * xp.where(zero, 0.0, 2 * xp.log1p(z + half / (1 + xp.sqrt(1 + half))))


def _apart(xp: Ops, x: Array) -> tuple[Array, Array]:
    """Return (x ≤ 0, x with 1 in these places): derivatives at 1 are finite."""
    zero = x <= 0
    return zero, xp.where(zero, 1.0, x)


FUNCTIONS: dict[str, Callable[[Ops, Array, float], Array]] = {
    "tanh": _tanh,
    "sqrt": _sqrt,
    "log1p": _log1p,
    "arcosh": _arcosh,
}

NAMES = "", *FUNCTIONS
"""The outer functions in the order of the C++ core's numbers; "" is none."""
