"""Products: the scores that matrix units compute."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from anyscore.ops import Array, Ops, accumulation
from anyscore.score.base import Init, Projection, Score, Shapes, uniform
from anyscore.score.factors import Factors
from anyscore.score.pairs import PRODUCT
from anyscore.score.scales import number, scaled


@dataclass(frozen=True, eq=False)
class Dot(Score):
    """s = qᵀk, of d_q = d_k = d.

    The variance of the score is d. Source: Luong et al. 2015, section 3.1, "dot".
    """

    formula: ClassVar[str] = "q·k"
    equal_widths: ClassVar[bool] = True

    def lower(self, xp: Ops, query: Array, key: Array) -> Factors:
        """Lower to products: a = q, b = k."""
        return Factors(query, key, PRODUCT)


@dataclass(frozen=True, eq=False)
class ScaledDot(Score):
    """s = scale · qᵀk, of d_q = d_k = d; scale = 1/√d unless given, a number or a tensor (...).

    The variance of the score is 1. Source: Vaswani et al. 2017, eq. 1.
    """

    scale: Any = None

    formula: ClassVar[str] = "q·k / √d"
    shapes: ClassVar[Shapes] = {"scale": ()}
    equal_widths: ClassVar[bool] = True

    def lower(self, xp: Ops, query: Array, key: Array) -> Factors:
        """Lower to products: a = q, b = k, and the scale."""
        scale = 1 / math.sqrt(max(xp.shape(query)[-1], 1)) if self.scale is None else self.scale
        return scaled(xp, Factors(query, key, PRODUCT), number(xp, scale, query))


@dataclass(frozen=True, eq=False)
class Bilinear(Score):
    """s = scale · qᵀ W k, W (d_q, d_k), scale = 1 unless given: "general" or "multiplicative".

    Initialisation: W as in Glorot & Bengio 2010, eq. 16; in layers scale = 1/√d, with d the
    harmonic mean of the widths. Without this scale the variance of the score would be d. Source:
    Luong et al. 2015, section 3.1, "general".
    """

    W: Array
    scale: Any = None

    formula: ClassVar[str] = "q·W k"
    shapes: ClassVar[Shapes] = {"W": ("d_q", "d_k"), "scale": ()}
    linears: ClassVar[tuple[str, ...]] = ("W",)

    @classmethod
    def parameters(cls, d_q: int, d_k: int, hidden: int) -> dict[str, Init | float]:
        """Return W, uniform, and the fixed scale."""
        d = 2 * d_q * d_k / (d_q + d_k)
        return {"W": uniform(d_q, d_k, variance=2 / (d_q + d_k)), "scale": 1 / math.sqrt(d)}

    def lower(self, xp: Ops, query: Array, key: Array) -> Factors:
        """Lower to products: a = Wᵀq, b = k, and the scale; a `Projection` W projects the keys."""
        if isinstance(self.W, Projection):
            product = Factors(query, self.W.call(key), PRODUCT)
        else:
            product = Factors(xp.matmul(query, self.W), key, PRODUCT)
        scale = 1 if self.scale is None else self.scale
        return scaled(xp, product, number(xp, scale, query))


@dataclass(frozen=True, eq=False)
class Cosine(Score):
    """s = (q/‖q‖)ᵀ(k/‖k‖) / τ, of d_q = d_k = d; a zero vector scores 0, with gradient 0.

    τ > 0: a number or a tensor (...). Norms are computed in float32 or better. Initialisation: τ =
    1/√d. Source: Graves et al. 2014 (Neural Turing Machines), eq. 5 and 6, β = 1/τ.
    """

    tau: Any = 1.0

    formula: ClassVar[str] = "cos(q, k) / τ"
    shapes: ClassVar[Shapes] = {"tau": ()}
    equal_widths: ClassVar[bool] = True

    @classmethod
    def parameters(cls, d_q: int, d_k: int, hidden: int) -> dict[str, Init | float]:
        """Return τ, learned, with the initial value 1/√d."""
        return {"tau": Init((), value=1 / math.sqrt(d_k))}

    def lower(self, xp: Ops, query: Array, key: Array) -> Factors:
        """Lower to products: a = q/‖q‖, b = k/‖k‖, and the scale 1/τ."""
        unit = Factors(_normalised(xp, query), _normalised(xp, key), PRODUCT)
        return scaled(xp, unit, 1 / number(xp, self.tau, query))


@dataclass(frozen=True, eq=False)
class Trilinear(Score):
    """s = w_q·q + w_k·k + w_p·(q ⊙ k), each w (d,): wᵀ[q; k; q ⊙ k] in three parts.

    Initialisation: uniform with variance 1/(3d) each. Source: Seo et al. 2017 (BiDAF), section 2,
    item 4.
    """

    w_q: Array
    w_k: Array
    w_p: Array

    formula: ClassVar[str] = "w·[q; k; q⊙k]"
    shapes: ClassVar[Shapes] = dict.fromkeys(("w_q", "w_k", "w_p"), ("d_q",))
    equal_widths: ClassVar[bool] = True

    @classmethod
    def parameters(cls, d_q: int, d_k: int, hidden: int) -> dict[str, Init | float]:
        """Return w_q, w_k and w_p, uniform."""
        return {name: uniform(d_k, variance=1 / (3 * d_k)) for name in ("w_q", "w_k", "w_p")}

    def lower(self, xp: Ops, query: Array, key: Array) -> Factors:
        """Lower to products: a = w_p ⊙ q, b = k, and the biases w_q·q and w_k·k."""
        return Factors(
            query * self.w_p[..., None, :],
            key,
            PRODUCT,
            query_bias=xp.matmul(query, self.w_q[..., None])[..., 0],
            key_bias=xp.matmul(key, self.w_k[..., None])[..., 0],
        )


def _normalised(xp: Ops, x: Array) -> Array:
    """Return x divided by its norm along the last axis; 0 for a zero vector.

    x is divided by its largest entry first, so that no square overflows.
    """
    dtype = xp.dtype(x)
    x = xp.astype(x, accumulation(dtype))
    if xp.shape(x)[-1]:
        top = xp.stop_gradient(xp.max(xp.abs(x), axis=-1, keepdims=True))
        x = x / xp.where(top == 0, 1.0, top)
    square = xp.sum(x * x, axis=-1, keepdims=True)
    zero = square == 0
    unit = xp.where(zero, 0.0, x / xp.sqrt(xp.where(zero, 1.0, square)))
    return xp.astype(unit, dtype)
