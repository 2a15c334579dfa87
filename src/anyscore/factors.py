"""The one form that every score takes.

    s(q, k) = φ(scale · Σ_d weight_d · pair(a_d, b_d) + query_bias + key_bias)

with a = A(q) and b = B(k), of tokens alone.

A and B are cheap maps of single tokens; only `pair` costs queries × keys × width, and there are few
pairs. A score lowers itself to `Factors`; the reference and every kernel take nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from anyscore.ops import Array, Ops
from anyscore.outer import Outer


@dataclass(frozen=True)
class Pair:
    """An elementwise function of two features.

    name: what kernels know it by.
    value: (ops, a, b) → pair(a, b), in operations that the framework can differentiate.
    triton: the value and its partial derivatives as three `@triton.jit` functions of a and b, which
        PyTorch on a GPU needs for a pair that is not among ours; see docs/gpu.md.

    Raises ValueError: another pair has that name.
    """

    name: str
    value: Callable[[Ops, Array, Array], Array]
    triton: tuple[Any, Any, Any] | None = None

    def __post_init__(self) -> None:
        known = _KNOWN.setdefault(self.name, self)
        if _place(known.value) != _place(self.value):
            raise ValueError(
                f"there is a pair {self.name!r} already, of {'.'.join(_place(known.value))}: "
                "choose another name."
            )
        _KNOWN[self.name] = self  # the latest definition, as in a notebook


_KNOWN: dict[str, Pair] = {}


def _place(function: Any) -> tuple[str, str]:
    """Return the module and the name that a function is defined under."""
    return str(function.__module__), str(getattr(function, "__qualname__", function))


def pair_named(name: str) -> Pair:
    """Return the pair of a name, which is all that the operators of a framework take of it."""
    return _KNOWN[name]


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


@dataclass(frozen=True, eq=False)
class Factors:
    """A score of all queries and keys, before the sum over the width h is taken.

    a (..., T_q, h), b (..., T_k, h); pair; weight (..., h), or None for 1: leading dimensions, if
    any, are those of a (heads may have their own); scale, a number; query_bias (..., T_q) and
    key_bias (..., T_k), or None for 0; outer, φ, or None for the identity.
    """

    a: Array
    b: Array
    pair: Pair
    weight: Array | None = None
    scale: float = 1.0
    query_bias: Array | None = None
    key_bias: Array | None = None
    outer: Outer | None = None
