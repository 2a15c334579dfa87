"""Scores with a hidden layer over query and key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from anyscore.ops import Array, Ops
from anyscore.score.base import Init, Projection, Score, Shapes, uniform
from anyscore.score.factors import Factors
from anyscore.score.pairs import LEAKY_RELU, LEAKY_SLOPE, TANH
from anyscore.score.scales import number, scaled

_TANH, _LEAKY_RELU = 0.394, 0.52  # mean squares for a standard normal argument


@dataclass(frozen=True, eq=False)
class Additive(Score):
    """Additive score of Bahdanau: a hidden layer of tanh over projected query and key.

        s(q, k) = scale · w_vᵀ tanh(W_q q + W_k k + bias)

    Queries and keys may have different widths. Each of the h hidden units is bounded, so one large
    feature cannot dominate the score.

    Args:
        W_q: a tensor (..., h, d_q); None if the queries are already projected to width h.
        W_k: a tensor (..., h, d_k), with leading dimensions of the keys; None if the keys are
            already projected.
        w_v: weights (..., h) of the hidden units.
        bias: a tensor (..., h), added to the argument of tanh; None for no bias.
        scale: a number, or a tensor (...) of leading dimensions. None for 1.

    Tensors are in the dtype of the query. Layers draw W_q, W_k and w_v from uniform distributions.
    The argument of tanh and the score then have variance 1.

    Source: Bahdanau et al. 2015, Neural Machine Translation by Jointly Learning to Align and
    Translate, appendix A.1.2.

    >>> import numpy as np
    >>> from anyscore import Additive, scores
    >>> score = Additive(None, None, w_v=np.array([1.0]))
    >>> scores(np.zeros((1, 1)), np.array([[0.5], [50.0], [-50.0]]), score=score).round(2)
    array([[ 0.46,  1.  , -1.  ]])
    >>> W_q, W_k = np.ones((8, 2)), np.ones((8, 5))         # widths d_q = 2, d_k = 5, h = 8
    >>> scores(np.ones((3, 2)), np.ones((4, 5)), score=Additive(W_q, W_k, np.ones(8))).shape
    (3, 4)
    """

    W_q: Array | None
    W_k: Array | None
    w_v: Array
    bias: Array | None = None
    scale: Any = None

    formula: ClassVar[str] = "w·tanh(W_q q + W_k k)"
    shapes: ClassVar[Shapes] = {
        "W_q": ("h", "d_q"),
        "W_k": ("h", "d_k"),
        "w_v": ("h",),
        "bias": ("h",),
        "scale": (),
    }
    linears: ClassVar[tuple[str, ...]] = ("W_q", "W_k")

    @classmethod
    def parameters(cls, d_q: int, d_k: int, hidden: int) -> dict[str, Init | float]:
        """Return W_q, W_k and w_v, uniform."""
        return _hidden_layer(d_q, d_k, hidden, _TANH)

    def lower(self, xp: Ops, query: Array, key: Array) -> Factors:
        """Lower to tanh: a = W_q q + bias, b = W_k k, weight w_v, and the scale."""
        a = _project(xp, query, self.W_q)
        a = a if self.bias is None else a + self.bias[..., None, :]
        f = Factors(a, _project(xp, key, self.W_k), TANH, weight=self.w_v)
        return f if self.scale is None else scaled(xp, f, number(xp, self.scale, query))


@dataclass(frozen=True, eq=False)
class Concat(Score):
    """Additive score of Luong: one matrix for the concatenated query and key.

        s(q, k) = scale · w_vᵀ tanh(W [q; k] + bias)

    The score equals `Additive` with W = [W_q, W_k], query first. Initial values are the same too.

    Args:
        W: a tensor (..., h, d_q + d_k).
        w_v: weights (..., h) of the hidden units.
        bias: a tensor (..., h), added to the argument of tanh; None for no bias.
        scale: a number, or a tensor (...) of leading dimensions. None for 1.

    Tensors are in the dtype of the query. With heads, keys need as many heads as queries.

    Source: Luong et al. 2015, Effective Approaches to Attention-based Neural Machine Translation,
    section 3.1, "concat".

    >>> import numpy as np
    >>> from anyscore import Additive, Concat, scores
    >>> rng = np.random.default_rng(0)
    >>> W, w_v, query, keys = (rng.normal(size=n) for n in ((8, 5), (8,), (1, 2), (4, 3)))
    >>> together = scores(query, keys, score=Concat(W, w_v))
    >>> np.allclose(together, scores(query, keys, score=Additive(W[:, :2], W[:, 2:], w_v)))
    True
    """

    W: Array
    w_v: Array
    bias: Array | None = None
    scale: Any = None

    formula: ClassVar[str] = "w·tanh(W [q; k])"
    shapes: ClassVar[Shapes] = {
        "W": ("h", "d_q + d_k"),
        "w_v": ("h",),
        "bias": ("h",),
        "scale": (),
    }
    uses_key_heads: ClassVar[tuple[str, ...]] = ("W",)

    @classmethod
    def parameters(cls, d_q: int, d_k: int, hidden: int) -> dict[str, Init | float]:
        """Return W and w_v, uniform."""
        w_v = uniform(hidden, variance=1 / (hidden * _TANH))
        return {"W": uniform(hidden, d_q + d_k, variance=1 / (d_q + d_k)), "w_v": w_v}

    def lower(self, xp: Ops, query: Array, key: Array) -> Factors:
        """Lower as the additive score with the two parts of W."""
        d_q = xp.shape(query)[-1]
        W_q, W_k = self.W[..., :d_q], self.W[..., d_q:]
        return Additive(W_q, W_k, self.w_v, self.bias, self.scale).lower(xp, query, key)


@dataclass(frozen=True, eq=False)
class GATv2(Score):
    """Additive score of graph attention, with LeakyReLU in place of tanh.

        s(q, k) = w_vᵀ LeakyReLU(W_q q + W_k k)

    LeakyReLU(x) is x for x > 0, else negative_slope · x.

    Args:
        W_q: a tensor (..., h, d_q); None if the queries are already projected to width h.
        W_k: a tensor (..., h, d_k), with leading dimensions of the keys; None if the keys are
            already projected.
        w_v: weights (..., h) of the hidden units.
        negative_slope: a number, or a tensor (...) of leading dimensions. By default 0.2.

    Tensors are in the dtype of the query. Layers draw W_q, W_k and w_v as for `Additive`. A slope
    other than 0.2 takes w_v and slopes of as many heads as the keys have, or of one.

    Source: Brody et al. 2022, How Attentive are Graph Attention Networks?, eq. 7.

    >>> import numpy as np
    >>> from anyscore import GATv2, scores
    >>> query, keys = np.zeros((1, 1)), np.array([[2.0], [-2.0]])
    >>> scores(query, keys, score=GATv2(None, None, w_v=np.array([1.0])))
    array([[ 2. , -0.4]])
    """

    W_q: Array | None
    W_k: Array | None
    w_v: Array
    negative_slope: Any = LEAKY_SLOPE

    formula: ClassVar[str] = "w·LeakyReLU(W_q q + W_k k)"
    shapes: ClassVar[Shapes] = {
        "W_q": ("h", "d_q"),
        "W_k": ("h", "d_k"),
        "w_v": ("h",),
        "negative_slope": (),
    }
    linears: ClassVar[tuple[str, ...]] = ("W_q", "W_k")

    @classmethod
    def parameters(cls, d_q: int, d_k: int, hidden: int) -> dict[str, Init | float]:
        """Return W_q, W_k and w_v, uniform."""
        return _hidden_layer(d_q, d_k, hidden, _LEAKY_RELU)

    def lower(self, xp: Ops, query: Array, key: Array) -> Factors:
        """Lower to LeakyReLU: a = W_q q, b = W_k k, weight w_v; biases for slopes other than 0.2.

        Raises:
            ValueError: weights or slopes have more heads than the keys.
        """
        a, b = _project(xp, query, self.W_q), _project(xp, key, self.W_k)
        f = Factors(a, b, LEAKY_RELU, weight=self.w_v)
        slope = number(xp, self.negative_slope, query)
        if type(slope) is float and slope == LEAKY_SLOPE:
            return f
        # LeakyReLU of this slope is r · LeakyReLU of the kernels' slope + (1 − r) · identity.
        if type(slope) is not float:
            slope = xp.reshape(slope, (*xp.shape(slope), 1))
        w = number(xp, self.w_v, query)
        weight = (1 - slope) / (1 - LEAKY_SLOPE) * w
        rest = (w - weight)[..., None]
        of_keys, of_slopes = xp.shape(b)[-3:-2], xp.shape(rest)[-3:-2]
        if 1 not in (*of_keys, *of_slopes) and of_keys and of_slopes and of_keys != of_slopes:
            raise ValueError(
                f"GATv2 with a slope other than {LEAKY_SLOPE} has w_v or slopes of {of_slopes[0]} "
                f"heads, expected as many key heads or 1, got {of_keys[0]}: share w_v and the "
                "slope."
            )
        query_bias, key_bias = (xp.matmul(number(xp, x, query), rest)[..., 0] for x in (a, b))
        return Factors(
            a, b, f.pair, weight, query_bias=query_bias, key_bias=key_bias, key_weight=rest
        )


def _hidden_layer(d_q: int, d_k: int, hidden: int, square: float) -> dict[str, Init | float]:
    return {
        "W_q": uniform(hidden, d_q, variance=0.5 / d_q),
        "W_k": uniform(hidden, d_k, variance=0.5 / d_k),
        "w_v": uniform(hidden, variance=1 / (hidden * square)),
    }


def _project(xp: Ops, x: Array, W: Array | None) -> Array:
    if isinstance(W, Projection):
        return W.call(x)
    return x if W is None else xp.matmul(x, xp.transpose(W))
