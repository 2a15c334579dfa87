"""Names of *Dive into Deep Learning*: its masked softmax, and its classes of two scores."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor

from anyscore.backends.reference.definition import masked_softmax as _masked_softmax
from anyscore.call.lowering import combine
from anyscore.ops import load
from anyscore.ops.checks import find_framework
from anyscore.torch.attention import Attention

_xp = load("torch")


def masked_softmax(X: Tensor, valid_lens: Any = None, *, mask: Any = None) -> Tensor:
    """Take the softmax over the last axis of X (..., queries, keys), of the attended keys alone.

    X: floating point. valid_lens: (batch,) or (batch, queries), see `anyscore.Lengths`. mask: see
    `anyscore.masks`. Returns weights of the shape and dtype of X; 0 in a row that attends nothing.

    Raises TypeError, ValueError: X is no such tensor, or the mask does not fit it.

    >>> import torch
    >>> masked_softmax(torch.zeros(1, 2, 4), torch.tensor([[1, 4]]))
    tensor([[[1.0000, 0.0000, 0.0000, 0.0000],
             [0.2500, 0.2500, 0.2500, 0.2500]]])
    """
    if find_framework(X=X) != "torch":
        raise TypeError(f"X is a {type(X).__name__}, expected a PyTorch tensor.")
    return cast(Tensor, _masked_softmax(_xp, X, combine(mask, valid_lens)))


class DotProductAttention(Attention):
    """Scaled dot-product attention, as *Dive into Deep Learning* calls it.

    options: as of `Attention`.
    """

    def __init__(self, dropout: float = 0.0, **options: Any) -> None:
        super().__init__("scaled_dot", dropout=dropout, **options)


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
        sizes: dict[str, Any] = {"hidden": num_hiddens, "d_q": query_size, "d_k": key_size}
        super().__init__("additive", dropout=dropout, bias=bias, **sizes, **options)


class MLPAttention(AdditiveAttention):
    """Additive attention under its earlier name, by its formula: vᵀ tanh(W_k k + W_q q).

    units: width of the hidden layer. dropout, options: as of `AdditiveAttention`.
    """

    def __init__(self, units: int, dropout: float = 0.0, **options: Any) -> None:
        super().__init__(units, dropout, **options)
