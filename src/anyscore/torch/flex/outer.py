"""A function of the score in a score_mod as an outer function of the kernels.

    f(m · s + bias) = φ(x)        x = m · s + bias

The kernels know x. The function f becomes a formula of one number, which is compiled.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor
from torch.nn import functional

from anyscore.score import Outer
from anyscore.score.formula import functions
from anyscore.score.formula.tape import LONGEST
from anyscore.torch.flex.trace import Traced, functions_named, number_of


class NoFormula(Exception):
    """An operation is in no formula; the message names the operation."""


def outer_of(result: Traced, factor: float, more: float) -> tuple[Outer, Traced]:
    """Return factor · f + more as an outer function, and the argument x of result = f(x).

    x is the innermost part through which alone the result depends on the score and on positions.

    Raises:
        NoFormula: there is no such part, or f has another operation than formulas have.
    """
    parts = [*_inside(result)]
    if len(parts) > LONGEST:
        raise NoFormula(f"it has more than {LONGEST} operations")
    inner = next(x for x in parts if not _depends(result, x))
    if inner is result:
        raise NoFormula(f"it has {result}")
    try:
        made = Outer.from_formula("score_mod", lambda x: factor * _term(result, inner, x) + more)
    except ValueError as error:
        raise NoFormula(str(error)) from None
    return made, inner


def _inside(x: Traced) -> Iterator[Traced]:
    """Yield the parts of x that depend on the score, and x itself, inner ones first, once each."""
    seen: set[int] = set()
    waiting = [(x, False)]
    while waiting:
        part, is_ready = waiting.pop()
        if is_ready:
            yield part
        elif id(part) not in seen and "score" in part.depends:
            seen.add(id(part))
            waiting.append((part, True))
            waiting.extend((y, False) for y in part.inner)


def _depends(x: Traced, known: Traced) -> bool:
    """Return whether x depends on an argument other than through `known`."""
    seen: set[int] = set()
    waiting = [x]
    while waiting:
        part = waiting.pop()
        if part is known or id(part) in seen or not part.depends:
            continue
        seen.add(id(part))
        if part.name:
            return True
        waiting.extend(part.inner)
    return False


def _term(x: Any, known: Traced, value: Any) -> Any:
    """Return x in the terms of a formula, where `known` has the term `value`.

    Raises:
        NoFormula: x has an operation that is in no formula.
    """
    made: dict[int, Any] = {id(known): value}

    def term(y: Any) -> Any:
        if isinstance(y, Tensor):
            number = number_of(y)
            if number is None:
                raise NoFormula(f"it has a tensor {tuple(y.shape)} in a function of the score")
            return number
        if not isinstance(y, Traced):
            return y
        if id(y) not in made:
            if y.function not in _TERMS:
                raise NoFormula(f"it has {y}")
            kwargs = {name: term(z) for name, z in y.kwargs.items()}
            try:
                made[id(y)] = _TERMS[y.function](*map(term, y.args), **kwargs)
            except (TypeError, ArithmeticError) as error:
                raise NoFormula(f"it has {y}: {error}") from None
        return made[id(y)]

    return term(x)


def _clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    x = x if min is None else functions.where(x < min, min, x)
    return x if max is None else functions.where(x > max, max, x)


def _greater(x: Any, y: Any) -> Any:
    """Return the greater of x and y; of equal ones each has half of the slope, as in PyTorch."""
    return functions.where(x > y, x, functions.where(x < y, y, (x + y) / 2))


def _softplus(x: Any, beta: float = 1, threshold: float = 20) -> Any:
    return functions.where(beta * x > threshold, x, functions.softplus(beta * x) / beta)


def _gelu(x: Any, approximate: str = "none") -> Any:
    if approximate == "tanh":
        return x / 2 * (1 + functions.tanh(0.7978845608028654 * (x + 0.044715 * x**3)))
    return x / 2 * (1 + functions.erf(x * 0.7071067811865476))


def _leaky_relu(x: Any, negative_slope: float = 0.01, inplace: bool = False) -> Any:
    return functions.where(x > 0, x, negative_slope * x)


def _same(x: Any) -> Any:
    return x


_OPERATORS: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv,
    "truediv": operator.truediv, "true_divide": operator.truediv, "subtract": operator.sub,
    "multiply": operator.mul, "divide": operator.truediv, "neg": operator.neg,
    "negative": operator.neg, "pow": operator.pow, "gt": operator.gt, "ge": operator.ge,
    "lt": operator.lt, "le": operator.le, "pos": _same,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **functions.NAMES,
    "absolute": functions.NAMES["abs"], "square": lambda x: x * x, "reciprocal": lambda x: 1 / x,
    "rsqrt": lambda x: 1 / functions.sqrt(x), "clamp": _clamp, "clip": _clamp,
    "maximum": _greater, "minimum": lambda x, y: -_greater(-x, -y),
    "float": _same, "clone": _same, "contiguous": _same,
}  # fmt: skip
del _FUNCTIONS["softplus"]  # PyTorch's has more arguments
_TERMS: dict[Any, Callable[..., Any]] = {
    found: function
    for name, function in {**_OPERATORS, **_FUNCTIONS}.items()
    for found in functions_named(name)
} | {
    functional.softplus: _softplus, functional.gelu: _gelu, functional.leaky_relu: _leaky_relu,
    functional.relu: lambda x, inplace=False: functions.relu(x),
    functional.silu: lambda x, inplace=False: x * functions.sigmoid(x),
}  # fmt: skip
"""PyTorch's functions, and Python's operators → the same of terms."""
