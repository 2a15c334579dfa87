"""The benchmark's scores are defined twice: in plain PyTorch, and for anyscore."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from anyscore import (
    Additive,
    Euclidean,
    GATv2,
    Gaussian,
    Laplace,
    Lorentz,
    ScaledDot,
    Score,
    StudentT,
)
from anyscore.ops import Array, Ops
from anyscore.score.factors import Factors
from anyscore.score.pairs import Pair

# Mean squares of functions of x, where x is the sum of two standard normal variables or, for tanh,
# one of them.
_TANH, _LEAKY_RELU, _SOFTPLUS = 0.394, 1.04, 1.38


@dataclass(frozen=True, eq=False)
class OwnPair(Score):
    """s = Σ_d w_d pair(q_d + k_d), the pair a formula; w (d,)."""

    w: Any
    pair: str

    formula: ClassVar[str] = "w·pair(q + k)"
    shapes: ClassVar[dict[str, tuple[str, ...]]] = {"w": ("d_q",)}
    equal_widths: ClassVar[bool] = True

    def lower(self, xp: Ops, query: Array, key: Array) -> Factors:
        return Factors(query, key, own_pair(self.pair), weight=self.w)


@cache
def own_pair(formula: str) -> Pair:
    """Make the pair of a formula, once."""
    return Pair.from_formula("own", formula)


SOFTPLUS, LEAKY_RELU = "log(1 + exp(a + b))", "where(a + b > 0, a + b, 0.2 * (a + b))"


@dataclass(frozen=True)
class Formula:
    """A score as the benchmark sees it.

    scores: (q, k, w) → (..., T_q, T_k) in plain PyTorch: eager PyTorch's call, the right answer in
        float64.
    score: w → the score for `anyscore.attention`; queries and keys come projected.
    learned: whether w is a tensor (H,) with a gradient; else w is a number.
    weight: width → standard deviation of w, or w itself.
    pair: the function of q + k in the sum over features; None if the score is no such sum.
    """

    scores: Callable[[Tensor, Tensor, Tensor], Tensor]
    score: Callable[[Tensor], Score]
    learned: bool
    weight: Callable[[int], float]
    pair: Callable[[Tensor], Tensor] | None = None


def _weighted(
    pair: Callable[[Tensor], Tensor], score: Callable[[Tensor], Score], mean_square: float
) -> Formula:
    """Σ_d w_d pair(q_d + k_d)."""

    def scores(q: Tensor, k: Tensor, w: Tensor) -> Tensor:
        return pair(q.unsqueeze(-2) + k.unsqueeze(-3)) @ w

    return Formula(scores, score, True, lambda h: 1 / math.sqrt(h * mean_square), pair)


def _of(distances: Callable[[Tensor, Tensor], Tensor], *then: Any) -> Formula:
    """A function of broadcast distances and of w."""
    of_distance, score, weight = then

    def scores(q: Tensor, k: Tensor, w: Tensor) -> Tensor:
        x: Tensor = of_distance(distances(q, k), w)
        return x

    return Formula(scores, score, False, weight)


def _absolute(q: Tensor, k: Tensor) -> Tensor:
    return (q.unsqueeze(-2) - k.unsqueeze(-3)).abs().sum(-1)


def _squared(q: Tensor, k: Tensor) -> Tensor:
    return (q.unsqueeze(-2) - k.unsqueeze(-3)).square().sum(-1)


def _lorentz(q: Tensor, k: Tensor) -> Tensor:
    """The cosh of hyperbolic distances, in the usual form without a broadcast."""
    q_0, k_0 = ((1 + x.square().sum(-1)).sqrt() for x in (q, k))
    return q_0.unsqueeze(-1) * k_0.unsqueeze(-2) - q @ k.mT


def _products(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT


FORMULAS = {
    "additive": _weighted(torch.tanh, lambda w: Additive(None, None, w), _TANH),
    "gatv2": _weighted(lambda x: F.leaky_relu(x, 0.2), lambda w: GATv2(None, None, w), _LEAKY_RELU),
    "laplace": _of(
        _absolute,
        lambda x, w: x * -w,
        lambda w: Laplace(1 / float(w)),
        lambda h: 1 / math.sqrt(h),
    ),
    "gaussian": _of(
        _squared,
        lambda x, w: x * -w,
        lambda w: Gaussian(math.sqrt(0.5 / float(w))),
        lambda h: 0.5 / math.sqrt(2 * h),
    ),
    "euclidean": _of(
        _squared,
        lambda x, w: x.sqrt() * -w,
        lambda w: Euclidean(1 / float(w)),
        lambda h: 1.0,
    ),
    "student_t": _of(
        _squared,
        lambda x, w: -torch.log1p(x * w),
        lambda w: StudentT(1.0, 1 / math.sqrt(float(w))),
        lambda h: 1 / (2 * h),
    ),
    "lorentz": _of(
        _lorentz,
        lambda x, w: -w * torch.acosh(x),
        lambda w: Lorentz(1.0, float(w)),
        lambda h: math.sqrt((h + 2) / 2),
    ),
    "scaled_dot": _of(
        _products, lambda x, w: x * w, lambda w: ScaledDot(float(w)), lambda h: 1 / math.sqrt(h)
    ),
    "softplus": _weighted(F.softplus, lambda w: OwnPair(w, SOFTPLUS), _SOFTPLUS),
}
"""The scores by name; softplus is a custom pair. Every other score has the pair, and so the cost,
of one of these."""
DOT = "scaled_dot"
