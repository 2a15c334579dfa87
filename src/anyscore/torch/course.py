"""The masked softmax and the attention classes of *Dive into Deep Learning*."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor

from anyscore.backends.reference.definition import masked_softmax as _masked_softmax
from anyscore.call.lowering import combine
from anyscore.layers import course
from anyscore.layers.texts import with_texts
from anyscore.ops import load
from anyscore.ops.checks import find_framework
from anyscore.torch.attention import Attention

_xp = load("torch")


@with_texts
def masked_softmax(X: Tensor, valid_lens: Any = None, *, mask: Any = None) -> Tensor:
    """
    {masked_softmax}

    >>> import torch
    >>> masked_softmax(torch.zeros(1, 2, 4), torch.tensor([[1, 4]]))
    tensor([[[1.0000, 0.0000, 0.0000, 0.0000],
             [0.2500, 0.2500, 0.2500, 0.2500]]])
    """
    if find_framework(X=X) != "torch":
        raise TypeError(f"X is a {type(X).__name__}, expected a PyTorch tensor.")
    return cast(Tensor, _masked_softmax(_xp, X, combine(mask, valid_lens)))


@with_texts
class DotProductAttention(course.DotProductAttention, Attention):
    """
    {dot_product}

    >>> import torch
    >>> from anyscore.torch import DotProductAttention
    >>> layer, keys = DotProductAttention(dropout=0.5).eval(), torch.ones(2, 10, 2)
    >>> values = torch.arange(40.0).reshape(1, 10, 4).repeat(2, 1, 1)
    >>> layer(torch.ones(2, 1, 2), keys, values, valid_lens=torch.tensor([2, 6]))
    tensor([[[ 2.,  3.,  4.,  5.]],
    <BLANKLINE>
            [[10., 11., 12., 13.]]])
    """


@with_texts
class AdditiveAttention(course.AdditiveAttention, Attention):
    """
    {additive}

    >>> import torch
    >>> from anyscore.torch import AdditiveAttention
    >>> layer, keys = AdditiveAttention(8, dropout=0.1), torch.ones(2, 10, 2)
    >>> layer(torch.ones(2, 1, 20), keys, valid_lens=torch.tensor([2, 6])).shape
    torch.Size([2, 1, 2])
    >>> {name: tuple(x.shape) for name, x in layer.named_parameters()}
    {'W_q.weight': (8, 20), 'W_k.weight': (8, 2), 'w_v.weight': (1, 8)}
    """


@with_texts
class MLPAttention(course.MLPAttention, AdditiveAttention):
    """
    {mlp}

    >>> import torch
    >>> from anyscore.torch import MLPAttention
    >>> layer = MLPAttention(units=8, dropout=0.1)
    >>> layer(torch.ones(2, 1, 20), torch.ones(2, 10, 2), valid_lens=torch.tensor([2, 6])).shape
    torch.Size([2, 1, 2])
    """
