"""A formula as the value of a pair, checked, and computed in the operations of any framework."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from anyscore.ops import Array, Ops
from anyscore.score.formula.parse import of_function, of_text
from anyscore.score.formula.slopes import with_slopes
from anyscore.score.formula.steps import Steps, compute, steps_of
from anyscore.score.formula.tape import COMPARISONS, A, B, Row, numbers, pruned

Slopes = tuple[tuple[Row, ...], tuple[int, int, int]]


@dataclass(frozen=True)
class Formula:
    """A function of two features, as rows of operations; formulas with equal rows are equal.

    rows: see `tape.Row`; the last row is the value. text: the formula as the user wrote it.
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

    def __call__(self, xp: Ops, a: Array, b: Array) -> Array:
        """Return the formula's value for features that broadcast; NaN where a or b is NaN."""
        value = compute(xp, self._steps, a, b)
        if self.loses_nan:  # a comparison with NaN chooses the other side
            value = xp.where(a == a, xp.where(b == b, value, b), a)
        return value

    def slopes(self) -> Slopes:
        """Return all rows, and the indices of the value, of its derivative in a and in b."""
        return with_slopes(self.rows)


def formula_of(formula: str | Callable[[Any, Any], Any]) -> Formula:
    """Return the formula of a text, or of a function of a and b.

    Raises:
        ValueError: the formula is invalid, lacks a or b, or has no derivative at a = b = 0.
    """
    text = formula if isinstance(formula, str) else getattr(formula, "__name__", repr(formula))
    if not isinstance(formula, str) and not callable(formula):
        raise TypeError(
            f"formula is a {type(formula).__name__}, expected a text such as "
            '"softplus(a + b)", or a Python function of a and b.'
        )
    try:
        term = of_text(formula) if isinstance(formula, str) else of_function(formula)
        rows, _ = pruned(term.tape.rows, (term.place,))
        _check(rows)
        return Formula(rows, text)
    except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"the formula {_shown(text)} cannot be a pair: {error}") from None


def _check(rows: tuple[Row, ...]) -> None:
    for name, row in (("a", A), ("b", B)):
        if row not in rows:
            raise ValueError(f"it does not depend on {name}; a pair is a function of a and b.")
    made, places = with_slopes(rows)
    found = numbers(made, 0.0, 0.0)
    names = "its value", "its derivative in a", "its derivative in b"
    for name, place in zip(names, places, strict=True):
        if not math.isfinite(found[place]):
            raise ValueError(
                f"{name} is {found[place]} at a = b = 0, where rows stand that nobody attends: "
                "write what is finite there, such as log(1 + abs(x)) or sqrt(x**2 + 1e-6)."
            )


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "…")
