"""Outer functions: a score is s = φ(x) of its sum x = scale · Σ_d … + biases.

    tanh      s = c · tanh(x / c)           soft capping
    sqrt      s = −c · √x                   of squared distances: distances
    log1p     s = −c · log(1 + x)           of squared distances: the density of Student's t
    arcosh    s = −c · arcosh(1 + x)        of squared Lorentz distances: hyperbolic ones
    a formula of x                          see `Outer.from_formula`

In sqrt, log1p and arcosh, x < 0 is a rounding error of 0 and counts as 0. √ and arcosh have no
derivative at 0. The slope at 0 is set to 0, the mean slope of a distance over all directions.
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple

from anyscore.ops import Array, Ops
from anyscore.ops.checks import brief, is_finite

if TYPE_CHECKING:
    from anyscore.score.formula import Formula


class Outer(NamedTuple):
    """Outer function φ of a score, applied to its whole sum.

        name       φ(x)
        tanh       c · tanh(x / c)
        sqrt       −c · √x
        log1p      −c · log(1 + x)
        arcosh     −c · arcosh(1 + x)

    `Outer.from_formula` makes others, which every implementation runs fused.

    Args:
        name: a name of the table.
        scale: c > 0. By default 1.

    Raises:
        TypeError, ValueError: No function has that name, or the scale is no number > 0. The first
            use raises the error.

    >>> import numpy as np
    >>> from anyscore.ops import load
    >>> from anyscore.score import Outer
    >>> Outer("sqrt", 2.0).value(load("numpy"), np.array([4.0, 9.0]))
    array([-4., -6.])
    """

    name: str
    scale: float = 1.0

    @classmethod
    def from_formula(cls, name: str, formula: str | Callable[[Any], Any]) -> Outer:
        """Return an outer function from a formula of the sum x, with its derivative.

            s = formula(scale · Σ_d weight_d · pair(a_d, b_d) + biases)

        The language is that of `Pair.from_formula`, with x in place of a and b. The first call on a
        CPU compiles the formula. The formula and its derivative must be finite at x = 0.

        Args:
            name: the name in plans and errors.
            formula: a text, such as `"x * abs(x)"`, or a Python function of x.

        Returns:
            The outer function. Its `name` is the name with a digest of the formula.

        Raises:
            TypeError: `name` is no text, or `formula` is neither a text nor a function.
            ValueError: The formula uses other names than x, or has no derivative at 0.

        >>> import numpy as np
        >>> from anyscore.ops import load
        >>> from anyscore.score import Outer
        >>> Outer.from_formula("square", "x**2").value(load("numpy"), np.array([2.0, -3.0]))
        array([4., 9.])
        """
        from anyscore.score.formula import OUTER, formula_of

        if not isinstance(name, str) or not name:
            raise TypeError(f"name is {brief(name)}, expected a text.")
        return _of_formula(name, formula_of(formula, OUTER))

    def __reduce__(self) -> Any:
        if (formula := FORMULAS.get(self.name)) is None:
            return Outer, tuple(self)
        return _of_formula, (self.label, formula)  # registers it when unpickled

    @property
    def label(self) -> str:
        """Return the name without the digest of a formula."""
        return self.name.partition("@")[0]

    def value(self, xp: Ops, x: Array) -> Array:
        """Return φ(x), in operations that the framework can differentiate."""
        if self.name in FUNCTIONS:
            return FUNCTIONS[self.name](xp, x, self.scale)
        return formula_named(self.name)(xp, x)


FORMULAS: dict[str, Formula] = {}
"""The formulas of outer functions by the names of these."""


def _of_formula(name: str, formula: Formula) -> Outer:
    made = Outer(f"{name}@{formula.digest[:32]}")
    FORMULAS[made.name] = formula
    return made


def formula_named(name: str) -> Formula:
    """Return the formula of an outer function.

    Raises:
        ValueError: no function has that name in this process.
    """
    if name not in FORMULAS:
        raise ValueError(
            f"there is no outer function {brief(name)} in this process: the names are "
            f"{', '.join(FUNCTIONS)}; Outer.from_formula makes others."
        )
    return FORMULAS[name]


def check_outer(x: Any, dtype: str) -> None:
    """Check the outer function of a score, whose sums are of a dtype.

    Raises:
        TypeError, ValueError: x is none, no function has its name, or its scale is not > 0.
    """
    if not isinstance(x, Outer) or not isinstance(x.name, str):
        raise TypeError(f"outer is {brief(x)}, expected an Outer or None.")
    if x.name not in FUNCTIONS:
        formula_named(x.name)
    if not isinstance(x.scale, Real):
        raise TypeError(f"the scale of outer is {brief(x.scale)}, expected a number > 0.")
    most = 1e38 if dtype == "float32" else 1e307
    if not (is_finite(x.scale) and 1 / most <= float(x.scale) <= most):
        raise ValueError(
            f"the scale of outer must be from {1 / most:g} to {most:g}, got {brief(x.scale)}."
        )


def number(name: str) -> float:
    """Return the number of an outer function in the C++ core, 0 for none.

    A formula's is made of its digest, so that an exported program finds no other function.
    """
    if name in NAMES:
        return NAMES.index(name)
    return float(len(NAMES) + int(formula_named(name).digest[:12], 16))


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
