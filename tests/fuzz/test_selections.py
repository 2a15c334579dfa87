"""Formulas that choose among numbers of far sizes give one of these numbers, to the last bit.

Comparisons, choices, signs and absolute values round nothing, so that values and slopes are exact
in every framework and implementation.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import strategies as st

from anyscore import scores
from anyscore.score.pairs import Pair
from fuzz.fuzzing import Effort
from fuzz.hostile import is_announced
from fuzz.runners import NumPy
from helpers.own_scores import Own

POWERS = -100, -30, -7, -1, 0, 1, 9, 30, 60, 100, 127
"""float32 holds 2 to these powers, and their negatives."""
NUMBERS = (0.0, 3.0, *(2.0**n for n in POWERS))
FEATURES = np.array([-(2.0**60), -3.0, -1.0, -(2.0**-30), 2.0**-30, 0.75, 2.0, 5.0, 2.0**90])
COMPARED = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


class Chosen(NamedTuple):
    """A value, its slopes in a and b, and whether these are known; they are not at a tie."""

    value: Any
    of_a: Any
    of_b: Any
    smooth: Any = True

    def where(self, condition: Any, other: Chosen) -> Chosen:
        smooth = np.where(condition, self.smooth, other.smooth)
        three = (np.where(condition, x, y) for x, y in zip(self[:3], other[:3], strict=True))
        return Chosen(*three, smooth)

    def unless(self, tie: Any) -> Chosen:
        return self._replace(smooth=np.logical_and(self.smooth, np.logical_not(tie)))

    def negative(self) -> Chosen:
        return Chosen(-self.value, -self.of_a, -self.of_b, self.smooth)


@dataclass(frozen=True)
class Selection:
    """A formula as a text, and the same formula of Chosen a and b."""

    text: str
    of: Callable[[Chosen, Chosen], Chosen]

    def __repr__(self) -> str:
        return self.text


def _number(x: float) -> Selection:
    return Selection(repr(x) if x >= 0 else f"({x!r})", lambda a, b: Chosen(x, 0.0, 0.0))


def _larger(x: Selection, y: Selection, name: str) -> Selection:
    def of(a: Chosen, b: Chosen) -> Chosen:
        p, q = x.of(a, b), y.of(a, b)
        first = p.value >= q.value if name == "maximum" else p.value <= q.value
        return p.where(first, q).unless(p.value == q.value)

    return Selection(f"{name}({x}, {y})", of)


def _absolute(x: Selection) -> Selection:
    def of(a: Chosen, b: Chosen) -> Chosen:
        p = x.of(a, b)
        return p.where(p.value >= 0, p.negative()).unless(p.value == 0)

    return Selection(f"abs({x})", of)


def _negative(x: Selection) -> Selection:
    return Selection(f"(-{x})", lambda a, b: x.of(a, b).negative())


def _choice(parts: tuple[Selection, str, Selection, Selection, Selection]) -> Selection:
    left, sign, right, x, y = parts

    def of(a: Chosen, b: Chosen) -> Chosen:
        condition = COMPARED[sign](left.of(a, b).value, right.of(a, b).value)
        return x.of(a, b).where(condition, y.of(a, b))

    return Selection(f"where({left} {sign} {right}, {x}, {y})", of)


A, B = Selection("a", lambda a, b: a), Selection("b", lambda a, b: b)
NUMBER = st.sampled_from([*NUMBERS, *(-x for x in NUMBERS[1:])]).map(_number)


def _larger_ones(inner: st.SearchStrategy[Selection]) -> st.SearchStrategy[Selection]:
    names = st.sampled_from(("maximum", "minimum"))
    return (
        st.builds(_larger, inner, inner, names)
        | st.builds(_absolute, inner)
        | st.builds(_negative, inner)
        | st.tuples(inner, st.sampled_from(sorted(COMPARED)), inner, inner, inner).map(_choice)
    )


PARTS = st.recursive(st.sampled_from((A, B)) | NUMBER, _larger_ones, max_leaves=8)
SELECTIONS = st.tuples(PARTS, st.sampled_from(sorted(COMPARED)), PARTS, PARTS, PARTS).map(_choice)


def test_selections(runner: NumPy, effort: Effort) -> None:
    """The reference computes a choice without arithmetic, and its slopes."""
    effort.spend(lambda x: check(runner, x, "reference"), SELECTIONS, examples=60, share=0.05)


@pytest.mark.weekly
def test_compiled_selections(runner: NumPy, effort: Effort) -> None:
    """So does the core, which compiles each formula for seconds."""
    effort.spend(
        lambda x: check(runner, x, "auto"), SELECTIONS, examples=8, share=0.05, at_a_time=8
    )


def check(runner: NumPy, selection: Selection, impl: str) -> None:
    try:
        pair = Pair.from_formula("drawn", selection.text)
    except ValueError as error:  # its value does not depend on b, for instance
        if not is_announced(error):
            raise
        return
    a, b = FEATURES[:, None], FEATURES[None, :]
    one, zero = np.ones((9, 9)), np.zeros((9, 9))
    expected = selection.of(Chosen(a + 0 * b, one, zero), Chosen(b + 0 * a, zero, one))
    for dtype in ("float32", "float64"):
        q, k, w = (
            runner.tensor(x, dtype) for x in (FEATURES[:, None], FEATURES[:, None], np.ones(1))
        )
        if runner.name == "torch":
            q, k = q.requires_grad_(), k.requires_grad_()
        found = scores(q, k, score=Own(w, pair), impl=impl)
        np.testing.assert_array_equal(runner.numbers(found), expected.value)
        if runner.name == "torch":
            check_slopes(runner, found, (q, k), expected)


def check_slopes(runner: Any, found: Any, inputs: tuple[Any, Any], expected: Chosen) -> None:
    """Check the slopes of the sum of all scores whose slopes are known."""
    smooth = np.broadcast_to(expected.smooth, (9, 9))
    total = runner.torch.where(runner.torch.tensor(smooth), found, 0.0).sum()
    of_q, of_k = runner.torch.autograd.grad(
        total, inputs, materialize_grads=True, allow_unused=True
    )
    np.testing.assert_array_equal(of_q[:, 0], np.where(smooth, expected.of_a, 0.0).sum(1))
    np.testing.assert_array_equal(of_k[:, 0], np.where(smooth, expected.of_b, 0.0).sum(0))
