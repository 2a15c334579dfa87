"""Layers for PyTorch.

from anyscore.torch import Attention

layer = Attention("additive", hidden=32, dropout=0.1)
output = layer(queries, keys, values, valid_lens)
layer.attention_weights                                  # (batch, queries, keys)

The files: `attention`, `multihead`, `course`, and `layer`, `weight`, `projecting` for all three;
`varlen`, packed sequences; `replace` and `native`, in the place of PyTorch's own layers;
`nested_weights`, those of nested tensors; `graphs/`, PyTorch Geometric's layers.

Attention of speech: its layers share `stepwise` and `scored`; `location`, `location_energies`;
`forward_attention`, `forward_recurrence`; `monotonic`, `monotonic_recurrence`, `chunks`;
`weighted_sum`, values of one step; `option_checks`. Pointer networks: `pointer` and `pointing`.
"""

from anyscore.ops.pytrees import tell
from anyscore.torch.attention import Attention
from anyscore.torch.chunks import chunkwise
from anyscore.torch.course import (
    AdditiveAttention,
    DotProductAttention,
    MLPAttention,
    masked_softmax,
)
from anyscore.torch.forward_attention import ForwardAttention
from anyscore.torch.forward_recurrence import forward_alignment
from anyscore.torch.graphs import GATConv, GATv2Conv, TransformerConv
from anyscore.torch.location import LocationSensitive
from anyscore.torch.monotonic import MoChA, MonotonicAttention
from anyscore.torch.monotonic_recurrence import monotonic_alignment
from anyscore.torch.multihead import MultiHeadAttention, SelfAttention
from anyscore.torch.pointer import Decoded, Pointer, PointerKeys, unvisited
from anyscore.torch.replace import replace
from anyscore.torch.varlen import varlen_attention

tell()

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
    "forward_alignment",
    "masked_softmax",
    "monotonic_alignment",
    "replace",
    "unvisited",
    "varlen_attention",
]
