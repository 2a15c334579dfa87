"""A score_mod as a scale, biases, a softcap or another outer function, and masks.

    score_mod(s) = φ(m · s + bias) + bias_after, −∞ where masked,   φ(x) = c · tanh x, or a formula

A tree is taken apart from its result to the score. Each operation on the way has one argument that
depends on the score.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from anyscore.score import Outer
from anyscore.torch.flex.outer import NoFormula, outer_of
from anyscore.torch.flex.trace import Traced, functions_named, number_of

_ADD = functions_named("add")
_SUB = functions_named("sub", "subtract")
_MUL = functions_named("mul", "multiply")
_DIV = functions_named("truediv", "div", "divide", "true_divide")
_NEG = functions_named("neg", "negative")
_TANH = functions_named("tanh")
_WHERE = functions_named("where")
_FILL = functions_named("masked_fill")
_SAME = functions_named("float", "contiguous", "clone")


@dataclass
class Modification:
    """The parts of a score_mod, in the order of `anyscore.attention`.

    factor: m, a number. factors: traced positions that multiply the score beside it. biases:
    (sign, traced or number) added before the outer function. softcap: c; 0 for none. outer: another
    outer function, or None. after: the same as biases, added after it. conditions: traced booleans,
    all of which an attended pair has. by_softcap: whether a tanh is a softcap, not a formula.
    """

    factor: float = 1.0
    factors: list[Any] = field(default_factory=list)
    biases: list[tuple[float, Any]] = field(default_factory=list)
    softcap: float = 0.0
    outer: Outer | None = None
    after: list[tuple[float, Any]] = field(default_factory=list)
    conditions: list[Any] = field(default_factory=list)
    by_softcap: bool = True

    @property
    def is_inside(self) -> bool:
        """Return whether an outer function was found, inside of which other parts are."""
        return bool(self.softcap) or self.outer is not None


class NoModification(Exception):
    """A score_mod has another form; the message names the part."""


def modification(result: Any) -> Modification:
    """Return the modification of a traced result.

    Raises:
        NoModification: the form is another one.
    """
    try:
        return _taken_apart(result, Modification())
    except NoModification as reason:  # a tanh may be part of a formula
        try:
            return _taken_apart(result, Modification(by_softcap=False))
        except NoModification:
            raise reason from None


def _taken_apart(result: Any, made: Modification) -> Modification:
    x: Any = result
    while not _is_score(x):
        if not _of_score(x):
            raise NoModification(
                f"its result {x} does not depend on the score: add it to the score"
            )
        try:
            x = _step(made, x)
        except NoModification as reason:
            x = _outer(made, x, reason)
    return made


def _of_score(x: Any) -> bool:
    return isinstance(x, Traced) and "score" in x.depends


def _is_score(x: Any) -> bool:
    return isinstance(x, Traced) and x.name == "score"


def _step(made: Modification, x: Traced) -> Traced:
    """Note the outermost operation of x, and return its argument that depends on the score."""
    function, args = x.function, x.args
    inner = [y for y in args if _of_score(y)]
    if len(inner) != 1 or any(_of_score(y) for y in x.kwargs.values()):
        raise NoModification(f"{x} reads the score more than once")
    y: Traced = inner[0]
    if function in _SAME and not x.kwargs:
        return y
    if _is_tanh(function) and not x.kwargs and made.by_softcap:
        return _capped(made, x, y)
    if (function in _WHERE or function in _FILL) and not x.kwargs:
        return _masked(made, x, y)
    if x.kwargs or len(args) != (1 if function in _NEG else 2):
        raise NoModification(f"it has {x}")
    if function in _NEG:
        _scale(made, -1.0)
        return y
    other = args[1] if args[0] is y else args[0]
    if function in _ADD:
        made.biases.append((_sign(made), other))
    elif function in _SUB and args[0] is y:
        made.biases.append((-_sign(made), other))
    elif function in _SUB:
        made.biases.append((_sign(made), other))
        _scale(made, -1.0)
    elif function in _MUL:
        _multiply(made, x, other)
    elif function in _DIV and args[0] is y:
        number = number_of(other)
        if not number:
            raise NoModification(f"it divides by no number in {x}: multiply by the inverse")
        _scale(made, 1 / number)
    else:
        raise NoModification(f"it has {x}")
    return y


def _is_tanh(function: Any) -> bool:
    """Return whether a function is tanh; attention-gym's approximation is tanh on a CPU."""
    return function in _TANH or getattr(function, "_qualified_op_name", "") == "approx::tanh"


def _sign(made: Modification) -> float:
    """Return the factor of a bias that is added here."""
    if made.factors:
        raise NoModification("a factor of positions multiplies a bias: add the bias afterwards")
    return made.factor


def _scale(made: Modification, number: float) -> None:
    made.factor *= number
    if not math.isfinite(made.factor):
        raise NoModification(f"a factor of the score is {made.factor}")


def _multiply(made: Modification, x: Traced, other: Any) -> None:
    number = number_of(other)
    if number is not None:
        _scale(made, number)
    elif isinstance(other, (Traced, Tensor)):
        made.factors.append(other)
    else:
        raise NoModification(f"it has {x}")


def _capped(made: Modification, x: Traced, y: Traced) -> Traced:
    """Note m · tanh(y): a softcap m of the scores m · y."""
    cap = abs(made.factor)
    if made.is_inside or made.factors or not 1e-30 <= cap <= 1e30:
        raise NoModification(f"it has {x} inside of another function: one softcap fits")
    made.after, made.biases, made.softcap = made.biases, [], cap
    return y


def _outer(made: Modification, x: Traced, reason: NoModification) -> Traced:
    """Note φ of x = φ(y) as a formula, and return y; else raise the reason why x is no step."""
    if made.is_inside or made.factors or not made.factor:
        raise reason
    try:
        numbers = [sign * bias for sign, bias in made.biases if isinstance(bias, (int, float))]
        made.outer, y = outer_of(x, made.factor, math.fsum(numbers))
    except NoFormula:
        raise reason from None
    made.after = [term for term in made.biases if not isinstance(term[1], (int, float))]
    made.factor, made.biases = 1.0, []
    return y


def _masked(made: Modification, x: Traced, y: Traced) -> Traced:
    """Note a condition, False where the score is −∞."""
    if x.function in _FILL:
        _, condition, filled = x.args
        keep = False
    elif x.function is torch.Tensor.where:  # score.where(condition, other)
        _, condition, filled = x.args
        keep = True
    else:
        condition, first, second = x.args
        keep = first is y
        filled = second if keep else first
    low = number_of(filled)
    if _of_score(condition):
        raise NoModification(f"the condition of {x} depends on the score")
    if low is None or low * made.factor != -math.inf or made.is_inside or made.factors:
        raise NoModification(f"{x} puts {filled} in place of the score: -inf as the last step fits")
    made.conditions.append(condition if keep else Traced("", torch.logical_not, (condition,)))
    return y
