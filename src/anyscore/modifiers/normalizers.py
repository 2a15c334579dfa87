"""Normalizers turn scores into weights: the softmax, and three alternatives.

    softmax    w_j = e^s_j / Σ_l e^s_l
    sigmoid    w_j = 1 / (1 + e^−(s_j + β))        β = −log n, where n keys are attended
    sparsemax  w_j = max(s_j − τ, 0)               τ such that Σ_j w_j = 1
    entmax15   w_j = max(s_j / 2 − τ, 0)²          likewise

each over the attended keys. Masked keys have weight 0, and so has a row without attended keys.
With sparsemax and entmax15 scores far below the largest have weight 0 too.

The set of entries with weight determines the formula of τ. Bisection finds this set without
derivatives. τ then follows from the entries in the set, so derivatives of every order are exact.

Sources:

- Ramapuram et al. 2024, Theory, Analysis, and Best Practices for Sigmoid Self-Attention.
- Martins & Astudillo 2016, From Softmax to Sparsemax.
- Peters, Niculae & Martins 2019, Sparse Sequence-to-Sequence Models: bisection and entmax15.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, TypeAlias

from anyscore.masks.lowered_edges import LoweredEdges
from anyscore.ops import Array, Ops
from anyscore.ops.checks import brief, is_finite, suggest
from anyscore.ops.pytrees import Restored, register_pytrees, tree


@tree
@dataclass(frozen=True)
class Sigmoid(Restored):
    """Sigmoid as a normalizer: each weight depends on its own score alone.

        w_j = 1 / (1 + e^−(s_j + β))

    With the default β, scores of 0 have weights with a sum of about 1 at any length, and padding
    has no effect. The paper takes one β for all queries, −log of the length of the sequence.

    Args:
        bias: β, a finite number. By default None, −log n for a query with n attended keys.

    Raises:
        TypeError, ValueError: The bias is not a finite number.

    Source: Ramapuram et al. 2024, Theory, Analysis, and Best Practices for Sigmoid Self-Attention.

    >>> import numpy as np
    >>> from anyscore import Sigmoid, attention
    >>> x = np.zeros((1, 4))                                # one query, four keys, scores 0
    >>> attention(x, np.zeros((4, 4)), np.ones((4, 1)), normalizer="sigmoid")       # 4 · 1/(1 + 4)
    array([[0.8]])
    >>> attention(x, np.zeros((4, 4)), np.ones((4, 1)), normalizer=Sigmoid(0.0))    # 4 · 1/2
    array([[2.]])
    """

    static: ClassVar[tuple[str, ...]] = ("bias",)
    bias: float | None = None

    def __post_init__(self) -> None:
        register_pytrees()
        if self.bias is None:
            return
        if isinstance(self.bias, bool) or not isinstance(self.bias, Real):
            raise TypeError(f"bias must be a number, or None for −log n, got {brief(self.bias)}.")
        if not is_finite(self.bias):
            raise ValueError(f"bias must be finite, got {brief(self.bias)}.")
        object.__setattr__(self, "bias", float(self.bias))  # files take no NumPy numbers


Normalizer: TypeAlias = str | Sigmoid
NORMALIZERS = "softmax", "sigmoid", "sparsemax", "entmax15"
POWERS = {"sparsemax": 1, "entmax15": 2}
"""The power in the formulas of `sparse`."""


def as_normalizer(x: Any) -> Normalizer:
    """Return a normalizer: `Sigmoid()` for "sigmoid", any other name and a `Sigmoid` unchanged.

    Raises:
        TypeError, ValueError: x is no normalizer.
    """
    if isinstance(x, Sigmoid):
        return x
    if not isinstance(x, str):
        names = ", ".join(map(repr, NORMALIZERS))
        raise TypeError(f"normalizer must be one of {names}, or a Sigmoid(bias), got {brief(x)}.")
    if x not in NORMALIZERS:
        hint = suggest(x, NORMALIZERS, "no name is like it. ")
        raise ValueError(f"unknown normalizer {x!r}: {hint}Known: {', '.join(NORMALIZERS)}.")
    return Sigmoid() if x == "sigmoid" else x


def check_normalizer(x: Any, *, sink: Any = None, return_lse: bool = False) -> None:
    """Check a normalizer, and its support of a sink and of the log-sum-exp.

    Raises:
        TypeError, ValueError: x is no normalizer; or x is not the softmax, with a sink or
            return_lse.
    """
    normalizer = as_normalizer(x)
    if normalizer == "softmax":
        return
    name = "sigmoid" if isinstance(normalizer, Sigmoid) else normalizer
    if return_lse:
        raise ValueError(
            f"return_lse is for normalizer='softmax': {name} takes no log-sum-exp of the scores. "
            "Leave it out, or use log_sum_exp."
        )
    if sink is not None and sink is not False:
        why = (
            "weights of the sigmoid need not sum to 1 without one"
            if name == "sigmoid"
            else f"{name} has no sum of exponentials that a sink were a term of"
        )
        raise ValueError(f"sink is for normalizer='softmax': {why}. Leave it out.")


def is_shift_invariant(normalizer: Normalizer) -> bool:
    """Return whether weights stay the same when one number is added to all scores of a query."""
    return not isinstance(normalizer, Sigmoid)


class LastAxis:
    """Reductions of scores (..., T_q, T_k) over the keys of each query."""

    def __init__(self, xp: Ops) -> None:
        self.xp = xp

    def sum(self, x: Array) -> Array:
        """Return the sums (..., T_q) of x, an array of the shape of the scores."""
        return self.xp.sum(x, axis=-1)

    def max(self, x: Array) -> Array:
        """Return the maxima (..., T_q), −∞ for a query without scores."""
        if not self.xp.shape(x)[-1]:
            return self.xp.sum(x, axis=-1) - math.inf
        return self.xp.max(x, axis=-1)

    def align_with_scores(self, x: Array) -> Array:
        """Return x (..., T_q) in a shape that broadcasts against the scores."""
        return x[..., None]

    def count_attended(self, s: Array, mask: Array | None) -> Array:
        """Return the number of attended keys of each query, (..., T_q), in the dtype of s."""
        xp = self.xp
        attended = xp.where(s == s, 1.0, 1.0)
        if mask is not None:
            attended = xp.where(mask, attended, 0.0)
        return xp.astype(xp.sum(attended, axis=-1), xp.dtype(s))


Rows: TypeAlias = LastAxis | LoweredEdges
"""The layout of scores: a matrix, or one number for each edge."""


def normalize(
    xp: Ops, normalizer: Normalizer, s: Array, mask: Array | None, rows: Rows | None = None
) -> Array:
    """Return the weights of scores s, −∞ where masked.

    mask: boolean, or None. rows: see `softmax`.
    """
    if isinstance(normalizer, str) and normalizer in POWERS:
        return sparse(xp, s, POWERS[normalizer])
    return softmax_or_sigmoid(xp, normalizer, s, mask, rows)[0]


def softmax_or_sigmoid(
    xp: Ops, normalizer: Normalizer, s: Array, mask: Array | None, rows: Rows | None = None
) -> tuple[Array, Array]:
    """Return the weights of scores s, −∞ where masked, and statistics (..., 2, T_q)."""
    if isinstance(normalizer, Sigmoid):
        return sigmoid(xp, s, mask, normalizer.bias, rows)
    return softmax(xp, s, mask, rows)


def softmax(xp: Ops, s: Array, mask: Array | None, rows: Rows | None = None) -> tuple[Array, Array]:
    """Return the weights of scores s, and the statistics (..., 2, T_q) of each query, m and l.

        m_i = max_j s_ij     l_i = log Σ_j e^(s_ij − m_i)     weights_ij = e^((s_ij − m_i) − l_i)

    m + l is the log-sum-exp. A single number for the sum would lose l to rounding if m is large. In
    float32 the log-sum-exp of four scores of −1e9 equals the log-sum-exp of one. m has no
    derivative, l has all of them. A row without entries has weights of 0, m = −∞ and l = 0.

    s: scores, −∞ where masked. rows: the layout of the scores; None for (..., T_q, T_k).
    """
    rows = LastAxis(xp) if rows is None else rows
    top = _finite(xp, rows.max(s))
    e = xp.exp(s - rows.align_with_scores(top))
    if mask is not None:
        e = xp.where(mask, e, 0.0)
    total = rows.sum(e)
    empty = total == 0
    total = xp.where(empty, 1.0, total)
    stats = stats_of(xp, xp.where(empty, -math.inf, top), xp.log(total))
    return e / rows.align_with_scores(total), stats


def stats_of(xp: Ops, most: Array, log_sum: Array) -> Array:
    """Return the statistics (..., 2, T_q) from m and l, each (..., T_q)."""
    return xp.concat([most[..., None, :], log_sum[..., None, :]], -2)


def sigmoid(
    xp: Ops, s: Array, mask: Array | None, bias: float | None, rows: Rows | None = None
) -> tuple[Array, Array]:
    """Return the weights 1 / (1 + e^−(s + β)), and statistics (..., 2, T_q): −β, and 0.

    s: scores, −∞ where masked. bias: see `Sigmoid`. rows: see `softmax`.
    """
    rows = LastAxis(xp) if rows is None else rows
    n = rows.count_attended(s, mask)
    shift = xp.log(xp.maximum(n, 1.0)) if bias is None else 0 * n - bias
    weights = logistic(xp, s - rows.align_with_scores(shift))
    weights = weights if mask is None else xp.where(mask, weights, 0.0)
    return weights, stats_of(xp, shift, 0 * shift)


def logistic(xp: Ops, x: Array) -> Array:
    """Return 1 / (1 + e^−x), with derivatives at every number and at ±∞."""
    x = xp.where(x > _LARGE, _LARGE, x)
    # A softmax of x and 0: subtracting their maximum from both changes nothing.
    top = xp.stop_gradient(xp.maximum(x, 0.0))
    e = xp.exp(x - top)
    return e / (e + xp.exp(-top))


_LARGE = 1e4
"""A number whose sigmoid rounds to 1 in every dtype."""


def sparse(xp: Ops, s: Array, power: int) -> Array:
    """Return the weights max(s / power − τ, 0)^power with sum 1, 0 where s is −∞; see `POWERS`.

    k entries have weight; m is their mean, and v the sum of their squared deviations. Then
    τ = m − 1 / k for power 1 and τ = m − √((1 − v) / k) for power 2.
    """
    rows = LastAxis(xp)
    z = (s - rows.align_with_scores(_finite(xp, rows.max(s)))) / power
    fixed = xp.stop_gradient(z)
    tau = threshold(xp, fixed, power)
    has_weight = xp.logical_not(fixed <= tau)  # true of NaN, which so reaches its whole row
    k = xp.sum(xp.astype(has_weight, xp.dtype(z)), axis=-1, keepdims=True)
    k = xp.maximum(k, 1.0)
    z = xp.where(has_weight, z, 0.0)
    mean = xp.sum(z, axis=-1, keepdims=True) / k
    if power == 1:
        tau = mean - 1 / k
    else:
        deviations = xp.where(has_weight, z - mean, 0.0)
        tau = mean - xp.sqrt((1 - xp.sum(deviations**2, axis=-1, keepdims=True)) / k)
    weights = xp.where(has_weight, (z - tau) ** power, 0.0)
    return xp.where(s == -math.inf, 0.0, weights)  # also in a row of NaN


def threshold(xp: Ops, z: Array, power: int) -> Array:
    """Return τ (..., 1) such that Σ_j max(z_j − τ, 0)^power = 1, by bisection.

    z: without derivatives, with the maximum 0 in each row, −∞ where masked. Entries within rounding
    of τ may count as having weight or not; the difference is below rounding.
    """
    low = xp.sum(0 * xp.where(z == -math.inf, 0.0, z), axis=-1, keepdims=True) - 1
    width = 1.0
    for _ in range(24 if xp.dtype(z) == "float32" else 53):
        width /= 2
        middle = low + width
        total = xp.sum(xp.maximum(z - middle, 0.0) ** power, axis=-1, keepdims=True)
        low = xp.where(total >= 1, middle, low)
    return low


def _finite(xp: Ops, top: Array) -> Array:
    """Return the maxima without derivatives; 0 for a row without entries."""
    top = xp.stop_gradient(top)
    return xp.where(top == -math.inf, 0.0, top)
