"""Each mistake in a formula of a and b raises one clear error before any work."""

from __future__ import annotations

import math
from typing import Any

import pytest

from anyscore.score.pairs import Pair, pair_named

pytestmark = pytest.mark.sample

FUNCTIONS = (
    "abs, cos, erf, exp, expm1, log, log1p, maximum, minimum, relu, sigmoid, sign, sin, softplus, "
    "sqrt, tanh, where"
)
MORE = (
    "is more than numbers, a, b, + − * / **, comparisons in where(…) and the functions "
    f"{FUNCTIONS}."
)
AT_ZERO = (
    "at a = b = 0, where rows stand that nobody attends: write what is finite there, such as "
    "log(1 + abs(x)) or sqrt(x**2 + 1e-6)."
)
POWER = "an exponent is a number: write exp(y * log(x)) where x is positive."

TABLE = [
    ("a + c", "'c' is unknown: the formula is of a and b."),
    ("exp + a", "'exp' is a function: write exp(…)."),
    ("a", "it does not depend on b; a pair is a function of a and b."),
    ("0 * a + b", "it does not depend on a; a pair is a function of a and b."),
    ("log(a + b)", f"its value is -inf {AT_ZERO}"),
    ("sqrt(a * b)", f"its derivative in a is nan {AT_ZERO}"),
    ("1 / (a - b)", f"its value is inf {AT_ZERO}"),
    ("a / 0 + b", "it divides by 0."),
    ("a ** b", POWER),
    ("2 ** a + b", POWER),
    (
        "(1 + a)**0.3 * b",
        "** 0.3: an exponent is a multiple of ½ within ±64; write exp(y * log(x)) where x is "
        "positive.",
    ),
    ("a ^ b", "^ is no power in Python: write **."),
    ("a < b", "it is a comparison: write where(condition, x, y)."),
    ("where(a, b, 1)", "where takes a comparison first, as in where(a > b, a - b, 0)."),
    ("exp(a, b)", "exp takes 1 of them, not 2."),
    ("gamma(a) + b", f"there is no function 'gamma': there are {FUNCTIONS}."),
    ("1e999 * a + b", "the number inf is not finite."),
    ("exp(1e3) * a + b", "the number inf is not finite."),
    ("a +", "it is no expression of Python: invalid syntax."),
    ("", "it is no expression of Python: invalid syntax."),
    ("a == b", f"'a == b' {MORE}"),
    ("a < b < 1", f"'a < b < 1' {MORE}"),
    ("a.real + b", f"'a.real' {MORE}"),
    ("a[0] + b", f"'a[0]' {MORE}"),
    ("a + 'b'", f"\"'b'\" {MORE}"),
    ("True * a + b", f"'True' {MORE}"),
    ("(lambda: a)() + b", f"'(lambda: a)()' {MORE}"),
    ("__import__('os').getcwd()", f"\"__import__('os').getcwd()\" {MORE}"),
    ("+".join(["a"] * 6000), "it has 11999 characters, more than 10000."),
]


@pytest.mark.parametrize(("formula", "reason"), TABLE, ids=range(len(TABLE)))
def test_texts(formula: str, reason: str) -> None:
    with pytest.raises(ValueError, match="cannot be a pair") as raised:
        Pair.from_formula("wrong", formula)
    shown = repr(formula if len(formula) < 81 else formula[:77] + "…")
    assert str(raised.value) == f"the formula {shown} cannot be a pair: {reason}"


def test_formulas_of_any_depth_and_length() -> None:
    """Formulas of any depth and length raise a clear error, with neither overflow nor long wait."""
    for formula in (
        "(" * 3000 + "a + b" + ")" * 3000,
        "-" * 5000 + "a",
        "-" * 9990 + "a + b",  # Python's parser raises MemoryError
        "a**" * 3000 + "b",
        "sin(" * 250 + "a+b" + ")" * 250,
    ):
        with pytest.raises(ValueError, match="cannot be a pair"):
            Pair.from_formula("wrong", formula)
    longer = "+".join(f"sin({n} * a) * b" for n in range(150))
    with pytest.raises(ValueError, match="it has more than 300 different operations"):
        Pair.from_formula("wrong", longer)


@pytest.mark.parametrize(
    ("formula", "reason"),
    [
        (lambda a: a, "it takes (a), expected a function of a and b."),
        (lambda a, b, c: a, "it takes (a, b, c), expected a function of a and b."),
        (
            lambda a, b: a if a > b else b,
            "a comparison of features has no truth: write where(condition, x, y).",
        ),
        (lambda a, b: math.exp(a) + b, "must be real number, not Term"),
        (
            lambda a, b: None,
            "a formula is made of its arguments and numbers, and there is a NoneType.",
        ),
        (lambda a, b: a + b if a == b else a,
         "features are compared by <, <=, > and >=, in where(condition, x, y)."),
    ],
    ids=range(6),
)  # fmt: skip
def test_functions(formula: Any, reason: str) -> None:
    with pytest.raises(ValueError, match="cannot be a pair") as raised:
        Pair.from_formula("wrong", formula)
    assert str(raised.value) == f"the formula '<lambda>' cannot be a pair: {reason}"


def test_neither() -> None:
    with pytest.raises(TypeError, match="formula is a int, expected a text such as"):
        Pair.from_formula("wrong", 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="name is '', expected a text"):
        Pair.from_formula("", "a + b")


def test_a_pair_that_another_process_made() -> None:
    with pytest.raises(ValueError, match="no pair 'softplus@0' in this process: make it first"):
        pair_named("softplus@0")
