"""Terms: the parts of a formula while its text is read, or its Python function runs."""

from __future__ import annotations

import operator
from collections.abc import Callable
from numbers import Real
from typing import Any

from anyscore.score.formula.tape import LONGEST, Tape

_OPERATORS: dict[str, Callable[..., Any]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul,
    "divide": operator.truediv, "negative": operator.neg, "absolute": operator.abs,
    "power": operator.pow, "greater": operator.gt, "greater_equal": operator.ge,
    "less": operator.lt, "less_equal": operator.le,
}  # fmt: skip
"""Operators by the names of NumPy's functions for them."""


class Condition:
    """A comparison of two terms: the first argument of `where`."""

    def __init__(self, tape: Tape, place: int) -> None:
        self.tape, self.place = tape, place

    def __bool__(self) -> bool:
        raise TypeError("a comparison of features has no truth: write where(condition, x, y).")


class Term:
    """A part of a formula; arithmetic makes larger ones."""

    def __init__(self, tape: Tape, place: int) -> None:
        if len(tape.rows) > LONGEST:
            raise ValueError(f"it has more than {LONGEST} different operations.")
        self.tape, self.place = tape, place

    def _with(self, operation: str, x: Any, y: Any) -> Term:
        return Term(
            self.tape, getattr(self.tape, operation)(*(_place(self.tape, z) for z in (x, y)))
        )

    def __add__(self, other: Any) -> Term:
        return self._with("add", self, other)

    def __radd__(self, other: Any) -> Term:
        return self._with("add", other, self)

    def __sub__(self, other: Any) -> Term:
        return self._with("sub", self, other)

    def __rsub__(self, other: Any) -> Term:
        return self._with("sub", other, self)

    def __mul__(self, other: Any) -> Term:
        return self._with("mul", self, other)

    def __rmul__(self, other: Any) -> Term:
        return self._with("mul", other, self)

    def __truediv__(self, other: Any) -> Term:
        return self._with("div", self, other)

    def __rtruediv__(self, other: Any) -> Term:
        return self._with("div", other, self)

    def __neg__(self) -> Term:
        return Term(self.tape, self.tape.neg(self.place))

    def __pos__(self) -> Term:
        return self

    def __abs__(self) -> Term:
        return Term(self.tape, self.tape.function("abs", self.place))

    def __pow__(self, exponent: Any) -> Term:
        if isinstance(exponent, Term) and (known := self.tape.known(exponent.place)) is not None:
            exponent = known
        if not isinstance(exponent, Real):
            raise ValueError("an exponent is a number: write exp(y * log(x)) where x is positive.")
        return Term(self.tape, self.tape.power(self.place, float(exponent)))

    def __rpow__(self, base: Any) -> Term:
        raise ValueError("an exponent is a number: write exp(y * log(x)) where x is positive.")

    def _than(self, comparison: str, other: Any) -> Condition:
        place = self.tape.compare(comparison, self.place, _place(self.tape, other))
        return Condition(self.tape, place)

    def __gt__(self, other: Any) -> Condition:
        return self._than("gt", other)

    def __ge__(self, other: Any) -> Condition:
        return self._than("ge", other)

    def __lt__(self, other: Any) -> Condition:
        return self._than("lt", other)

    def __le__(self, other: Any) -> Condition:
        return self._than("le", other)

    def __eq__(self, other: object) -> bool:
        raise TypeError("features are compared by <, <=, > and >=, in where(condition, x, y).")

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise TypeError("a feature has no truth: write where(condition, x, y).")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """Return the term of a NumPy function of terms."""
        if method != "__call__" or options:
            raise TypeError(f"a formula has no np.{ufunc.__name__}.{method} with {options}.")
        if ufunc.__name__ in _OPERATORS:
            return _OPERATORS[ufunc.__name__](*(term(self.tape, x) for x in inputs))
        return self._named(ufunc.__name__, inputs)

    def __array_function__(self, function: Any, types: Any, inputs: Any, options: Any) -> Any:
        """Return the term of `np.where`."""
        return self._named(function.__name__, inputs)

    def _named(self, name: str, inputs: Any) -> Term:
        from anyscore.score.formula import functions

        if name not in functions.NAMES:
            raise TypeError(f"a formula has no np.{name}.")
        return functions.NAMES[name](*inputs)


def term(tape: Tape, x: Any) -> Term:
    """Return a term, or a number as a term.

    Raises:
        TypeError: x is neither.
    """
    return x if isinstance(x, Term) else Term(tape, _place(tape, x))


def _place(tape: Tape, x: Any) -> int:
    if isinstance(x, Term):
        return x.place
    if isinstance(x, Real):
        return tape.number(float(x))
    raise TypeError(
        f"a formula is made of its arguments and numbers, and there is a {type(x).__name__}."
    )
