"""Scores of pairs from formulas, and the same attention in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from anyscore import Score
from anyscore.score.factors import Factors
from anyscore.score.pairs import Pair


@dataclass(frozen=True, eq=False)
class Own(Score):
    """s = Σ_d w_d pair(q_d, k_d), w (d,)."""

    w: Any
    pair: Pair

    formula: ClassVar[str] = "w·pair(q, k)"
    shapes: ClassVar[dict[str, tuple[str, ...]]] = {"w": ("d_q",)}
    equal_widths: ClassVar[bool] = True

    def lower(self, xp: Any, query: Any, key: Any) -> Factors:
        return Factors(query, key, self.pair, weight=self.w)


SOFTPLUS = "log(1 + exp(a + b))"
LEAKY = "where(a + b > 0, a + b, 0.2 * (a + b))"
EVERY = (
    "0.3 * sigmoid(a - b) + erf(a * b) + expm1(-abs(a - b)) + log1p(a**2) + cos(a) * sin(b)"
    " - tanh(b - 2 * a) / (1 + exp(-a)) + sqrt(1 + b**2) - log(2 + relu(a))"
    " + minimum(a, b) * maximum(0.5 * a, b) - sign(a) * b + where(a <= 0.5, a**3, 1 / (a + 1)**2)"
)
"""A formula with every function and operator."""


def draw(
    *lead: int, queries: int = 70, keys: int = 131, width: int = 11, scale: float = 1.0
) -> list[np.ndarray]:
    """Return query, key, value and weight in float64."""
    rng = np.random.default_rng(0)
    q, k = (scale * rng.normal(size=(*lead, n, width)) for n in (queries, keys))
    return [q, k, rng.normal(size=(*lead, keys, 5)), rng.normal(size=width)]


def written_out(
    pair: Callable[[Any, Any], Any], xs: list[np.ndarray], mask: np.ndarray | None = None
) -> np.ndarray:
    """Return attention by a pair that is a function of NumPy's arrays."""
    q, k, v, w = xs
    s = pair(q[..., :, None, :], k[..., None, :, :]) @ w
    s = s if mask is None else np.where(mask, s, -np.inf)
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ v
