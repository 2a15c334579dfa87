"""Distances of queries and keys of one width."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from anyscore import factors
from anyscore.factors import Factors
from anyscore.formulas.scale import number, scaled
from anyscore.ops import Array, Ops
from anyscore.score import Init, Score, Shapes


@dataclass(frozen=True, eq=False)
class Gaussian(Score):
    """s = −‖q − k‖² / (2σ²), of d_q = d_k = d; σ > 0: a number or a tensor (...).

    Initialisation: σ = (2d)^¼, for which the variance of the score is 1. Source: Nadaraya 1964 and
    Watson 1964, whose estimator is this attention, with a Gaussian kernel.
    """

    sigma: Any = 1.0

    formula: ClassVar[str] = "−‖q − k‖² / 2σ²"
    shapes: ClassVar[Shapes] = {"sigma": ()}
    equal_widths: ClassVar[bool] = True

    @classmethod
    def parameters(cls, d_q: int, d_k: int, hidden: int) -> dict[str, Init | float]:
        """Give σ, learned, with the initial value (2d)^¼."""
        return {"sigma": Init((), value=(2 * d_k) ** 0.25)}

    def lower(self, xp: Ops, query: Array, key: Array) -> Factors:
        """Lower to squared differences: a = q, b = k, and the scale −1/(2σ²)."""
        sigma = number(xp, self.sigma, query)
        return scaled(xp, Factors(query, key, factors.SQUARED), -0.5 / (sigma * sigma))


@dataclass(frozen=True, eq=False)
class Laplace(Score):
    """s = −‖q − k‖₁ / σ, of d_q = d_k = d; σ > 0: a number or a tensor (...).

    Initialisation: σ = √d (variance 0.73). Source: Kim et al. 2019 (Attentive Neural Processes),
    section 3, "Laplace".
    """

    sigma: Any = 1.0

    formula: ClassVar[str] = "−‖q − k‖₁ / σ"
    shapes: ClassVar[Shapes] = {"sigma": ()}
    equal_widths: ClassVar[bool] = True

    @classmethod
    def parameters(cls, d_q: int, d_k: int, hidden: int) -> dict[str, Init | float]:
        """Give σ, learned, with the initial value √d."""
        return {"sigma": Init((), value=math.sqrt(d_k))}

    def lower(self, xp: Ops, query: Array, key: Array) -> Factors:
        """Lower to absolute differences: a = q, b = k, and the scale −1/σ."""
        sigma = number(xp, self.sigma, query)
        return scaled(xp, Factors(query, key, factors.ABSOLUTE), -1 / sigma)
