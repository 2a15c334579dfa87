"""Scores of pairs and outer functions from formulas, and the same attention in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from anyscore import Score
from anyscore.score.factors import Factors
from anyscore.score.outer import Outer
from anyscore.score.pairs import Pair


@dataclass(frozen=True, eq=False)
class Own(Score):
    """s = φ(Σ_d w_d pair(q_d, k_d)), w (d,)."""

    w: Any
    pair: Pair
    outer: Outer | None = None

    formula: ClassVar[str] = "φ(w·pair(q, k))"
    shapes: ClassVar[dict[str, tuple[str, ...]]] = {"w": ("d_q",)}
    equal_widths: ClassVar[bool] = True

    def lower(self, xp: Any, query: Any, key: Any) -> Factors:
        return Factors(query, key, self.pair, weight=self.w, outer=self.outer)


SOFTPLUS = "log(1 + exp(a + b))"
LEAKY = "where(a + b > 0, a + b, 0.2 * (a + b))"
EVERY = (
    "0.3 * sigmoid(a - b) + erf(a * b) + expm1(-abs(a - b)) + log1p(a**2) + cos(a) * sin(b)"
    " - tanh(b - 2 * a) / (1 + exp(-a)) + sqrt(1 + b**2) - log(2 + relu(a))"
    " + minimum(a, b) * maximum(0.5 * a, b) - sign(a) * b + where(a <= 0.5, a**3, 1 / (a + 1)**2)"
)
"""A formula with every function and operator."""
WAVE = "x * sigmoid(x) + 0.3 * sin(2 * x) + where(x > 0.5, (x - 0.5)**2, 0)"
"""A formula of an outer function."""


FAR = {
    "where(abs(a - b) < 1, 1, -1e9)": [1, 1, -1e9],
    "where(a > b, 1, -1e20)": [-1e20, -1e20, 1],
    "where(a > b, 3e38, -3e38)": [-3e38, -3e38, 3e38],
    "where(a > b, 0.001 * (a - b), 1e9 * (a - b))": [-0.5e9, -0.5e9, 0.002],
}
"""Choices of numbers of far sizes, and their values at a = 0 and b of `FAR_KEYS`."""
FAR_KEYS = [[0.5], [0.5], [-2.0]]
FAR_SLOPE = "where(a > b, 0.001 * (a - b), 1e9 * (a - b))", [1e9, 1e9, 0.001]
"""A formula, and its derivatives by a there."""


def wave(x: Any) -> Any:
    """Return the formula WAVE in NumPy."""
    return x / (1 + np.exp(-x)) + 0.3 * np.sin(2 * x) + np.where(x > 0.5, (x - 0.5) ** 2, 0)


def draw(
    *lead: int, queries: int = 70, keys: int = 131, width: int = 11, scale: float = 1.0
) -> list[np.ndarray]:
    """Return query, key, value and weight in float64."""
    rng = np.random.default_rng(0)
    q, k = (scale * rng.normal(size=(*lead, n, width)) for n in (queries, keys))
    return [q, k, rng.normal(size=(*lead, keys, 5)), rng.normal(size=width)]


def written_out(
    pair: Callable[[Any, Any], Any], xs: list[np.ndarray], mask: np.ndarray | None = None,
    outer: Callable[[Any], Any] = lambda x: x,
) -> np.ndarray:  # fmt: skip
    """Return attention by a pair and an outer function that are functions of NumPy's arrays."""
    q, k, v, w = xs
    s = outer(pair(q[..., :, None, :], k[..., None, :, :]) @ w)
    s = s if mask is None else np.where(mask, s, -np.inf)
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ v
