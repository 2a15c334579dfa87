"""Objects with wrong fields give a result, or a TypeError or ValueError that names a field."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from anyscore import Pair
from anyscore.score import Outer
from anyscore.score.formula import formula_of
from anyscore.score.pairs import _KNOWN
from fuzz.fields import OBJECTS, VALUES, Wrong, functions, sweep, value, wrongs
from fuzz.fuzzing import Effort
from fuzz.hostile import is_announced
from fuzz.refused import check, layer_of, tensor_of
from fuzz.runners import NumPy


def test_one_field(runner: NumPy) -> None:
    for wrong in sweep():
        check(wrong, tensor_of(runner), layer_of(runner))


def test_two_fields(runner: NumPy, effort: Effort) -> None:
    effort.spend(
        lambda wrong: check(wrong, tensor_of(runner), layer_of(runner)), wrongs(), 300, share=0.1
    )


@pytest.mark.parametrize("kind", OBJECTS)
def test_right_fields(runner: NumPy, kind: str) -> None:
    """The objects that the others are made of are right, so that these are refused for a reason."""
    if kind in ("Contiguous", "Zigzag", "Uneven"):
        pytest.skip("they are of several ranks")
    if kind == "Cache" and runner.name == "tensorflow":
        pytest.skip("caches that grow are not for TensorFlow")
    Wrong(kind, {}, functions(kind)[0]).use(tensor_of(runner), layer_of(runner))


WRITTEN = "b", "values", "length"
"""Fields of a cache that `append` writes to."""


def test_a_refused_append_writes_nothing(runner: NumPy) -> None:
    if runner.name not in ("numpy", "torch"):
        pytest.skip("its caches do not change")
    refused = 0
    for name in OBJECTS["Cache"]:
        for x in VALUES:
            wrong = Wrong("Cache", {name: x}, "append")
            cache = wrong.object(tensor_of(runner))
            kept = {n: y for n, y in vars(cache).items() if n in WRITTEN and n != name}
            before = {n: np.array(runner.numbers(y)) for n, y in kept.items()}
            try:
                wrong.used(cache, tensor_of(runner), None)
            except (TypeError, ValueError):
                refused += 1
                for n, y in before.items():
                    np.testing.assert_array_equal(runner.numbers(kept[n]), y, err_msg=f"{wrong}")
    assert refused > len(VALUES)


PARTS = (
    "a", "b", "x", "pi", "1", "0", "1e400", "1j", "True", "None", "'s'", "b'x'", "f'{a}'", "...",
    "lambda:a", "a:=1", "[a]", "{a}", "()", "(a,)", "a.b", "a[0]", "a()", "abs", "exp(", "log(",
    "where(", "maximum(", "softplus(", ")", "(", ",", "+", "-", "*", "/", "**", "//", "%", "@", "^",
    "~", "not", "and", "or", "if", "else", "<", ">", "<=", "==", "is", "in", "=", ":", ";", "#",
    "&", "|", "<<", "\x00", "\ud800", "é", "−", "∞", "await", "yield", "*a", "import",
    "__import__('os')", "sqrt(a*b)", "a*b", "a+b", "where(a>b,a,b)", "0x1", "1_0", "1__0", "0777",
)  # fmt: skip
LONG = (
    "9" * 5000, "(" * 4000 + "a*b" + ")" * 4000, "-" * 9000 + "a*b", "a*b" + "+a*b" * 2000,
    "exp(" * 2000 + "a*b" + ")" * 2000, "a**" * 3000 + "b", "where(a>b," * 900 + "a" + ",b)" * 900,
    "a" * 10_000, "x" * 20_000, "a<" * 3000 + "b", "[" * 3000, "a" + ".b" * 3000, "f(" * 3000,
    "a if b>0 else " * 500 + "b", "a*b+" + "9" * 4000 + ".", "\n", "",
)  # fmt: skip
FUNCTIONS: tuple[Callable[..., Any], ...] = (
    lambda a, b: None, lambda a, b: a, lambda a, b: a / 0, lambda a, b: [a, b], lambda a, b: a > b,
    lambda a, b: a if a > b else b, lambda *a: a[0], lambda a: a, lambda: 1, max, len, int,
    lambda a, b: float(a), lambda a, b: a.shape, lambda a, b: a[0], lambda a, b: a @ b,
    lambda a, b: 10**400 * a * b, lambda a, b: a * b * float("nan"), lambda a, b: a * 1j,
    lambda a, b: a ** (10**400), lambda a, b: round(a) * b, lambda a, b: str(a), Pair, Outer,
)  # fmt: skip


def test_formulas() -> None:
    drawn = random.Random(0)
    texts = [" ".join(drawn.choices(PARTS, k=drawn.randint(0, 9))) for _ in range(3000)]
    texts += ["".join(drawn.choices(PARTS, k=drawn.randint(0, 9))) for _ in range(3000)]
    values = [value(name, lambda x: x) for name in VALUES if name != "of another framework"]
    known, right = set(_KNOWN), 0
    makers: tuple[Callable[[Any], Any], ...] = (
        lambda x: Pair.from_formula("name", x), lambda x: Outer.from_formula("name", x),
        formula_of, lambda x: Outer.from_formula(x, "x * x"),
    )  # fmt: skip
    for one in (*texts, *LONG, *FUNCTIONS, *values):
        for make in makers:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of Python's parser
                try:
                    make(one)
                    right += 1
                except Exception as error:
                    if not is_announced(error):
                        raise AssertionError(f"{type(one)} {str(error)[:99]}") from error
    assert right > 50
    assert all(name.startswith("name@") for name in set(_KNOWN) - known)
