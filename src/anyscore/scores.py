"""The scoring functions: formula, shapes, initialisation and source, each lowered once.

A score is a small frozen class whose fields are its parameters, oriented as in the papers. Shapes:
query (..., T_q, d_q), key (..., T_k, d_k), score (..., T_q, T_k). A parameter may have leading
dimensions, which meet those of the query (of the key, for W_k and w_k): w_v (H, h), W_q (H, h, d_q)
and sigma (H,) give each of H heads its own. A projection given as None means that the tensor comes
projected. Scales (`sigma`, `tau`) are numbers or tensors of the shape of leading dimensions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

from anyscore import factors
from anyscore.factors import Factors
from anyscore.ops import Array, Ops, accumulation
from anyscore.score import Init, Score, Shapes, uniform

_TANH, _LEAKY_RELU = 0.394, 0.52  # mean squares, of a standard normal variable
_ADDITIVE: Shapes = {"W_q": ("h", "d_q"), "W_k": ("h", "d_k"), "w_v": ("h",)}


@dataclass(frozen=True, eq=False)
class Dot(Score):
    """s = qᵀk. The variance of the score is d. Source: Luong et al. 2015, section 3.1 ("dot")."""

    formula: ClassVar[str] = "q·k"
    equal_widths: ClassVar[bool] = True

    def lower(self, xp: Ops, query: Array, key: Array) -> Factors:
        return Factors(query, key, factors.PRODUCT)


@dataclass(frozen=True, eq=False)
class ScaledDot(Score):
    """s = scale · qᵀk, scale = 1/√d unless given (a number or a tensor).

    Source: Vaswani et al. 2017, eq. 1.
    """

    scale: Any = None

    formula: ClassVar[str] = "q·k / √d"
    shapes: ClassVar[Shapes] = {"scale": ()}
    equal_widths: ClassVar[bool] = True

    def lower(self, xp: Ops, query: Array, key: Array) -> Factors:
        scale = 1 / math.sqrt(max(xp.shape(query)[-1], 1)) if self.scale is None else self.scale
        return _scaled(xp, Factors(query, key, factors.PRODUCT), _number(xp, scale, query))


@dataclass(frozen=True, eq=False)
class Bilinear(Score):
    """s = scale · qᵀ W k, W (d_q, d_k), scale = 1 unless given: "general" or "multiplicative".

    Initialisation: Glorot & Bengio 2010, eq. 16, and in layers scale = 1/√d, without which the
    variance of the score were d. Source: Luong et al. 2015, 3.1 ("general").
    """

    W: Array
    scale: Any = None

    formula: ClassVar[str] = "q·W k"
    shapes: ClassVar[Shapes] = {"W": ("d_q", "d_k"), "scale": ()}

    @classmethod
    def parameters(cls, d_q: int, d_k: int, hidden: int) -> dict[str, Init | float]:
        d = 2 * d_q * d_k / (d_q + d_k)
        return {"W": uniform(d_q, d_k, variance=2 / (d_q + d_k)), "scale": 1 / math.sqrt(d)}

    def lower(self, xp: Ops, query: Array, key: Array) -> Factors:
        product = Factors(xp.matmul(query, self.W), key, factors.PRODUCT)
        scale = 1 if self.scale is None else self.scale
        return _scaled(xp, product, _number(xp, scale, query))


@dataclass(frozen=True, eq=False)
class Cosine(Score):
    """s = (q/‖q‖)ᵀ(k/‖k‖) / τ; a zero vector scores 0, with gradient 0.

    Norms are taken in float32 or better. Initialisation: τ = 1/√d.
    Source: Graves et al. 2014 (Neural Turing Machines), eq. 5 and 6, β = 1/τ.
    """

    tau: Any = 1.0

    formula: ClassVar[str] = "cos(q, k) / τ"
    shapes: ClassVar[Shapes] = {"tau": ()}
    equal_widths: ClassVar[bool] = True

    @classmethod
    def parameters(cls, d_q: int, d_k: int, hidden: int) -> dict[str, Init | float]:
        return {"tau": Init((), value=1 / math.sqrt(d_k))}

    def lower(self, xp: Ops, query: Array, key: Array) -> Factors:
        unit = Factors(_normalised(xp, query), _normalised(xp, key), factors.PRODUCT)
        return _scaled(xp, unit, 1 / _number(xp, self.tau, query))


@dataclass(frozen=True, eq=False)
class Trilinear(Score):
    """s = w_q·q + w_k·k + w_p·(q ⊙ k), each w (d,): wᵀ[q; k; q ⊙ k] in three parts.

    Initialisation: variance 1/(3d) each. Source: Seo et al. 2017 (BiDAF), section 2, item 4.
    """

    w_q: Array
    w_k: Array
    w_p: Array

    formula: ClassVar[str] = "w·[q; k; q⊙k]"
    shapes: ClassVar[Shapes] = dict.fromkeys(("w_q", "w_k", "w_p"), ("d_q",))
    equal_widths: ClassVar[bool] = True

    @classmethod
    def parameters(cls, d_q: int, d_k: int, hidden: int) -> dict[str, Init | float]:
        return {name: uniform(d_k, variance=1 / (3 * d_k)) for name in ("w_q", "w_k", "w_p")}

    def lower(self, xp: Ops, query: Array, key: Array) -> Factors:
        return Factors(
            query * self.w_p[..., None, :],
            key,
            factors.PRODUCT,
            query_bias=xp.matmul(query, self.w_q[..., None])[..., 0],
            key_bias=xp.matmul(key, self.w_k[..., None])[..., 0],
        )


@dataclass(frozen=True, eq=False)
class Gaussian(Score):
    """s = −‖q − k‖² / (2σ²).

    Initialisation: σ = (2d)^¼. Source: Nadaraya 1964 and Watson 1964 with a Gaussian kernel.
    """

    sigma: Any = 1.0

    formula: ClassVar[str] = "−‖q − k‖² / 2σ²"
    shapes: ClassVar[Shapes] = {"sigma": ()}
    equal_widths: ClassVar[bool] = True

    @classmethod
    def parameters(cls, d_q: int, d_k: int, hidden: int) -> dict[str, Init | float]:
        return {"sigma": Init((), value=(2 * d_k) ** 0.25)}

    def lower(self, xp: Ops, query: Array, key: Array) -> Factors:
        sigma = _number(xp, self.sigma, query)
        return _scaled(xp, Factors(query, key, factors.SQUARED), -0.5 / (sigma * sigma))


@dataclass(frozen=True, eq=False)
class Laplace(Score):
    """s = −‖q − k‖₁ / σ.

    Initialisation: σ = √d (variance 0.73). Source: Kim et al. 2019 (Attentive Neural Processes),
    section 3, "Laplace".
    """

    sigma: Any = 1.0

    formula: ClassVar[str] = "−‖q − k‖₁ / σ"
    shapes: ClassVar[Shapes] = {"sigma": ()}
    equal_widths: ClassVar[bool] = True

    @classmethod
    def parameters(cls, d_q: int, d_k: int, hidden: int) -> dict[str, Init | float]:
        return {"sigma": Init((), value=math.sqrt(d_k))}

    def lower(self, xp: Ops, query: Array, key: Array) -> Factors:
        sigma = _number(xp, self.sigma, query)
        return _scaled(xp, Factors(query, key, factors.ABSOLUTE), -1 / sigma)


@dataclass(frozen=True, eq=False)
class Additive(Score):
    """s = w_vᵀ tanh(W_q q + W_k k + bias), W_q (h, d_q), W_k (h, d_k), w_v (h,), bias (h,) or None.

    Initialisation: variance 1 of the argument of tanh. Source: Bahdanau et al. 2015, A.1.2.
    """

    W_q: Array | None
    W_k: Array | None
    w_v: Array
    bias: Array | None = None

    formula: ClassVar[str] = "w·tanh(W_q q + W_k k)"
    shapes: ClassVar[Shapes] = {
        "W_q": ("h", "d_q"),
        "W_k": ("h", "d_k"),
        "w_v": ("h",),
        "bias": ("h",),
    }

    @classmethod
    def parameters(cls, d_q: int, d_k: int, hidden: int) -> dict[str, Init | float]:
        return _hidden_layer(d_q, d_k, hidden, _TANH)

    def lower(self, xp: Ops, query: Array, key: Array) -> Factors:
        a = _project(xp, query, self.W_q)
        a = a if self.bias is None else a + self.bias[..., None, :]
        return Factors(a, _project(xp, key, self.W_k), factors.TANH, weight=self.w_v)


@dataclass(frozen=True, eq=False)
class Concat(Score):
    """s = w_vᵀ tanh(W [q; k] + bias), W (h, d_q + d_k), w_v (h,), bias (h,) or None.

    The additive score with W = [W_q, W_k], query first, and initialised alike.
    Source: Luong et al. 2015, section 3.1 ("concat").
    """

    W: Array
    w_v: Array
    bias: Array | None = None

    formula: ClassVar[str] = "w·tanh(W [q; k])"
    shapes: ClassVar[Shapes] = {
        "W": ("h", "d_q + d_k"),
        "w_v": ("h",),
        "bias": ("h",),
    }

    @classmethod
    def parameters(cls, d_q: int, d_k: int, hidden: int) -> dict[str, Init | float]:
        w_v = uniform(hidden, variance=1 / (hidden * _TANH))
        return {"W": uniform(hidden, d_q + d_k, variance=1 / (d_q + d_k)), "w_v": w_v}

    def lower(self, xp: Ops, query: Array, key: Array) -> Factors:
        d_q = xp.shape(query)[-1]
        W_q, W_k = self.W[..., :d_q], self.W[..., d_q:]
        return Additive(W_q, W_k, self.w_v, self.bias).lower(xp, query, key)


@dataclass(frozen=True, eq=False)
class GATv2(Score):
    """s = w_vᵀ LeakyReLU(W_q q + W_k k), slope 0.2; shapes and initialisation as `Additive`.

    Source: Brody et al. 2022 (How Attentive are Graph Attention Networks?), eq. 7.
    """

    W_q: Array | None
    W_k: Array | None
    w_v: Array

    formula: ClassVar[str] = "w·LeakyReLU(W_q q + W_k k)"
    shapes: ClassVar[Shapes] = {
        "W_q": ("h", "d_q"),
        "W_k": ("h", "d_k"),
        "w_v": ("h",),
    }

    @classmethod
    def parameters(cls, d_q: int, d_k: int, hidden: int) -> dict[str, Init | float]:
        return _hidden_layer(d_q, d_k, hidden, _LEAKY_RELU)

    def lower(self, xp: Ops, query: Array, key: Array) -> Factors:
        a, b = _project(xp, query, self.W_q), _project(xp, key, self.W_k)
        return Factors(a, b, factors.LEAKY_RELU, weight=self.w_v)


def _hidden_layer(d_q: int, d_k: int, hidden: int, square: float) -> dict[str, Init | float]:
    return {
        "W_q": uniform(hidden, d_q, variance=0.5 / d_q),
        "W_k": uniform(hidden, d_k, variance=0.5 / d_k),
        "w_v": uniform(hidden, variance=1 / (hidden * square)),
    }


def _project(xp: Ops, x: Array, W: Array | None) -> Array:
    return x if W is None else xp.matmul(x, xp.transpose(W))


def _number(xp: Ops, x: Any, like: Array) -> Any:
    """A scale in the dtype of sums; numbers as they are."""
    return x if isinstance(x, Real) else xp.astype(x, accumulation(xp.dtype(like)))


def _scaled(xp: Ops, f: Factors, scale: Any) -> Factors:
    """`f` with a scale that is a number, or, learned, a tensor folded into the weight."""
    if isinstance(scale, Real):
        return Factors(f.a, f.b, f.pair, scale=float(scale))
    lead = xp.shape(scale)
    weight, shape = xp.reshape(scale, (*lead, 1)), (*lead, xp.shape(f.a)[-1])
    return Factors(f.a, f.b, f.pair, weight=xp.broadcast_to(weight, shape))


def _normalised(xp: Ops, x: Array) -> Array:
    """x/‖x‖ along the last axis, 0 for 0. Divided by its largest entry first, no x overflows."""
    dtype = xp.dtype(x)
    x = xp.astype(x, accumulation(dtype))
    if xp.shape(x)[-1]:
        top = xp.stop_gradient(xp.max(xp.abs(x), axis=-1, keepdims=True))
        x = x / xp.where(top == 0, 1.0, top)
    square = xp.sum(x * x, axis=-1, keepdims=True)
    zero = square == 0
    unit = xp.where(zero, 0.0, x / xp.sqrt(xp.where(zero, 1.0, square)))
    return xp.astype(unit, dtype)
