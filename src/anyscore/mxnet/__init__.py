"""Layers for MXNet's Gluon, for arrays of both its kinds.

from anyscore.mxnet import Attention

layer = Attention("additive", hidden=32, dropout=0.1)
layer.initialize()
output = layer(queries, keys, values, valid_lens)
layer.attention_weights                                  # (batch, queries, keys)
"""

from anyscore.mxnet.attention import (
    AdditiveAttention,
    Attention,
    DotProductAttention,
    MLPAttention,
    masked_softmax,
)
from anyscore.mxnet.multihead import MultiHeadAttention, SelfAttention

__all__ = [
    "AdditiveAttention",
    "Attention",
    "DotProductAttention",
    "MLPAttention",
    "MultiHeadAttention",
    "SelfAttention",
    "masked_softmax",
]
