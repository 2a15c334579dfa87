"""A formula as the value of a pair or an outer function, checked, and computed in any framework."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from anyscore.ops import Array, Ops
from anyscore.ops.checks import brief
from anyscore.score.formula.parse import of_function, of_text
from anyscore.score.formula.slopes import with_slopes
from anyscore.score.formula.steps import Steps, compute, steps_of
from anyscore.score.formula.tape import COMPARISONS, A, B, Row, numbers, pruned

PAIR, OUTER = ("a", "b"), ("x",)
"""The names in a formula of two features, and in one of a sum."""
Slopes = tuple[tuple[Row, ...], tuple[int, int, int]]


@dataclass(frozen=True)
class Formula:
    """A function of two features, or of one sum, as rows of operations.

    Formulas with equal rows are equal. A function of one sum reads A alone. rows: see `tape.Row`;
    the last row is the value. text: the formula as the user wrote it.
    """

    rows: tuple[Row, ...]
    text: str = field(compare=False)
    digest: str = field(init=False, compare=False, repr=False)
    loses_nan: bool = field(init=False, compare=False, repr=False)
    _steps: Steps = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha256(repr(self.rows).encode()).hexdigest()
        chooses = any(row[0] in COMPARISONS for row in self.rows)
        for name, x in (("digest", digest), ("loses_nan", chooses)):
            object.__setattr__(self, name, x)
        object.__setattr__(self, "_steps", steps_of(self.rows))

    def __reduce__(self) -> Any:
        return Formula, (self.rows, self.text)

    @property
    def is_pair(self) -> bool:
        """Return whether the formula is of two features; else it is of one sum."""
        return B in self.rows

    def __call__(self, xp: Ops, a: Array, b: Array | None = None) -> Array:
        """Return the formula's value for features that broadcast; NaN where a or b is NaN."""
        value = compute(xp, self._steps, a, a if b is None else b)
        if self.loses_nan:  # a comparison with NaN chooses the other side
            value = value if b is None else xp.where(b == b, value, b)
            value = xp.where(a == a, value, a)
        return value

    def slopes(self) -> Slopes:
        """Return all rows, and the indices of the value, of its derivative in a and in b."""
        return with_slopes(self.rows)


def formula_of(formula: str | Callable[..., Any], names: tuple[str, ...] = PAIR) -> Formula:
    """Return the formula of a text, or of a function, of the named numbers.

    names: `PAIR` or `OUTER`.

    Raises:
        ValueError: the formula is invalid, lacks a name, or has no derivative where all are 0.
    """
    text = formula if isinstance(formula, str) else getattr(formula, "__name__", brief(formula))
    if not isinstance(formula, str) and not callable(formula):
        raise TypeError(
            f"formula is a {type(formula).__name__}, expected a text such as "
            f'"softplus({" + ".join(names)})", or a Python function of {" and ".join(names)}.'
        )
    try:
        term = of_text(formula, names) if isinstance(formula, str) else of_function(formula, names)
        rows, _ = pruned(term.tape.rows, (term.place,))
        _check(rows, names)
        return Formula(rows, text)
    except (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"the formula {_shown(text)} cannot be {_kind(names)}: {error}") from None


def _check(rows: tuple[Row, ...], names: tuple[str, ...]) -> None:
    for name, row in zip(names, (A, B), strict=False):
        if row not in rows:
            raise ValueError(
                f"it does not depend on {name}; {_kind(names)} is a function of "
                f"{' and '.join(names)}."
            )
    made, places = with_slopes(rows)
    found = numbers(made, 0.0, 0.0)
    results = "its value", *(f"its derivative in {name}" for name in names)
    for result, place in zip(results, places, strict=False):
        if not math.isfinite(found[place]):
            raise ValueError(
                f"{result} is {found[place]} at {' = '.join(names)} = 0, where rows stand that "
                "nobody attends: "
                "write what is finite there, such as log(1 + abs(x)) or sqrt(x**2 + 1e-6)."
            )


def _kind(names: tuple[str, ...]) -> str:
    return "a pair" if names == PAIR else "an outer function"


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "…")
