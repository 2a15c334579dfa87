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


class DotProductAttention(course.DotProductAttention, Attention): ...


class AdditiveAttention(course.AdditiveAttention, Attention): ...


class MLPAttention(course.MLPAttention, AdditiveAttention): ...
