"""Formulas with nested choices have few steps, and derivatives without NaN."""

from __future__ import annotations

import math
import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from anyscore.ops import load
from anyscore.score.formula import formula_of
from anyscore.score.formula.tape import numbers
from anyscore.score.pairs import Pair

pytestmark = pytest.mark.sample

ROOT = "sqrt(a*a + b*b + 1)"


def nested(outer: str, levels: int, inner: str = ROOT) -> str:
    return f"{outer}(" * levels + inner + ")" * levels


def calls(formula: str) -> dict[str, int]:
    """Count the calls of a framework's functions by a formula."""
    found = {"sqrt": 0, "where": 0}
    xp = SimpleNamespace(**vars(load("numpy")))

    def counted(name: str) -> Any:
        def function(*xs: Any) -> Any:
            found[name] += 1
            return getattr(load("numpy"), name)(*xs)

        return function

    for name in found:
        setattr(xp, name, counted(name))
    formula_of(formula)(xp, np.ones(3), np.ones(3))  # type: ignore[arg-type]
    return found


def test_choices_in_choices_are_computed_once_for_each_that_is_outside() -> None:
    """Nested choices call each function once per level; eight levels once took 256 square roots."""
    few, many = calls(nested("relu", 4)), calls(nested("relu", 8))
    assert few["sqrt"] <= 4 + 1
    assert many["sqrt"] <= 8 + 1
    assert many["where"] <= 8 * 9 * 2


@pytest.mark.parametrize("formula", ["where(a > 0, b, -1e9)", "where(a <= 0, -1e9, b)"])
def test_a_large_number_beside_a_branch_takes_nothing_from_it(formula: str) -> None:
    a, b = np.array([1.0, -1.0, 2.0]), np.array([0.1, 0.2, 0.3])
    found = formula_of(formula)(load("numpy"), a, b)  # type: ignore[arg-type]
    assert found.tolist() == [0.1, -1e9, 0.3]


def test_a_formula_of_200_characters_is_read_at_once() -> None:
    """A formula of 30 nested levels is read at once; the levels once took 2³⁰ steps."""
    formula = formula_of(nested("relu", 30))
    assert formula_of(f"{nested('relu', 30)} * 1") == formula


MANY = (
    "it takes more than 3000 operations, as choices of where, relu, maximum and minimum are "
    "nested: each computes both its sides."
)


def test_steps_have_a_bound() -> None:
    with pytest.raises(ValueError, match="cannot be a pair") as raised:
        Pair.from_formula("wrong", nested("relu", 100))
    assert str(raised.value).endswith(MANY)


def shared(levels: int) -> Any:
    """Return a function of few rows: both branches of each choice use the choice before."""

    def function(a: Any, b: Any) -> Any:
        x = np.sqrt(a * a + b * b + 1)
        for n in range(levels):
            x = np.where(a * b > n, np.exp(-x), np.log(2 + x))
        return x

    return function


def test_few_rows_of_many_steps_are_refused_at_once() -> None:
    assert len(formula_of(shared(4)).rows) < 40
    with pytest.raises(ValueError, match="cannot be a pair") as raised:
        formula_of(shared(40))
    assert str(raised.value).endswith(MANY)


def test_what_was_pickled_takes_no_longer() -> None:
    formula = formula_of(nested("relu", 30))
    pickled = pickle.dumps(formula)
    assert len(pickled) < 100 + len(pickle.dumps((formula.rows, formula.text)))
    assert pickle.loads(pickled) == formula


NESTED = [
    "where(a > 0, where(b > 0, sqrt(a*b), log(a)), exp(a)) + b",
    "relu(where(a + b > 1, log(a + b - 0.5), 0.25 * b)) * a",
    "where(where(a > 0, sqrt(a), -1) > b, log(4 + a), exp(b))",
    "maximum(minimum(sqrt(1 + a) if a > -1 else 0, b), 1 / b if b > 0 else -1)",
    "where(a > 0, sqrt(a) * where(b > 0, sqrt(b), 1), where(b > 0, 1 / b, a))",
    nested("relu", 6, "a * where(b > 0, log(1 + b), b)"),
]


@pytest.mark.parametrize("formula", NESTED, ids=range(len(NESTED)))
def test_nested_choices_have_the_derivatives_of_what_is_chosen(formula: str) -> None:
    made = formula_of(formula)
    points = [(x, y) for x in (-3.0, -1.0, -0.25, 0.3, 2.0, 1e3) for y in (-2.0, -0.1, 0.7, 50.0)]
    a, b = (
        torch.tensor(z, dtype=torch.float64, requires_grad=True) for z in zip(*points, strict=True)
    )
    value = made(load("torch"), a, b)
    found = [value, *torch.autograd.grad(value.sum(), (a, b))]
    rows, places = made.slopes()
    for i, point in enumerate(points):
        exact = numbers(rows, *point)
        for x, place in zip(found, places, strict=True):
            assert math.isfinite(exact[place])
            assert x[i].item() == pytest.approx(exact[place], rel=1e-12, abs=1e-12), point
