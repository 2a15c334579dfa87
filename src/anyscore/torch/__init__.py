"""Layers for PyTorch.

from anyscore.torch import Attention

layer = Attention("additive", hidden=32, dropout=0.1)
output = layer(queries, keys, values, valid_lens)
layer.attention_weights                                  # (batch, queries, keys)

    attention, multihead, course     the layers, and their names in *Dive into Deep Learning*
    layer, weight, projecting        bases of layers, of parameters, of layers with projections
    nested_weights                   the last weights of nested tensors
    replace, torch_mha               replace PyTorch's multi-head layers; convert their masks
    varlen                           packed sequences, with the arguments of `varlen_attn`
    flex                             FlexAttention's arguments: masks and biases as functions
    graphs                           PyTorch Geometric's layers
    speech                           attention of speech
    pointers                         pointer networks

Imports `layers` and the layers below. Start with `attention`.
"""

from anyscore.ops.pytrees import register_pytrees
from anyscore.torch.attention import Attention
from anyscore.torch.course import (
    AdditiveAttention,
    DotProductAttention,
    MLPAttention,
    masked_softmax,
)
from anyscore.torch.flex.attention import flex_attention
from anyscore.torch.graphs import GATConv, GATv2Conv, TransformerConv
from anyscore.torch.multihead import MultiHeadAttention, SelfAttention
from anyscore.torch.pointers.pointer import Decoded, Pointer, PointerKeys, unvisited
from anyscore.torch.replace import replace
from anyscore.torch.speech.chunks import chunkwise
from anyscore.torch.speech.forward_attention import ForwardAttention
from anyscore.torch.speech.forward_recurrence import forward_alignment
from anyscore.torch.speech.location import LocationSensitive
from anyscore.torch.speech.monotonic import MoChA, MonotonicAttention
from anyscore.torch.speech.monotonic_recurrence import monotonic_alignment
from anyscore.torch.varlen import varlen_attention

register_pytrees()

__all__ = [
    "AdditiveAttention",
    "Attention",
    "Decoded",
    "DotProductAttention",
    "ForwardAttention",
    "GATConv",
    "GATv2Conv",
    "LocationSensitive",
    "MLPAttention",
    "MoChA",
    "MonotonicAttention",
    "MultiHeadAttention",
    "Pointer",
    "PointerKeys",
    "SelfAttention",
    "TransformerConv",
    "chunkwise",
    "flex_attention",
    "forward_alignment",
    "masked_softmax",
    "monotonic_alignment",
    "replace",
    "unvisited",
    "varlen_attention",
]
