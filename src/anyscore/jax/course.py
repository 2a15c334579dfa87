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


class DotProductAttention(course.DotProductAttention, Attention): ...


class AdditiveAttention(course.AdditiveAttention, Attention): ...


class MLPAttention(course.MLPAttention, AdditiveAttention): ...
