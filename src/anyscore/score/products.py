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
    """Dot product of a query and a key, without a scale.

        s(q, k) = qᵀk

    Queries and keys have one width, d_q = d_k = d. For independent entries of variance 1 the
    variance of the score is d, so `ScaledDot` divides by √d. The score has no parameters.

    Source: Luong et al. 2015, Effective Approaches to Attention-based Neural Machine Translation,
    section 3.1, "dot".

    >>> import numpy as np
    >>> from anyscore import Dot, scores
    >>> scores(np.array([[1.0, 2.0]]), np.array([[3.0, 4.0], [0.0, 1.0]]), score=Dot())
    array([[11.,  2.]])
    """

    formula: ClassVar[str] = "q·k"
    equal_widths: ClassVar[bool] = True

    def lower(self, xp: Ops, query: Array, key: Array) -> Factors:
        """Lower to products: a = q, b = k."""
        return Factors(query, key, PRODUCT)


@dataclass(frozen=True, eq=False)
class ScaledDot(Score):
    """Dot product divided by √d, the score of the Transformer and the default of `attention`.

        s(q, k) = scale · qᵀk

    Queries and keys have one width, d_q = d_k = d. With the default scale the variance of the
    score does not depend on d.

    Args:
        scale: a number, or a tensor (...) of leading dimensions, such as (heads,). By default
            1/√d.

    Source: Vaswani et al. 2017, Attention Is All You Need, eq. 1.

    >>> import numpy as np
    >>> from anyscore import ScaledDot, scores
    >>> query, keys = np.ones((1, 4)), np.array([[1.0] * 4, [2.0] * 4])
    >>> scores(query, keys, score=ScaledDot())              # qᵀk / 2
    array([[2., 4.]])
    >>> scores(query, keys, score=ScaledDot(scale=0.25))
    array([[1., 2.]])
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
    """Dot product through a learned matrix, for queries and keys of different widths.

        s(q, k) = scale · qᵀ W k

    The literature also calls it "general" or "multiplicative".

    Args:
        W: a tensor (..., d_q, d_k) in the dtype of the query.
        scale: a number, or a tensor (...) of leading dimensions. By default 1.

    Layers draw W from the uniform distribution of Glorot and Bengio 2010, eq. 16. They set scale =
    1/√d, with d the harmonic mean of the widths. The initial variance of the score is then 1.

    Source: Luong et al. 2015, Effective Approaches to Attention-based Neural Machine Translation,
    section 3.1, "general".

    >>> import numpy as np
    >>> from anyscore import Bilinear, scores
    >>> W = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 2.0]])    # (d_q, d_k) = (2, 3)
    >>> scores(np.array([[1.0, 1.0]]), np.array([[1.0, 5.0, 10.0]]), score=Bilinear(W))
    array([[21.]])
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
    """Cosine of the angle between query and key, divided by a temperature.

        s(q, k) = qᵀk / (‖q‖ ‖k‖ τ)

    Only directions count: a longer key gets no larger score. Queries and keys have one width, d_q
    = d_k = d. A zero vector scores 0, with gradient 0. Norms are computed in float32 or better.

    Args:
        tau: τ > 0, a number or a tensor (...) of leading dimensions. By default 1.

    Layers learn log τ and start at τ = 1/√d.

    Source: Graves et al. 2014, Neural Turing Machines, eq. 5 and 6, with β = 1/τ.

    >>> import numpy as np
    >>> from anyscore import Cosine, scores
    >>> keys = np.array([[5.0, 0.0], [0.0, 2.0], [-1.0, 0.0]])
    >>> scores(np.array([[2.0, 0.0]]), keys, score=Cosine())
    array([[ 1.,  0., -1.]])
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
    """Linear function of the query, of the key and of their product.

        s(q, k) = w_qᵀq + w_kᵀk + w_pᵀ(q ⊙ k) = wᵀ[q; k; q ⊙ k]

    Queries and keys have one width, d_q = d_k = d.

    Args:
        w_q: weights (..., d) of the query. They cancel in a softmax over the keys.
        w_k: weights (..., d) of the key.
        w_p: weights (..., d) of the elementwise product.

    All three are tensors in the dtype of the query. Layers draw them from a uniform distribution
    of variance 1/(3d).

    Source: Seo et al. 2017, Bidirectional Attention Flow for Machine Comprehension, section 2,
    item 4.

    >>> import numpy as np
    >>> from anyscore import Trilinear, scores
    >>> score = Trilinear(w_q=np.zeros(2), w_k=np.array([10.0, 0.0]), w_p=np.ones(2))
    >>> scores(np.array([[1.0, 2.0]]), np.array([[0.0, 3.0], [1.0, 3.0]]), score=score)
    array([[ 6., 17.]])
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
