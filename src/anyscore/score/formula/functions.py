"""The functions that a formula may use, of terms or numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from anyscore.score.formula.tape import FUNCTIONS, Tape
from anyscore.score.formula.terms import Condition, Term, term


class _Function(Protocol):
    def __call__(self, x: Any, /) -> Term: ...


def where(condition: Any, x: Any, y: Any) -> Term:
    """Return x if a comparison holds, else y: `where(a > b, a - b, 0)`."""
    if not isinstance(condition, Condition):
        raise TypeError("where takes a comparison first, as in where(a > b, a - b, 0).")
    tape = condition.tape
    places = (term(tape, z).place for z in (x, y))
    return Term(tape, tape.where(condition.place, *places))


def maximum(x: Any, y: Any) -> Term:
    """Return the greater of x and y; for x = y the derivative is that of y."""
    x, y = _terms(x, y)
    return where(x > y, x, y)


def minimum(x: Any, y: Any) -> Term:
    """Return the lesser of x and y; for x = y the derivative is that of y."""
    x, y = _terms(x, y)
    return where(x < y, x, y)


def relu(x: Any) -> Term:
    """Return max(x, 0), of derivative 0 at 0."""
    return maximum(x, 0)


def sign(x: Any) -> Term:
    """Return 1, −1 or 0, of derivative 0."""
    (x,) = _terms(x)
    return Term(x.tape, x.tape.sign(x.place))


def _terms(*xs: Any) -> list[Term]:
    tape = next((x.tape for x in xs if isinstance(x, Term)), Tape())
    return [term(tape, x) for x in xs]


def _function(name: str) -> _Function:
    def function(x: Any, /) -> Term:
        (x,) = _terms(x)
        return Term(x.tape, x.tape.function(name, x.place))

    function.__name__ = name
    return function


exp, expm1, log, log1p, sqrt, tanh, sigmoid, softplus, erf, sin, cos = map(
    _function,
    ("exp", "expm1", "log", "log1p", "sqrt", "tanh", "sigmoid", "softplus", "erf", "sin", "cos"),
)
NAMES: dict[str, Callable[..., Term]] = {
    **{name: _function(name) for name in FUNCTIONS},
    "relu": relu, "maximum": maximum, "minimum": minimum, "sign": sign, "where": where,
}  # fmt: skip
"""All functions of formulas by name, `abs` among them."""
