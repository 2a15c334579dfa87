"""The masked softmax and the attention classes of *Dive into Deep Learning*."""

from __future__ import annotations

from typing import Any

from anyscore.backends.mxnet import as_np, known_shapes, wrap
from anyscore.backends.reference.definition import masked_softmax as _masked_softmax
from anyscore.call.lowering import combine
from anyscore.layers import course
from anyscore.layers.texts import with_texts
from anyscore.mxnet.attention import Attention
from anyscore.ops import Array, load
from anyscore.ops.checks import find_framework

_xp = load("mxnet")


@with_texts
def masked_softmax(X: Array, valid_lens: Any = None, *, mask: Any = None) -> Array:
    """
    {masked_softmax}

    >>> import mxnet as mx
    >>> masked_softmax(mx.nd.zeros((1, 2, 4)), [[1, 4]]).asnumpy()
    array([[[1.  , 0.  , 0.  , 0.  ],
            [0.25, 0.25, 0.25, 0.25]]], dtype=float32)
    """
    if find_framework(X=X) != "mxnet":
        raise TypeError(f"X is a {type(X).__name__}, expected an MXNet array.")
    with known_shapes():
        return wrap(_masked_softmax(_xp, as_np(X), combine(mask, valid_lens)), X)


@with_texts
class DotProductAttention(course.DotProductAttention, Attention):
    """
    {dot_product}

    >>> import mxnet as mx
    >>> from anyscore.mxnet import DotProductAttention
    >>> layer, keys = DotProductAttention(), mx.nd.ones((2, 10, 2))
    >>> layer.initialize()
    >>> values = mx.nd.arange(40).reshape((1, 10, 4)).repeat(2, axis=0)
    >>> print(layer(mx.nd.ones((2, 1, 2)), keys, values, valid_lens=[2, 6]).asnumpy()[:, 0])
    [[ 2.  3.  4.  5.]
     [10. 11. 12. 13.]]
    """


@with_texts
class AdditiveAttention(course.AdditiveAttention, Attention):
    """
    {additive}

    >>> import mxnet as mx
    >>> from anyscore.mxnet import AdditiveAttention
    >>> layer = AdditiveAttention(8, dropout=0.1)
    >>> layer.initialize()
    >>> layer(mx.nd.ones((2, 1, 20)), mx.nd.ones((2, 10, 2)), valid_lens=[2, 6]).shape
    (2, 1, 2)
    """


@with_texts
class MLPAttention(course.MLPAttention, AdditiveAttention):
    """
    {mlp}

    >>> import mxnet as mx
    >>> from anyscore.mxnet import MLPAttention
    >>> layer = MLPAttention(units=8, dropout=0.1)
    >>> layer.initialize()
    >>> layer(mx.nd.ones((2, 1, 20)), mx.nd.ones((2, 10, 2)), valid_lens=[2, 6]).shape
    (2, 1, 2)
    """
