"""A formula as a list of operations on earlier results; equal operations share one row.

A row is the name of an operation and its operands, the indices of earlier rows; `("number", x)`,
`("a",)` and `("b",)` have none. Operations with a known result, such as 0·x or 1 + 2, are folded.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

Row: TypeAlias = tuple[Any, ...]

A, B = ("a",), ("b",)
NUMERIC: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv,
    "neg": operator.neg, "gt": operator.gt, "ge": operator.ge, "lt": operator.lt,
    "le": operator.le, "where": np.where,
    "exp": np.exp, "expm1": np.expm1, "log": np.log, "log1p": np.log1p, "sqrt": np.sqrt,
    "abs": np.abs, "sin": np.sin, "cos": np.cos, "tanh": np.tanh,
    "erf": np.vectorize(math.erf, otypes=[float]),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "softplus": lambda x: np.logaddexp(0, x),
}  # fmt: skip
"""The operations by name, for numbers and for NumPy arrays."""
COMPARISONS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
ARITHMETIC = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
FUNCTIONS = tuple(
    name for name in NUMERIC if name not in (*COMPARISONS, *ARITHMETIC, "neg", "where")
)
"""The functions of one operand that are operations of rows."""
LONGEST = 300
"""The most rows of a formula; its derivatives take a few times as many."""


class Tape:
    """A growing list of rows; the methods return indices of rows."""

    def __init__(self, rows: Sequence[Row] = ()) -> None:
        self.rows = list(rows)
        self._places = {row: place for place, row in enumerate(self.rows)}

    def put(self, row: Row) -> int:
        """Return the index of a row, appended if it is new."""
        if row not in self._places:
            self._places[row] = len(self.rows)
            self.rows.append(row)
        return self._places[row]

    def number(self, x: float) -> int:
        """Return the index of a number.

        Raises:
            ValueError: the number is not finite.
        """
        if not math.isfinite(x):
            raise ValueError(f"the number {x} is not finite.")
        return self.put(("number", float(x) + 0.0))  # −0 becomes 0

    def known(self, place: int) -> float | None:
        """Return the number in a row, None if the row is no number."""
        operation, *rest = self.rows[place]
        return rest[0] if operation == "number" else None

    def add(self, x: int, y: int) -> int:
        """Return x + y."""
        one, other = self.known(x), self.known(y)
        if one is not None and other is not None:
            return self.number(one + other)
        if one == 0 or other == 0:
            return y if one == 0 else x
        return self.put(("add", x, y))

    def sub(self, x: int, y: int) -> int:
        """Return x − y."""
        one, other = self.known(x), self.known(y)
        if one is not None and other is not None:
            return self.number(one - other)
        if one == 0 or other == 0:
            return self.neg(y) if one == 0 else x
        return self.put(("sub", x, y))

    def mul(self, x: int, y: int) -> int:
        """Return x y."""
        one, other = self.known(x), self.known(y)
        if one is not None and other is not None:
            return self.number(one * other)
        for number, rest in ((one, y), (other, x)):
            if number == 0:
                return self.number(0)
            if number in (1, -1):
                return rest if number == 1 else self.neg(rest)
        return self.put(("mul", x, y))

    def div(self, x: int, y: int) -> int:
        """Return x / y.

        Raises:
            ValueError: y is 0.
        """
        one, other = self.known(x), self.known(y)
        if other == 0:
            raise ValueError("it divides by 0.")
        if one is not None and other is not None:
            return self.number(one / other)
        if one == 0 or other == 1:
            return x
        return self.put(("div", x, y))

    def neg(self, x: int) -> int:
        """Return −x."""
        if (number := self.known(x)) is not None:
            return self.number(-number)
        operation, *rest = self.rows[x]
        return rest[0] if operation == "neg" else self.put(("neg", x))

    def power(self, x: int, exponent: float) -> int:
        """Return x to a whole or half-integer power by products, a division and a square root.

        Raises:
            ValueError: the exponent is another.
        """
        if 2 * exponent != int(2 * exponent) or abs(exponent) > 64:
            raise ValueError(
                f"** {exponent:g}: an exponent is a multiple of ½ within ±64; write "
                "exp(y * log(x)) where x is positive."
            )
        whole, half = divmod(abs(exponent), 1)
        made = self.number(1)
        for bit in f"{int(whole):b}":
            made = self.mul(made, made)
            made = self.mul(made, x) if bit == "1" else made
        if half:
            made = self.mul(made, self.function("sqrt", x))
        return self.div(self.number(1), made) if exponent < 0 else made

    def function(self, name: str, x: int) -> int:
        """Return name(x), of FUNCTIONS; ln(1 + eˣ) becomes softplus, which does not overflow."""
        if (number := self.known(x)) is not None:
            with np.errstate(all="ignore"):
                return self.number(float(NUMERIC[name](np.float64(number))))
        operation, *rest = self.rows[x]
        if name == "abs" and operation in ("neg", "abs"):
            return self.function("abs", rest[0])
        if name == "log1p" and operation == "exp":
            return self.function("softplus", rest[0])
        if name == "log" and operation == "add" and 1.0 in map(self.known, rest):
            other = next(y for y in rest if self.known(y) != 1)
            if self.rows[other][0] == "exp":
                return self.function("softplus", self.rows[other][1])
        return self.put((name, x))

    def sign(self, x: int) -> int:
        """Return 1, −1 or 0."""
        zero, one = self.number(0), self.number(1)
        negative = self.where(self.compare("lt", x, zero), self.neg(one), zero)
        return self.where(self.compare("gt", x, zero), one, negative)

    def compare(self, name: str, x: int, y: int) -> int:
        """Return a condition of COMPARISONS; for two numbers, the number 1 or 0."""
        one, other = self.known(x), self.known(y)
        if one is not None and other is not None:
            return self.number(bool(NUMERIC[name](one, other)))
        return self.put((name, x, y))

    def where(self, condition: int, x: int, y: int) -> int:
        """Return x if a condition holds, else y."""
        if (known := self.known(condition)) is not None:
            return x if known else y
        return x if x == y else self.put(("where", condition, x, y))


def reached(rows: Sequence[Row], places: Sequence[int]) -> list[int]:
    """Return, in order, the indices of some rows and of all rows that they depend on."""
    found: set[int] = set()
    waiting = list(places)
    while waiting:
        place = waiting.pop()
        if place not in found:
            found.add(place)
            waiting.extend(operands(rows[place]))
    return sorted(found)


def operands(row: Row) -> tuple[int, ...]:
    """Return the indices that a row reads."""
    return () if row[0] == "number" else row[1:]


def pruned(rows: Sequence[Row], places: Sequence[int]) -> tuple[tuple[Row, ...], tuple[int, ...]]:
    """Return the rows that some rows depend on, and the new indices of these."""
    kept = reached(rows, places)
    new = {old: place for place, old in enumerate(kept)}
    return tuple(
        row if (row := rows[old])[0] == "number" else (row[0], *(new[x] for x in row[1:]))
        for old in kept
    ), tuple(new[place] for place in places)


def numbers(rows: Sequence[Row], a: Any, b: Any) -> list[Any]:
    """Return the value of every row at a and b, NaN and ±∞ included.

    a, b: numbers, or arrays of numbers.
    """
    found: list[Any] = []
    with np.errstate(all="ignore"):
        for operation, *rest in rows:
            if operation == "number":
                x = rest[0]
            elif operation in "ab":
                x = a if operation == "a" else b
            else:
                x = NUMERIC[operation](*(found[x] for x in rest))
            found.append(np.asarray(x)[()])  # a NumPy scalar if x is no array
    return found
