"""Distances of queries and keys of one width."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

from anyscore.ops import Array, Ops, accumulation
from anyscore.score.base import Init, Score, Shapes
from anyscore.score.factors import Factors
from anyscore.score.outer import Outer
from anyscore.score.pairs import ABSOLUTE, SQUARED
from anyscore.score.scales import number, scaled


@dataclass(frozen=True, eq=False)
class Gaussian(Score):
    """s = −‖q − k‖² / (2σ²), of d_q = d_k = d; σ > 0: a number or a tensor (...).

    Initialisation: σ = (2d)^¼, so the variance of the score is 1. Source: Nadaraya 1964 and Watson
    1964; with a Gaussian kernel their estimator is this attention.
    """

    sigma: Any = 1.0

    formula: ClassVar[str] = "−‖q − k‖² / 2σ²"
    shapes: ClassVar[Shapes] = {"sigma": ()}
    equal_widths: ClassVar[bool] = True

    @classmethod
    def parameters(cls, d_q: int, d_k: int, hidden: int) -> dict[str, Init | float]:
        """Return σ, learned, with the initial value (2d)^¼."""
        return {"sigma": Init((), value=(2 * d_k) ** 0.25)}

    def lower(self, xp: Ops, query: Array, key: Array) -> Factors:
        """Lower to squared differences: a = q, b = k, and the scale −1/(2σ²)."""
        sigma = number(xp, self.sigma, query)
        return scaled(xp, Factors(query, key, SQUARED), -0.5 / (sigma * sigma))


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
        """Return σ, learned, with the initial value √d."""
        return {"sigma": Init((), value=math.sqrt(d_k))}

    def lower(self, xp: Ops, query: Array, key: Array) -> Factors:
        """Lower to absolute differences: a = q, b = k, and the scale −1/σ."""
        sigma = number(xp, self.sigma, query)
        return scaled(xp, Factors(query, key, ABSOLUTE), -1 / sigma)


@dataclass(frozen=True, eq=False)
class Euclidean(Score):
    """s = −‖q − k‖ / σ, of d_q = d_k = d; σ > 0: a number or a tensor (...).

    At q = k the derivatives are 0.

    Initialisation: σ = √(2d − 4 Γ((d+1)/2)² / Γ(d/2)²), the standard deviation of the distance,
    about 1. Source: Rasmussen and Williams 2006 (Gaussian Processes for Machine Learning), eq.
    4.18: weights by the exponential kernel, which is Matérn's of ν = 1/2.
    """

    sigma: Any = 1.0

    formula: ClassVar[str] = "−‖q − k‖ / σ"
    shapes: ClassVar[Shapes] = {"sigma": ()}
    equal_widths: ClassVar[bool] = True

    @classmethod
    def parameters(cls, d_q: int, d_k: int, hidden: int) -> dict[str, Init | float]:
        """Return σ, learned, with the initial value above."""
        mean = math.exp(math.lgamma((d_k + 1) / 2) - math.lgamma(d_k / 2))
        return {"sigma": Init((), value=math.sqrt(2 * d_k - 4 * mean**2))}

    def lower(self, xp: Ops, query: Array, key: Array) -> Factors:
        """Lower to squared differences, the scale 1/σ², and −√ of the sum."""
        sigma = number(xp, self.sigma, query)
        f = Factors(query, key, SQUARED, outer=Outer("sqrt"))
        return scaled(xp, f, 1 / (sigma * sigma))


@dataclass(frozen=True, eq=False)
class StudentT(Score):
    """s = −(ν + 1)/2 · log(1 + ‖q − k‖² / (νσ²)), of d_q = d_k = d.

    ν > 0: a number. σ > 0: a number or a tensor (...).

    Weights fall with a power of the distance, not exponentially, so far keys keep weight. For ν → ∞
    the score is `Gaussian`.

    Initialisation: ν = √(2d), fixed, and σ = 1 (variance 1 from d = 8 on; 0.9 of 4, 0.54 of 1).
    Source: van der Maaten and Hinton 2008 (t-SNE), eq. 4, ν = 1; Xie et al. 2016 (DEC), eq. 1.
    """

    nu: Any = 1.0
    sigma: Any = 1.0

    formula: ClassVar[str] = "−(ν + 1)/2 · log(1 + ‖q − k‖² / νσ²)"
    shapes: ClassVar[Shapes] = {"nu": (), "sigma": ()}
    equal_widths: ClassVar[bool] = True
    number_fields: ClassVar[tuple[str, ...]] = ("nu",)

    @classmethod
    def parameters(cls, d_q: int, d_k: int, hidden: int) -> dict[str, Init | float]:
        """Return ν = √(2d), a number, and σ, learned, with the initial value 1."""
        return {"nu": math.sqrt(2 * d_k), "sigma": Init((), value=1.0)}

    def lower(self, xp: Ops, query: Array, key: Array) -> Factors:
        """Lower to squared differences, the scale 1/(νσ²), and −(ν + 1)/2 · log1p of the sum."""
        sigma, nu = number(xp, self.sigma, query), float(self.nu)
        f = Factors(query, key, SQUARED, outer=Outer("log1p", (nu + 1) / 2))
        return scaled(xp, f, 1 / (nu * sigma * sigma))


@dataclass(frozen=True, eq=False)
class Lorentz(Score):
    """s = −scale · arcosh(x̂₀ŷ₀ − x̂·ŷ), x = q/σ, y = k/σ, x̂ = (√(1 + ‖x‖²), x).

    arcosh(…) is the hyperbolic distance of the points above x and y on the hyperboloid. σ > 0 is
    the radius of curvature: a number or a tensor (...) of key heads. scale > 0: a number. d_q = d_k
    = d. At q = k the derivatives are 0.

    Initialisation: σ = 1, and scale = √((d + 2)/2), fixed (variance 1 within an eighth from d = 2
    on, 0.65 of 1). Source: Gulcehre et al. 2019 (Hyperbolic Attention Networks), section 3.2, with
    β = scale; the hyperboloid is from Nickel and Kiela 2018, section 3.1.
    """

    sigma: Any = 1.0
    scale: Any = 1.0

    formula: ClassVar[str] = "−β · arcosh(−⟨q̂, k̂⟩)"
    shapes: ClassVar[Shapes] = {"sigma": (), "scale": ()}
    equal_widths: ClassVar[bool] = True
    number_fields: ClassVar[tuple[str, ...]] = ("scale",)
    uses_key_heads: ClassVar[tuple[str, ...]] = ("sigma",)

    @classmethod
    def parameters(cls, d_q: int, d_k: int, hidden: int) -> dict[str, Init | float]:
        """Return σ, learned, with the initial value 1, and scale = √((d + 2)/2), a number."""
        return {"sigma": Init((), value=1.0), "scale": math.sqrt((d_k + 2) / 2)}

    def lower(self, xp: Ops, query: Array, key: Array) -> Factors:
        """Lower to ½ (‖x − y‖² − (x̂₀ − ŷ₀)²), and −scale · arcosh(1 + …) of the sum.

        The sum is the argument of arcosh less 1. From differences it loses the fewest digits.
        """
        sigma, width = number(xp, self.sigma, query), xp.shape(query)[-1]
        if not isinstance(sigma, Real):
            sigma = xp.reshape(sigma, (*xp.shape(sigma), 1, 1))
        a, b = _lifted(xp, query, sigma), _lifted(xp, key, sigma)
        signs = xp.where(xp.arange(width + 1, a) < width, 1.0, -1.0)
        signs = xp.tensor(xp.astype(signs, xp.dtype(a)), a)
        outer = Outer("arcosh", float(self.scale))
        return Factors(a, b, SQUARED, signs, 0.5, outer=outer)


def _lifted(xp: Ops, x: Array, sigma: Any) -> Array:
    """Return the points (y, √(1 + ‖y‖²)), y = x / σ, of the hyperboloid, in the dtype of sums."""
    x = xp.astype(x, accumulation(xp.dtype(x))) / sigma
    return xp.concat([x, xp.sqrt(1 + xp.sum(x * x, axis=-1, keepdims=True))], -1)
