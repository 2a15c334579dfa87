"""Layers for PyTorch.

from anyscore.torch import Attention

layer = Attention("additive", hidden=32, dropout=0.1)
output = layer(queries, keys, values, valid_lens)
layer.attention_weights                                  # (batch, queries, keys)
"""

from anyscore.torch.attention import Attention
from anyscore.torch.course import (
    AdditiveAttention,
    DotProductAttention,
    MLPAttention,
    masked_softmax,
)
from anyscore.torch.graphs import GATConv, GATv2Conv, TransformerConv
from anyscore.torch.multihead import MultiHeadAttention, SelfAttention
from anyscore.torch.pointer import Decoded, Pointer, PointerKeys, unvisited
from anyscore.torch.replace import replace
from anyscore.torch.varlen import varlen_attention

__all__ = [
    "AdditiveAttention",
    "Attention",
    "Decoded",
    "DotProductAttention",
    "GATConv",
    "GATv2Conv",
    "MLPAttention",
    "MultiHeadAttention",
    "Pointer",
    "PointerKeys",
    "SelfAttention",
    "TransformerConv",
    "masked_softmax",
    "replace",
    "unvisited",
    "varlen_attention",
]
