"""Names of *Dive into Deep Learning*: its masked softmax, and its classes of two scores."""

from __future__ import annotations

from typing import Any

from jax import Array

from anyscore.backends.reference.definition import masked_softmax as _masked_softmax
from anyscore.call.lowering import combine
from anyscore.jax.attention import Attention
from anyscore.jax.layer import as_jax
from anyscore.ops import load
from anyscore.ops.checks import find_framework

_xp = load("jax")


def masked_softmax(X: Array, valid_lens: Any = None, *, mask: Any = None) -> Array:
    """Take the softmax over the last axis of X (..., queries, keys), of the attended keys alone.

    X: floating point. valid_lens: (batch,) or (batch, queries), see `anyscore.Lengths`. mask: see
    `anyscore.masks`. Returns weights of the shape and dtype of X; 0 in a row that attends nothing.

    Raises TypeError, ValueError: X is no such array, or the mask does not fit it.

    >>> import jax.numpy as jnp
    >>> masked_softmax(jnp.zeros((1, 2, 4)), jnp.array([[1, 4]]))
    Array([[[1.  , 0.  , 0.  , 0.  ],
            [0.25, 0.25, 0.25, 0.25]]], dtype=float32)
    """
    X = as_jax(X)
    if find_framework(X=X) != "jax":
        raise TypeError(f"X is a {type(X).__name__}, expected a JAX array.")
    softmax: Array = _masked_softmax(_xp, X, combine(mask, valid_lens))
    return softmax


class DotProductAttention(Attention):
    """Scaled dot-product attention, as *Dive into Deep Learning* calls it.

    options: as of `Attention`.
    """

    def __init__(self, dropout: float = 0.0, **options: Any) -> None:
        super().__init__("scaled_dot", dropout=dropout, **options)


class AdditiveAttention(Attention):
    """Additive attention, as *Dive into Deep Learning* calls it.

    num_hiddens: width of the hidden layer. query_size, key_size: widths of queries and keys;
    those that `init` is shown if left out. dropout, bias, options: as of `Attention`.
    """

    def __init__(
        self,
        num_hiddens: int,
        dropout: float = 0.0,
        *,
        query_size: int | None = None,
        key_size: int | None = None,
        bias: bool = False,
        **options: Any,
    ) -> None:
        sizes: dict[str, Any] = {"hidden": num_hiddens, "d_q": query_size, "d_k": key_size}
        super().__init__("additive", dropout=dropout, bias=bias, **sizes, **options)


class MLPAttention(AdditiveAttention):
    """Additive attention under its earlier name, by its formula: vᵀ tanh(W_k k + W_q q).

    units: width of the hidden layer. dropout, options: as of `AdditiveAttention`.
    """

    def __init__(self, units: int, dropout: float = 0.0, **options: Any) -> None:
        super().__init__(units, dropout, **options)
