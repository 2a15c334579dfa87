"""Names of *Dive into Deep Learning*: its masked softmax, and its classes of two scores."""

from __future__ import annotations

from typing import Any

import keras

from anyscore.backends.reference.definition import masked_softmax as _masked_softmax
from anyscore.call.lowering import combine
from anyscore.keras.attention import Attention
from anyscore.keras.layer import register, xp
from anyscore.keras.options import split


def masked_softmax(X: Any, valid_lens: Any = None, *, mask: Any = None) -> Any:
    """Take the softmax over the last axis of X (..., queries, keys), of the attended keys alone.

    X: floating point. valid_lens: (batch,) or (batch, queries), see `anyscore.Lengths`. mask: see
    `anyscore.masks`. Returns weights of the shape and dtype of X; 0 in a row that attends nothing.

    Raises TypeError, ValueError: X is no such tensor, or the mask does not fit it.

    >>> import keras
    >>> import numpy as np
    >>> weights = masked_softmax(np.zeros((1, 2, 4)), [[1, 4]])
    >>> print(keras.ops.convert_to_numpy(weights))
    [[[1.   0.   0.   0.  ]
      [0.25 0.25 0.25 0.25]]]
    """
    return _masked_softmax(xp, keras.ops.convert_to_tensor(X), combine(mask, valid_lens))


@register
class DotProductAttention(Attention):
    """Scaled dot-product attention, as *Dive into Deep Learning* calls it.

    options: as of `Attention`.
    """

    def __init__(self, dropout: float = 0.0, **options: Any) -> None:
        super().__init__("scaled_dot", dropout=dropout, **options)
        self.record.arguments = {"dropout": dropout, **split(options)[0]}


@register
class AdditiveAttention(Attention):
    """Additive attention, as *Dive into Deep Learning* calls it.

    num_hiddens: width of the hidden layer. query_size, key_size: widths of queries and keys,
    inferred at the first call if left out. dropout, bias, options: as of `Attention`.
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
        sizes: dict[str, Any] = {"d_q": query_size, "d_k": key_size, "bias": bias}
        super().__init__("additive", hidden=num_hiddens, dropout=dropout, **sizes, **options)
        arguments = {"num_hiddens": num_hiddens, "dropout": dropout, "query_size": query_size}
        arguments |= {"key_size": key_size, "bias": bias, **split(options)[0]}
        self.record.arguments = arguments


@register
class MLPAttention(AdditiveAttention):
    """Additive attention under its earlier name, by its formula: vᵀ tanh(W_k k + W_q q).

    units: width of the hidden layer. dropout, options: as of `AdditiveAttention`.
    """

    def __init__(self, units: int, dropout: float = 0.0, **options: Any) -> None:
        super().__init__(units, dropout, **options)
        self.record.arguments = {"units": units, "dropout": dropout, **split(options)[0]}
