"""Pairs: the elementwise functions of two features that scores sum, and the registry of all.

Kernels know a pair by its key. A pair of a formula runs in every kernel: see `Pair.from_formula`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from anyscore.ops import Array, Ops


@dataclass(frozen=True)
class Pair:
    """An elementwise function of two features.

    name: what kernels know it by.
    value: (ops, a, b) → pair(a, b), in operations that the framework can differentiate.
    triton: the value and its partial derivatives as three `@triton.jit` functions of a and b, which
        PyTorch on a GPU needs for a pair that is not among ours; see docs/gpu.md.

    key: what kernels know it by: the name, and of a formula its content too, so that another
        formula of the same name is another pair.

    Raises ValueError: another pair has that name.
    """

    name: str
    value: Callable[[Ops, Array, Array], Array]
    triton: tuple[Any, Any, Any] | None = None
    key: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        digest = getattr(self.value, "digest", None)
        object.__setattr__(self, "key", f"{self.name}@{digest[:32]}" if digest else self.name)
        known = _KNOWN.setdefault(self.key, self)
        if not digest and _place(known.value) != _place(self.value):
            raise ValueError(
                f"there is a pair {self.name!r} already, of {'.'.join(_place(known.value))}: "
                "choose another name."
            )
        _KNOWN[self.key] = self  # the latest definition, as in a notebook

    @property
    def is_formula(self) -> bool:
        """Return whether `from_formula` made the pair."""
        return self.key != self.name

    def __reduce__(self) -> Any:
        return Pair, (self.name, self.value, self.triton)  # which makes it known elsewhere too

    @classmethod
    def from_formula(cls, name: str, formula: str | Callable[[Any, Any], Any]) -> Pair:
        """Make a pair of a formula, which every implementation runs, with its derivatives.

            pair(a, b) = formula, of two features: numbers

        name: what `plan` and errors call it. formula: a text, such as `"softplus(a + b)"`, of
        numbers, a, b, pi, + − * / **, `where(a > b, …, …)` and the functions abs, cos, erf, exp,
        expm1, log, log1p, maximum, minimum, relu, sigmoid, sign, sin, softplus, sqrt and tanh; or a
        Python function of a and b that uses those of `anyscore.score.formula`, or NumPy's.

        Nothing is compiled before the first call (or `plan`) on a CPU, which takes some seconds,
        once for each formula, type of sums and machine; without a compiler the reference runs it.
        What overflows as written overflows here: softplus(x) and sigmoid(x) are safe for any x, and
        log(1 + exp(x)) is read as softplus(x). A formula is finite at a = b = 0, with both its
        derivatives. See docs/own_pair.md.

        Raises TypeError: `formula` is neither. ValueError: the formula is not of a and b alone, or
        has no derivative at 0.

        >>> from anyscore.score.pairs import Pair
        >>> Pair.from_formula("softplus", "log(1 + exp(a + b))").name
        'softplus'
        >>> Pair.from_formula("softplus", "log(1 + exp(a + c))")
        Traceback (most recent call last):
        ValueError: the formula 'log(1 + exp(a + c))' cannot be a pair: 'c' is no feature: the \
features are a and b.
        """
        from anyscore.score.formula import formula_of

        if not isinstance(name, str) or not name:
            raise TypeError(f"name is {name!r}, expected a text.")
        return cls(name, formula_of(formula))


_KNOWN: dict[str, Pair] = {}


def _place(function: Any) -> tuple[str, str]:
    """Return the module and the name that a function is defined under."""
    return str(function.__module__), str(getattr(function, "__qualname__", function))


def pair_named(key: str) -> Pair:
    """Return the pair of a key, which is all that the operators of a framework take of it.

    Raises ValueError: this process has made no such pair.
    """
    if key not in _KNOWN:
        raise ValueError(
            f"there is no pair {key!r} in this process: make it first, by Pair or "
            "Pair.from_formula."
        )
    return _KNOWN[key]


def _product(xp: Ops, a: Array, b: Array) -> Array:
    return a * b


def _tanh(xp: Ops, a: Array, b: Array) -> Array:
    return xp.tanh(a + b)


LEAKY_SLOPE = 0.2
"""The slope of LeakyReLU for negative arguments, in every kernel."""


def _leaky_relu(xp: Ops, a: Array, b: Array) -> Array:
    x = a + b
    return xp.where(x > 0, x, LEAKY_SLOPE * x)


def _absolute(xp: Ops, a: Array, b: Array) -> Array:
    return xp.abs(a - b)


def _squared(xp: Ops, a: Array, b: Array) -> Array:
    difference = a - b
    return difference * difference


PRODUCT = Pair("product", _product)
TANH = Pair("tanh", _tanh)
LEAKY_RELU = Pair("leaky_relu", _leaky_relu)
ABSOLUTE = Pair("absolute", _absolute)
SQUARED = Pair("squared", _squared)
