"""The masked softmax and the attention classes of *Dive into Deep Learning*."""

from __future__ import annotations

from typing import Any

from jax import Array

from anyscore.backends.reference.definition import masked_softmax as _masked_softmax
from anyscore.call.lowering import combine
from anyscore.jax.attention import Attention
from anyscore.jax.layer import as_jax
from anyscore.layers import course
from anyscore.layers.texts import with_texts
from anyscore.ops import load
from anyscore.ops.checks import find_framework

_xp = load("jax")


@with_texts
def masked_softmax(X: Array, valid_lens: Any = None, *, mask: Any = None) -> Array:
    """
    {masked_softmax}

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


@with_texts
class DotProductAttention(course.DotProductAttention, Attention):
    """
    {dot_product}

    >>> import jax.numpy as jnp
    >>> from anyscore.jax import DotProductAttention
    >>> layer, keys = DotProductAttention(), jnp.ones((2, 10, 2))
    >>> values = jnp.arange(40.0).reshape(1, 10, 4).repeat(2, axis=0)
    >>> layer.apply({}, jnp.ones((2, 1, 2)), keys, values, jnp.array([2, 6]))[:, 0]
    Array([[ 2.,  3.,  4.,  5.],
           [10., 11., 12., 13.]], dtype=float32)
    """


@with_texts
class AdditiveAttention(course.AdditiveAttention, Attention):
    """
    {additive}

    >>> import jax
    >>> import jax.numpy as jnp
    >>> from anyscore.jax import AdditiveAttention
    >>> layer, inputs = AdditiveAttention(8), (jnp.ones((2, 1, 20)), jnp.ones((2, 10, 2)))
    >>> params = layer.init(jax.random.key(0), *inputs)
    >>> layer.apply(params, *inputs, valid_lens=jnp.array([2, 6])).shape
    (2, 1, 2)
    """


@with_texts
class MLPAttention(course.MLPAttention, AdditiveAttention):
    """
    {mlp}

    >>> import jax
    >>> import jax.numpy as jnp
    >>> from anyscore.jax import MLPAttention
    >>> layer, inputs = MLPAttention(units=8), (jnp.ones((2, 1, 20)), jnp.ones((2, 10, 2)))
    >>> layer.apply(layer.init(jax.random.key(0), *inputs), *inputs).shape
    (2, 1, 2)
    """
