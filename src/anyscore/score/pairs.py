"""Pairs: the elementwise functions of two features that scores sum, and their registry.

Kernels know a pair by its key. A pair of a formula runs in every kernel: see `Pair.from_formula`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from anyscore.ops import Array, Ops
from anyscore.ops.checks import brief


@dataclass(frozen=True)
class Pair:
    """Elementwise function of two features, which a score sums.

        s(q, k) = scale · Σ_d weight_d · pair(a_d, b_d) + …

    `Pair.from_formula` makes a pair that every implementation runs fused, with its derivatives.
    See the page own_pair of the documentation. `anyscore.score` has PRODUCT, TANH, LEAKY_RELU,
    ABSOLUTE and SQUARED.

    Args:
        name: its name in plans and errors.
        value: a function (ops, a, b) → pair(a, b), in operations that the framework can
            differentiate.
        triton: the value and its partial derivatives as three `@triton.jit` functions of a and b;
            None by default. PyTorch on a GPU needs them for a pair that is neither built in nor a
            formula.

    The attribute `key` is the identity of the pair for kernels: the name, and for a formula its
    content too. Another formula of the same name is therefore another pair.

    Raises:
        TypeError: The name is no text, or `value` no function.
        ValueError: Another pair has that name.

    >>> import numpy as np
    >>> from anyscore import Pair
    >>> from anyscore.ops import load
    >>> near = Pair.from_formula("near", "1 / (1 + (a - b) ** 2)")
    >>> near.value(load("numpy"), np.array([1.0, 3.0]), np.array([1.0, 1.0]))
    array([1. , 0.2])
    """

    name: str
    value: Callable[[Ops, Array, Array], Array]
    triton: tuple[Any, Any, Any] | None = None
    key: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise TypeError(f"name is {brief(self.name)}, expected a text.")
        if not callable(self.value):
            raise TypeError(f"value is {brief(self.value)}, expected a function (ops, a, b).")
        if self.triton is not None and not (
            isinstance(self.triton, tuple) and len(self.triton) == 3
        ):
            raise TypeError(f"triton is {brief(self.triton)}, expected three functions or None.")
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
        return Pair, (self.name, self.value, self.triton)  # registers the pair when unpickled

    @classmethod
    def from_formula(cls, name: str, formula: str | Callable[[Any, Any], Any]) -> Pair:
        """Return a pair from a formula; every implementation runs it, with its derivatives.

            pair(a, b) = formula, of two features: numbers

        A text may use numbers, a, b, pi, + − * / ** and `where(a > b, …, …)`. Its functions are
        `abs`, `cos`, `erf`, `exp`, `expm1`, `log`, `log1p`, `maximum`, `minimum`, `relu`,
        `sigmoid`, `sign`, `sin`, `softplus`, `sqrt` and `tanh`.
        A Python function may use the functions of `anyscore.score.formula`, or NumPy's of the same
        names.

        The first call (or `plan`) on a CPU compiles the formula. Compiling takes some seconds,
        once for each formula, accumulation dtype and machine. Without a compiler the reference
        runs the formula. A formula overflows as it is written. `softplus(x)` and `sigmoid(x)` are
        safe for any x. `log(1 + exp(x))` is read as `softplus(x)`. The formula and both derivatives
        must be finite at a = b = 0. See the page own_pair of the documentation.

        Args:
            name: the name in plans and errors.
            formula: a text, such as `"softplus(a + b)"`, or a Python function of a and b.

        Returns:
            The pair.

        Raises:
            TypeError: `formula` is neither a text nor a function.
            ValueError: The formula uses other names than a and b, or has no derivative at 0.

        >>> from anyscore import Pair
        >>> Pair.from_formula("softplus", "log(1 + exp(a + b))").name
        'softplus'
        >>> Pair.from_formula("softplus", "log(1 + exp(a + c))")
        Traceback (most recent call last):
        ValueError: the formula 'log(1 + exp(a + c))' cannot be a pair: 'c' is unknown: the \
        formula is of a and b.
        """
        from anyscore.score.formula import formula_of

        return cls(name, formula_of(formula))


_KNOWN: dict[str, Pair] = {}


def _place(function: Any) -> tuple[str, str]:
    """Return the module and the qualified name of a function."""
    return str(getattr(function, "__module__", None)), str(
        getattr(function, "__qualname__", function)
    )


def pair_named(key: str) -> Pair:
    """Return the pair of a key; operators of a framework take the key in place of the pair.

    Raises:
        ValueError: this process has made no such pair.
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
SEPARABLE_TANH = Pair("separable_tanh", _tanh)
"""TANH for kernels that may compute it as products of rows; impl="separable" puts it in place."""
LEAKY_RELU = Pair("leaky_relu", _leaky_relu)
ABSOLUTE = Pair("absolute", _absolute)
SQUARED = Pair("squared", _squared)
