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
    """Gaussian kernel: nearer keys get more weight.

        s(q, k) = −‖q − k‖² / (2σ²)

    With this score attention is the Nadaraya-Watson estimator. Queries and keys have one width,
    d_q = d_k = d.

    Args:
        sigma: the bandwidth σ > 0 in units of the distance; a number or a tensor (...) of leading
            dimensions. By default 1.

    Layers learn log σ and start at σ = (2d)^¼. The initial variance of the score is then 1.

    Source: Nadaraya 1964, On Estimating Regression; Watson 1964, Smooth Regression Analysis.

    >>> import numpy as np
    >>> from anyscore import Gaussian, attention
    >>> x, y = np.array([[0.0], [1.0], [3.0]]), np.array([[0.0], [10.0], [90.0]])
    >>> found = attention(np.array([[1.0]]), x, y, score=Gaussian(0.5), return_weights=True)
    >>> found.weights.round(3), found.output.round(2)       # the nearest key, x = 1, dominates
    (array([[0.119, 0.881, 0.   ]]), array([[8.83]]))
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
    """Laplace kernel: minus the sum of absolute differences.

        s(q, k) = −‖q − k‖₁ / σ

    Queries and keys have one width, d_q = d_k = d. One outlying feature counts less than in
    `Gaussian`, which squares it.

    Args:
        sigma: σ > 0 in units of the distance; a number or a tensor (...) of leading dimensions. By
            default 1.

    Layers learn log σ and start at σ = √d. The initial variance of the score is then 0.73.

    Source: Kim et al. 2019, Attentive Neural Processes, section 3, "Laplace".

    >>> import numpy as np
    >>> from anyscore import Laplace, scores
    >>> scores(np.zeros((1, 2)), np.array([[3.0, 4.0], [1.0, 0.0]]), score=Laplace())
    array([[-7., -1.]])
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
    """Minus the Euclidean distance.

        s(q, k) = −‖q − k‖ / σ

    The weights are those of the exponential kernel, the Matérn kernel of ν = 1/2. Queries and keys
    have one width, d_q = d_k = d. At q = k the derivatives are 0.

    Args:
        sigma: σ > 0 in units of the distance; a number or a tensor (...) of leading dimensions. By
            default 1.

    Layers learn log σ and start at σ = √(2d − 4 Γ((d+1)/2)² / Γ(d/2)²), about 1. The initial
    variance of the score is then 1.

    Source: Rasmussen and Williams 2006, Gaussian Processes for Machine Learning, eq. 4.18.

    >>> import numpy as np
    >>> from anyscore import Euclidean, scores
    >>> scores(np.zeros((1, 2)), np.array([[3.0, 4.0], [1.0, 0.0]]), score=Euclidean())
    array([[-5., -1.]])
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
    """Student's t kernel: weights fall with a power of the distance, so far keys keep weight.

        s(q, k) = −(ν + 1)/2 · log(1 + ‖q − k‖² / (νσ²))

    Queries and keys have one width, d_q = d_k = d. For ν → ∞ the score is `Gaussian`.

    Args:
        nu: ν > 0, the degrees of freedom; a number. By default 1, the Cauchy distribution.
        sigma: σ > 0 in units of the distance; a number or a tensor (...) of leading dimensions. By
            default 1.

    Layers fix ν = √(2d), learn log σ and start at σ = 1. The initial variance of the score is then
    1 from d = 8 on; 0.9 for d = 4, and 0.54 for d = 1.

    Sources: van der Maaten and Hinton 2008, Visualizing Data using t-SNE, eq. 4, with ν = 1; Xie
    et al. 2016, Unsupervised Deep Embedding for Clustering Analysis, eq. 1.

    >>> import numpy as np
    >>> from anyscore import Gaussian, StudentT, scores
    >>> query, keys = np.zeros((1, 1)), np.array([[0.0], [1.0], [3.0]])
    >>> np.exp(scores(query, keys, score=StudentT())).round(3)
    array([[1. , 0.5, 0.1]])
    >>> np.exp(scores(query, keys, score=Gaussian())).round(3)
    array([[1.   , 0.607, 0.011]])
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
    """Minus the hyperbolic distance, for keys that form a tree.

        s(q, k) = −scale · arcosh(√(1 + ‖x‖²) √(1 + ‖y‖²) − xᵀy)        x = q/σ,  y = k/σ

    arcosh(…) is the hyperbolic distance of the points above x and y on the hyperboloid. Queries
    and keys have one width, d_q = d_k = d. At q = k the derivatives are 0.

    Args:
        sigma: σ > 0, the radius of curvature in units of queries and keys; a number, or a tensor
            (...) of key heads. By default 1.
        scale: a number > 0. By default 1.

    Layers learn log σ, start at σ = 1 and fix scale = √((d + 2)/2). The initial variance of the
    score is then within an eighth of 1 from d = 2 on, and 0.65 for d = 1.

    Sources: Gulcehre et al. 2019, Hyperbolic Attention Networks, section 3.2, with β = scale;
    Nickel and Kiela 2018, Learning Continuous Hierarchies in the Lorentz Model, section 3.1.

    >>> import numpy as np
    >>> from anyscore import Lorentz, scores
    >>> keys = np.array([[1.0], [10.0], [100.0]])           # distances grow like logarithms
    >>> scores(np.zeros((1, 1)), keys, score=Lorentz()).round(2)
    array([[-0.88, -3.  , -5.3 ]])
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
